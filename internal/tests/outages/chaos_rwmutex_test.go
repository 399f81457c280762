package outages

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// holders are those that hold, by what each believes.
type holders struct {
	t       *testing.T
	mu      sync.Mutex
	inside  map[*holding]bool
	token   int64 // the highest of a hold
	last    int   // the home of the last one
	written int64 // the highest of a writer
	reads   int
	writes  int
	shared  int // holds beside others
}

func newHolders(t *testing.T) *holders {
	return &holders{t: t, inside: make(map[*holding]bool)}
}

// A holding is a claim that has come to hold.
type holding struct {
	who           string
	home          int  // its Session
	writes        bool // excludes all others; those that do not are beside each other
	weight, limit int  // of permits
	token         int64
	ctx           context.Context
}

// excludes is one call for a lock that excludes all others. unlock is nil unless b holds it then.
func (b *holding) excludes(ctx context.Context, l interface {
	Lock(context.Context) error
	TryLock(context.Context) error
	Context(context.Context) context.Context
	Token() int64
	Unlock(context.Context) error
}, try bool) (unlock func(context.Context) error) {
	lock := l.Lock
	if try {
		lock = l.TryLock
	}
	if lock(ctx) != nil {
		return nil
	}
	b.ctx, b.token = l.Context(context.Background()), l.Token()
	return l.Unlock
}

// holdsBy is what one call for a Hold has come to. unlock is nil if that is no Hold.
func (b *holding) holdsBy(h *etcdlock.Hold, err error) (unlock func(context.Context) error) {
	if err != nil {
		return nil
	}
	b.ctx, b.token = h.Context(context.Background()), h.Token()
	return h.Unlock
}

// readsOrWrites is one call of rw. unlock is nil unless b holds then.
func (b *holding) readsOrWrites(
	ctx context.Context, rw *etcdlock.RWMutex, try bool,
) (unlock func(context.Context) error) {
	switch {
	case b.writes:
		return b.excludes(ctx, rw, try)
	case try:
		return b.holdsBy(rw.TryRLock(ctx))
	}
	return b.holdsBy(rw.RLock(ctx))
}

// stays is what b does once it has called: if it holds it does so for a while, before a judge.
func (b *holding) stays(
	judge interface {
		enter(*holding)
		leave(*holding)
	}, own *rand.Rand, unlock func(context.Context) error,
) {
	if unlock == nil {
		return
	}
	judge.enter(b)
	time.Sleep(time.Duration(own.Int64N(int64(4 * time.Second))))
	judge.leave(b)
	_ = unlock(context.Background())
}

// enter judges a claim that has come to hold. Nobody else may believe to hold, unless both
// read. In its own Session everybody else has unlocked. A hold that has ended by now says
// nothing.
func (l *holders) enter(b *holding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.ctx.Err() != nil {
		return
	}
	for o := range l.inside {
		switch {
		case !b.writes && !o.writes:
			l.shared++
		case o.home == b.home, o.ctx.Err() == nil && b.ctx.Err() == nil:
			l.t.Errorf("%s holds with token %d beside %s with %d", b.who, b.token, o.who, o.token)
		}
	}
	l.admitLocked(b)
}

// admitLocked judges the token of one that has come to hold: it is greater than those of all that
// excluded it.
func (l *holders) admitLocked(b *holding) {
	before := l.token
	if !b.writes {
		before = l.written
	}
	passedOn := b.writes && b.token == before && b.home == l.last // WithHandoff, WithLinger
	if b.token <= before && !passedOn {
		l.t.Errorf("%s has token %d after %d", b.who, b.token, before)
	}
	l.token, l.last = max(l.token, b.token), b.home
	if b.writes {
		l.written = max(l.written, b.token)
		l.writes++
	} else {
		l.reads++
	}
	l.inside[b] = true
}

func (l *holders) leave(b *holding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.inside, b)
}

// Goroutines of some Sessions read and write, wait and try, give up and hold for a while.
// Meanwhile answers are lost, requests come late and twice, processes are cut off, and
// watches end. A writer is alone, as far as anybody believes. A Session's own goroutines
// exclude each other until they have unlocked. Tokens grow from each write to whatever
// comes after it. In the end everybody gets in, and nothing is left.
func TestReadersAndWritersUnderRandomFaults(t *testing.T) {
	reads, writes, shared := 0, 0, 0
	eachChaos(t, func(t *testing.T, etcd *fake.Server, seed uint64) {
		l := newHolders(t)
		chaos{each: 4, does: func(s *etcdlock.Session, home int, who string) chaotic {
			rw := tests.RWMutexOf(t, s)
			return chaotic{
				call: func(own *rand.Rand, patience time.Duration) { one(l, rw, who, home, own, patience) },
				last: readsAndWrites(rw),
			}
		}}.run(t, etcd, seed)
		reads, writes, shared = reads+l.reads, writes+l.writes, shared+l.shared
	})
	t.Logf("%d reads, %d writes, %d times beside others", reads, writes, shared)
	require.NotZero(t, writes)
	require.Greater(t, shared, reads/10)
}

// one makes one call, and returns the hold if there is one.
func one(
	l *holders, rw *etcdlock.RWMutex, who string, home int, own *rand.Rand, patience time.Duration,
) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b := &holding{who: who, home: home, writes: own.IntN(4) == 0}
	b.stays(l, own, b.readsOrWrites(ctx, rw, own.IntN(3) == 0))
}
