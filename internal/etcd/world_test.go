package etcd

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/sent"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A fault is a kind of fault. A world has some of each.
type fault int

const (
	form      fault = iota // etcd refuses a transaction: it has too many operations
	refusal                // etcd refuses a transaction for good
	noSpace                // etcd refuses a transaction for now
	silence                // no answer comes
	panics                 // the user's code panics in a request
	exits                  // the user's code ends the goroutine of a request
	differs                // not all holds that those compare who meet
	leaving                // the context of a caller ends
	numFaults              // in place of one: an answer
	unheard                // in place of one: the context has ended
)

func (f fault) String() string {
	return [...]string{"refused for its form", "refused", "refused for now", "lost",
		"fallen by a panic", "fallen by an exit", "not as it was", "left", "answered", "unheard"}[f]
}

// errorOf is the error with which a request fails.
var errorOf = map[fault]error{
	form:    rpctypes.ErrTooManyOps,
	refusal: status.Error(codes.InvalidArgument, "no"),
	noSpace: rpctypes.ErrNoSpace,
	silence: fake.Unavailable,
}

// refuses reports whether each part is to be sent alone after f.
func (f fault) refuses() bool { return f <= noSpace || f == differs }

// A setting is what there is in a world.
type setting struct {
	callers string // the name that each asks for, upper case if it puts; '-' if it meets others
	begins  string // the steps to the state with which the exploration begins
	first   pace
	parts   int           // how many one transaction has at most
	trip    time.Duration // how long an answer takes at least
	faults  int           // of all kinds
	each    [numFaults]int
}

func (set *setting) meets() bool { return strings.Contains(set.callers, "-") }

// A world is a combiner with its callers, and an etcd that answers as the exploration chooses.
//
// It is the combiner's mutex. A goroutine that locks it stands before it until the exploration
// chooses that goroutine, which then goes on until it stands there again. So the exploration goes
// through all orders of what is done under the mutex.
type world struct {
	*setting
	b      *combiner
	etcd   *stub
	faults [numFaults]int // left of each kind
	left   int            // faults of all kinds
	took   func(transition string)
	broken string // the promise that was broken

	mu      sync.Mutex // while goroutines run; not while the exploration chooses
	callers []*caller
	actors  []*actor     // that stand before the mutex
	acting  *actor       // whose step it is
	turns   atomic.Int64 // orders what goroutines write, for the race detector
	inside  bool         // it has locked the mutex
	net     []*message
	carried int // goroutines that carry, so far
	sent    int
	fallen  int           // requests
	timer   chan struct{} // the timer has run out, of no capacity
	rung    bool          // it has

	due time.Time // when the timer runs out, zero if it does not: by what has happened
}

// An actor is a goroutine that locks the combiner's mutex.
type actor struct {
	name    string
	carries bool
	at      string // the function in which it stands before the mutex
	was     string // that in which it has locked it last
	again   int    // how often it has locked it there
	on      chan struct{}
	last    *message // that it has sent, and carries
}

// A caller asks again and again.
type caller struct {
	actor
	spec   byte   // what it asks
	class  string // callers of a class are alike
	asks   bool   // and has no answer yet
	since  time.Time
	over   context.CancelFunc
	leaves bool // its context has ended
	lone   bool // its request counts as one under way
	of     *combined
	sent   []*message // that have carried its request
	got    []result
}

type result struct {
	Reading
	err error
}

// A message is a request to etcd.
type message struct {
	number int
	parts  []int // the callers
	by     *actor
	counts bool // as one under way
	since  time.Time
	answer chan fault
	how    fault // it was answered; -1 if it is under way
	noted  int   // how often the pace has counted it as answered
	taken  int   // how many of its parts etcd has taken alone
}

func (s *message) String() string {
	var names []string
	for _, p := range s.parts {
		names = append(names, strconv.Itoa(p))
	}
	return strings.Join(names, "+")
}

func newWorld(set *setting, etcd *stub, took func(string)) *world {
	w := &world{setting: set, etcd: etcd, faults: set.each, left: set.faults, took: took,
		timer: make(chan struct{})}
	etcd.world, etcd.falls, etcd.told.uncombined = w, 0, 0
	send := (*combined).transact
	if set.meets() {
		send = meet
	}
	w.b = newCombiner(set.first, send)
	w.b.mu, w.b.most, w.b.many, w.b.yields = w, set.parts, set.parts-1, 2
	names := strings.ToLower(set.callers)
	for i := range len(names) {
		c := &caller{spec: set.callers[i]}
		c.name, c.on = fmt.Sprint("caller ", i), make(chan struct{})
		if strings.Count(names, names[i:i+1]) > 1 {
			c.class = set.callers[i : i+1]
		}
		w.callers = append(w.callers, c)
	}
	w.follow(set.begins, func(step) {})
	return w
}

func (w *world) breaks(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
	}
}

// wait has the other goroutines go on until each stands somewhere. What they and this one have
// written is each other's then: the runtime does not say so of a timer that runs out.
func (w *world) wait() {
	w.turns.Add(1)
	synctest.Wait()
	w.turns.Add(1)
}

// ---- the combiner's mutex

var functions = make(map[uintptr]string) // by program counters in them

// standsIn returns the function that calls Lock.
func (w *world) standsIn() string {
	var pcs [1]uintptr
	runtime.Callers(3, pcs[:])
	if name := functions[pcs[0]]; name != "" {
		return name
	}
	frame, _ := runtime.CallersFrames(pcs[:]).Next()
	name := frame.Function[strings.LastIndex(frame.Function, ".")+1:]
	name, _, _ = strings.Cut(name, "_") // a mutant of it has a number
	functions[pcs[0]] = name
	return name
}

// Lock implements [sync.Locker].
func (w *world) Lock() {
	w.mu.Lock()
	w.turns.Add(1)
	at, a := w.standsIn(), w.acting
	switch {
	case at == "sendLate":
		a = &actor{name: "timer", on: make(chan struct{})}
		w.rung = true
		select {
		case w.timer <- struct{}{}:
		default:
		}
	case a == nil || a.at != "" || at == "carryOne" && !a.carries:
		w.carried++
		a = &actor{name: fmt.Sprint("carrier ", w.carried), carries: true, on: make(chan struct{})}
	}
	if a.at = at; at != a.was {
		a.again = 0
	}
	a.again++
	w.actors = append(w.actors, a)
	w.turns.Add(1)
	w.mu.Unlock()
	<-a.on
	w.inside = true
}

// Unlock implements [sync.Locker].
func (w *world) Unlock() {
	w.inside = false
	w.turns.Add(1)
}

// ---- etcd

// A stub is a client that has its requests answered by a world.
type stub struct {
	clientv3.KV
	conn  *Conn
	*told // but of falls
	falls int
	*world
}

// newStub returns one with its own client and Conn.
func newStub(t *testing.T) *stub {
	client := fake.NewServer().Client("a")
	etcd := &stub{}
	client.KV = etcd
	etcd.conn, etcd.told = conn(t, client)
	etcd.conn.listener = etcd
	return etcd
}

// Fell implements [Listener].
func (etcd *stub) Fell(*guard.Fall) { etcd.falls++ }

func (etcd *stub) Txn(ctx context.Context) clientv3.Txn { return &stubTxn{ctx, etcd.world, nil} }

type stubTxn struct {
	ctx context.Context
	*world
	then []clientv3.Op
}

func (t *stubTxn) If(...clientv3.Cmp) clientv3.Txn { return t }

func (t *stubTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = ops
	return t
}

func (t *stubTxn) Else(...clientv3.Op) clientv3.Txn { return t }

func (t *stubTxn) Commit() (*clientv3.TxnResponse, error) {
	s := t.send(t.then)
	select {
	case <-s.answer:
	case <-t.ctx.Done():
		s.how = unheard
	}
	t.mu.Lock()
	t.acting = s.by
	t.mu.Unlock()
	switch s.how {
	case panics:
		t.fallen++
		panic("boom")
	case exits:
		t.fallen++
		runtime.Goexit()
	case form, refusal, noSpace, silence:
		return nil, errorOf[s.how]
	case unheard:
		return nil, context.Canceled
	}
	resp := &clientv3.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: s.how != differs}
	for i := range s.parts {
		op := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{
			Kvs: []*mvccpb.KeyValue{{Key: []byte{byte(s.parts[i])}, Value: []byte{byte(s.number)}}},
		}}}
		if t.then[i].IsTxn() {
			op = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{
				Succeeded: true, Responses: []*pb.ResponseOp{op},
			}}}
		}
		resp.Responses = append(resp.Responses, op)
	}
	return resp, nil
}

// request is what a caller asks. It has one operation, with the caller as the key.
func (w *world) request(i int) Request {
	key, spec := string([]byte{byte(i)}), w.callers[i].spec
	switch {
	case spec == '-':
		return Meeting([]ticket.Known{{Key: key, Rev: 1}}, ticket.Get(key))
	case spec >= 'a':
		return Request{Txn: ticket.Txn{Name: string(spec), Then: []*pb.RequestOp{ticket.Get(key)}}}
	default:
		put := sent.Txn(nil, []clientv3.Op{clientv3.OpPut(key, "")}, nil)
		return Request{Txn: txnOf(strings.ToLower(string(spec)), put)}
	}
}

// send notes a request of operations.
func (w *world) send(ops []clientv3.Op) *message {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent++
	s := &message{number: w.sent, since: time.Now(), answer: make(chan fault, 1), how: -1}
	for _, op := range ops {
		if op.IsTxn() {
			_, then, _ := op.Txn()
			op = then[0]
		}
		s.parts = append(s.parts, int(op.KeyBytes()[0]))
	}
	s.by = &w.callers[s.parts[0]].actor
	if a := w.acting; a != nil && a.carries && a.was == "carryOne" {
		s.by, s.counts, a.last = a, true, s
	}
	w.net = append(w.net, s)
	for n, p := range s.parts {
		c := w.callers[p]
		if !c.asks || len(c.got) > 0 {
			w.breaks("caller %d has left, and its part is sent in %v", p, s)
		}
		if n := len(c.sent); n > 0 && (len(s.parts) > 1 || len(c.sent[n-1].parts) == 1 ||
			!c.sent[n-1].how.refuses()) {
			w.breaks("the request of caller %d is sent in %v, after %v", p, s, c.sent[n-1])
		}
		c.sent = append(c.sent, s)
		for _, o := range s.parts[:n] {
			if w.ofOneLock(p, o) {
				w.breaks("%d and %d are of one lock, and go in one transaction", o, p)
			}
		}
	}
	return s
}

// ofOneLock reports whether what two callers ask is of one lock, and puts a key.
func (w *world) ofOneLock(a, b int) bool {
	x, y := w.callers[a].spec, w.callers[b].spec
	return x|32 == y|32 && x != '-' && (x < 'a' || y < 'a')
}

// ---- steps

type verb int

const (
	goesOn   verb = iota // an actor locks the mutex, and goes on until it stands before it again
	answered             // a request is answered, or fails
	passes               // time passes
	asks                 // a caller asks, and locks the mutex
	leaves               // the context of a caller ends
)

// A step is something that may happen. who is an actor, or the parts of a message.
type step struct {
	verb verb
	who  string
	how  fault
}

func (s step) String() string {
	switch s.verb {
	case goesOn:
		return s.who + " goes on"
	case answered:
		return s.who + " is " + s.how.String()
	case passes:
		return "time passes"
	case asks:
		return s.who + " asks"
	default:
		return s.who + " leaves"
	}
}

// may reports whether a fault may still happen.
func (w *world) may(f fault) bool { return w.left > 0 && w.faults[f] > 0 }

// steps returns what may happen next: first what happens without callers or faults.
func (w *world) steps() (all []step) {
	for _, a := range w.actors {
		all = append(all, step{verb: goesOn, who: a.name})
	}
	for _, s := range w.net {
		if time.Since(s.since) >= w.trip {
			all = append(all, step{answered, s.String(), numFaults})
		}
	}
	if len(w.actors) == 0 && !w.moment().IsZero() {
		all = append(all, step{verb: passes})
	}
	for _, c := range w.callers {
		if !c.asks {
			all = append(all, step{verb: asks, who: c.name})
		}
	}
	for _, s := range w.net {
		for f := range leaving {
			several := len(s.parts) > 1
			if w.may(f) && time.Since(s.since) >= w.trip &&
				(f != form || several) && (f != differs || several && w.meets()) {
				all = append(all, step{answered, s.String(), f})
			}
		}
	}
	for _, c := range w.callers {
		if c.asks && !c.leaves && w.may(leaving) {
			all = append(all, step{leaves, c.name, leaving})
		}
	}
	return all
}

// moment is the next time at which something may happen that could not before, zero if there is
// none: the timer runs out, an answer may come, or callers that were answered come too late.
func (w *world) moment() (next time.Time) {
	now := time.Now()
	at := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	at(w.due)
	for _, s := range w.net {
		at(s.since.Add(w.trip))
	}
	if w.b.pace.back < w.b.pace.out &&
		slices.ContainsFunc(w.callers, func(c *caller) bool { return !c.asks }) {
		at(w.b.pace.until)
	}
	return next
}

// caller returns a caller by its name.
func (w *world) caller(name string) *caller {
	i := slices.IndexFunc(w.callers, func(c *caller) bool { return c.name == name })
	return w.callers[i]
}

// follow has steps happen that are given by their texts, one in a line or before each semicolon.
func (w *world) follow(way string, done func(step)) {
	for text := range strings.FieldsFuncSeq(way, func(r rune) bool { return r == '\n' || r == ';' }) {
		steps := w.steps()
		i := slices.IndexFunc(steps, func(s step) bool { return s.String() == strings.TrimSpace(text) })
		if i < 0 {
			w.breaks("%q cannot happen, but %v", text, steps)
			return
		}
		w.do(steps[i])
		done(steps[i])
	}
}

// do has a step happen, and judges what follows.
func (w *world) do(s step) {
	w.acting = nil
	if s.how < numFaults && (s.verb == answered || s.verb == leaves) {
		w.faults[s.how]--
		w.left--
	}
	switch s.verb {
	case goesOn:
		i := slices.IndexFunc(w.actors, func(a *actor) bool { return a.name == s.who })
		w.goOn(w.actors[i])
	case answered:
		i := slices.IndexFunc(w.net, func(o *message) bool { return o.String() == s.who })
		o := w.net[i]
		w.acting, o.how = o.by, s.how
		o.answer <- s.how
		w.wait()
		w.took("a request is " + s.how.String())
	case passes:
		w.pass(w.moment())
		w.acting = nil
	case asks:
		c := w.caller(s.who)
		w.ask(c)
		w.goOn(&c.actor)
	case leaves:
		c := w.caller(s.who)
		w.acting, c.leaves = &c.actor, true
		c.over()
		w.wait()
	}
	w.ring()
	w.judge()
}

// ask has a caller ask. It stands before the mutex then.
func (w *world) ask(c *caller) {
	i := slices.Index(w.callers, c)
	ctx, over := context.WithCancel(context.Background())
	c.asks, c.since, c.over, c.leaves, c.lone, c.of = true, time.Now(), over, false, false, nil
	c.sent, c.got, c.was, c.last = nil, nil, "", nil
	w.acting = &c.actor
	go func() {
		read, err := w.b.ask(ctx, w.etcd.conn, w.request(i))
		w.mu.Lock()
		defer w.mu.Unlock()
		c.got = append(c.got, result{read, err})
	}()
	w.wait()
}

// goOn has an actor lock the mutex, and go on until it stands before it again, or ends.
func (w *world) goOn(a *actor) {
	before, at := w.state(), a.at
	w.actors = slices.DeleteFunc(w.actors, func(o *actor) bool { return o == a })
	if w.acting, a.was, a.at = a, at, ""; at == "carryOne" {
		a.last = nil
	}
	a.on <- struct{}{}
	w.wait()
	if w.inside {
		w.breaks("%s waits in %s with the mutex held", a.name, at)
	}
	w.passed(a, at, before)
}

// pass lets time pass until next, or until the timer runs out.
func (w *world) pass(next time.Time) {
	till := time.NewTimer(time.Until(next))
	w.turns.Add(1)
	select {
	case <-w.timer:
	case <-till.C:
	}
	till.Stop()
	w.wait()
	w.ring()
}

// ring notes that the timer has run out, and judges whether it was due.
func (w *world) ring() {
	due := !w.due.IsZero() && !time.Now().Before(w.due)
	switch {
	case w.rung && !due:
		w.breaks("the timer has run out, and was not due")
	case due && !w.rung:
		w.breaks("the timer is due, and has not run out")
	}
	if w.rung {
		w.due = time.Time{}
	}
	w.rung = false
}

// ---- what a step has done

// A state is what the combiner says of itself.
type state struct {
	under, parts, gathers, most int
	waiting                     *combined
	carries                     bool
}

func (w *world) state() state {
	b := w.b
	s := state{b.under, 0, b.gathers, b.most, b.waiting, b.carries}
	if b.waiting != nil {
		s.parts = len(b.waiting.parts)
	}
	return s
}

// passed notes which transition an actor has made in a function, and judges whether it was one
// that may be made.
func (w *world) passed(a *actor, in string, before state) {
	now := w.state()
	took := func(format string, args ...any) { w.took(in + ": " + fmt.Sprintf(format, args...)) }
	few := func(most int) {
		if now.under > most {
			w.breaks("%s has %d under way, and %d were before", in, now.under, before.under)
		}
	}
	switch {
	case before.waiting != nil && now.waiting == nil && (in != "leave" || now.gathers == 0),
		before.gathers > 0 && now.gathers == 0:
		w.due = time.Time{}
	case in == "join" && before.waiting == nil && now.waiting != nil && now.gathers == 0:
		w.due = time.Now().Add(w.b.pace.wait())
	}
	switch in {
	case "join":
		w.joined(w.caller(a.name), before, now, took, few)
	case "leave":
		switch c := w.caller(a.name); {
		case c.of == nil:
			took("of one that is taken")
		case c.of == before.waiting && now.waiting == nil:
			took("the last of what waits, gathering: %v", now.gathers > 0)
		case c.of == before.waiting:
			took("of what waits")
		case !c.of.sent:
			took("of what is about to be sent, the last: %v", len(c.of.parts) == 0)
		case c.of.waits > 0:
			took("of what is sent")
		default:
			took("the last of what is sent")
		}
	case "next":
		switch {
		case before.gathers > 0:
			took("it gathers already")
			if now.gathers != before.gathers || now.waiting != before.waiting {
				w.breaks("%s was answered, and what waits for others is %+v", a.name, now)
			}
		case now.gathers > 0:
			took("it gathers, for those that wait: %v", now.waiting != nil)
			few(max(w.b.pace.few-1, 0))
		case before.waiting != nil && now.waiting == nil:
			took("what waits is sent")
			few(w.b.pace.few)
		case now.waiting != nil:
			took("enough are under way")
		default:
			took("nothing waits")
		}
	case "gather":
		switch {
		case before.gathers == 0:
			took("it was sent meanwhile")
			few(before.under)
		case now.gathers == 0:
			took("all have come")
			few(fewUnderWay)
		case a.at == "gather":
			took("others run")
		default:
			took("the timer waits for the others, in a goroutine that carries: %v", a.carries)
			w.due = time.Now().Add(w.b.pace.patience)
		}
	case "sendLate":
		switch {
		case before.waiting == nil && before.gathers == 0:
			took("it was sent meanwhile")
		case before.waiting == nil:
			took("nobody came back")
		case before.gathers > before.parts:
			took("some did not come back")
		default:
			took("no answer came")
		}
		if before.waiting != nil && before.gathers == 0 && before.parts == 0 {
			w.breaks("nothing waits, and is sent")
		}
	case "carryOne":
		if a.last == nil {
			took("all have left")
		} else {
			took("several: %v", len(a.last.parts) > 1)
		}
	case "sentAlone":
		none := now.most == 1 && before.most > 1
		took("no parts are taken: %v", none)
		c := w.caller(a.name)
		all := c.sent[len(c.sent)-2]
		if c.sent[len(c.sent)-1].how == numFaults {
			all.taken++
		}
		if none && (all.taken < len(all.parts) || all.how != refusal) {
			w.breaks("etcd is thought to take no parts, and of %v it has taken %d alone", all, all.taken)
		}
	case "refuse":
		took("fewer parts are taken: %v", now.most < before.most)
		if n := len(a.last.parts); a.last.how == form && now.most >= n {
			w.breaks("etcd has refused %d parts, and is thought to take %d", n, now.most)
		}
	case "answered":
		if a.last == nil {
			break
		}
		if a.last.noted++; a.last.noted > 1 {
			w.breaks("the answer to %v counts twice", a.last)
		}
	default:
		w.breaks("%s is a function that the exploration does not know", in)
	}
}

// joined is passed for join.
func (w *world) joined(
	c *caller, before, now state, took func(string, ...any), few func(int),
) {
	if c.of = now.waiting; c.of == nil {
		c.of = before.waiting
	}
	n := before.parts + 1
	switch {
	case len(c.sent) == 1 && now.under > before.under:
		took("it goes at once")
		c.lone, c.sent[0].counts = true, true
		few(w.b.pace.few)
		if before.waiting != nil || before.gathers > 0 {
			w.breaks("%s goes before those that wait, or are waited for", c.name)
		}
	case len(c.sent) == 1 && now.most == 1:
		took("it goes alone")
	case len(c.sent) == 1:
		took("it goes beside one of its lock")
		if before.waiting == nil || c.spec == '-' {
			w.breaks("%s is sent beside %d others", c.name, now.under)
		}
	case before.waiting == nil && now.waiting != nil:
		took("it is the first that waits, gathering: %v", now.gathers > 0)
	case now.waiting != nil:
		took("it waits with others")
		if n >= before.most {
			w.breaks("%d parts wait, and no more fit", n)
		}
	case n >= before.most:
		took("no more fit")
	case n >= before.gathers && before.gathers > 0:
		took("it is the last that is waited for")
		few(fewUnderWay)
	default:
		took("they are many")
		few(2)
		if n < w.b.many || w.first.serial {
			w.breaks("%d are no reason to be sent", n)
		}
	}
}

// ---- what must be so

// longest is how long a part waits at most before it is sent.
func (w *world) longest() time.Duration {
	if w.first.serial {
		return longestShare + mostPatience
	}
	return longestWait + mostPatience
}

// judge judges a state.
func (w *world) judge() {
	w.net = slices.DeleteFunc(w.net, func(s *message) bool { return s.how >= 0 })
	for _, c := range w.callers {
		w.judgeAnswer(c)
	}
	b := w.b
	looks := slices.ContainsFunc(w.actors, func(a *actor) bool {
		return a.at == "gather" || a.at == "sendLate"
	})
	if b.gathers > 0 && w.due.IsZero() && !looks {
		w.breaks("it gathers, and neither does a goroutine look who has come, nor is the timer due")
	}
	if len(w.actors) == 0 {
		w.judgeRest()
	}
}

// judgeAnswer judges what a caller has got.
func (w *world) judgeAnswer(c *caller) {
	if len(c.got) == 0 || !c.asks {
		return
	}
	got := c.got[0]
	c.asks = false
	c.over()
	if errors.Is(got.err, context.Canceled) && c.leaves {
		return
	}
	if len(c.sent) == 0 {
		w.breaks("%s has an answer, and was not sent: %v", c.name, got.err)
		return
	}
	last := c.sent[len(c.sent)-1]
	several, right := len(last.parts) > 1, false
	copies := slices.ContainsFunc(c.sent, func(s *message) bool { // which may have been carried out
		return len(s.parts) > 1 && (s.how == silence || s.how == noSpace)
	})
	switch last.how {
	case numFaults:
		if right = got.err == nil && len(got.Ranges) == 1 && len(got.Ranges[0].Kvs) == 1; right {
			kv := got.Ranges[0].Kvs[0]
			right = w.callers[kv.Key[0]] == c && kv.Value[0] == byte(last.number) && got.copies == copies &&
				got.Holds && got.sent.Equal(last.since)
		}
	case form, refusal, noSpace:
		right = got.err == errorOf[last.how] && !several
	case silence:
		right = got.err == errorOf[last.how] && got.copies == copies
	case panics, exits:
		right = guard.FallIn(got.err) != nil
	}
	if !right {
		w.breaks("%s gets (%v, %v), and %v was %v", c.name, got.Ranges, got.err, last, last.how)
	}
}

// judgeRest judges a state in which nothing happens by itself before time passes.
func (w *world) judgeRest() {
	b, counted, waits := w.b, 0, 0
	for _, s := range w.net {
		if s.counts {
			counted++
		}
		if !slices.ContainsFunc(w.callers, func(c *caller) bool {
			return c.asks && slices.Contains(c.sent, s)
		}) {
			w.breaks("no caller waits for the answer to %v, which is under way", s)
		}
	}
	for _, c := range w.callers {
		switch {
		case !c.asks:
		case len(c.sent) > 0:
			if c.sent[len(c.sent)-1].how >= 0 {
				w.breaks("%s has no answer, though its request has one", c.name)
			}
		case b.waiting == nil || c.of != b.waiting:
			w.breaks("%s waits for nothing", c.name)
		default:
			waits++
			if waited := time.Since(c.since); waited > w.longest() {
				w.breaks("%s has waited for %v", c.name, waited)
			}
		}
	}
	now := w.state()
	switch {
	case now.under != counted:
		w.breaks("%d count as under way, and %d are", now.under, counted)
	case now.waiting != nil && (now.parts != waits || now.waiting.waits != waits):
		w.breaks("%d parts and %d callers count as waiting, and %d do", now.parts,
			now.waiting.waits, waits)
	case now.waiting != nil && waits == 0:
		w.breaks("what waits has no parts")
	case (now.waiting != nil || now.gathers > 0) && w.due.IsZero():
		w.breaks("what waits is sent neither by an answer nor by the timer")
	case now.carries:
		w.breaks("no goroutine looks who has come, though one carries")
	case w.etcd.falls != w.fallen:
		w.breaks("%d requests have fallen, and the listener was told %d times", w.fallen, w.etcd.falls)
	case w.etcd.uncombined > 1 || b.told != (w.etcd.uncombined == 1):
		w.breaks("the listener was told %d times that etcd takes no parts", w.etcd.uncombined)
	}
}

// finish has all that is under way answered, until nothing happens any more. Then the combiner must
// be as if nothing had been, and a caller who comes must be sent. Of what may happen, the first
// happens, or if last is set the last.
func (w *world) finish(last bool) {
	w.settle(last)
	if w.broken != "" {
		return
	}
	w.rests()
	if w.broken == "" && w.b.most > 1 {
		c := w.callers[0]
		w.do(step{verb: asks, who: c.name})
		if !w.meets() && len(w.net) == 0 {
			w.breaks("%s asks alone, and is not sent at once", c.name)
		}
		w.settle(last)
		w.rests()
	}
}

// settle has things happen without another caller or fault.
func (w *world) settle(last bool) {
	for range 1000 {
		own := slices.DeleteFunc(w.steps(), func(s step) bool {
			return s.verb > passes || s.verb == answered && s.how != numFaults
		})
		if len(own) == 0 || w.broken != "" {
			return
		}
		next := own[0]
		if last {
			next = own[len(own)-1]
		}
		w.do(next)
	}
	w.breaks("it goes on and on")
}

// rests requires that nothing is under way or waits.
func (w *world) rests() {
	before := w.state()
	if before.under != 0 || before.waiting != nil || before.gathers != 0 || before.carries {
		w.breaks("all is answered, and the combiner has %+v", before)
	}
	for _, c := range w.callers {
		if c.asks {
			w.breaks("%s has no answer", c.name)
		}
	}
	w.pass(time.Now().Add(time.Hour))
}

// abandon has all goroutines end, after a promise was broken.
func (w *world) abandon() {
	for range 1000 {
		for _, c := range w.callers {
			if c.asks {
				c.over()
			}
		}
		for _, s := range w.net {
			if s.how < 0 {
				s.how = silence
				s.answer <- silence
			}
		}
		w.net, w.acting = nil, nil
		w.wait()
		if len(w.actors) == 0 {
			return
		}
		a := w.actors[0]
		w.actors, a.at = w.actors[1:], ""
		a.on <- struct{}{}
		w.wait()
	}
}

// ---- states that are alike

// append appends a text that is the same for states that go on alike.
func (w *world) append(text []byte) []byte {
	now, b := time.Now(), w.b
	ago := func(t time.Time, most time.Duration) int64 { return int64(min(now.Sub(t), most)) }
	left := func(t time.Time) int64 { return int64(max(t.Sub(now), 0)) }
	ofs := make(map[*combined]int)
	texts, order := make([]string, len(w.callers)), make([]int, len(w.callers))
	for i, c := range w.callers {
		one := append([]byte(c.class), c.spec&32)
		if order[i] = i; c.asks {
			one = fmt.Append(one, c.leaves, c.lone, c.at, c.again, c.was)
			if n := len(c.sent); n > 0 {
				s := c.sent[n-1]
				one = fmt.Append(one, s.how, len(s.parts), ago(s.since, w.trip))
			} else {
				one = fmt.Append(one, c.of == b.waiting, ago(c.since, time.Second))
			}
			if of := c.of; of != nil {
				one = fmt.Append(one, of.waits, of.guilty, of.sent, of.refused, of.copies, len(of.parts))
			}
		}
		texts[i] = string(one)
	}
	slices.SortStableFunc(order, func(i, j int) int { return strings.Compare(texts[i], texts[j]) })
	rank := make([]int, len(order))
	for at, i := range order {
		rank[i] = at
		text = append(append(text, texts[i]...), '|')
		if of := w.callers[i].of; w.callers[i].asks && of != nil {
			if _, known := ofs[of]; !known {
				ofs[of] = len(ofs)
			}
			text = fmt.Append(text, ofs[of])
		}
	}
	ranks := func(s *message) []int {
		var all []int
		for _, p := range s.parts {
			all = append(all, rank[p])
		}
		slices.Sort(all)
		return all
	}
	var others []string
	for _, s := range w.net {
		others = append(others, fmt.Sprint(ranks(s), ago(s.since, w.trip), s.counts, s.by.carries))
	}
	for _, a := range w.actors {
		one := fmt.Sprint(a.carries, a.at, a.again)
		if a.carries && a.last != nil {
			one += fmt.Sprint(len(a.last.parts), a.last.how, ago(a.last.since, time.Second))
		}
		others = append(others, one)
	}
	slices.Sort(others)
	text = fmt.Append(text, others, w.faults, w.left)
	p := b.pace
	text = fmt.Append(text, b.most, b.told, b.under, b.gathers, b.carries, left(w.due))
	return fmt.Append(text, p.few, p.took, p.patience, left(p.until), p.out, p.expected, p.back,
		p.answered, p.came)
}
