package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// closeWithin bounds how long a party may take to give back what it has.
const closeWithin = 10 * time.Second

// dialEtcd makes a client for an address: how much longer a trip takes than it does, a semicolon,
// perhaps user:password@, and the members.
func dialEtcd(address string, w *wire) (*clientv3.Client, error) {
	trip, address, _ := strings.Cut(address, ";")
	var err error
	if w.trip, err = time.ParseDuration(trip); err != nil {
		return nil, err
	}
	cfg := clientv3.Config{Logger: zap.NewNop(), DialOptions: w.dialOptions()}
	if who, hosts, found := strings.Cut(address, "@"); found {
		cfg.Username, cfg.Password, _ = strings.Cut(who, ":")
		address = hosts
	}
	cfg.Endpoints = strings.Split(address, ",")
	return clientv3.New(cfg)
}

// ---- this library

type libraryParty struct {
	client  *clientv3.Client
	opts    []etcdlock.SessionOption
	session *etcdlock.Session
	shared  bool // the client belongs to another party
}

func newLibraryParty(
	client *clientv3.Client, opts []etcdlock.SessionOption,
) (*libraryParty, error) {
	session, err := etcdlock.NewSession(client, opts...)
	return &libraryParty{client: client, opts: opts, session: session}, err
}

func (p *libraryParty) sibling() (party, error) {
	q, err := newLibraryParty(p.client, p.opts)
	q.shared = true
	return q, err
}

func (p *libraryParty) lock(_ context.Context, name string) (side.Lock, error) {
	return p.session.Mutex(name)
}

func (p *libraryParty) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	_ = p.session.Close(ctx) // what it could not give back expires
	if !p.shared {
		p.client.Close()
	}
}

// ---- etcd's own

// A concurrencyParty shares a session between locks of different names. Two locks of one
// name need two sessions: a concurrency.Session has one key for a name, and a second Lock
// on it finds the key and gets in.
type concurrencyParty struct {
	client *clientv3.Client
	ttl    time.Duration
	shared bool // the client belongs to another party

	mu       sync.Mutex
	sessions []*concurrency.Session
	uses     map[string]int // locks made, by name
}

func openConcurrency(_ context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	client, err := dialEtcd(address, w)
	return newConcurrencyParty(client, ttl), err
}

func newConcurrencyParty(client *clientv3.Client, ttl time.Duration) *concurrencyParty {
	return &concurrencyParty{client: client, ttl: ttl, uses: make(map[string]int)}
}

func (p *concurrencyParty) sibling() (party, error) {
	q := newConcurrencyParty(p.client, p.ttl)
	q.shared = true
	return q, nil
}

func (p *concurrencyParty) lock(ctx context.Context, name string) (side.Lock, error) {
	s, err := p.another(ctx, name)
	if err != nil {
		return nil, err
	}
	return concurrency.NewMutex(s, name), nil
}

// another returns a session that was not used for the name before.
func (p *concurrencyParty) another(ctx context.Context, name string) (*concurrency.Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uses[name] == len(p.sessions) {
		s, err := side.NewSession(ctx, p.client, p.ttl)
		if err != nil {
			return nil, err
		}
		p.sessions = append(p.sessions, s)
	}
	s := p.sessions[p.uses[name]]
	p.uses[name]++
	return s, nil
}

func (p *concurrencyParty) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	_ = inParallel(len(p.sessions), func(i int) error {
		p.sessions[i].Orphan()
		_, err := p.client.Revoke(ctx, p.sessions[i].Lease())
		return err
	}) // what it could not give back expires
	if !p.shared {
		p.client.Close()
	}
}

// A perLock is the first way in etcd's documentation: a session for each critical section.
type perLock struct {
	party   *concurrencyParty
	name    string
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

type perLockParty struct{ *concurrencyParty }

func openPerLock(ctx context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	p, err := openConcurrency(ctx, address, ttl, w)
	if err != nil {
		return nil, err
	}
	return perLockParty{p.(*concurrencyParty)}, nil
}

func (p perLockParty) lock(_ context.Context, name string) (side.Lock, error) {
	return &perLock{party: p.concurrencyParty, name: name}, nil
}

func (l *perLock) Lock(ctx context.Context) error {
	return l.do(ctx, (*concurrency.Mutex).Lock)
}

func (l *perLock) TryLock(ctx context.Context) error {
	return l.do(ctx, (*concurrency.Mutex).TryLock)
}

func (l *perLock) do(
	ctx context.Context, acquire func(*concurrency.Mutex, context.Context) error,
) error {
	var err error
	if l.session, err = side.NewSession(ctx, l.party.client, l.party.ttl); err != nil {
		return err
	}
	l.mutex = concurrency.NewMutex(l.session, l.name)
	if err := acquire(l.mutex, ctx); err != nil {
		return errors.Join(err, l.session.Close())
	}
	return nil
}

func (l *perLock) Unlock(ctx context.Context) error {
	return errors.Join(l.mutex.Unlock(ctx), l.session.Close())
}

// A localFirstParty is what careful users make of it: the goroutines of a process wait for
// each other locally, and one at a time goes to etcd.
type localFirstParty struct {
	client  *clientv3.Client
	session side.Session
}

func openLocalFirst(_ context.Context, address string, ttl time.Duration, w *wire) (party, error) {
	client, err := dialEtcd(address, w)
	if err != nil {
		return nil, err
	}
	session, err := side.Theirs.Open(client, ttl)
	if err != nil {
		client.Close()
		return nil, err
	}
	return localFirstParty{client, side.InTurn(session)}, nil
}

func (p localFirstParty) lock(_ context.Context, name string) (side.Lock, error) {
	return p.session.Mutex(name)
}

func (p localFirstParty) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	_ = p.session.Close(ctx) // what it could not give back expires
	p.client.Close()
}

// ---- by hand

// A rawParty is the best that etcd can do, and no lock to use: it checks nothing, cleans up
// nothing and never renews its lease. Uncontended it is one Txn and one delete. A hand-over
// is the delete and its event.
type rawParty struct {
	client *clientv3.Client
	lease  clientv3.LeaseID
	locks  atomic.Int64 // made
}

func openRaw(ctx context.Context, address string, _ time.Duration, w *wire) (party, error) {
	client, err := dialEtcd(address, w)
	if err != nil {
		return nil, err
	}
	const longerThanAnyRun = 24 * time.Hour
	lease, err := client.Grant(ctx, int64(longerThanAnyRun/time.Second))
	if err != nil {
		client.Close()
		return nil, err
	}
	return &rawParty{client: client, lease: lease.ID}, nil
}

func (p *rawParty) lock(_ context.Context, name string) (side.Lock, error) {
	return &rawLock{p, name + "/", fmt.Sprintf("%s/%x-%d", name, p.lease, p.locks.Add(1))}, nil
}

func (p *rawParty) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	_, _ = p.client.Revoke(ctx, p.lease)
	p.client.Close()
}

type rawLock struct {
	party  *rawParty
	prefix string
	key    string
}

func (l *rawLock) Lock(ctx context.Context) error {
	client := l.party.client
	put := clientv3.OpPut(l.key, "", clientv3.WithLease(l.party.lease))
	resp, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(l.key), "=", 0)).
		Then(put, clientv3.OpGet(l.prefix, clientv3.WithPrefix())).
		Commit()
	switch {
	case err != nil:
		return err
	case !resp.Succeeded:
		return errors.New("the key is there already")
	}
	// The key before is the newest of those that are older than this key.
	before, newest := "", int64(math.MinInt64)
	for _, kv := range resp.Responses[1].GetResponseRange().GetKvs() {
		if key := string(kv.GetKey()); key != l.key && kv.GetCreateRevision() > newest {
			before, newest = key, kv.GetCreateRevision()
		}
	}
	if before == "" {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for event := range client.Watch(ctx, before, clientv3.WithFilterPut(),
		clientv3.WithCreatedNotify()) {
		switch {
		case event.Err() != nil:
			return event.Err()
		case !event.Created:
			return nil
		}
		// It may have gone before the watch was there.
		resp, err := client.Get(ctx, before, clientv3.WithMaxCreateRev(newest))
		if err != nil {
			return err
		}
		if len(resp.Kvs) == 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}

func (l *rawLock) TryLock(context.Context) error { return errors.ErrUnsupported }

func (l *rawLock) Unlock(ctx context.Context) error {
	_, err := l.party.client.Delete(ctx, l.key)
	return err
}

// inParallel calls f for 0 to n-1, some at a time, and returns the first error. It is for
// setting up and clearing away: thousands of calls at once would only slow that down.
func inParallel(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	next := make(chan int)
	for range min(n, 16) {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					once.Do(func() { first = err })
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return first
}
