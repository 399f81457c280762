//go:build linux || darwin || freebsd

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// An etcd that is well has locks in it. The doctor leaves nothing behind.
func TestAHealthyEtcdHasNoFindings(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "orders/42")
	_, err := e.client.Put(t.Context(), "users/"+uuid.NewString(), "nobody's lock")
	require.NoError(t, err)
	before, err := e.client.Get(t.Context(), "orders", clientv3.WithPrefix())
	require.NoError(t, err)
	leases, err := e.client.Leases(t.Context())
	require.NoError(t, err)
	f := &front{alarms: []*pb.AlarmMember{}, version: "3.7.3"}
	addr := newFront(t, e, f, nil)
	status, stdout, stderr := runs(t, "", "doctor", "--command-timeout", "20s", "--endpoints", addr)
	require.Equal(t, exitGood, status)
	require.Empty(t, stderr)
	require.Regexp(t, regexp.MustCompile(`\A`+
		`ok   `+addr+`: answers in \S+; member 1 of cluster 1, revision \d+\n`+
		`ok   `+addr+`: etcd 3\.7\.3, with the fixes for the advisories known on `+advised+`\n`+
		`ok   TTL: 2s is the least that etcd grants\n`+
		`ok   alarms: none\n`+
		`ok   rights: this user may read and write\n`+
		`ok   keys: 2, with 1 lock that is held; none nest, 1 without a lease, none of a lock, though 1 could be, such as "users/[^"]+": where `+
		`that names a lock it blocks concurrency\.Mutex for ever\n\z`),
		stdout)
	require.Equal(t, [2]int64{1, 1}, [2]int64{f.grants.Load(), f.revokes.Load()})
	after, err := e.client.Get(t.Context(), "orders", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Equal(t, before.Header.Revision, after.Header.Revision, "it wrote something")
	left, err := e.client.Leases(t.Context())
	require.NoError(t, err)
	require.Len(t, left.Leases, len(leases.Leases))
}

func TestWhatTheDoctorFinds(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "orders")
	e.holds(t, "orders/42")
	stray := "orders/" + uuid.NewString()
	for key, value := range map[string]string{
		stray: "put over",
		"stock/" +
			uuid.NewString(): `{"owner":"api-7:1","host":"api-7","pid":1,"since":"2026-11-22T12:00:00Z"}`,
	} {
		_, err := e.client.Put(t.Context(), key, value)
		require.NoError(t, err)
	}
	for _, limit := range []int{5, 3} {
		s, err := etcdlock.NewSemaphore(e.client, "reports/daily", limit)
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		_, err = s.TryAcquire(t.Context(), 1)
		require.NoError(t, err)
	}
	lease, err := e.client.Grant(t.Context(), 60)
	require.NoError(t, err)
	e.holds(t, "prices")
	for _, key := range []string{ // as recipe.RWMutex puts them
		"prices/read/1795411200000000000", "prices/read/1795411200000000001",
		"elsewhere/write/1795411200000000000",
	} {
		_, err := e.client.Put(t.Context(), key, "", clientv3.WithLease(lease.ID))
		require.NoError(t, err)
	}
	healthy := func() *front { return &front{alarms: []*pb.AlarmMember{}, version: "3.7.3"} }
	for name, row := range map[string]struct {
		front  func(f *front)
		args   []string
		status int
		want   []string
	}{
		"names and keys": {func(*front) {}, nil, exitBad, []string{
			`BAD  names: "orders/42" is inside of "orders"`,
			`BAD  keys: "` + stray + `" below the lock "orders" has no lease`,
			`BAD  keys: "stock/`, "findings: 5",
			`BAD  recipes: "prices" is a recipe.RWMutex of etcd's, too ("prices/read/1795411200000000000"): ` +
				`it does not exclude the others in line`,
			`BAD  limits: the permits of "reports/daily" count on limits of 3 5: the least counts`,
		}},
		"one prefix":     {func(*front) {}, []string{"--prefix", "stock"}, exitBad, []string{"BAD  keys:", "findings: 1"}},
		"another prefix": {func(*front) {}, []string{"--prefix", "jobs/"}, exitGood, []string{`keys: 0 below "jobs/"`}},
		"alarm": {func(f *front) {
			f.alarms = []*pb.AlarmMember{{MemberID: 0x17, Alarm: pb.AlarmType_NOSPACE}}
		}, []string{"--prefix", "jobs/"}, exitBad, []string{"BAD  alarms: NOSPACE at member 17"}},
		"alarms for root": {func(f *front) { f.alarms = nil }, []string{"--prefix", "jobs/"}, exitGood,
			[]string{"??   alarms: etcdserver: permission denied"}},
		"no rights to write": {func(f *front) {
			f.readOnly = true
		}, []string{"--prefix", "jobs/"}, exitBad,
			[]string{`BAD  rights: writing below "jobs/": etcdserver: permission denied`, "findings: 1"}},
		"no rights": {func(f *front) { f.blind = true }, []string{"--prefix", "jobs/"}, exitBad,
			[]string{`lets this user read nothing below "jobs/"`, "BAD  rights: reading",
				"BAD  rights: writing", "??   keys:"}},
		"an old release": {func(f *front) {
			f.version = "3.6.10"
		}, []string{"--prefix", "jobs/"}, exitBad, []string{
			": etcd 3.6.10 has no fix for CVE-2026-44283, CVE-2026-59818, CVE-2026-73499, CVE-2026-73500: " +
				"use 3.6.14 or later (SECURITY.md; as known on " + advised + ")\n", "findings: 1",
		}},
		"an old minor": {func(f *front) { f.version = "3.4.45" }, []string{"--prefix", "jobs/"}, exitBad,
			[]string{
				": etcd 3.4.45 has no fix for CVE-2026-59818, CVE-2026-73499, CVE-2026-73500: use 3.7.1 or later"}},
		"a new minor": {func(f *front) { f.version = "3.8.0" }, []string{"--prefix", "jobs/"}, exitGood,
			[]string{": etcd 3.8.0, newer than the advisories known here, of " + advised + "\n"}},
		"no version": {func(f *front) { f.version = "weird" }, []string{"--prefix", "jobs/"}, exitGood,
			[]string{`: its version: "weird" is not a version of etcd`}},
		"a version for root": {func(f *front) { f.version = "" }, []string{"--prefix", "jobs/"}, exitGood,
			[]string{
				": its version: etcdserver: permission denied (since 3.5.32, 3.6.12 and 3.7.0 any user may ask)\n"}},
		"a long TTL": {func(f *front) { f.ttl = 20 }, []string{"--prefix", "jobs/"}, exitBad,
			[]string{"BAD  TTL: 20s is the least that etcd grants, more than the usual 15s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := healthy()
			row.front(f)
			addr := newFront(t, e, f, nil)
			status, stdout, stderr := runs(t, "",
				append([]string{"doctor", "--command-timeout", "20s", "--endpoints", addr}, row.args...)...)
			require.Equal(t, row.status, status)
			for _, want := range row.want {
				require.Contains(t, stdout+stderr, want)
			}
		})
	}
}

// The doctor asks endpoints one by one. Here one is away, and one belongs to another
// cluster.
func TestTheDoctorAsksEachEndpoint(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	one := newFront(t, e, &front{alarms: []*pb.AlarmMember{}}, nil)
	other := newFront(t, e, &front{cluster: 0xbad, alarms: []*pb.AlarmMember{}}, nil)
	away := nobody
	status, stdout, _ := runs(t, "", "doctor", "--command-timeout", "20s", "--endpoints",
		one+","+away+","+other)
	require.Equal(t, exitBad, status)
	require.Contains(t, stdout, "ok   "+one+": answers")
	require.Contains(t, stdout, "BAD  "+away+": cannot be reached: dial tcp "+away+
		": connect: connection refused")
	require.Contains(t, stdout,
		"BAD  clusters: the endpoints are of different ones, which exclude nobody from each other: "+
			"1 has "+one+"; bad has "+other)
	status, stdout, stderr := runs(t, "", "doctor", "--command-timeout", "20s", "--endpoints", away)
	require.Equal(t, exitFailed, status)
	require.Contains(t, stdout, "connection refused")
	require.Contains(t, stderr, "no endpoint can be used: "+away)
}

// Where etcd's maintenance service is missing, as behind some proxies, the rest is checked.
func TestTheDoctorNeedsNoMaintenance(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	status, stdout, _ := runs(t, "", "doctor", "--command-timeout", "20s", "--endpoints", e.addr)
	require.Equal(t, exitGood, status)
	for _, want := range []string{"ok   " + e.addr + ": answers", "??   " + e.addr +
		": its version: rpc error: code = Unimplemented", "??   alarms: ", "ok   keys: "} {
		require.Contains(t, stdout, want)
	}
	require.NotContains(t, stdout, "any user may ask")
}

// TLS is wrong on either side, and the doctor says so.
func TestTheDoctorTellsWrongTLS(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	pair, cert, key := certificate(t)
	_, strange, _ := certificate(t)
	clients := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	require.NoError(t, err)
	clients.AddCert(leaf)
	healthy := func() *front { return &front{alarms: []*pb.AlarmMember{}, version: "3.7.3"} }
	plainly := newFront(t, e, healthy(), nil)
	secured := newFront(t, e, healthy(), &tls.Config{Certificates: []tls.Certificate{pair}})
	mutual := newFront(t, e, healthy(), &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: clients,
	})
	const why = "BAD"
	for name, row := range map[string]struct {
		args   []string
		status int
		want   string
	}{
		"right":              {[]string{secured, "--cacert", cert}, exitGood, "ok   keys"},
		"right, mutual":      {[]string{mutual, "--cacert", cert, "--cert", cert, "--key", key}, exitGood, "ok   keys"},
		"not verified":       {[]string{secured, "--insecure-skip-tls-verify"}, exitGood, "ok   keys"},
		"without":            {[]string{secured}, exitFailed, "it wants TLS, and was asked without"},
		"not spoken there":   {[]string{plainly, "--cacert", cert}, exitFailed, "it does not speak TLS"},
		"by https":           {[]string{"https://" + plainly}, exitFailed, "it does not speak TLS"},
		"the system's":       {[]string{"https://" + secured}, exitFailed, "its certificate is not believed: "},
		"another authority":  {[]string{secured, "--cacert", strange}, exitFailed, "its certificate is not believed: "},
		"without a client's": {[]string{mutual, "--cacert", cert}, exitFailed, "it refuses the client's certificate, or wants one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, stdout, _ := runs(t, "",
				append([]string{"doctor", "--command-timeout", "20s", "--endpoints"}, row.args...)...)
			require.Equal(t, row.status, status)
			require.Contains(t, stdout, row.want)
			require.Equal(t, row.status != exitGood, strings.Contains(stdout, why))
		})
	}
}

// The doctor reads all keys, in pages of one revision.
func TestKeysAreReadInPages(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	for i := range 10 {
		_, err := e.client.Put(t.Context(), fmt.Sprint("k/", i), "")
		require.NoError(t, err)
	}
	f := &front{alarms: []*pb.AlarmMember{}}
	addr := newFront(t, e, f, nil)
	starts(t, []string{"who", "--endpoints", addr}, env(pageEnv+"=3")).exits(exitGood)
	require.EqualValues(t, 4, f.ranges.Load())
	run := starts(t, []string{"doctor", "--endpoints", addr}, env(pageEnv+"=3")).exits(exitGood)
	require.Contains(t, run.stdout.String(), `ok   keys: 10, with`)
	require.Contains(t, run.stdout.String(), `none nest, 10 without a lease, none of a lock`+"\n")

	key := "users/" + uuid.NewString()
	_, err := e.client.Put(t.Context(), key, "another program's")
	require.NoError(t, err)
	run = starts(t, []string{"doctor", "--endpoints", addr}).exits(exitGood)
	require.Contains(t, run.stdout.String(),
		`none nest, 11 without a lease, none of a lock, though 1 could be, such as "`+key+`": where`)
}

// etcd, or what stands before it, may grant less than a run asks for.
func TestALeaseThatIsTooShortIsRefused(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	addr := newFront(t, e, &front{ttl: 14}, nil)
	starts(t, []string{"run", "--endpoints", addr, "--kill-after", "4s", "-n", "job", "--",
		"echo", "ran"}).
		exits(exitUsage).says("etcd grants a TTL of 14s, less than 15s")
	resp, err := e.client.Get(context.Background(), "job/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, resp.Kvs)
	starts(t, []string{"run", "--endpoints", addr, "-n", "job", "--", "true"}).exits(exitGood)
}
