package board

import (
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

// mostBehind bounds the Sessions of one line for which one waits directly.
const mostBehind = 64

// Waits is which Session waits for which: a key's lease names its Session. A place waits for all
// before it that do not share with it. Places before an exclusive one are left out, since
// that one waits for them, too.
func Waits(locks []*Lock) (waits []Wait) {
	for _, l := range locks {
		for i, p := range l.Places {
			if p.Holds {
				continue
			}
			n := 0
			for j := i - 1; j >= 0 && n < mostBehind; j-- {
				before := l.Places[j]
				if p.Mode == line.Read.String() && before.Mode == p.Mode {
					continue
				}
				if before.Session != p.Session {
					waits = append(waits, Wait{l.Name, p.Session, name(p), before.Session, name(before)})
					n++
				}
				if before.Mode == line.Exclusive.String() {
					break
				}
			}
		}
	}
	return waits
}

func name(p *Place) string {
	if p.Owner == "" {
		return "(another program)"
	}
	return p.Owner
}

// Cycles is the cycles among waits: Sessions that wait for each other. Such a cycle may be a
// deadlock. It need not be one: each goroutine of a Session waits for itself. Of cycles that have
// Sessions in common one is told.
func Cycles(waits []Wait) (cycles [][]Wait) {
	next := make(map[string][]Wait)
	for _, w := range waits {
		next[w.Session] = append(next[w.Session], w)
	}
	const fresh, onPath, done = 0, 1, 2
	state, at := make(map[string]int), make(map[string]int)
	for _, first := range waits {
		if state[first.Session] != fresh {
			continue
		}
		path := []Wait{} // by which the search came
		enter := func(session string) { state[session], at[session] = onPath, len(path) }
		enter(first.Session)
		tried := map[string]int{}
		for session := first.Session; ; {
			ways := next[session]
			if tried[session] == len(ways) {
				state[session] = done
				if len(path) == 0 {
					break
				}
				session = path[len(path)-1].Session
				path = path[:len(path)-1]
				continue
			}
			way := ways[tried[session]]
			tried[session]++
			switch state[way.Behind] {
			case onPath:
				cycle := append(slices.Clone(path[at[way.Behind]:]), way)
				if !slices.ContainsFunc(cycles, func(told []Wait) bool { return meet(told, cycle) }) {
					cycles = append(cycles, cycle)
				}
			case fresh:
				path = append(path, way)
				session = way.Behind
				enter(session)
			}
		}
	}
	return cycles
}

// meet reports whether two cycles have a Session in common.
func meet(a, b []Wait) bool {
	return slices.ContainsFunc(a, func(w Wait) bool {
		return slices.ContainsFunc(b, func(o Wait) bool { return o.Session == w.Session })
	})
}

// Cycles is the cycles of all locks. They are made anew when a lock has changed.
func (b *Board) Cycles(now time.Time) [][]Wait {
	b.mu.Lock()
	version, known, cycles := b.version, b.cyclesOf, b.cycles
	b.mu.Unlock()
	if version == known {
		return cycles
	}
	p := b.Picture(now, 0)
	cycles = Cycles(Waits(p.Locks))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cyclesOf, b.cycles = p.Version, cycles
	return cycles
}
