package events

import (
	"sync"
	"time"
)

// Lasts is how long a wait lasts before the logger and the Trace are told of it. They are told
// again each time it has doubled.
const Lasts = 30 * time.Second

// doubtful is how late a wait may be told again before it counts as over: its end was not told,
// because hooks were blocked.
const doubtful = 10 * time.Second

// Longest knows how long the longest wait of a kind has lasted, of the waits that were told, by
// what hooks tell of them: a wait has no name there but the second in which it began. The zero
// Longest knows none.
type Longest struct {
	mu    sync.Mutex
	kinds map[string]map[int64]*began
}

// A began is the waits of a kind that began in a second.
type began struct {
	count int
	at    time.Time // the first of them
	until time.Time // when it counts as over, unless it is told again
}

// Begin makes a kind known.
func (l *Longest) Begin(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds == nil {
		l.kinds = make(map[string]map[int64]*began)
	}
	if l.kinds[kind] == nil {
		l.kinds[kind] = make(map[int64]*began)
	}
}

// Told notes that a wait of a known kind was told, after it has lasted for so long.
func (l *Longest) Told(kind string, waited time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.findLocked(kind, waited)
	if b == nil {
		at := time.Now().Add(-waited)
		b = &began{at: at, count: 1}
		l.kinds[kind][at.Unix()] = b
	} else if waited < 2*Lasts { // another one
		b.count++
	}
	b.until = time.Now().Add(waited + doubtful)
}

// Ended notes that a wait of a known kind, which has lasted for so long, is over.
func (l *Longest) Ended(kind string, waited time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.findLocked(kind, waited); b != nil {
		b.count--
	}
}

// findLocked is what is known of a wait that has lasted for so long, nil if nothing is. A hook runs
// some time after the event.
func (l *Longest) findLocked(kind string, waited time.Duration) *began {
	second := time.Now().Add(-waited).Unix()
	for _, s := range []int64{second, second - 1} {
		if b := l.kinds[kind][s]; b != nil && b.count > 0 {
			return b
		}
	}
	return nil
}

// All calls f with each known kind, and how long the longest wait of it has lasted: 0 if none does.
func (l *Longest) All(f func(kind string, waited time.Duration)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind, waits := range l.kinds {
		var longest time.Duration
		for second, b := range waits {
			if b.count <= 0 || time.Now().After(b.until) {
				delete(waits, second)
				continue
			}
			longest = max(longest, time.Since(b.at))
		}
		f(kind, longest)
	}
}
