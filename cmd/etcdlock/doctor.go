package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/quote"
)

func (a *app) doctorCommand() *cobra.Command {
	d := new(doctor)
	c := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "check whether this etcd and its contents are fit for locks",
		Long: `Check whether this etcd and its contents are fit for locks.

It checks the latency, the cluster and the version of each endpoint, the shortest TTL that etcd
grants, its alarms, and whether the user may read and write below --prefix. A version is a finding
if it has not all fixes for the advisories of etcd in SECURITY.md. It looks for nested lock names,
which break etcd's own concurrency.Mutex, for keys without a lease where places in line are
expected, for semaphores whose processes disagree on the limit, and for names under which
etcd's recipe.RWMutex has keys, too: the two do not exclude each other. If an endpoint does not
answer, it says what is wrong with TLS. It grants and revokes one lease and writes no key.

Each line begins with ok, BAD (a finding) or ?? (could not be checked, with the reason).

Exit status: 0; 1 with findings; 64 usage; 125 if no endpoint can be used.`,
		Args: atMost(0),
		RunE: func(*cobra.Command, []string) error { return d.run(a) },
	}
	c.Flags().StringVar(&d.prefix, "prefix", "", "prefix of the locks' names")
	return c
}

// doctor is the doctor command with its flags.
type doctor struct {
	prefix   string
	etcd     *connection
	to       io.Writer
	findings int
}

// The verdicts of a line.
func (d *doctor) ok(subject, format string, args ...any)  { d.tell("ok ", subject, format, args) }
func (d *doctor) not(subject, format string, args ...any) { d.tell("?? ", subject, format, args) }

func (d *doctor) bad(subject, format string, args ...any) {
	d.findings++
	d.tell("BAD", subject, format, args)
}

func (d *doctor) tell(verdict, subject, format string, args []any) {
	line := quote.Line(fmt.Sprintf("%s: %s", subject, fmt.Sprintf(format, args...)))
	fmt.Fprintf(d.to, "%s  %s\n", verdict, line)
}

func (d *doctor) run(a *app) error {
	d.etcd, d.to = &a.etcd, a.stdout
	cfg, err := d.etcd.config()
	if err != nil {
		return err
	}
	answering := d.endpoints(cfg)
	if len(answering) == 0 {
		return ends(exitFailed, fmt.Errorf("no endpoint can be used: %s", d.etcd.endpoints))
	}
	cfg.Endpoints, cfg.MaxCallRecvMsgSize = answering, board.MostBytes
	client, err := clientv3.New(cfg)
	if err != nil {
		return ends(exitFailed, err)
	}
	defer client.Close()
	looks := []func(context.Context, *clientv3.Client){d.lease, d.alarms, d.rights, d.keys}
	for _, look := range looks {
		ctx, cancel := d.etcd.bounded()
		look(ctx, client)
		cancel()
	}
	if d.findings > 0 {
		return ends(exitBad, fmt.Errorf("findings: %d", d.findings))
	}
	return nil
}

// ---- endpoints

// A visit is the result of asking one endpoint.
type visit struct {
	endpoint string
	latency  time.Duration // the median of several
	header   *pb.ResponseHeader
	version  string
	untold   error  // why the version is not known
	why      string // it cannot be asked
}

// asks is how often an endpoint is asked after the connection is made.
const asks = 5

// endpoints checks each endpoint and returns those that answer.
func (d *doctor) endpoints(cfg clientv3.Config) (answering []string) {
	visits := make([]visit, len(cfg.Endpoints))
	var visiting sync.WaitGroup
	for i, endpoint := range cfg.Endpoints {
		visiting.Go(func() { visits[i] = d.visit(cfg, endpoint) })
	}
	visiting.Wait()
	clusters := make(map[uint64][]string)
	for _, v := range visits {
		switch {
		case v.why != "":
			d.bad(v.endpoint, "%s", v.why)
			continue
		case v.header == nil:
			d.ok(v.endpoint, "answers in %v, and lets this user read nothing%s", v.latency, below(d.prefix))
		default:
			id := v.header.ClusterId
			clusters[id] = append(clusters[id], v.endpoint)
			d.ok(v.endpoint, "answers in %v; member %x of cluster %x, revision %d",
				v.latency, v.header.MemberId, id, v.header.Revision)
		}
		d.version(v)
		answering = append(answering, v.endpoint)
	}
	if len(clusters) > 1 {
		var parts []string
		for _, id := range slices.Sorted(maps.Keys(clusters)) {
			parts = append(parts, fmt.Sprintf("%x has %s", id, strings.Join(clusters[id], ", ")))
		}
		d.bad("clusters", "the endpoints are of different ones, which exclude nobody from each other: %s",
			strings.Join(parts, "; "))
	}
	return answering
}

// version says which advisories of etcd an endpoint is open to.
func (d *doctor) version(v visit) {
	r, err := parseRelease(v.version)
	switch {
	case denied(v.untold):
		d.not(v.endpoint, "its version: %v (since 3.5.32, 3.6.12 and 3.7.0 any user may ask)", v.untold)
	case v.untold != nil:
		d.not(v.endpoint, "its version: %v", v.untold) // a proxy may not pass this on
	case err != nil:
		d.not(v.endpoint, "its version: %v", err)
	case r.unknown():
		d.ok(v.endpoint, "etcd %s, newer than the advisories known here, of %s", v.version, advised)
	default:
		if open := r.openTo(); len(open) > 0 {
			d.bad(v.endpoint, "etcd %s has no fix for %s: use %s or later (SECURITY.md; as known on %s)",
				v.version, strings.Join(open, ", "), r.least(), advised)
		} else {
			d.ok(v.endpoint, "etcd %s, with the fixes for the advisories known on %s", v.version, advised)
		}
	}
}

func (d *doctor) visit(cfg clientv3.Config, endpoint string) (v visit) {
	v.endpoint = endpoint
	if v.why = diagnose(cfg.TLS, endpoint, d.etcd.commandTimeout); v.why != "" {
		return v
	}
	cfg.Endpoints = []string{endpoint}
	ctx, cancel := d.etcd.bounded()
	defer cancel()
	client, err := clientv3.New(cfg)
	if err != nil {
		v.why = err.Error()
		return v
	}
	defer client.Close()
	var took []time.Duration
	for i := range asks + 1 {
		started := time.Now()
		resp, err := client.Get(ctx, d.sample(), clientv3.WithCountOnly())
		if err != nil && !denied(err) {
			v.why = err.Error()
			return v
		}
		if err == nil {
			v.header = resp.Header
		}
		if i > 0 { // the first one connects
			took = append(took, time.Since(started))
		}
	}
	slices.Sort(took)
	v.latency = took[len(took)/2].Round(10 * time.Microsecond)
	if resp, err := client.Status(ctx, endpoint); err != nil {
		v.untold = err
	} else {
		v.version = resp.Version
	}
	return v
}

// sample is a key that a lock below the prefix could have.
func (d *doctor) sample() string { return d.prefix + "etcdlock-doctor/" }

func denied(err error) bool {
	return errors.Is(err, rpctypes.ErrPermissionDenied) || status.Code(err) == codes.PermissionDenied
}

// ---- etcd

// longTTL is the default of the library and of run.
const longTTL = 15 * time.Second

func (d *doctor) lease(ctx context.Context, client *clientv3.Client) {
	resp, err := client.Grant(ctx, 1)
	if err != nil {
		d.bad("lease", "not granted: %v", err)
		return
	}
	ttl := time.Duration(resp.TTL) * time.Second
	if ttl > longTTL {
		d.bad("TTL", "%v is the least that etcd grants, more than the usual %v: "+
			"so long does who dies block others", ttl, longTTL)
	} else {
		d.ok("TTL", "%v is the least that etcd grants", ttl)
	}
	if _, err := client.Revoke(ctx, resp.ID); err != nil {
		d.bad("lease", "not revoked: %v", err)
	}
}

func (d *doctor) alarms(ctx context.Context, client *clientv3.Client) {
	resp, err := client.AlarmList(ctx)
	switch {
	case err != nil:
		d.not("alarms", "%v", err) // a proxy may not pass this on
	case len(resp.Alarms) == 0:
		d.ok("alarms", "none")
	default:
		for _, alarm := range resp.Alarms {
			d.bad("alarms", "%v at member %x", alarm.Alarm, alarm.MemberID)
		}
	}
}

// rights checks whether the user may do what a lock does. The transaction never writes: no key has
// the create revision -1. etcd first checks the rights for all of it.
func (d *doctor) rights(ctx context.Context, client *clientv3.Client) {
	_, err := client.Get(ctx, d.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		d.bad("rights", "reading%s: %v", below(d.prefix), err)
	}
	_, writes := client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(d.sample()), "=", -1)).
		Then(clientv3.OpPut(d.sample(), "")).
		Commit()
	if writes != nil {
		d.bad("rights", "writing%s: %v", below(d.prefix), writes)
	}
	if err == nil && writes == nil {
		d.ok("rights", "this user may read and write%s", below(d.prefix))
	}
}

// ---- keys

// most is how many findings of one kind are listed one by one.
const most = 10

func (d *doctor) keys(ctx context.Context, client *clientv3.Client) {
	kvs, err := readKeys(ctx, client, d.prefix)
	if err != nil {
		d.not("keys", "%v", err)
		return
	}
	lines := line.ByName(kvs)
	var nested, bare, limits, form []string
	without := 0 // a lease
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		if several := lines[name].Limits(); len(several) > 1 {
			limits = append(limits, fmt.Sprintf("the permits of %q count on limits of %s: the least counts",
				name, strings.Trim(fmt.Sprint(several), "[]")))
		}
		if outer, is := inside(name, lines); is {
			nested = append(nested, fmt.Sprintf("%q is inside of %q: concurrency.Mutex and etcdctl lock "+
				"wait at %q for both", name, outer, outer))
		}
	}
	for _, kv := range kvs {
		if kv.Lease != 0 {
			continue
		}
		without++
		e := line.EntryOf(kv)
		name, _, isPlace := line.ParseKey(e.Key)
		_, below := inside(e.Key, lines)
		if isPlace && e.Value().Owner != "" || below {
			bare = append(bare, fmt.Sprintf("%q below the lock %q has no lease: "+
				"it blocks concurrency.Mutex for ever", e.Key,
				cmp.Or(name, e.Key[:max(strings.LastIndexByte(e.Key, '/'), 0)])))
		} else if isPlace {
			form = append(form, e.Key)
		}
	}
	d.several("names", nested)
	d.several("keys", bare)
	d.several("limits", limits)
	d.several("recipes", recipes(kvs, lines))
	if len(nested)+len(bare) == 0 {
		d.ok("keys", "%d%s, with %s that %s held; none nest, %s", len(kvs), below(d.prefix),
			count(len(lines), "lock"), isOrAre(len(lines)), leaseless(without, form))
	}
}

// leaseless says what n keys without a lease are, if none is a finding. form has the ones that
// other programs have put, and that a lock could have.
func leaseless(n int, form []string) string {
	switch {
	case n == 0:
		return "none is without a lease"
	case len(form) == 0:
		return fmt.Sprintf("%d without a lease, none of a lock", n)
	}
	return fmt.Sprintf("%d without a lease, none of a lock, though %d could be, such as %q: where "+
		"that names a lock it blocks concurrency.Mutex for ever", n, len(form), form[0])
}

// below names the prefix, unless that is empty.
func below(prefix string) string {
	if prefix == "" {
		return ""
	}
	return fmt.Sprintf(" below %q", prefix)
}

// count is "1 lock", and "2 locks".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func isOrAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func (d *doctor) several(subject string, findings []string) {
	for i, finding := range findings {
		if i == most {
			d.bad(subject, "and %d more", len(findings)-most)
			return
		}
		d.bad(subject, "%s", finding)
	}
}

// recipes finds the locks whose names a recipe.RWMutex has, too.
func recipes(kvs []*mvccpb.KeyValue, lines map[string]line.Line) (findings []string) {
	told := make(map[string]bool)
	for _, kv := range kvs {
		parts := recipeKey.FindSubmatch(kv.Key)
		if kv.Lease == 0 || parts == nil {
			continue
		}
		name := string(parts[1])
		if _, held := lines[name]; held && !told[name] {
			told[name] = true
			findings = append(findings, fmt.Sprintf("%q is a recipe.RWMutex of etcd's, too (%q): "+
				"it does not exclude the others in line", name, kv.Key))
		}
	}
	return findings
}

// recipeKey is how a key of recipe.RWMutex looks: it ends in the nanoseconds of its time.
var recipeKey = regexp.MustCompile(`(?s)^(.+)/(?:read|write)/[0-9]{19}$`)

// inside returns the lock with a line below whose name a key or another name lies.
func inside(key string, lines map[string]line.Line) (name string, is bool) {
	for i := len(key) - 1; i > 0; i-- {
		if key[i] == '/' {
			if _, is := lines[key[:i]]; is {
				return key[:i], true
			}
		}
	}
	return "", false
}
