package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// A worker is one goroutine of a process.
type worker struct {
	p       *process
	session int
	number  int
	rand    *rand.Rand
	most    time.Duration          // the longest grace of its Session's holds, if they are recalled
	longest time.Duration          // how long its Session's holds last at most; 0 for ever
	locks   map[string][]contender // by name
	whole   *etcdlock.Session      // in the family's story: its Session, of this library
	brief   bool                   // its Session is its own, and is closed after the hold
	meddled *rand.Rand             // draws what an operator does to its Unlocks; nil if nothing
}

func (w *worker) String() string { return fmt.Sprintf("%s.%d.%d", w.p.name, w.session, w.number) }

// line names the local line of a lock in which the worker waits.
func (w *worker) line(name string) string {
	return fmt.Sprintf("%s.%d %s", w.p.name, w.session, name)
}

// upTo is a time between 0 and most, more often short than long.
func (w *worker) upTo(most time.Duration) time.Duration {
	x := w.rand.Float64()
	return time.Duration(x * x * float64(most))
}

// work locks what it can while there are faults. Afterwards it must get in everywhere.
func (w *worker) work() {
	world := w.p.w
	time.Sleep(w.upTo(500 * time.Millisecond))
	for w.p.goesOn() && time.Now().Before(world.ends) {
		wait := w.upTo(4 * world.ttl)
		if world.scenario == silent {
			wait += 10 * time.Second // long enough for a missed event to be seen
		}
		name, pause := world.names[w.rand.IntN(len(world.names))], time.Second
		if world.round || world.rushes() {
			name, pause = world.names[0], pause/100
		}
		if world.many || world.brisk {
			pause /= 10
		}
		if world.rushes() {
			wait = w.upTo(100 * time.Millisecond)
		}
		switch n := w.rand.IntN(10); {
		case w.whole != nil && n < world.several:
			w.together(wait)
		case w.whole != nil && n < world.several+world.leading:
			w.leads(name, wait)
		case w.whole != nil && w.p.w.outlasts() && w.rand.IntN(10) == 0:
			w.briefly(name, wait)
		default:
			w.once(name, wait)
		}
		time.Sleep(w.upTo(pause))
	}
	time.Sleep(time.Until(world.allGetIn()))
	for _, name := range world.names {
		if !w.p.goesOn() {
			return
		}
		for _, c := range w.locks[name] {
			w.getsIn(name, c)
			if world.story == traced {
				break
			}
		}
	}
}

// picks draws the way in which the worker asks for a name.
func (w *worker) picks(name string) contender {
	all := w.locks[name]
	if len(all) == 1 {
		return all[0]
	}
	const alone = 2 // contenders that hold alone: a mutex and a writer
	switch n := w.rand.IntN(10); {
	case n < w.p.w.reading:
		return all[len(all)-1]
	case n < w.p.w.reading+w.p.w.permits:
		return all[alone+w.rand.IntN(len(all)-alone-1)]
	default:
		return all[w.rand.IntN(alone)]
	}
}

// outlasting returns, mostly and in the place of one that holds alone, a Mutex whose key may
// outlast its hold.
func (w *worker) outlasting(name string, c contender) contender {
	if w.whole == nil || !w.p.w.outlasts() || c.kind() != (alone{}) || w.rand.IntN(4) == 0 {
		return c
	}
	var opts []etcdlock.Option
	least := w.least()
	if least > 0 {
		opts = append(opts, etcdlock.WithMinHold(least))
	}
	mu, err := w.whole.Mutex(name, opts...)
	if err != nil {
		panic(err)
	}
	return exclusive{side.OurMutex{Mutex: mu}, least}
}

// once takes a lock in one of the ways that there are, and works in it.
func (w *worker) once(name string, wait time.Duration) {
	waiting := w.patient(wait, name)
	defer waiting.cancel()
	judge, began := w.p.w.judge, time.Now()
	lock := w.outlasting(name, w.picks(name))
	way := w.rand.IntN(10)
	if w.p.w.story == traced {
		way = 4 // Lock
	}
	c := judge.asks(w, name, lock.kind(), waiting, way < 2)
	if 2 <= way && way < 4 {
		w.does(waiting, name, lock, c)
		return
	}
	h, err := lock.lock(waiting, way < 2)
	waiting.returned()
	judge.took(w, "lock "+name, began, waiting.most())
	if err != nil {
		judge.failed(w, name, c, err)
		return
	}
	b := judge.enters(w, name, h, c)
	w.holds(b)

	ctx, cancel, bound := w.unlockContext()
	defer cancel()
	began = time.Now()
	certain := w.leaves(b)
	err = h.unlock(ctx)
	judge.took(w, "unlock "+name, began, bound)
	certain.judge(err)
}

// least draws a least time for a hold, 0 for most of them.
func (w *worker) least() time.Duration {
	if w.p.w.keeping == 0 || w.rand.IntN(10) >= w.p.w.keeping {
		return 0
	}
	return 200*time.Millisecond + time.Duration(w.rand.Int64N(int64(2800*time.Millisecond)))
}

// together takes several names at once, in any order.
func (w *worker) together(wait time.Duration) {
	judge, began := w.p.w.judge, time.Now()
	names := slices.Clone(w.p.w.names)
	w.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:2+w.rand.IntN(len(names)-1)]
	waiting := w.patient(wait, names...)
	defer waiting.cancel()
	lock, try := w.whole.LockAll, w.rand.IntN(5) == 0
	if try {
		lock = w.whole.TryLockAll
	}
	calls := make([]*call, len(names))
	for i, name := range names {
		calls[i] = judge.asks(w, name, alone{}, waiting, try)
	}
	h, err := holdOf(lock(waiting, names...))
	waiting.returned()
	judge.took(w, fmt.Sprint("lock ", names), began, waiting.most())
	if err != nil {
		for i, name := range names {
			judge.failed(w, name, calls[i], err)
		}
		return
	}
	var held []*belief
	for i, name := range names {
		held = append(held, judge.enters(w, name, h, calls[i]))
	}
	judge.together(held)
	for _, b := range held[1:] {
		defer context.AfterFunc(h.ctx, func() { judge.ends(b) })()
	}
	w.holds(held[0])

	ctx, cancel, bound := w.unlockContext()
	defer cancel()
	began = time.Now()
	var certain []leaving
	for _, b := range held {
		certain = append(certain, w.leaves(b))
	}
	err = h.unlock(ctx)
	judge.took(w, fmt.Sprint("unlock ", names), began, bound)
	for _, c := range certain {
		c.judge(err)
	}
}

// leads makes the worker a candidate for a while. It leads each time that its turn comes.
func (w *worker) leads(name string, wait time.Duration) {
	ctx, resign := context.WithTimeoutCause(context.Background(), wait, errResigned)
	defer resign()
	judge, began := w.p.w.judge, time.Now()
	c := judge.asks(w, name, alone{}, ctx, false)
	terms := make(map[int64]leaving) // by token: those whose end the judge does not know yet
	var mu sync.Mutex
	candidate, err := w.whole.Mutex(name, etcdlock.WithTrace(&etcdlock.Trace{
		Led: func(_ context.Context, e etcdlock.LedEvent) {
			mu.Lock()
			term := terms[e.Token]
			delete(terms, e.Token)
			mu.Unlock()
			term.judge(e.Err)
		},
	}))
	if err != nil {
		panic(err)
	}
	bound := wait
	err = candidate.Lead(ctx, func(inside context.Context) error {
		token, _ := etcdlock.TokenFrom(inside)
		b := judge.enters(w, name, &hold{token: token, ctx: inside, status: candidate.Status}, c)
		judge.leads()
		w.holds(b)
		mu.Lock()
		terms[token] = w.leaves(b)
		mu.Unlock()
		bound = max(wait, time.Since(began)+w.p.w.unlocks())
		c = judge.asksAgain(w, name, ctx)
		return nil
	})
	judge.took(w, "lead "+name, began, bound)
	judge.failed(w, name, c, err)
}

// does does the same as once, by Do.
func (w *worker) does(waiting *patience, name string, lock contender, c *call) {
	judge, began := w.p.w.judge, time.Now()
	var b *belief
	var certain leaving
	var left time.Time // when it began to unlock
	var ended bool     // and whether the context of the call had ended by then
	var late bool
	called, err := lock.do(waiting, func(h *hold) {
		waiting.returned()
		judge.took(w, "lock "+name, began, waiting.most())
		if late = h.late; late {
			judge.passes(w, name, h.token)
			return
		}
		b = judge.enters(w, name, h, c)
		w.holds(b)
		left, ended = time.Now(), waiting.Err() != nil
		certain = w.leaves(b)
	})
	if !called {
		waiting.returned()
		if late {
			err = context.Cause(waiting)
		} else {
			judge.took(w, "lock "+name, began, waiting.most())
		}
		judge.failed(w, name, c, err)
		return
	}
	bound := w.p.w.unlocks()
	if deadline, _ := waiting.Deadline(); !ended && deadline.After(left) {
		bound = deadline.Sub(left)
	}
	judge.took(w, "unlock "+name, left, bound)
	certain.judge(err)
}

// holds is the critical section. It lasts for a while, or until the hold is lost. The
// worker is slow to see the loss.
func (w *worker) holds(b *belief) {
	judge := w.p.w.judge
	stop := context.AfterFunc(b.hold.ctx, func() { judge.ends(b) })
	defer stop()
	most := 2 * w.p.w.ttl
	if w.p.w.round || w.p.w.rushes() {
		most /= 50
	}
	if w.p.w.brisk {
		most /= 10
	}
	working, done := context.WithTimeout(context.Background(), w.whileFaulty(most))
	defer done()
	defer w.p.w.meetings.comes(w.line(b.name), done)()
	defer w.informs(working, b)()
	over := make(chan struct{})
	defer close(over)
	go func() { // a frozen worker, too, has noticed: the timers of its process run on
		select {
		case <-over:
		case <-etcdlock.RecallFrom(b.hold.ctx):
			judge.notices(b)
		}
	}()
	select {
	case <-working.Done():
	case <-b.hold.ctx.Done():
	case <-etcdlock.RecallFrom(b.hold.ctx):
		heeds := w.rand.IntN(2) == 0
		judge.hears(b, heeds)
		if heeds {
			break
		}
		select {
		case <-working.Done():
		case <-b.hold.ctx.Done():
		}
	}
	if b.hold.ctx.Err() != nil {
		time.Sleep(w.whileFaulty(3 * w.p.w.ttl)) // slow to see it
	}
	w.p.goesOn()
	w.meddles(b)
}

// whileFaulty is upTo, but it ends when everybody must get in.
func (w *worker) whileFaulty(most time.Duration) time.Duration {
	return min(w.upTo(most), max(0, time.Until(w.p.w.allGetIn())))
}

// A leaving is what the worker knew when it gave a belief up.
type leaving struct {
	w        *worker
	b        *belief
	whole    bool
	deadline time.Time // until when the hold was certain
}

// meddles has an operator delete the key of a belief at some step of its release: before Unlock is
// called, so that others may have got in, or while it is under way. Some answers are lost.
func (w *worker) meddles(b *belief) {
	r, world := w.meddled, w.p.w
	if r == nil || b.life == nil || r.IntN(2) > 0 || time.Until(world.ends) < 2*time.Second {
		return
	}
	deletes := func() { world.cluster.DeleteKey(b.life.key) }
	switch r.IntN(4) {
	case 0:
		time.AfterFunc(upTo(r, 50*time.Millisecond), deletes)
	case 1, 2:
		deletes()
		time.Sleep(known + upTo(r, 4*known))
	}
	world.cluster.LoseAnswers(w.p.name, r.IntN(3))
}

// leaves gives a belief up, to unlock it.
func (w *worker) leaves(b *belief) leaving {
	l := leaving{w: w, b: b, deadline: b.hold.status().Deadline}
	l.whole = w.p.w.judge.leaves(b)
	return l
}

func (l leaving) judge(err error) {
	l.w.p.w.judge.unlocked(l.b, l.whole, time.Now().Before(l.deadline), err)
}

// unlockContext is a context for an Unlock, and what bounds the call.
func (w *worker) unlockContext() (
	ctx context.Context, cancel context.CancelFunc, bound time.Duration,
) {
	bound = 10 * time.Second
	switch w.rand.IntN(3) {
	case 0: // a context that has ended, as in a defer
		if w.p.side.judged { // the library does not mind
			ctx, cancel = context.WithCancel(context.Background())
			cancel()
			return ctx, cancel, w.p.w.unlocks()
		}
	case 1:
		bound = time.Millisecond + w.upTo(w.p.w.ttl)
	}
	ctx, cancel = context.WithTimeout(context.Background(), bound)
	return ctx, cancel, bound
}

// getsIn takes a lock after the faults, when only the others are in the way.
func (w *worker) getsIn(name string, lock contender) {
	world := w.p.w
	bound := time.Duration(world.times)*time.Minute + world.lockDelay() + world.bound()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	c := world.judge.asks(w, name, lock.kind(), ctx, false)
	h, err := lock.lock(ctx, false)
	for err != nil && world.peer >= 0 && !w.p.side.judged && ctx.Err() == nil {
		time.Sleep(soon) // the peer reports a session that was lost before
		h, err = lock.lock(ctx, false)
	}
	if err != nil {
		world.judge.failed(w, name, c, err)
		world.judge.violated(stuck, "%s does not get %s after the faults: %v", w, name, err)
		return
	}
	b := world.judge.enters(w, name, h, c)
	time.Sleep(time.Millisecond)
	certain := w.leaves(b)
	unlocking, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	certain.judge(h.unlock(unlocking))
}
