package sim

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Meetings are the instants at which several goroutines of a Session run for one lock: the contexts
// of calls that wait end, and holders unlock, one right after the other, in any order. What one of
// them does may let another in whose context has just ended.
//
// (Do not leave the ends of contexts to time-outs. In virtual time they hardly ever come at the
// very instant at which the call is let in: 100,000 seeds did not see a reader and a writer hold at
// once.)
type meetings struct {
	mu   sync.Mutex // never held across a wait
	here map[string][]*attendee
}

// An attendee is a call that waits, or a hold.
type attendee struct{ wake func() }

// comes adds one to those that may meet in a local line, until it leaves. It is woken at most once.
func (m *meetings) comes(line string, wake func()) (leaves func()) {
	a := &attendee{wake}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.here == nil {
		m.here = make(map[string][]*attendee)
	}
	m.here[line] = append(m.here[line], a)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.leavesLocked(line, a)
	}
}

func (m *meetings) leavesLocked(line string, a *attendee) {
	m.here[line] = slices.DeleteFunc(m.here[line], func(other *attendee) bool { return other == a })
	if len(m.here[line]) == 0 {
		delete(m.here, line)
	}
}

// rushLasts is how long a rush lasts. There are hundreds of meetings in that time.
const rushLasts = 2 * time.Second

// rushes reports whether there is a rush now.
func (w *world) rushes() bool { return w.rush && time.Until(w.ends) > faultsLast-rushLasts }

// meet makes goroutines meet while there are faults.
func (w *world) meet() {
	r := generator(w.seed, "meetings")
	for {
		most := 400 * time.Millisecond
		if w.rushes() {
			most = 5 * time.Millisecond
		}
		time.Sleep(upTo(r, most))
		if !time.Now().Before(w.ends) {
			return
		}
		w.meetings.mu.Lock()
		var woken []*attendee
		lines := slices.DeleteFunc(slices.Sorted(maps.Keys(w.meetings.here)), func(line string) bool {
			return len(w.meetings.here[line]) < 2
		})
		if len(lines) > 0 {
			line := lines[r.IntN(len(lines))]
			all := slices.Clone(w.meetings.here[line])
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			woken = all[:max(2, len(all)-r.IntN(len(all)))]
			for _, a := range woken {
				w.meetings.leavesLocked(line, a)
			}
		}
		w.meetings.mu.Unlock()
		for _, a := range woken {
			a.wake()
		}
	}
}

// A patience is the context of a call of Lock. It ends after a while, or at a meeting in one of the
// lines in which the call waits.
type patience struct {
	context.Context
	cancel context.CancelFunc
	leaves []func()
	bound  atomic.Int64 // for how long the call may take
}

func (w *worker) patient(wait time.Duration, names ...string) *patience {
	p := &patience{}
	p.bound.Store(int64(wait))
	p.Context, p.cancel = context.WithTimeout(context.Background(), wait)
	began := time.Now()
	for _, name := range names {
		p.leaves = append(p.leaves, w.p.w.meetings.comes(w.line(name), func() {
			p.bound.CompareAndSwap(int64(wait), int64(time.Since(began)))
			p.cancel()
		}))
	}
	return p
}

// most is how long the call may take.
func (p *patience) most() time.Duration { return time.Duration(p.bound.Load()) }

// returned notes that the call has returned: its context meets nobody any more.
func (p *patience) returned() {
	for _, leaves := range p.leaves {
		leaves()
	}
}
