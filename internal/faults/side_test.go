package faults

import (
	"context"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// A lock is what the table compares: a Mutex with a Session of its own, for one goroutine.
// It remembers its last hold.
type lock struct {
	side.Mutex
	session side.Session
	rw      side.RWMutex // the lock to which it belongs, if it is part of one
	hold    context.Context
}

// A use is what a lock is for.
type use string

const (
	exclusive use = "exclusive" // a Mutex
	writing   use = "writing"   // an RWMutex
	reading   use = "reading"   // an RWMutex
	listening use = "listening" // a Mutex that may be recalled
	several   use = "several"   // two names at once, below the lock's name
	opposed   use = "opposed"   // the same names, in the other order
	leading   use = "leading"   // a candidate
	onePermit use = "1 permit"  // of permits
	allOfThem use = "all permits"
)

// permits is the limit of the Semaphores of the table.
const permits = 2

// weight returns how many permits u is for.
func (u use) weight() int {
	switch u {
	case onePermit:
		return 1
	case allOfThem:
		return permits
	default:
		return 0
	}
}

// listens is the longest grace of a hold that may be recalled.
const listens = 3 * time.Second

// opens opens a lock. who is its owner, if the side can say that.
func opens(s side.Side, c *clientv3.Client, name, who string, ttl time.Duration) (*lock, error) {
	return opensFor(exclusive, s, c, name, who, ttl)
}

// opensFor opens a lock for a use.
func opensFor(
	u use, s side.Side, c *clientv3.Client, name, who string, ttl time.Duration,
) (*lock, error) {
	opts := []etcdlock.SessionOption{etcdlock.WithOwner(who)}
	if sharing() {
		opts = append(opts, etcdlock.WithHandoff(3), etcdlock.WithLinger(200*time.Millisecond))
	}
	if u == listening {
		opts = append(opts, etcdlock.WithRecall(listens))
	}
	session, err := s.Open(c, ttl, opts...)
	if err != nil {
		return nil, err
	}
	l := &lock{session: session}
	if err := l.use(u, name); err != nil {
		return nil, err
	}
	return l, nil
}

// use makes the lock for its session.
func (l *lock) use(u use, name string) (err error) {
	switch u {
	case several:
		l.Mutex, err = side.Several(l.session, name+"/x", name+"/y")
	case opposed:
		l.Mutex, err = side.Several(l.session, name+"/y", name+"/x")
	case leading:
		l.Mutex, err = side.Candidate(l.session, name)
	case onePermit, allOfThem:
		l.Mutex, err = side.Permits(l.session, name, permits, u.weight())
	case writing, reading:
		if l.rw, err = l.session.RWMutex(name); err != nil {
			return err
		}
		if l.Mutex = l.rw; u == reading {
			l.Mutex = l.rw.Reader()
		}
	default:
		l.Mutex, err = l.session.Mutex(name)
	}
	if err == nil {
		l.hold = l.Hold()
	}
	return err
}

func (l *lock) Lock(ctx context.Context) error    { return l.held(l.Mutex.Lock(ctx)) }
func (l *lock) TryLock(ctx context.Context) error { return l.held(l.Mutex.TryLock(ctx)) }

func (l *lock) held(err error) error {
	if err == nil {
		l.hold = l.Hold()
	}
	return err
}

// Ended is closed once the last hold is over as far as the library knows.
func (l *lock) Ended() <-chan struct{} { return l.hold.Done() }

// Holds is the question that a user asks before each step of the work.
func (l *lock) Holds() bool { return l.hold.Err() == nil }

func (l *lock) Close(ctx context.Context) error { return l.session.Close(ctx) }

// Share returns the same Mutex for another goroutine.
func (l *lock) Share() *lock { return &lock{Mutex: l.Mutex, session: l.session, hold: l.Hold()} }

// sideNamed returns the side of that name, which this process uses.
func sideNamed(name string) side.Side {
	if name == side.Theirs.Name {
		return side.Theirs
	}
	return side.Ours
}

// sharing reports whether holds of a Session may have one key, and so one token.
func sharing() bool { return os.Getenv(shareEnv) != "" }

// grows reports whether a hold may have the token next after one that had last.
func grows(last, next int64) bool { return next > last || sharing() && next == last }
