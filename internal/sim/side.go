package sim

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// A Side is a library of locks that a schedule can run with.
type Side struct {
	Name    string // for -side
	library side.Side
	names   []string // of two locks that must not block each other
	// judged says that the library promises what the judge checks. Otherwise the judge
	// counts, and checks only what every lock must do.
	judged bool
}

// The sides.
var (
	Ours   = Side{Name: "etcdlock", library: side.Ours, names: []string{"a", "a/b"}, judged: true}
	Theirs = Side{Name: "concurrency", library: side.Theirs, names: []string{"a", "b"}}
)

// open makes the session of a process. Any number of goroutines may use one of its locks.
// The peer leaves that to its users.
func (s Side) open(
	client *clientv3.Client, ttl time.Duration, opts []etcdlock.SessionOption,
) (side.Session, error) {
	opened, err := s.library.Open(client, ttl, opts...)
	if err == nil && !s.judged {
		opened = side.InTurn(opened)
	}
	return opened, err
}

// An outcome is the meaning of a call's error.
type outcome string

const (
	done        outcome = "done"
	ended       outcome = "ended" // the context has ended
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
