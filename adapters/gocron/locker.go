package etcdlockgocron

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/etcdlock/etcdlock"
)

// A Locker is a gocron.Locker, for gocron.WithDistributedLocker or, for one job,
// gocron.WithDistributedJobLocker. It is safe for concurrent use, also by several schedulers.
type Locker struct {
	session *etcdlock.Session
	prefix  string
	splay   time.Duration
	opts    []etcdlock.Option

	mu   sync.Mutex
	runs map[string]*run // those that go on, by the name of their job
}

// NewLocker returns a Locker whose locks are those of session with the names of the jobs, each
// behind prefix, and escaped as a part of a URL's path: that of "main.report" is "cron/main.report"
// with the prefix "cron/", and that of "nightly/" is "cron/nightly%2F". It does no I/O. The options
// count for each lock, except [etcdlock.WithMinHold].
//
// splay is by how much the schedulers may start a slot apart: by how much their clocks differ, and
// a busy machine is late. A slot runs once if they keep to it, however short the job is: a lock
// stays taken for at least twice splay from its beginning, and a Lock that takes longer than splay
// fails. While etcd is that slow a slot may not run at all.
//
// The slots of a job have to be further apart than twice splay: 200 ms does for a job each second,
// 5 s for one each minute. Of slots that are nearer some do not run, which gocron tells
// gocron.AfterLockError, and a Monitor as a Skip. If the program ends while a lock stays taken in
// this way, it is free up to 3 s later than twice splay.
//
// If a scheduler dies within a job the lock is free when the lease of its session has expired
// ([etcdlock.WithTTL]): with a TTL of at least twice splay no other one runs that slot again.
//
// A nil session, a splay below a millisecond, and a prefix or option that no lock can have are
// errors.
func NewLocker(
	session *etcdlock.Session, prefix string, splay time.Duration, opts ...etcdlock.Option,
) (*Locker, error) {
	if session == nil {
		return nil, errors.New("etcdlockgocron: nil Session")
	}
	if splay < time.Millisecond {
		return nil, fmt.Errorf("etcdlockgocron: NewLocker with prefix %q: splay %v is below 1ms: "+
			"a plain number is nanoseconds", prefix, splay)
	}
	opts = append(opts[:len(opts):len(opts)], etcdlock.WithMinHold(2*splay))
	if _, err := session.Mutex(prefix+"job", opts...); err != nil {
		return nil, fmt.Errorf("etcdlockgocron: NewLocker with prefix %q and splay %v: %w",
			prefix, splay, err)
	}
	return &Locker{
		session: session, prefix: prefix, splay: splay, opts: opts, runs: make(map[string]*run),
	}, nil
}

// Lock takes the lock of the job key, or returns an error, and then gocron does not run this slot:
// an [etcdlock.LockedError] if another run of the job has it, or has begun within twice splay, in
// this process or elsewhere; context.DeadlineExceeded if etcd has not answered within splay;
// otherwise as [etcdlock.Session.TryLock], also if the name has more than 1,024 bytes with its
// prefix and escaped. After an error the lock is not held.
//
// It costs a read if the lock is taken, else one request, as its Unlock does. That of a run
// shorter than twice splay costs three.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	if ctx == nil {
		return nil, errors.New("etcdlockgocron: Lock with a nil context")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, l.splay, fmt.Errorf(
		"the splay of the Locker, %v, is over: %w", l.splay, context.DeadlineExceeded))
	defer cancel()
	hold, err := l.session.TryLock(ctx, l.prefix+url.PathEscape(key), l.opts...)
	if err != nil {
		return nil, err
	}
	r := &run{Hold: hold, of: l, key: key}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[key] = r
	return r, nil
}

// Context returns a context for the run of the job key that goes on: it comes from parent, and also
// ends when the lock is lost, before another scheduler can get it. [context.Cause] says why, and
// [etcdlock.TokenFrom] has the fencing token of the run. If the lock of the job is not held through
// this Locker the context has ended already, with the cause [etcdlock.ErrNotHeld].
//
// key is the name of the job, which gocron.WithName gives. (That of a job without one is the name
// of its function, as in main.report.) parent is what gocron passes to a task whose first parameter
// is a context.
func (l *Locker) Context(parent context.Context, key string) context.Context {
	l.mu.Lock()
	r := l.runs[key]
	l.mu.Unlock()
	if r == nil {
		var none *etcdlock.Hold
		return none.Context(parent)
	}
	return r.Hold.Context(parent)
}

// A run is the gocron.Lock of a job that runs. There is one of a job at a time: a Session holds a
// name once, and lets no other hold in before the Unlock of one that is lost.
type run struct {
	*etcdlock.Hold
	of  *Locker
	key string
}

// Unlock ends the run. Its errors, which gocron drops, are those of [etcdlock.Hold.Unlock]. gocron
// passes the context of the job, which has ended if the scheduler is shut down: Unlock then takes
// 5 s, or the TTL, at most.
func (r *run) Unlock(ctx context.Context) error {
	err := r.Hold.Unlock(ctx)
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.of.runs[r.key] == r { // and not the next one yet
		delete(r.of.runs, r.key)
	}
	return err
}
