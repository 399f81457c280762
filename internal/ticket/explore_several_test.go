package ticket_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/home"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A manyCall is a call of LockAll, or of Lock if it has one name, in the exploration of
// several names.
type manyCall struct {
	home  int
	names []string
	try   bool

	// As it goes.
	phase   manyPhase
	waiters []*home.Waiter[int]
	tickets []*ticket.Ticket
	entry   ticket.Several
	ahead   []line.Ahead
	lost    bool // an operator has deleted a key that it holds
}

type manyPhase int

const (
	outside manyPhase = iota // it has not been called
	athome                   // in its local lines
	unsure                   // its put was sent, and no answer came
	inLines                  // its keys are there, as far as it knows
	allHeld
	gone
)

// A manyWorld is some Sessions that share an etcd. The exploration chooses step by step
// what happens in it.
type manyWorld struct {
	etcd   *fake.Store
	calls  []*manyCall
	queues map[string]*home.Queue[int] // by Session and name
	order  map[string][]int            // of the calls in each
	left   map[manyVerb]int            // faults
	broken string
}

type manyVerb int

const (
	mEnter   manyVerb = iota
	mPut              // and the answer comes
	mSilent           // it is carried out, and the answer is lost
	mDropped          // it is not carried out, and no answer says so
	mAgain            // the repeat
	mLook             // a look of one place
	mBegin
	mUnlock
	mLeave  // the call gives up
	mDelete // an operator deletes a key
)

type manyStep struct {
	verb    manyVerb
	call, i int
}

// manySetting is what there is in a world.
type manySetting struct {
	name  string
	calls []manyCall
	left  map[manyVerb]int
}

func (set *manySetting) world() *manyWorld {
	w := &manyWorld{
		etcd: fake.NewStore(), queues: make(map[string]*home.Queue[int]),
		order: make(map[string][]int), left: make(map[manyVerb]int),
	}
	maps.Copy(w.left, set.left)
	for i, c := range set.calls {
		call := c
		w.calls = append(w.calls, &call)
		for _, n := range c.names {
			w.queues[w.local(i, n)] = &home.Queue[int]{}
		}
		_, _ = w.etcd.Grant(int64(1+c.home), 60) // once for each Session
	}
	return w
}

func (w *manyWorld) local(call int, name string) string {
	return fmt.Sprint(w.calls[call].home, "/", name)
}

// send carries out a transaction.
func (w *manyWorld) send(txn ticket.Txn) ticket.Answer {
	in := wireOf(txn, true).in
	resp, err := w.etcd.Txn(in)
	if err != nil {
		panic(err)
	}
	a := ticket.Answer{Succeeded: resp.Succeeded, Empty: len(resp.Responses) == 0,
		Revision: w.etcd.Rev()}
	for _, r := range resp.Responses {
		if read := r.GetResponseRange(); read != nil {
			a.Read = append(a.Read, read)
		}
	}
	return a
}

// lineOf is the keys in a line, in order.
func (w *manyWorld) lineOf(name string) line.Line {
	prefix := line.Prefix(name)
	resp, err := w.etcd.Now().Range(&pb.RangeRequest{Key: []byte(prefix),
		RangeEnd: []byte(name + string('/'+1))})
	if err != nil {
		panic(err)
	}
	return line.Of(name, resp.Kvs)
}

// owns reports whether a call has the turns of all its names.
func (w *manyWorld) owns(c *manyCall) bool {
	return !slices.ContainsFunc(c.waiters, func(x *home.Waiter[int]) bool {
		return x.Standing() != home.Owner
	})
}

// before returns how many keys stand before a place now, and -1 if its key is gone.
func (w *manyWorld) before(c *manyCall, i int) int {
	l := w.lineOf(c.names[i])
	at := slices.IndexFunc(l, func(e line.Entry) bool { return c.tickets[i].Is(e) })
	return at
}

func (w *manyWorld) steps() (steps []manyStep) {
	add := func(v manyVerb, call, i int) {
		if v == mSilent || v == mDropped || v == mLeave || v == mDelete {
			if w.left[v] == 0 {
				return
			}
		}
		steps = append(steps, manyStep{v, call, i})
	}
	for k, c := range w.calls {
		switch c.phase {
		case outside:
			add(mEnter, k, 0)
		case athome:
			if w.owns(c) {
				add(mPut, k, 0)
				add(mSilent, k, 0)
				add(mDropped, k, 0)
			}
			add(mLeave, k, 0)
		case unsure:
			add(mAgain, k, 0)
		case inLines:
			clear := true
			for i := range c.names {
				clear = clear && c.ahead[i].Clear()
				unread := c.ahead[i].Reading == line.Unread
				if !c.ahead[i].Clear() && w.before(c, i) != len(c.ahead[i].Last) || unread {
					add(mLook, k, i)
				}
			}
			if clear {
				add(mBegin, k, 0)
			}
			add(mLeave, k, 0)
		case allHeld:
			add(mUnlock, k, 0)
		}
		if c.phase != outside && c.phase != gone {
			for i := range c.tickets {
				if w.exists(c.tickets[i]) {
					add(mDelete, k, i)
				}
			}
		}
	}
	return steps
}

func (w *manyWorld) exists(t *ticket.Ticket) bool {
	return slices.ContainsFunc(w.lineOf(t.Name), func(e line.Entry) bool { return e.Key == t.Key })
}

func (w *manyWorld) do(s manyStep) {
	c := w.calls[s.call]
	if _, fault := w.left[s.verb]; fault {
		w.left[s.verb]--
	}
	switch s.verb {
	case mEnter:
		if c.try && slices.ContainsFunc(c.names, func(n string) bool {
			return w.queues[w.local(s.call, n)].State() != home.Free
		}) {
			c.phase = gone
			return
		}
		for _, n := range c.names {
			x := &home.Waiter[int]{Value: s.call}
			at := w.local(s.call, n)
			w.queues[at].Enter(x)
			w.order[at] = append(w.order[at], s.call)
			c.waiters = append(c.waiters, x)
		}
		c.phase = athome
	case mPut, mSilent, mDropped:
		w.put(c, s)
	case mAgain:
		a := w.send(c.entry.Txn(c.names...))
		a.Copies = true
		w.entered(c, a)
	case mLook:
		w.look(c, s.i)
	case mBegin:
		w.begin(s.call)
	case mUnlock:
		w.unlock(s.call)
	case mLeave:
		w.giveUp(c)
		w.passAll(s.call)
	case mDelete:
		w.remove(c.tickets[s.i].Key)
		c.lost = c.lost || c.phase == allHeld
	}
}

func (w *manyWorld) remove(key string) {
	del := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)},
	}}
	if _, err := w.etcd.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{del}}); err != nil {
		panic(err)
	}
}

func (w *manyWorld) put(c *manyCall, s manyStep) {
	c.tickets, c.ahead = nil, make([]line.Ahead, len(c.names))
	for i, n := range c.names {
		k := ticket.New(n, int64(1+c.home), &ticket.Slot{}, func(name string) string {
			return fmt.Sprintf("%s%08x-0000-4000-8000-%012x", line.Prefix(name), w.etcd.Rev(), 16*s.call+i)
		})
		c.tickets = append(c.tickets, &k)
	}
	c.entry = ticket.EnterAll(c.tickets, c.try, false)
	txn := c.entry.Txn(c.names...)
	a := ticket.Answer{Outcome: ticket.Unknown}
	switch s.verb {
	case mPut:
		a = w.send(txn)
	case mSilent:
		w.send(txn)
	}
	w.entered(c, a)
}

func (w *manyWorld) entered(c *manyCall, a ticket.Answer) {
	switch c.entry.Says(a) {
	case ticket.Taken:
		w.giveUp(c)
		w.passAll(slices.Index(w.calls, c))
	case ticket.Unsure:
		c.phase = unsure
	case ticket.Queued:
		c.phase = inLines
		for i, t := range c.tickets {
			c.ahead[i] = *c.entry.Ahead(i)
			if t.Rev() != c.tickets[0].Rev() {
				w.breaks("%v goes on with revisions %d and %d", c.names, c.tickets[0].Rev(), t.Rev())
			}
			if t.State() != ticket.InLine {
				w.breaks("%s of %v is %v", c.names[i], c.names, t.State())
			}
		}
	default:
		w.giveUp(c)
		c.phase = athome
	}
}

// giveUp removes the keys of c.
func (w *manyWorld) giveUp(c *manyCall) {
	for _, t := range c.tickets {
		if t.State() == ticket.Removed {
			continue
		}
		t.Leave()
		if t.State() == ticket.Leaving {
			t.RemovedBy(w.send(t.Removal(false, line.None)), line.None)
		}
	}
	c.tickets, c.ahead = nil, nil
}

func (w *manyWorld) look(c *manyCall, i int) {
	look := c.tickets[i].Look(false)
	r := &pb.RangeRequest{
		Key: []byte(line.Prefix(c.names[i])), RangeEnd: []byte(c.names[i] + string('/'+1)),
		MaxCreateRevision: c.tickets[i].Rev(),
	}
	resp, err := w.etcd.Now().Range(r)
	if err != nil {
		panic(err)
	}
	slices.SortFunc(resp.Kvs, func(a, b *mvccpb.KeyValue) int {
		return int(b.CreateRevision - a.CreateRevision)
	})
	ahead, own := look.Judge(resp)
	if c.tickets[i].Observe(own).IsLoss() {
		w.giveUp(c)
		c.phase = athome
		return
	}
	c.ahead[i] = ahead
}

func (w *manyWorld) begin(call int) {
	c := w.calls[call]
	c.phase = allHeld
	if !w.owns(c) {
		w.breaks("%v holds, and another of its Session has the turn", c.names)
	}
	for i, t := range c.tickets {
		t.Hold()
		c.lost = c.lost || w.before(c, i) < 0 // as with a hold, its loss is on its way
	}
	for k, o := range w.calls {
		if k == call || o.phase != allHeld || o.lost || c.lost {
			continue
		}
		for _, n := range c.names {
			if slices.Contains(o.names, n) {
				w.breaks("%v holds beside %v", c.names, o.names)
			}
		}
	}
}

func (w *manyWorld) unlock(call int) {
	c := w.calls[call]
	r := c.tickets[0].Release(nil, c.tickets[1:]...)
	f := r.Says(w.send(r.Txn("")), ticket.Now{Certain: true})
	want := map[bool]ticket.Verdict{false: ticket.Done, true: ticket.Lost}[c.lost]
	if f.Verdict != want {
		w.breaks("the Unlock of %v is %v, lost %v", c.names, f.Verdict, c.lost)
	}
	keys := c.tickets
	w.giveUp(c)
	for _, t := range keys {
		if w.exists(t) {
			w.breaks("the Unlock of %v leaves %s", c.names, t.Key)
		}
	}
	w.passAll(call)
}

// passAll takes a call out of its local lines.
func (w *manyWorld) passAll(call int) {
	c := w.calls[call]
	for i, n := range c.names {
		at := w.local(call, n)
		if w.queues[at].Leave(c.waiters[i]) == home.Owner {
			w.queues[at].End(c.waiters[i], false)
		}
		w.order[at] = slices.DeleteFunc(w.order[at], func(k int) bool { return k == call })
	}
	c.phase = gone
}

func (w *manyWorld) breaks(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
	}
}

// waitsFor returns the calls for which one waits: while it has no keys, the calls that came
// before it in its local lines; then the calls whose keys are before its own.
func (w *manyWorld) waitsFor(call int) (others []int) {
	c := w.calls[call]
	switch c.phase {
	case athome:
		for _, n := range c.names {
			before := w.order[w.local(call, n)]
			others = append(others, before[:slices.Index(before, call)]...)
		}
	case inLines:
		for i, n := range c.names {
			for _, e := range w.lineOf(n)[:max(w.before(c, i), 0)] {
				for k, o := range w.calls {
					if slices.ContainsFunc(o.tickets, func(t *ticket.Ticket) bool { return t.Key == e.Key }) {
						others = append(others, k)
					}
				}
			}
		}
	}
	return others
}

// circle reports whether a call waits for itself.
func (w *manyWorld) circle() bool {
	for k := range w.calls {
		seen := make([]bool, len(w.calls))
		for next := w.waitsFor(k); len(next) > 0; {
			o := next[0]
			next = next[1:]
			if o == k {
				return true
			}
			if !seen[o] {
				seen[o] = true
				next = append(next, w.waitsFor(o)...)
			}
		}
	}
	return false
}

// String has all that tells a world from other worlds. Of revisions only the order counts.
func (w *manyWorld) String() string {
	var b strings.Builder
	revs := make(map[int64]int)
	rank := func(rev int64) int {
		if _, ok := revs[rev]; !ok {
			revs[rev] = len(revs)
		}
		return revs[rev]
	}
	for _, n := range []string{"a", "b", "c"} {
		for _, e := range w.lineOf(n) {
			owner := -1
			for k, c := range w.calls {
				for _, t := range c.tickets {
					if t.Key == e.Key {
						owner = k
					}
				}
			}
			fmt.Fprint(&b, n, owner, "@", rank(e.Rev), " ")
		}
	}
	for k, c := range w.calls {
		fmt.Fprint(&b, "|", c.phase, c.lost)
		for i, t := range c.tickets {
			fmt.Fprint(&b, t.State(), t.Rev() == 0, len(c.ahead[i].Last), c.ahead[i].Reading == line.All)
		}
		for _, n := range c.names {
			fmt.Fprint(&b, w.order[w.local(k, n)])
		}
	}
	fmt.Fprint(&b, w.left)
	return b.String()
}

// Two Sessions take overlapping names in opposed orders, beside single names. Answers get
// lost, calls give up, an operator deletes keys, in any order. No calls wait in a circle. No
// two hold a name. All keys of a call have one revision, and its Unlock leaves none. Every call
// that does not give up gets in.
func TestExplorationOfSeveral(t *testing.T) {
	call := func(home int, names ...string) manyCall { return manyCall{home: home, names: names} }
	try := func(home int, names ...string) manyCall {
		return manyCall{home: home, names: names, try: true}
	}
	settings := []manySetting{
		{"opposed orders", []manyCall{call(0, "a", "b"), call(1, "b", "a"), call(0, "b"), call(1, "a")}, nil},
		{"a ring", []manyCall{call(0, "a", "b"), call(0, "b", "c"), call(1, "c", "a")}, nil},
		{"a ring of Sessions", []manyCall{call(0, "a", "b"), call(1, "b", "c"), call(2, "c", "a")}, map[manyVerb]int{mLeave: 1}},
		{"an operator", []manyCall{call(0, "a", "b"), call(1, "b", "a")}, map[manyVerb]int{mDelete: 2, mLeave: 1, mSilent: 1}},
		{"lost answers", []manyCall{call(0, "a", "b"), call(1, "b", "a"), call(1, "b")}, map[manyVerb]int{mSilent: 1, mDropped: 1, mDelete: 1}},
		{"one tries", []manyCall{try(0, "a", "b"), call(1, "b"), try(1, "a"), call(0, "a")}, map[manyVerb]int{mSilent: 1, mDelete: 1}},
	}
	for _, set := range settings[:race.Fewer(len(settings), 4)] {
		t.Run(set.name, func(t *testing.T) {
			seen := make(map[string]bool)
			var way []manyStep
			ends := 0
			var visit func()
			visit = func() {
				w := set.world()
				for _, s := range way {
					w.do(s)
				}
				require.Empty(t, w.broken, "%v", way)
				require.False(t, w.circle(), "they wait in a circle: %v\n%v", way, w)
				state := w.String()
				if seen[state] {
					return
				}
				seen[state] = true
				steps := w.steps()
				if len(steps) == 0 {
					for _, c := range w.calls {
						require.Equal(t, gone, c.phase, "%v waits for ever: %v\n%v", c.names, way, w)
					}
					ends++
				}
				for _, s := range steps {
					way = append(way, s)
					visit()
					way = way[:len(way)-1]
				}
			}
			visit()
			require.NotZero(t, ends)
			t.Logf("%d states, %d ends", len(seen), ends)
		})
	}
}
