package sim

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// A Side is a library of locks, as a schedule is run with it.
type Side struct {
	Name    string // for -side
	library side.Side
	names   []string // of two locks, which must not block each other
	// judged says that it promises what the judge looks for. Otherwise the judge
	// counts, and looks only for what every lock must do.
	judged bool
}

// The sides.
var (
	Ours   = Side{Name: "etcdlock", library: side.Ours, names: []string{"a", "a/b"}, judged: true}
	Theirs = Side{Name: "concurrency", library: side.Theirs, names: []string{"a", "b"}}
)

// open makes the session of a process. Its locks are for any number of goroutines, which the
// peer leaves to its users.
func (s Side) open(client *clientv3.Client, ttl time.Duration, opts []etcdlock.Option) (side.Session, error) {
	opened, err := s.library.Open(client, ttl, opts...)
	if err == nil && !s.judged {
		opened = side.InTurn(opened)
	}
	return opened, err
}

// A hold is what its holder believes to have from lock to unlock, or until ctx ends.
type hold struct {
	side.Mutex
	token int64 // the create revision of its key
	ctx   context.Context
}

// holdOf is the hold of whoever has just locked.
func holdOf(mu side.Mutex) *hold {
	h := &hold{Mutex: mu, token: mu.Token(), ctx: mu.Hold()}
	if _, ours := mu.(side.OurMutex); !ours {
		owner := mu.IsOwner() // which is how it tells
		h.token = owner.GetCompare().GetCreateRevision()
	}
	return h
}

// deadline is until when the hold is certain: no time at all where the library does not say.
func (h *hold) deadline() time.Time {
	if ours, ok := h.Mutex.(side.OurMutex); ok {
		return ours.Deadline()
	}
	return time.Time{}
}

// do calls fn with a hold, which does not end with ctx and which is unlocked when fn has
// returned. It returns whether fn was called, and the error of the one call or the other.
func do(ctx context.Context, mu side.Mutex, fn func(*hold)) (called bool, err error) {
	if ours, ok := mu.(side.OurMutex); ok {
		err = ours.Do(ctx, func(context.Context) error {
			called = true
			fn(holdOf(mu))
			return nil
		})
		return called, err
	}
	if err := mu.Lock(ctx); err != nil {
		return false, err
	}
	fn(holdOf(mu))
	return true, mu.Unlock(ctx)
}

// An outcome is what an error of a call means.
type outcome string

const (
	done        outcome = "done"
	ended       outcome = "ended" // with its context
	locked      outcome = "locked"
	lost        outcome = "lost"
	unconfirmed outcome = "unconfirmed"
	failed      outcome = "failed" // in another way
)

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return done
	case errors.Is(err, etcdlock.ErrUnconfirmed):
		return unconfirmed
	case errors.Is(err, etcdlock.ErrLost):
		return lost
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return ended
	case side.Taken(err):
		return locked
	}
	return failed
}
