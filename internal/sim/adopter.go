package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// gives ends a hold, by an Unlock, or by a Detach for others to adopt it.
func (w *worker) gives(b *belief) {
	judge := w.p.w.judge
	if b.hold.detach != nil && w.whole != nil && w.p.w.parting > 0 && w.rand.IntN(10) < w.p.w.parting {
		w.detaches(b)
		return
	}
	ctx, cancel, bound := w.unlockContext()
	defer cancel()
	began := time.Now()
	certain := w.leaves(b, 0)
	err := b.hold.unlock(ctx)
	judge.took(w, "unlock "+b.name, began, bound)
	certain.judge(err)
}

// detaches ends a hold by a Detach, and sends it to those that may adopt it.
func (w *worker) detaches(b *belief) {
	keep := 500*time.Millisecond + w.upTo(4*time.Second)
	p := parcel{name: b.name, token: b.hold.token, key: b.hold.key, keep: keep}
	ctx, cancel, bound := w.unlockContext()
	defer cancel()
	began := time.Now()
	certain := w.leaves(b, keep)
	var err error
	p.text, err = b.hold.detach(ctx, keep)
	w.p.w.judge.took(w, "detach "+b.name, began, bound)
	certain.judge(err)
	if err == nil {
		w.sends(p)
	}
}

// sends has some workers adopt a hold, or nobody. Some of them come at once, some come late.
func (w *worker) sends(p parcel) {
	after := w.upTo(p.keep * 5 / 4)
	for range []int{0, 1, 1, 2, 2, 3}[w.rand.IntN(6)] {
		if w.rand.IntN(2) == 0 {
			after = w.upTo(p.keep * 5 / 4)
		}
		at, slot := time.Now().Add(after), w.rand.IntN(processes)
		w.p.w.workers.Go(func() {
			time.Sleep(time.Until(at))
			by := w.p.w.at(slot)
			if by.side.judged && by.goesOn() && time.Now().Before(w.p.w.allGetIn()) {
				by.adopts(p)
			}
		})
	}
}

// adopts has a worker of p adopt a hold, in one of p's Sessions or in a new one.
func (p *process) adopts(of parcel) {
	w := p.w
	w.mu.Lock()
	w.adopters++
	n := w.adopters
	w.mu.Unlock()
	r := generator(w.seed, "adopter", fmt.Sprint(n))
	a := &worker{p: p, number: 1000 + n, rand: r, apart: true}
	if r.IntN(3) == 0 {
		a.opens()
		defer a.closes()
	} else {
		w.mu.Lock()
		a.session = r.IntN(p.lasting) // the others may be closed
		s := p.sessions[a.session]
		w.mu.Unlock()
		a.most, a.whole = s.most, side.OurSession(s.Session)
	}
	a.adopts(of)
}

// adopts adopts a hold, and works in it. If etcd did not answer it tries again.
func (w *worker) adopts(p parcel) {
	judge, wait := w.p.w.judge, w.upTo(4*w.p.w.ttl)
	var opts []etcdlock.Option
	least := w.least()
	if least > 0 {
		opts = append(opts, etcdlock.WithMinHold(least))
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		began := time.Now()
		c := judge.adopts(w, p, ctx)
		adopted, err := w.whole.Adopt(ctx, p.text, opts...)
		judge.took(w, "adopt "+p.name, began, wait)
		if err == nil {
			h, _ := holdOf(adopted, nil)
			h.least, h.key, h.detach = least, adopted.Key(), adopted.Detach
			b := judge.enters(w, p.name, h, c)
			w.holds(b)
			w.gives(b)
			return
		}
		judge.refused(w, c, err)
		if outcomeOf(err) != unconfirmed || !w.p.goesOn() {
			return
		}
	}
}

// least draws a least time for a hold, 0 for most of them.
func (w *worker) least() time.Duration {
	if w.p.w.keeping == 0 || w.rand.IntN(10) >= w.p.w.keeping {
		return 0
	}
	return 200*time.Millisecond + time.Duration(w.rand.Int64N(int64(2800*time.Millisecond)))
}

// briefly takes a name once, in a new Session that is closed as soon as the hold has ended.
func (w *worker) briefly(name string, wait time.Duration) {
	brief := &worker{p: w.p, number: w.number, rand: w.rand}
	brief.opens()
	defer brief.closes()
	mu, err := brief.whole.Mutex(name)
	if err != nil {
		panic(err)
	}
	brief.locks = map[string][]contender{name: {exclusive{mu: side.OurMutex{Mutex: mu}}}}
	brief.once(name, wait)
}

// opens opens a Session for the worker.
func (w *worker) opens() {
	number, s := w.p.opens(w.rand)
	w.session, w.most, w.whole, w.brief = number, s.most, side.OurSession(s.Session), true
}

// closes closes the worker's Session. Under faults that may fail: it is closed again in the end.
func (w *worker) closes() {
	if !w.p.goesOn() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.upTo(2*w.p.w.ttl))
	defer cancel()
	w.p.w.judge.note("%s closes its Session", w)
	_ = w.whole.Close(ctx)
}

// A session is a Session of a process.
type session struct {
	side.Session
	most time.Duration // the longest grace of its holds, if they are recalled
}

// opens opens another Session of the process, and returns its number.
func (p *process) opens(r *rand.Rand) (number int, s session) {
	opts, most := p.w.sharing(r)
	opened, err := p.side.open(p.client, p.w.ttl, opts)
	if err != nil {
		panic(err)
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.sessions = append(p.sessions, session{opened, most})
	return len(p.sessions) - 1, p.sessions[len(p.sessions)-1]
}
