// Package etcdlocktusd locks uploads of tusd v2 on etcd, for tusd on several machines with one
// storage. It is a handler.Locker.
//
//	locker, err := etcdlocktusd.NewLocker(session, "uploads/")
//	if err != nil {
//		return nil, err
//	}
//	composer := handler.NewStoreComposer()
//	store.UseIn(composer)
//	locker.UseIn(composer) // after the store, which may bring a locker of its own
//	return handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: composer})
//
// A request for an upload that another request has locked asks that one to end, in this process or
// elsewhere: tusd saves what has arrived, and unlocks. Nobody gets the lock before that. A client
// whose connection broke can so resume at once, also on another machine.
//
// If the lock is lost, because etcd was away for the TTL of the session or an operator took it
// away, the request is asked to end, too: before another one gets the lock if the lease ran out.
// But tusd then goes on saving for up to GracefulRequestCompletionTimeout (10 s by default), and
// does not send a fencing token to its storage. So a loss may let two requests write. A TTL of
// minutes ([etcdlock.WithTTL]) outlives most outages of etcd; it is how long the uploads of a
// machine that died stay locked.
package etcdlocktusd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/etcdlock/etcdlock"
)

const (
	// grace is longer than tusd takes to end a request. Its end would only end the context of the
	// hold: the key stays until Unlock.
	grace = time.Hour

	// linger makes a hold watch its line from the beginning, and so hear at once of a request that
	// waits. Without it that takes a second in a hold that is younger.
	// (TestTheHolderIsAskedAtOnce)
	linger = time.Millisecond
)

// A Locker is a handler.Locker. It is safe for concurrent use.
type Locker struct {
	session *etcdlock.Session
	prefix  string
	opts    []etcdlock.Option
}

// NewLocker returns a Locker whose locks are those of session with the IDs of the uploads, each
// behind prefix, and escaped as a part of a URL's path. It does no I/O. The options count for each
// lock, except [etcdlock.WithAsk], [etcdlock.WithRecall] and [etcdlock.WithLinger]. A nil session,
// and a prefix or an option that no lock can have, are errors.
//
// A short lock that nobody waits for costs three requests and a watch, and a longer one a read now
// and then, as [etcdlock.WithLinger] says. A wait asks the holder by a read, a transaction and a
// watch, or without etcd if it is in the same session.
func NewLocker(session *etcdlock.Session, prefix string, opts ...etcdlock.Option) (*Locker, error) {
	if session == nil {
		return nil, errors.New("etcdlocktusd: nil Session")
	}
	l := &Locker{session: session, prefix: prefix, opts: append(opts[:len(opts):len(opts)],
		etcdlock.WithAsk(etcdlock.RecallRequest{Reason: "another request for the upload", Grace: grace}),
		etcdlock.WithRecall(grace), etcdlock.WithLinger(linger))}
	if _, err := l.mutex("id"); err != nil {
		return nil, fmt.Errorf("etcdlocktusd: NewLocker with prefix %q: %w", prefix, err)
	}
	return l, nil
}

// UseIn makes the handlers of composer lock by l.
func (l *Locker) UseIn(composer *handler.StoreComposer) { composer.UseLocker(l) }

// NewLock returns a lock for the upload id, that is not locked. It asks etcd nothing. tusd answers
// with the status 404 to the error of an id that no lock can have, as one of more than 1,024 bytes
// with its prefix and escaped: ids come from clients.
func (l *Locker) NewLock(id string) (handler.Lock, error) {
	mu, err := l.mutex(id)
	switch {
	case errors.Is(err, etcdlock.ErrClosed):
		return nil, err
	case err != nil:
		return nil, handler.NewError(handler.ErrNotFound.ErrorCode, err.Error(), http.StatusNotFound)
	}
	return &lock{mu}, nil
}

func (l *Locker) mutex(id string) (*etcdlock.Mutex, error) {
	return l.session.Mutex(l.prefix+url.PathEscape(id), l.opts...)
}

// A lock is a handler.Lock.
type lock struct{ mu *etcdlock.Mutex }

// Lock waits until it holds the lock, and asks the holder to unlock. If ctx ends before that it
// returns handler.ErrLockTimeout. Other errors are those of [etcdlock.Mutex.Lock]. After an
// error the lock is not held, and nothing is left behind.
//
// requestUnlock is called once, by a goroutine of its own, if another Lock of the upload waits or
// the lock is lost; not if it is unlocked before. It may call Unlock.
func (l *lock) Lock(ctx context.Context, requestUnlock func()) error {
	if ctx == nil || requestUnlock == nil {
		return fmt.Errorf("etcdlocktusd: Lock of %q with a nil context or requestUnlock", l.mu.Name())
	}
	if err := l.mu.Lock(ctx); err != nil {
		// the latter by WithAcquireTimeout
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			return handler.ErrLockTimeout // tusd compares it, and answers with its status
		}
		return err
	}
	held := l.mu.Context(context.Background())
	go func() { // ends with the hold
		select {
		case <-etcdlock.RecallFrom(held):
		case <-held.Done():
		}
		if !errors.Is(context.Cause(held), etcdlock.ErrUnlocked) {
			requestUnlock()
		}
	}()
	return nil
}

// Unlock ends the hold. Its errors, which tusd drops, are those of [etcdlock.Mutex.Unlock]. It
// takes 5 s, or the TTL, at most.
func (l *lock) Unlock() error { return l.mu.Unlock(context.Background()) }
