package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// A tracer writes down what happens in a world: what each client sends and hears, as it crosses the
// client's connection, what etcd carries out, and what Lock and Unlock say. spec/trace.qnt says
// which steps of the specification these events are, and what must be true then.
//
// Each process has one Session of one goroutine, and there is one lock.
type tracer struct {
	mu     sync.Mutex // never held across a wait
	began  time.Time
	ttl    time.Duration
	events []*event

	clients    map[string]int       // by process
	heard      map[string]uint64    // likewise, the newest cluster that it has heard from
	current    map[string]*standing // likewise, its place
	byKey      map[string]*standing // the latest one
	byPut      map[put]*standing
	renewal    map[int64]*message // by lease: the last one
	streams    map[string]*renewalStream
	wasSetBack bool
	live       map[string]int64 // etcd's line: keys and their create revisions
}

// A put is a key that etcd has put once.
type put struct {
	key string
	rev int64
}

// A standing is a place of the specification.
type standing struct {
	number int // once its first put is written
	key    string
	lease  int64
	copies int
	// didNothing says that the one put so far has found a key: the next one is written in its place.
	didNothing bool
	held       bool
	unlocking  bool // Unlock is under way
	releases   int  // and has sent its release so often
	missed     bool // an answer has said that the key is not there
	removals   int  // requests under way that may delete its key
}

// An event is one that is written, unless it belongs to a message that needs not be, or to a place
// whose put was never sent.
type event struct {
	what  string
	at    time.Duration
	of    []*standing // their numbers come first
	args  []int
	lease int64 // its number comes last; 0 if there is none
	plain bool  // its client has done nothing before
	by    *message
}

// A message is a request. One for a lease that is not answered may be left out: etcd may carry out
// nothing, and keep a lease for longer. One that found no connection, or was refused, was not sent.
type message struct {
	unsent bool

	// For a lease.
	lease    int64
	sent     time.Time
	answered bool
	served   bool // etcd has renewed the lease
}

func newTracer(ttl time.Duration) *tracer {
	return &tracer{
		began: time.Now(), ttl: ttl,
		clients: make(map[string]int), heard: make(map[string]uint64),
		current: make(map[string]*standing), byKey: make(map[string]*standing),
		byPut: make(map[put]*standing), renewal: make(map[int64]*message),
		streams: make(map[string]*renewalStream), live: make(map[string]int64),
	}
}

// listens has the tracer see all that a cluster carries out, before other listeners do.
func (t *tracer) listens(c *Cluster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	audit, renewed, wentBack := c.audit, c.renewed, c.wentBack
	c.audit = func(change Change) {
		t.changed(change)
		audit(change)
	}
	c.renewed = func(ctx context.Context, lease int64) {
		t.renewed(ctx, lease)
		renewed(ctx, lease)
	}
	c.saved = func() { t.note(&event{what: "backsUp"}) }
	c.wentBack = func(another bool) {
		t.wentBack(readAll(c.store.Now(), ""))
		wentBack(another)
	}
}

func (t *tracer) note(e *event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteLocked(e)
}

// noteLocked adds an event. Before the first one all leases of the specification's init have ended:
// it grants each client one at once, and the library when it needs one.
func (t *tracer) noteLocked(e *event) {
	e.at = time.Since(t.began) + t.ttl
	t.events = append(t.events, e)
}

func (t *tracer) doesLocked(what string, s *standing, args ...int) {
	t.noteLocked(&event{what: what, of: []*standing{s}, args: args})
}

// ---- what etcd carries out

func (t *tracer) changed(change Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case change.Ended != 0 && change.By == byExpiry:
		t.noteLocked(&event{what: "expires", lease: change.Ended})
	case change.Ended != 0:
		t.noteLocked(&event{what: "givesBack", lease: change.Ended})
	}
	for _, e := range change.Events {
		key := string(e.Kv.Key)
		if e.Type == clientv3.EventTypePut {
			s := t.byKey[key]
			t.byPut[put{key, e.Kv.CreateRevision}], t.live[key] = s, e.Kv.CreateRevision
			t.doesLocked("puts", s)
			continue
		}
		s := t.byPut[put{key, t.live[key]}]
		delete(t.live, key)
		if change.Ended == 0 {
			t.noteLocked(&event{what: "deletes", of: []*standing{s}, plain: s.removals > 0})
			s.removals--
		}
	}
	if len(change.Events) > 0 {
		t.lineLocked()
	}
}

// lineLocked notes etcd's line: the places by revision.
func (t *tracer) lineLocked() {
	var line []put
	for key, rev := range t.live {
		line = append(line, put{key, rev})
	}
	slices.SortFunc(line, func(a, b put) int { return int(a.rev - b.rev) })
	places := make([]*standing, len(line))
	for i, p := range line {
		places[i] = t.byPut[p]
	}
	t.noteLocked(&event{what: "line", of: places})
}

func (t *tracer) wentBack(all []*mvccpb.KeyValue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.live)
	t.wasSetBack = true
	for _, kv := range all {
		t.live[string(kv.Key)] = kv.CreateRevision
	}
	t.noteLocked(&event{what: "setsBack"})
	t.lineLocked()
}

// ---- what a client sends and hears

// options has the tracer see all that crosses the connections of a process.
func (t *tracer) options(process string) []grpc.DialOption {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clients[process] = len(t.clients) + 1
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, in, reply any, c *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			m := &message{}
			hear := t.sends(process, in, m)
			var to peer.Peer
			err := invoke(ctx, method, in, reply, c, append(opts, grpc.Peer(&to))...)
			m.unsent = err != nil && (to.Addr == nil || refuses(err))
			hear(reply, err)
			return err
		}),
		grpc.WithChainStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, c *grpc.ClientConn, method string,
			open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			if !strings.HasSuffix(method, "/LeaseKeepAlive") {
				return open(ctx, desc, c, method, opts...)
			}
			r := t.opens(process)
			ctx = metadata.AppendToOutgoingContext(ctx, streamKey, r.name)
			s, err := open(ctx, desc, c, method, opts...)
			r.ClientStream = s
			return r, err
		}),
	}
}

// refuses reports whether etcd has certainly not carried a request out, nor ever will, for another
// reason than that a lease has ended.
func refuses(err error) bool { return attempt.NotApplied(err) && !hasNoLease(err) }

func hasNoLease(err error) bool { return attempt.Is(err, rpctypes.ErrLeaseNotFound) }

// hearsLocked notes the cluster that has answered a process. Another one tells it of a set-back.
func (t *tracer) hearsLocked(process string, answer any) {
	h := answer.(interface{ GetHeader() *pb.ResponseHeader }).GetHeader()
	if id := h.GetClusterId(); id > t.heard[process] {
		if t.heard[process] > 0 {
			t.noteLocked(&event{what: "learns", args: []int{t.clients[process]}})
		}
		t.heard[process] = id
	}
}

// sends notes a request, and returns what notes the answer.
func (t *tracer) sends(process string, in any, m *message) (hear func(reply any, err error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hears := func(any, error) {}
	switch in := in.(type) {
	case *pb.LeaseGrantRequest:
		t.noteLocked(&event{what: "grants", args: []int{t.clients[process]}, by: m})
		hears = func(reply any, err error) {
			if err == nil {
				m.lease, m.answered = reply.(*pb.LeaseGrantResponse).ID, true
				t.noteLocked(&event{what: "hearsGrant", lease: m.lease, by: m})
			}
		}
	case *pb.TxnRequest:
		if put := putOf(in); put != nil {
			hears = t.asksLocked(process, put, m)
		} else if key, rev := deleteOf(in); key != "" {
			hears = t.removesLocked(key, rev, m)
		}
	}
	return func(reply any, err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if err == nil {
			t.hearsLocked(process, reply)
		}
		hears(reply, err)
	}
}

// putOf is the put of a transaction that puts a key, nil if it puts none.
func putOf(in *pb.TxnRequest) *pb.PutRequest {
	for _, op := range in.Success {
		if put := op.GetRequestPut(); put != nil {
			return put
		}
	}
	return nil
}

// deleteOf is the key that a transaction deletes, and the revision that it must have; 0 for any.
func deleteOf(in *pb.TxnRequest) (key string, rev int64) {
	for _, op := range slices.Concat(in.Success, in.Failure) {
		if d := op.GetRequestDeleteRange(); d != nil {
			key = string(d.Key)
		}
	}
	for _, c := range in.Compare {
		if c.Target == pb.Compare_CREATE && string(c.Key) == key {
			rev = c.GetCreateRevision()
		}
	}
	return key, rev
}

// asksLocked notes that a process sends a put: the first of a place, or another of the same.
func (t *tracer) asksLocked(
	process string, put *pb.PutRequest, m *message,
) (hears func(any, error)) {
	key := string(put.Key)
	s := t.current[process]
	if s == nil || s.key != key {
		t.leavesLocked(process)
		s = &standing{key: key, lease: put.Lease, copies: -1}
		t.byKey[key], t.current[process] = s, s
	}
	s.copies++
	number, inPlace := s.copies, s.didNothing
	if s.didNothing = false; !inPlace {
		t.noteLocked(&event{
			what: "asks", of: []*standing{s}, args: []int{t.clients[process]}, lease: s.lease, by: m,
		})
	}
	return func(reply any, err error) {
		if m.unsent {
			s.copies--
			s.didNothing = inPlace
		}
		switch {
		case hasNoLease(err):
			t.doesLocked("hearsNoLease", s)
		case err != nil: // it does not tell
		case len(reply.(*pb.TxnResponse).Responses) == 0: // its key was there, perhaps by a copy
			if s.didNothing = s.copies == 0; s.didNothing {
				s.copies--
			}
		default:
			past := 0 // 1 if the process knows that another cluster has come since
			if reply.(*pb.TxnResponse).Header.ClusterId < t.heard[process] {
				past = 1
			}
			t.doesLocked("hearsPut", s, number, past)
		}
	}
}

// removesLocked notes that a process sends a release or a removal.
func (t *tracer) removesLocked(key string, rev int64, m *message) (hears func(any, error)) {
	s := t.byPut[put{key, rev}]
	if s == nil {
		s = t.byKey[key]
	}
	if s.unlocking {
		s.releases++
	}
	if !s.unlocking || s.releases > 1 { // unlocks has sent the first one
		s.removals++
		t.noteLocked(&event{what: "removes", of: []*standing{s}, by: m})
	}
	return func(reply any, err error) {
		if m.unsent && s.unlocking {
			s.releases--
		}
		if err != nil {
			return
		}
		answers := reply.(*pb.TxnResponse).Responses
		n := deleted(answers)
		if n == 0 {
			s.removals--
		}
		switch {
		case s.unlocking && s.releases > 1 && len(answers) == 0: // it does not tell what a copy did
		case s.unlocking && n == 0 && s.releases > 1:
			s.missed = true // the answer to another copy may say more
		default:
			s.missed = false
			if n > 0 {
				t.deletedByLocked(s)
			}
			t.doesLocked("hearsDelete", s, n)
		}
	}
}

// deletedByLocked notes that the removal of a place has deleted its key. That may be the key of an
// earlier place of that name, which a set-back has put back: then it was not the removal of that.
func (t *tracer) deletedByLocked(s *standing) {
	for _, e := range slices.Backward(t.events) {
		if e.what == "deletes" && e.of[0].key == s.key {
			if of := e.of[0]; of != s {
				of.removals++
				s.removals--
				e.of, e.plain = []*standing{s}, true
			}
			return
		}
	}
}

// deleted is how many keys a transaction has deleted, by its answers.
func deleted(answers []*pb.ResponseOp) (n int) {
	for _, r := range answers {
		n += int(r.GetResponseDeleteRange().GetDeleted())
	}
	return n
}

// A renewalStream is what carries renewals.
type renewalStream struct {
	grpc.ClientStream
	t       *tracer
	process string
	name    string

	// Guarded by t.mu.
	sent   []*message // that are not answered
	served int        // how many of these etcd has carried out
}

// streamKey is the metadata with the name of a stream.
const streamKey = "stream"

func (t *tracer) opens(process string) *renewalStream {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &renewalStream{t: t, process: process, name: fmt.Sprint(len(t.streams))}
	t.streams[r.name] = r
	return r
}

// renewed notes that etcd has granted a lease, or has renewed it as a stream with that context
// asks. It carries out what comes by one stream in turn.
func (t *tracer) renewed(ctx context.Context, lease int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	md, _ := metadata.FromIncomingContext(ctx)
	if len(md.Get(streamKey)) == 0 {
		t.noteLocked(&event{what: "granted", lease: lease})
		return
	}
	r := t.streams[md.Get(streamKey)[0]]
	of := r.sent[r.served]
	r.served++
	if !of.served {
		of.served = true
		t.noteLocked(&event{what: "renewed", lease: lease, by: of})
	}
}

func (r *renewalStream) SendMsg(m any) error {
	r.t.mu.Lock()
	r.sent = append(r.sent, r.t.renewsLocked(m.(*pb.LeaseKeepAliveRequest).ID))
	r.t.mu.Unlock()
	return r.ClientStream.SendMsg(m)
}

// renewsLocked notes that a renewal is sent. Two that are sent at once, to two members, are one.
func (t *tracer) renewsLocked(lease int64) *message {
	if m := t.renewal[lease]; m != nil && m.sent.Equal(time.Now()) {
		return m
	}
	m := &message{lease: lease, sent: time.Now()}
	t.renewal[lease] = m
	t.noteLocked(&event{what: "renews", lease: lease, by: m})
	return m
}

func (r *renewalStream) RecvMsg(m any) error {
	if err := r.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	reply := m.(*pb.LeaseKeepAliveResponse)
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.t.hearsLocked(r.process, reply)
	of := r.sent[0]
	r.sent = r.sent[1:]
	r.served = max(0, r.served-1)
	if of.answered {
		return nil
	}
	of.answered = true
	of.served = of.served || reply.TTL <= 0
	what := "hearsRenewal"
	if reply.TTL <= 0 {
		what = "hearsNoRenewal"
	}
	r.t.noteLocked(&event{
		what: what, of: []*standing{r.t.current[r.process]}, lease: reply.ID, by: of,
		plain: !r.t.wasSetBack,
	})
	return nil
}

// ---- what Lock and Unlock say

// leavesLocked notes that a process has no use for its place any more, if it did not hold there.
func (t *tracer) leavesLocked(process string) {
	if s := t.current[process]; s != nil && !s.held {
		t.doesLocked("leaves", s)
	}
	delete(t.current, process)
}

// failed notes that Lock has returned an error.
func (t *tracer) failed(process string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leavesLocked(process)
}

// enters notes that a hold has begun, whose lease is trusted until a deadline.
func (t *tracer) enters(process string, h *hold) {
	if t == nil || h.ctx.Err() != nil {
		return
	}
	deadline := h.status().Deadline
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.current[process]
	s.held = true
	t.trustsLocked(s, deadline)
	t.doesLocked("enters", s)
}

// trustsLocked notes until when the lease of a place is trusted.
func (t *tracer) trustsLocked(s *standing, deadline time.Time) {
	t.doesLocked("trusts", s)
	t.events[len(t.events)-1].at = deadline.Sub(t.began) + t.ttl
}

// lost notes that the context of a hold has ended by itself.
func (t *tracer) lost(process string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.current[process]; s != nil && s.held {
		t.doesLocked("loses", s)
	}
}

// unlocks notes a call of Unlock. whole says whether the caller believes to hold.
func (t *tracer) unlocks(process string, h *hold, whole bool) {
	if t == nil {
		return
	}
	deadline := h.status().Deadline
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.current[process]
	switch {
	case !s.held:
	case whole:
		s.unlocking, s.removals = true, 1
		t.trustsLocked(s, deadline)
		t.doesLocked("unlocks", s)
	default:
		t.doesLocked("unlocksLost", s)
	}
}

// unlocked notes what Unlock has said.
func (t *tracer) unlocked(process string, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.current[process]; s.held {
		if s.missed {
			t.doesLocked("hearsDelete", s, 0)
		}
		said := slices.Index([]outcome{done, lost, unconfirmed}, outcomeOf(err))
		t.noteLocked(&event{
			what: "unlocked", of: []*standing{s}, args: []int{said}, plain: said < 2,
		})
		s.unlocking = false
	}
	t.leavesLocked(process)
}

// ---- the trace

// happenings are the names of the steps. Their numbers are their places in this list, and 50 more
// for what a client has done before, unseen.
var happenings = []string{
	"", "clock", "asks", "again", "puts", "hearsPut", "hearsNoLease", "leaves", "trusts", "enters",
	"loses", "unlocks", "unlocksLost", "unlocked", "removes", "deletes", "hearsDelete", "line",
	"grants", "granted", "hearsGrant", "renews", "renewed", "hearsRenewal", "hearsNoRenewal",
	"expires", "givesBack", "backsUp", "setsBack", "learns",
}

// timed are the events whose time matters.
var timed = []string{
	"asks", "enters", "loses", "unlocks", "unlocksLost", "hearsDelete", "grants", "granted", "renews",
	"renewed", "hearsRenewal", "expires", "setsBack", "learns",
}

// unseen are the events before which a client may have done something unseen.
var unseen = []string{
	"grants", "enters", "hearsRenewal", "unlocksLost", "unlocked", "givesBack", "deletes",
}

// steps returns the steps as spec/trace.qnt reads them, each with what it says.
func (t *tracer) steps() (steps, texts []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := &script{
		used: make(map[int64]bool), leases: make(map[int64]int), names: make(map[string]int),
		sent: make(map[int64][]*message), served: make(map[int64][]*message),
	}
	for _, e := range t.events {
		if e.what == "asks" && !e.by.unsent {
			w.used[e.lease] = true
		}
	}
	for _, e := range t.events {
		w.write(e)
	}
	return w.steps, w.texts
}

// A script is the steps of a run as they are written.
type script struct {
	steps, texts []string
	used         map[int64]bool // leases on which keys were put
	leases       map[int64]int  // their numbers
	places       int            // how many are written
	names        map[string]int // by key: the number of its first place
	clock        int
	sent, served map[int64][]*message // by lease: renewals that are not served, and not heard
}

// write writes an event, with the clock and what is unseen before it.
func (s *script) write(e *event) {
	what, args := e.what, slices.Clone(e.args)
	if m := e.by; m != nil {
		ofLease := what == "renews" || what == "renewed" || strings.HasSuffix(what, "Renewal")
		if m.unsent || what == "grants" && !m.answered || ofLease && !(m.answered && m.served) {
			return
		}
		if e.lease == 0 {
			e.lease = m.lease
		}
		if ofLease && e.lease == 0 { // it finds out whether the stream answers
			return
		}
	}
	switch {
	case what == "renews":
		s.sent[e.lease] = append(s.sent[e.lease], e.by)
	case what == "renewed":
		args = append(args, outOf(s.sent, e.by))
		s.served[e.lease] = append(s.served[e.lease], e.by)
	case what == "hearsRenewal":
		args = append(args, outOf(s.served, e.by))
	case what == "hearsNoRenewal":
		args = append(args, outOf(s.sent, e.by))
	}
	if what == "asks" {
		what, args = s.asks(e)
	} else {
		var of []int
		for _, p := range e.of {
			if number := s.numberOf(p); number > 0 || what == "hearsRenewal" || what == "hearsNoRenewal" {
				of = append(of, number)
			} else if what != "line" {
				return
			}
		}
		args = append(of, args...)
	}
	if e.lease != 0 && what != "again" {
		if !s.used[e.lease] {
			return
		}
		if what == "grants" {
			s.leases[e.lease] = mostClients + len(s.leases) + 1
		}
		args = append(args, s.leases[e.lease])
	}
	number, at := slices.Index(happenings, what), max(0, int(e.at))
	text := fmt.Sprintf("%.9f %s %v", e.at.Seconds(), what, args)
	if slices.Contains(timed, what) && at > s.clock {
		s.clock = at
		s.step(text, args, 1, at)
	}
	if slices.Contains(unseen, what) && !e.plain {
		s.step(text, args, 50+number, at)
	}
	if what == "line" { // of up to eight places, the last four in the time
		args = append(args, 0, 0, 0, 0, 0, 0, 0, 0)
		at = args[4] + 1000*args[5] + 1000*1000*args[6] + 1000*1000*1000*args[7]
	}
	s.step(text, args, number, at)
}

// outOf takes a renewal out of the list of its lease, and returns how many were sent before it.
func outOf(all map[int64][]*message, m *message) (older int) {
	for _, o := range all[m.lease] {
		if o.sent.Before(m.sent) {
			older++
		}
	}
	all[m.lease] = slices.DeleteFunc(all[m.lease], func(o *message) bool { return o == m })
	return older
}

// asks is what an event of a put is: its place is asked for, or its put is sent again.
func (s *script) asks(e *event) (what string, args []int) {
	p := e.of[0]
	if p.number > 0 {
		return "again", []int{p.number}
	}
	s.places++
	p.number = s.places
	if s.names[p.key] == 0 {
		s.names[p.key] = p.number
	}
	kind := slices.Index([]string{"exclusive", "read", "permit"}, kindOf(p.key).mode())
	return "asks", append(slices.Clone(e.args), kind, s.names[p.key])
}

// numberOf is the number of a place, 0 if none is written.
func (s *script) numberOf(p *standing) int {
	if p == nil {
		return 0
	}
	return p.number
}

func (s *script) step(text string, args []int, what, at int) {
	args = append(slices.Clone(args), 0, 0, 0, 0)
	s.steps = append(s.steps, fmt.Sprintf("%03d%03d%03d%03d%02d%014d",
		args[3], args[2], args[1], args[0], what, at))
	s.texts = append(s.texts, text)
}

// mostClients is how many processes of a world can be written down.
const mostClients = 9
