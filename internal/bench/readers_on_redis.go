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

// redissons is the read/write lock of Redisson as its documentation describes it: a hash with a
// mode and a field for each holder, and a message to those who wait. Readers are let in while others
// read, past writers that wait. Nothing here renews it.
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
	return redissonParty{goredis9.NewClient(&goredis9.Options{Addr: address, Dialer: w.dial}), ttl}, nil
}

func (p redissonParty) lock(_ context.Context, name string) (side.Lock, error) {
	return redissonLock{p, name, fmt.Sprint(redissonUsers.Add(1)), redisWrite}, nil
}

func (p redissonParty) rwLock(_ context.Context, name string) (reader, writer side.Lock, err error) {
	who := fmt.Sprint(redissonUsers.Add(1))
	return redissonLock{p, name, who, redisRead}, redissonLock{p, name, who, redisWrite}, nil
}

func (p redissonParty) close() { p.client.Close() }

type redissonLock struct {
	redissonParty
	name, who string
	take      *goredis9.Script
}

func (l redissonLock) TryLock(ctx context.Context) error {
	err := l.take.Run(ctx, l.client, []string{l.name}, l.redissonParty.ttl.Milliseconds(), l.who).Err()
	switch {
	case errors.Is(err, goredis9.Nil):
		return nil
	case err == nil:
		return errTaken
	}
	return err
}

// Lock subscribes before it tries again, so that no message is missed.
func (l redissonLock) Lock(ctx context.Context) error {
	err := l.TryLock(ctx)
	if !errors.Is(err, errTaken) {
		return err
	}
	told := l.client.Subscribe(ctx, l.name)
	defer context.AfterFunc(ctx, func() { told.Close() })() // which ReceiveMessage does not heed
	defer told.Close()
	if _, err := told.Receive(ctx); err != nil {
		return err
	}
	for {
		if err := l.TryLock(ctx); !errors.Is(err, errTaken) {
			return err
		}
		if _, err := told.ReceiveMessage(ctx); err != nil {
			return err
		}
	}
}

func (l redissonLock) Unlock(ctx context.Context) error {
	left, err := redisLeave.Run(ctx, l.client, []string{l.name}, 0, l.who).Int()
	if err == nil && left == 0 {
		err = errors.New("it was lost")
	}
	return err
}
