package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	goredis9 "github.com/redis/go-redis/v9"

	"github.com/etcdlock/etcdlock/internal/side"
)

// redissons is Redisson's read/write lock as its documentation describes it: a hash with a
// mode and a field for each holder, and a message to those who wait. Readers get in while
// others read, past writers that wait. Nothing here renews a lock.
const redissons = "Lua read/write lock, as Redisson's"

var (
	// KEYS: the hash; ARGV: TTL in ms, holder. nil: it is held now, else ms until it expires.
	redisRead = goredis9.NewScript(`
if redis.call('hget', KEYS[1], 'mode') == 'write' then return redis.call('pttl', KEYS[1]) end
redis.call('hset', KEYS[1], 'mode', 'read', ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return nil`)
	redisWrite = goredis9.NewScript(`
if redis.call('exists', KEYS[1]) == 1 then return redis.call('pttl', KEYS[1]) end
redis.call('hset', KEYS[1], 'mode', 'write', ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return nil`)
	redisLeave = goredis9.NewScript(`
if redis.call('hdel', KEYS[1], ARGV[2]) == 0 then return 0 end
if redis.call('hlen', KEYS[1]) == 1 then
  redis.call('del', KEYS[1])
  redis.call('publish', KEYS[1], 'free')
end
return 1`)
)

type redissonParty struct {
	client *goredis9.Client
	ttl    time.Duration
}

var redissonUsers atomic.Int64

func openRedisson(_ context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	return redissonParty{goredis9.NewClient(&goredis9.Options{Addr: address, Dialer: w.dial}), ttl},
		nil
}

func (p redissonParty) lock(_ context.Context, name string) (side.Lock, error) {
	return p.toldOf(name, redisWrite, redisLeave), nil
}

func (p redissonParty) rwLock(
	_ context.Context, name string,
) (reader, writer side.Lock, err error) {
	return p.toldOf(name, redisRead, redisLeave), p.toldOf(name, redisWrite, redisLeave), nil
}

func (p redissonParty) close() { p.client.Close() }

// A toldLock is a script that takes what it can, and a message that tells waiters to try
// again.
type toldLock struct {
	redissonParty
	name, who   string
	take, leave *goredis9.Script
	limit       int // for take: the limit of a semaphore

	told *goredis9.PubSub // keeps its connection from one wait to the next; nil before the first
}

func (p redissonParty) toldOf(name string, take, leave *goredis9.Script) *toldLock {
	who := fmt.Sprint(redissonUsers.Add(1))
	return &toldLock{redissonParty: p, name: name, who: who, take: take, leave: leave}
}

func (l *toldLock) TryLock(ctx context.Context) error {
	err := l.take.Run(ctx, l.client, []string{l.name}, l.ttl.Milliseconds(), l.who, l.limit).Err()
	switch {
	case errors.Is(err, goredis9.Nil):
		return nil
	case err == nil:
		return errTaken
	}
	return err
}

// Lock tries again once it has subscribed, so that it misses no message, and after each message.
func (l *toldLock) Lock(ctx context.Context) error {
	err := l.TryLock(ctx)
	if !errors.Is(err, errTaken) {
		return err
	}
	if l.told == nil {
		l.told = l.client.Subscribe(ctx)
	}
	told := l.told
	stop := context.AfterFunc(ctx, func() { told.Close() }) // Receive does not heed ctx
	defer func() {
		if !stop() {
			l.told = nil
		}
	}()
	if err := told.Subscribe(ctx, l.name); err != nil {
		return err
	}
	for {
		got, err := told.Receive(ctx)
		if err != nil {
			return err
		}
		if s, ok := got.(*goredis9.Subscription); ok && s.Kind == "unsubscribe" {
			continue // after the wait before
		}
		if err := l.TryLock(ctx); !errors.Is(err, errTaken) {
			_ = told.Unsubscribe(ctx, l.name) // fails if ctx has ended, and then it is closed
			return err
		}
	}
}

func (l *toldLock) Unlock(ctx context.Context) error {
	left, err := l.leave.Run(ctx, l.client, []string{l.name}, 0, l.who).Int()
	if err == nil && left == 0 {
		err = errors.New("it was lost")
	}
	return err
}
