package main

import (
	goredis9 "github.com/redis/go-redis/v9"

	"github.com/etcdlock/etcdlock/internal/side"
)

// sortedSet is a common form of a semaphore on Redis: a sorted set of the holders of
// permits, by the time when they expire. The first to ask while a permit is free gets it,
// so a wait has no place in a line. Nothing here renews a permit.
const sortedSet = "Lua semaphore, a sorted set"

var (
	// KEYS: the set; ARGV: TTL in ms, holder, limit. nil: it is held now.
	redisTake = goredis9.NewScript(`
local t = redis.call('time')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('zremrangebyscore', KEYS[1], '-inf', now)
if redis.call('zcard', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('zadd', KEYS[1], now + ARGV[1], ARGV[2])
redis.call('pexpire', KEYS[1], ARGV[1])
return nil`)
	redisGive = goredis9.NewScript(`
if redis.call('zrem', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('publish', KEYS[1], 'free')
return 1`)
)

func (p redissonParty) permit(name string, limit int) (side.Lock, error) {
	l := p.toldOf(name, redisTake, redisGive)
	l.limit = limit
	return l, nil
}
