package board

import (
	"strings"
	"time"
)

const (
	// Memory is for how long a board remembers contenders that have gone, and mostPast how many.
	Memory   = 10 * time.Minute
	mostPast = 10_000

	// mostBlind is how many times without an answer a board remembers.
	mostBlind = 32

	// mostText is of how long a name and an owner it is remembered: foreign keys may have vast ones.
	mostText = 1024
)

// A Past is a contender that has gone from a line.
type Past struct {
	Lock     string
	Owner    string // as Whose has it
	Token    int64
	Seen     time.Time // the board has seen it in line since then
	Holds    bool      // it held when it went
	Held     time.Time // since when; zero if it never held, or if that is not known
	Recalled time.Time // when it was asked to give the lock back; zero if it was not
	By       string    // who asked it
	Gone     time.Time
	End      End
}

// An End is why a contender has gone.
type End string

// The ends. Keys that etcd deletes with their lease look like others. But the lease was late, and
// would have ended then. A key that another command deletes looks like one that was released.
const (
	Released End = ""
	Lost     End = "lost"
	Broken   End = "broken" // by this command
)

// A Blind is a time in which etcd did not answer. Changes meanwhile are not known.
type Blind struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// A History is what is remembered, the oldest first.
type History struct {
	Since time.Time // no contender that went before is known
	Blind []Blind
	Past  []Past
	Next  uint64 // what the next History is asked from, to have only what is new
}

// history is a ring of contenders that have gone. An event costs one place of it, and it is bounded
// however many locks there are.
type history struct {
	since time.Time
	blind []Blind
	ring  []Past
	next  uint64 // how many have gone ever
}

func (h *history) add(p Past) {
	if len(h.ring) < mostPast {
		h.ring = append(h.ring, p)
	} else {
		at := &h.ring[h.next%mostPast]
		h.since, *at = at.Gone, p
	}
	h.next++
}

// reads notes that the board was read anew: what came and went since etcd last answered is not
// known.
func (h *history) reads(known, now time.Time) {
	if known.IsZero() {
		h.since = now
		return
	}
	h.blind = append(h.blind, Blind{known, now})
	h.blind = h.blind[max(0, len(h.blind)-mostBlind):]
}

// History is what is remembered, or what is new since an earlier one that said Next.
func (b *Board) History(now time.Time, from uint64) History {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &b.history
	since := now.Add(-Memory)
	if h.since.After(since) {
		since = h.since
	}
	shown := History{Since: since, Next: h.next}
	for _, blind := range h.blind {
		if blind.To.After(since) {
			shown.Blind = append(shown.Blind, blind)
		}
	}
	for n := max(from, h.next-uint64(len(h.ring))); n < h.next; n++ {
		if p := h.ring[n%mostPast]; !p.Gone.Before(since) {
			shown.Past = append(shown.Past, p)
		}
	}
	return shown
}

// leavesLocked remembers a place that is no longer in line.
func (b *Board) leavesLocked(now time.Time, lock string, p *Place) {
	is := b.broken[p.Key]
	delete(b.broken, p.Key)
	if len(lock) > mostText {
		return
	}
	past := Past{Lock: lock, Owner: p.Whose(), Token: p.Token, Seen: p.Seen, Holds: p.Holds,
		Held: p.Held, Gone: now}
	if len(past.Owner) > mostText {
		past.Owner = strings.ToValidUTF8(past.Owner[:mostText], "")
		past.Owner = strings.Clone(past.Owner)
	}
	if p.Recall != nil {
		past.Recalled, past.By = p.Recall.Asked, p.Recall.By
	}
	switch l := b.leases[p.Lease]; {
	case is:
		past.End = Broken
	case l.over(now):
		past.End = Lost
	}
	b.history.add(past)
}

// over reports whether a lease has ended by a time, as far as was heard of it: it was late, and
// would have ended, as etcd rounds, about then.
func (l Lease) over(now time.Time) bool {
	heard := now.Sub(l.At)
	return l.Granted > 0 && heard <= time.Duration(l.Granted)*time.Second &&
		(l.Left < 0 || l.Late() && heard >= time.Duration(l.Left-1)*time.Second)
}

// Breaks says that this command is about to delete a key, or has not done it.
func (b *Board) Breaks(key string, is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken[key] = true; !is {
		delete(b.broken, key)
	}
}
