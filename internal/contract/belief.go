package contract

import (
	"context"
	"sync"
	"time"
)

// A Belief records who believes to hold one lock. It fails its test when two believe so at
// once and they do not both read, or when the tokens of the beliefs do not strictly grow.
// The tokens of two that read need not grow; between a read and anything else they must. It
// is safe for concurrent use.
//
// A belief begins when Lock has returned and ends when Unlock is about to be called: call
// Enter after Lock, and Leave before Unlock.
type Belief struct {
	t TestingT

	mu        sync.Mutex
	believers map[string]belief
	last      int64 // the greatest token so far
	written   int64 // the greatest token of a hold that was no read
	entries   int
	lost      time.Time // when the last belief ended by its context
	margin    time.Duration
}

type belief struct {
	token int64
	reads bool
	hold  context.Context
	stop  func() bool // of the hold's AfterFunc
}

// A TestingT is a test, or the judge of a part of one, such as a trial of the matrix.
type TestingT interface {
	Helper()
	Errorf(format string, args ...any)
}

// NewBelief returns a Belief in which nobody holds the lock.
func NewBelief(t TestingT) *Belief {
	return &Belief{t: t, believers: map[string]belief{}, margin: -1}
}

// Enter records that who believes to hold the lock until Leave. A token of 0 means that the
// token is not known.
func (b *Belief) Enter(who string, token int64) {
	b.t.Helper()
	b.EnterUntil(context.Background(), who, token)
}

// EnterUntil records that who believes to hold the lock until Leave or the end of hold,
// whichever comes first. When another one enters, hold.Err decides whether the hold has
// ended.
func (b *Belief) EnterUntil(hold context.Context, who string, token int64) {
	b.t.Helper()
	b.enter(hold, who, token, false)
}

// ReadUntil is EnterUntil for a reader.
func (b *Belief) ReadUntil(hold context.Context, who string, token int64) {
	b.t.Helper()
	b.enter(hold, who, token, true)
}

func (b *Belief) enter(hold context.Context, who string, token int64, reads bool) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()

	for other, held := range b.believers {
		if held.hold.Err() == nil && held.reads && reads {
			continue
		}
		if held.hold.Err() == nil {
			b.t.Errorf("two believe to hold the lock: %s with token %d, and %s with token %d",
				other, held.token, who, token)
			continue
		}
		// It ended by its context. Leave comes later, or the AfterFunc is about to run.
		b.endedLocked(other, held, now)
	}
	before := b.last
	if reads {
		before = b.written
	}
	if token != 0 && token <= before {
		b.t.Errorf("%s holds the lock with token %d, after token %d", who, token, before)
	}
	if !b.lost.IsZero() {
		if margin := now.Sub(b.lost); b.margin < 0 || margin < b.margin {
			b.margin = margin
		}
		b.lost = time.Time{}
	}
	b.last = max(b.last, token)
	if !reads {
		b.written = max(b.written, token)
	}
	b.entries++
	b.believers[who] = belief{token, reads, hold, context.AfterFunc(hold, func() {
		b.ended(who, token)
	})}
}

// Leave records that who no longer believes to hold the lock. If the belief has ended
// before, it does nothing.
func (b *Belief) Leave(who string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if held, ok := b.believers[who]; ok {
		held.stop()
		delete(b.believers, who)
	}
}

// ended is called when the context of a belief ends.
func (b *Belief) ended(who string, token int64) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if held, ok := b.believers[who]; ok && held.token == token {
		b.endedLocked(who, held, now)
	}
}

func (b *Belief) endedLocked(who string, held belief, now time.Time) {
	held.stop()
	delete(b.believers, who)
	b.lost = now
}

// Entries returns how many beliefs there were.
func (b *Belief) Entries() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entries
}

// LeastMargin returns the shortest time from the end of a hold's context to the next
// belief. It returns false if no hold ended by its context.
func (b *Belief) LeastMargin() (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.margin, b.margin >= 0
}
