package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

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
	w.longest = s.longest
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
	most    time.Duration // the longest grace of its holds, if they are recalled
	longest time.Duration // how long its holds last at most; 0 for ever
}

// opens opens another Session of the process, and returns its number.
func (p *process) opens(r *rand.Rand) (number int, s session) {
	opts, most := p.w.sharing(r)
	opts = append(opts, p.w.judge.watchesSetBacks(p.name)...)
	if p.side.judged {
		opts = append(opts, p.w.ttls(r)...)
	}
	var longest time.Duration
	if p.w.longest && r.IntN(2) == 0 {
		// long enough for the judge of joined reads: see enters
		longest = p.w.ttl/2 + time.Duration(r.Int64N(int64(p.w.ttl)))
		opts = append(opts, etcdlock.WithMaxHold(longest))
	}
	opened, err := p.side.open(p.client, p.w.ttl, opts)
	if err != nil {
		panic(err)
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.sessions = append(p.sessions, session{opened, most, longest})
	return len(p.sessions) - 1, p.sessions[len(p.sessions)-1]
}
