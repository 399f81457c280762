package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/etcdlock/etcdlock/internal/side"
)

// ---- advisory locks: they belong to a connection, and end with it

// A pgParty gives each lock a connection of its own, since the connection holds the lock.
type pgParty struct {
	conf *pgx.ConnConfig
	ttl  time.Duration
	wrap func(*pgParty, *pgx.Conn, string) side.Lock

	mu    sync.Mutex
	conns []*pgx.Conn
}

func openPostgres(
	address string, ttl time.Duration, w *wire, wrap func(*pgParty, *pgx.Conn, string) side.Lock,
) (party, error) {
	conf, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	conf.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return w.dial(ctx, network, addr)
	}
	return &pgParty{conf: conf, ttl: ttl, wrap: wrap}, nil
}

func (p *pgParty) lock(ctx context.Context, name string) (side.Lock, error) {
	conn, err := pgx.ConnectConfig(ctx, p.conf)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, conn)
	return p.wrap(p, conn, name), nil
}

func (p *pgParty) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	_ = inParallel(len(p.conns), func(i int) error { return p.conns[i].Close(ctx) })
}

func openAdvisory(_ context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	return openPostgres(address, ttl, w, func(_ *pgParty, conn *pgx.Conn, name string) side.Lock {
		h := fnv.New64a()
		h.Write([]byte(name))
		return advisoryLock{conn, int64(h.Sum64())}
	})
}

type advisoryLock struct {
	conn *pgx.Conn
	key  int64
}

func (l advisoryLock) Lock(ctx context.Context) error {
	_, err := l.conn.Exec(ctx, "SELECT pg_advisory_lock($1)", l.key)
	return err
}

func (l advisoryLock) TryLock(ctx context.Context) error {
	var got bool
	err := l.conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", l.key).Scan(&got)
	if err == nil && !got {
		err = errTaken
	}
	return err
}

func (l advisoryLock) Unlock(ctx context.Context) error {
	var held bool
	err := l.conn.QueryRow(ctx, "SELECT pg_advisory_unlock($1)", l.key).Scan(&held)
	if err == nil && !held {
		err = errors.New("it was not held")
	}
	return err
}

// ---- lease rows: the durable way, by hand

// leaseTable is what a team writes that has PostgreSQL and wants a lock to survive its
// connections: a row that says who holds, and until when.
const leaseTable = `CREATE TABLE IF NOT EXISTS leases (
	name    text PRIMARY KEY,
	holder  text NOT NULL,
	expires timestamptz NOT NULL
)`

const leaseAcquire = `INSERT INTO leases VALUES ($1, $2, clock_timestamp() + $3 * interval '1 ms')
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
WHERE leases.expires < clock_timestamp()`

const leaseRelease = `DELETE FROM leases WHERE name = $1 AND holder = $2`

func openLeaseRow(_ context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	p, err := openPostgres(address, ttl, w, nil)
	if err != nil {
		return nil, err
	}
	return &leaseRowParty{pgParty: p.(*pgParty)}, nil
}

// A leaseRowParty needs no connection for a hold, so its locks share a few.
type leaseRowParty struct {
	*pgParty
	mu   sync.Mutex
	free chan *pgx.Conn
	made int
}

// connections is how many connections a party has: the default of pgxpool on small
// machines.
const connections = 4

func (p *leaseRowParty) lock(ctx context.Context, name string) (side.Lock, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == nil {
		free := make(chan *pgx.Conn, connections)
		for range connections {
			conn, err := pgx.ConnectConfig(ctx, p.conf)
			if err != nil {
				return nil, err
			}
			p.conns = append(p.conns, conn)
			free <- conn
		}
		p.free = free
	}
	p.made++
	return leaseRow{p, name, fmt.Sprintf("%p/%d", p, p.made)}, nil
}

type leaseRow struct {
	party  *leaseRowParty
	name   string
	holder string
}

// Lock asks again and again, after 5 ms first and 100 ms in the end.
func (l leaseRow) Lock(ctx context.Context) error {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if err := l.TryLock(ctx); !errors.Is(err, errTaken) {
			return err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l leaseRow) TryLock(ctx context.Context) error {
	return l.exec(ctx, errTaken, leaseAcquire, l.name, l.holder, l.party.ttl.Milliseconds())
}

func (l leaseRow) Unlock(ctx context.Context) error {
	return l.exec(ctx, errors.New("it was lost"), leaseRelease, l.name, l.holder)
}

// exec executes a statement that must change a row. If it changes none, exec returns
// ifNone.
func (l leaseRow) exec(ctx context.Context, ifNone error, sql string, args ...any) error {
	var conn *pgx.Conn
	select {
	case conn = <-l.party.free:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { l.party.free <- conn }()
	// A cancelled statement takes its connection with it.
	done, err := conn.Exec(context.WithoutCancel(ctx), sql, args...)
	if err == nil && done.RowsAffected() == 0 {
		err = ifNone
	}
	return err
}
