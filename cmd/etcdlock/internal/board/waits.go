package board

import (
	"iter"
	"slices"
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
)

// A Wait is a Session that waits for another one.
type Wait struct {
	Lock    string `json:"lock"`
	Session string `json:"session"` // that waits
	Owner   string `json:"owner"`
	Behind  string `json:"behind"` // the Session before it
	Holder  string `json:"holder"` // its owner
}

const (
	// mostBehind bounds the places of one line for which one waits directly, and mostLooked those
	// that are looked at for them: a line may have thousands that share, or are of one Session.
	mostBehind = 64
	mostLooked = 1000
)

// Waits is which Session waits for which: a key's lease names its Session.
func Waits(locks []*Lock) (waits []Wait) {
	for _, l := range locks {
		for i, p := range l.Places {
			others := func(before *Place) bool { return before.Session != p.Session }
			for before := range l.before(i, others) {
				waits = append(waits, Wait{l.Name, p.Session, name(p), before.Session, name(before)})
			}
		}
	}
	return waits
}

// before yields the places for which the i-th waits. A place waits for all before it that do not
// share with it. Places before an exclusive one are left out, since that one waits for them, too.
// counts says which places count.
func (l *Lock) before(i int, counts func(*Place) bool) iter.Seq[*Place] {
	return func(yield func(*Place) bool) {
		p, n := l.Places[i], 0
		for j := i - 1; j >= max(0, i-mostLooked) && n < mostBehind && !p.Holds; j-- {
			before := l.Places[j]
			if shares := p.Mode == line.Read.String() && before.Mode == p.Mode; !shares && counts(before) {
				if n++; !yield(before) {
					return
				}
			}
			if before.Mode == line.Exclusive.String() {
				return
			}
		}
	}
}

func name(p *Place) string {
	if p.Owner == "" {
		return "(another program)"
	}
	return p.Owner
}

// A Cycle is waits in which each waits for the next, and the last for the first.
type Cycle struct {
	Deadlock bool   `json:"deadlock"` // else it may be one
	Waits    []Wait `json:"waits"`
}

// Sessions is how many Sessions are in c.
func (c Cycle) Sessions() int {
	ids := make(map[string]bool)
	for _, w := range c.Waits {
		ids[w.Session] = true
	}
	return len(ids)
}

// Cycles is the cycles of some locks and their waits, deadlocks first. Of those that have something
// in common one is told.
//
// A deadlock is a cycle of calls: their keys tell within which holds they are. A cycle of Sessions
// need not be one, since each goroutine of a Session waits for itself. (A deadlock may end: by a
// deadline, or if the hold is unlocked by another goroutine than the one that waits within it.)
func Cycles(locks []*Lock, waits []Wait) (cycles []Cycle) {
	for _, path := range circles(steps(locks)) {
		var c Cycle
		for _, s := range path {
			if s.wait.Lock != "" {
				c.Waits = append(c.Waits, s.wait)
			}
		}
		c.Deadlock = true
		cycles = append(cycles, c)
	}
	inDeadlock := make(map[string]bool)
	for _, c := range cycles {
		for _, w := range c.Waits {
			inDeadlock[w.Session], inDeadlock[w.Behind] = true, true
		}
	}
	var bySession []step[string]
	for _, w := range waits {
		if !inDeadlock[w.Session] {
			bySession = append(bySession, step[string]{w.Session, w.Behind, w})
		}
	}
	for _, path := range circles(bySession) {
		var c Cycle
		for _, s := range path {
			c.Waits = append(c.Waits, s.wait)
		}
		cycles = append(cycles, c)
	}
	return cycles
}

// A step says that one thing does not end before another one does.
type step[T comparable] struct {
	from, to T
	wait     Wait // without a Lock if a hold does not end before a call within it
}

// steps is which key stays in line until which other one has left it. Keys are told by their
// tokens: those of a LockAll have one. It leaves out what is not certain: a permit that another one
// may let in, and a key that tells of a hold that has ended, or is of another process. Without a
// call within a hold there is none: a wait leads to an earlier token, and so to no cycle.
func steps(locks []*Lock) (all []step[int64]) {
	holds := make(map[int64]*Place)
	for _, l := range locks {
		for _, p := range l.Places {
			if p.Holds && p.Until.IsZero() {
				holds[p.Token] = p
			}
		}
	}
	for _, l := range locks {
		for _, p := range l.Places {
			h := holds[p.after]
			if h != nil && p.Token > h.Token && p.Host == h.Host && p.PID == h.PID && p.PID != 0 {
				all = append(all, step[int64]{from: h.Token, to: p.Token})
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	for _, l := range locks {
		for i, p := range l.Places {
			for before := range l.before(i, p.isExcludedBy) {
				wait := Wait{l.Name, p.Session, name(p), before.Session, name(before)}
				all = append(all, step[int64]{p.Token, before.Token, wait})
			}
		}
	}
	return all
}

// isExcludedBy reports whether p cannot hold while the place before it stands, whatever else does.
// The least limit of all that stand before counts, and so that of these two.
func (p *Place) isExcludedBy(before *Place) bool {
	permits := p.Mode == line.Permit.String() && before.Mode == p.Mode
	return !permits || before.Weight+p.Weight > min(before.limit, p.limit)
}

// circles returns ways that end where they begin.
func circles[T comparable](steps []step[T]) (circles [][]step[T]) {
	next := make(map[T][]step[T])
	for _, s := range steps {
		next[s.from] = append(next[s.from], s)
	}
	const fresh, onPath, done = 0, 1, 2
	state, at, tried := make(map[T]int), make(map[T]int), make(map[T]int)
	told := make(map[T]bool) // what is in one of the circles
	for _, first := range steps {
		if state[first.from] != fresh {
			continue
		}
		path := []step[T]{} // by which the search came
		enter := func(t T) { state[t], at[t] = onPath, len(path) }
		enter(first.from)
		for here := first.from; ; {
			ways := next[here]
			if tried[here] == len(ways) {
				state[here] = done
				if len(path) == 0 {
					break
				}
				here = path[len(path)-1].from
				path = path[:len(path)-1]
				continue
			}
			way := ways[tried[here]]
			tried[here]++
			switch state[way.to] {
			case onPath:
				circle := append(slices.Clone(path[at[way.to]:]), way)
				if slices.ContainsFunc(circle, func(s step[T]) bool { return told[s.from] }) {
					continue
				}
				circles = append(circles, circle)
				for _, s := range circle {
					told[s.from] = true
				}
			case fresh:
				path = append(path, way)
				here = way.to
				enter(here)
			}
		}
	}
	return circles
}

// Cycles is the cycles of all locks. They are made anew when a lock has changed, by one reader at a
// time: the others have what it has made.
func (b *Board) Cycles(now time.Time) []Cycle {
	b.search.Lock()
	defer b.search.Unlock()
	b.mu.Lock()
	version, known, cycles := b.version, b.cyclesOf, b.cycles
	b.mu.Unlock()
	if version == known {
		return cycles
	}
	p := b.Picture(now, 0)
	cycles = Cycles(p.Locks, Waits(p.Locks))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cyclesOf, b.cycles = p.Version, cycles
	return cycles
}
