package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/etcdlock/etcdlock/internal/side"
)

// ---- redsync: it asks again after 50 to 250 ms, its default

type redsyncParty struct {
	client *goredis9.Client
	sync   *redsync.Redsync
	ttl    time.Duration
}

func openRedsync(_ context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	client := goredis9.NewClient(&goredis9.Options{Addr: address, Dialer: w.dial})
	return &redsyncParty{client, redsync.New(goredis.NewPool(client)), ttl}, nil
}

func (p *redsyncParty) lock(_ context.Context, name string) (side.Lock, error) {
	return redsyncLock{p.sync.NewMutex(name, redsync.WithExpiry(p.ttl),
		redsync.WithTries(math.MaxInt32))}, nil
}

func (p *redsyncParty) close() { p.client.Close() }

type redsyncLock struct{ m *redsync.Mutex }

func (l redsyncLock) Lock(ctx context.Context) error { return l.m.LockContext(ctx) }

func (l redsyncLock) TryLock(ctx context.Context) error {
	err := l.m.TryLockContext(ctx)
	if taken := (*redsync.ErrTaken)(nil); errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return errTaken
	}
	return err
}

func (l redsyncLock) Unlock(ctx context.Context) error {
	released, err := l.m.UnlockContext(ctx)
	if err == nil && !released {
		err = errors.New("it was lost")
	}
	return err
}

// ---- rueidislock: it learns of changes from Redis, by client-side caching

type rueidislockParty struct{ locker rueidislock.Locker }

func openRueidislock(_ context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{
			InitAddress: []string{address},
			DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn,
				error) {
				return w.dial(ctx, "tcp", addr)
			},
		},
		KeyValidity:    ttl,
		KeyMajority:    1,    // one server, one key
		NoLoopTracking: true, // faster, as its documentation says
		// After the default of 20 ms it would go on to the next key, and there is none: it
		// would wait for a change that was made already.
		TryNextAfter: ttl,
	})
	return rueidislockParty{locker}, err
}

func (p rueidislockParty) lock(_ context.Context, name string) (side.Lock, error) {
	return &rueidislockLock{locker: p.locker, name: name}, nil
}

func (p rueidislockParty) close() { p.locker.Close() }

type rueidislockLock struct {
	locker  rueidislock.Locker
	name    string
	hold    context.Context
	release context.CancelFunc
}

func (l *rueidislockLock) Lock(ctx context.Context) error {
	return l.acquire(ctx, l.locker.WithContext)
}

func (l *rueidislockLock) TryLock(ctx context.Context) error {
	return l.acquire(ctx, l.locker.TryWithContext)
}

// acquire makes ctx bound the wait only. A hold of rueidislock ends with the context
// of its wait, too.
func (l *rueidislockLock) acquire(
	ctx context.Context,
	with func(context.Context, string) (context.Context, context.CancelFunc, error),
) error {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	hold, release, err := with(detached, l.name)
	stop()
	if err != nil {
		cancel()
		if errors.Is(err, rueidislock.ErrNotLocked) {
			err = errTaken
		}
		return err
	}
	l.hold, l.release = hold, func() { release(); cancel() }
	return nil
}

func (l *rueidislockLock) Unlock(context.Context) error {
	err := l.hold.Err()
	l.release() // returns when the key is deleted
	if err != nil {
		return fmt.Errorf("it was lost: %w", err)
	}
	return nil
}
