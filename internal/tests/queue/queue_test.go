package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// An entry is one hold, as the goroutine that held saw it.
type entry struct {
	who   string
	token int64
}

// A queue is goroutines that start one after the other and each hold once.
type queue struct {
	t       *testing.T
	etcd    *fake.Server
	mu      sync.Mutex
	entries []entry
	inside  int
	wg      sync.WaitGroup
}

// allJoin makes n goroutines join, 0 to n-1, each with a Mutex.
func (q *queue) allJoin(
	n int, holds time.Duration, mutexOf func(who string) *etcdlock.Mutex,
) (came []string) {
	for i := range n {
		who := fmt.Sprint(i)
		came = append(came, who)
		q.joins(who, mutexOf(who), holds)
	}
	return came
}

// joins starts a goroutine that locks mu, holds for a time and unlocks. It returns when the
// goroutine waits or holds. The Lock must return nil.
func (q *queue) joins(who string, mu *etcdlock.Mutex, holds time.Duration) {
	q.wg.Go(func() {
		if err := mu.Lock(context.Background()); err != nil {
			q.t.Errorf("%s: %v", who, err)
			return
		}
		q.enter(who, mu.Token())
		time.Sleep(holds)
		q.leave()
		if err := mu.Unlock(context.Background()); err != nil {
			q.t.Errorf("%s: %v", who, err)
		}
	})
	synctest.Wait()
}

func (q *queue) enter(who string, token int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inside++; q.inside > 1 {
		q.t.Errorf("%s is not alone", who)
	}
	if n := len(q.entries); n > 0 && q.entries[n-1].token >= token {
		q.t.Errorf("%s has token %d after %v", who, token, q.entries[n-1])
	}
	q.entries = append(q.entries, entry{who, token})
}

func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inside--
}

// order returns the holders in order. It waits for all.
func (q *queue) order() []string {
	done := make(chan struct{})
	go func() {
		q.wg.Wait()
		close(done)
	}()
	tests.SoonOr(q.t, done, "somebody does not get in")
	var order []string
	for _, e := range q.entries {
		order = append(order, e.who)
	}
	return order
}

// requireOneKeyEach requires that no owner has two keys in the line for name.
func requireOneKeyEach(t *testing.T, kv clientv3.KV, name string) (keys int) {
	t.Helper()
	line, err := etcdlock.Contenders(context.Background(), kv, name)
	require.NoError(t, err)
	owners := make(map[string]string)
	for _, c := range line {
		require.Empty(t, owners[c.Owner], "%s has two keys: %s and %s", c.Owner, owners[c.Owner], c.Key)
		owners[c.Owner] = c.Key
	}
	return len(line)
}

func TestGoroutinesOfASessionGetInAsTheyCame(t *testing.T) {
	for _, holds := range []time.Duration{0, 10 * time.Millisecond, 3 * time.Second} {
		t.Run(holds.String(), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				first := contract.MutexOf(t, s, "n")
				tests.LockWithin(t, first, time.Second)
				q := &queue{t: t, etcd: etcd}
				came := q.allJoin(50, holds, func(string) *etcdlock.Mutex {
					return contract.MutexOf(t, s, "n")
				})
				require.Len(t, etcd.Keys("n/"), 1)
				require.NoError(t, first.Unlock(context.Background()))
				require.Equal(t, came, q.order())
				require.Empty(t, etcd.Keys("n/"))
			})
		})
	}
}

// A goroutine may wait on the very Mutex that another holds.
func TestGoroutinesOnOneMutexGetInAsTheyCame(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		tests.LockWithin(t, mu, time.Second)
		q := &queue{t: t, etcd: etcd}
		came := q.allJoin(50, time.Millisecond, func(string) *etcdlock.Mutex { return mu })
		require.NoError(t, mu.Unlock(context.Background()))
		require.Equal(t, came, q.order())
	})
}

// There are so many that the random order of their keys cannot be theirs by chance.
func TestSessionsGetInByCreateRevision(t *testing.T) {
	for _, holds := range []time.Duration{0, 10 * time.Millisecond, 3 * time.Second} {
		t.Run(holds.String(), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				first := contract.MutexOf(t, tests.SessionOf(t, etcd, "first"), "n")
				tests.LockWithin(t, first, time.Second)
				q := &queue{t: t, etcd: etcd}
				came := q.allJoin(40, holds, func(who string) *etcdlock.Mutex {
					return contract.MutexOf(t, tests.SessionOf(t, etcd, who), "n")
				})
				require.Len(t, etcd.Keys("n/"), 41)
				require.NoError(t, first.Unlock(context.Background()))
				require.Equal(t, came, q.order())
			})
		})
	}
}

// Five processes have ten goroutines each. While one goroutine of a process holds or waits
// in etcd, the others wait in the local line.
func TestASessionHasAtMostOneKeyPerName(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Process == "reader" {
				return fake.Effect{}
			}
			return fake.Effect{Delay: time.Millisecond, DelayReply: time.Millisecond}
		})
		q := &queue{t: t, etcd: etcd}
		for i := range 5 {
			who := fmt.Sprint("p", i)
			s := tests.SessionOf(t, etcd, who)
			for range 10 {
				q.joins(who, contract.MutexOf(t, s, "n"), 20*time.Millisecond)
			}
		}
		reader := etcd.Client("reader")
		seen := 0
		for range 2000 {
			seen = max(seen, requireOneKeyEach(t, reader, "n"))
			time.Sleep(700 * time.Microsecond)
		}
		require.Equal(t, 5, seen, "the processes did not contend")
		require.Len(t, q.order(), 50)
		require.Empty(t, etcd.Keys("n/"))
	})
}

// One claim goes away at some point of its way. The one behind it and another process get
// in as if it had never been there.
func TestAClaimThatLeavesOnItsWayLeavesNothingBehind(t *testing.T) {
	const ms = time.Millisecond
	ofLeaver := func(method string, effect fake.Effect) func(fake.Call) fake.Effect {
		return func(c fake.Call) fake.Effect {
			if c.Process == "a" && c.Method == method &&
				(method != fake.Txn || len(c.Puts) > 0 || len(c.Deletes) > 0) {
				return effect
			}
			return fake.Effect{}
		}
	}
	rows := []struct {
		phase    string
		ownFirst bool // another goroutine of the leaver's Session holds first, else another process
		nobody   bool // nobody holds first
		faults   func(fake.Call) fake.Effect
		release  time.Duration // when the first holder unlocks, 0: a second after
		leave    time.Duration // when the leaver's context ends
	}{
		{phase: "waiting at home", ownFirst: true, leave: 100 * ms},
		{phase: "at home, as the turn comes", ownFirst: true, release: 100 * ms, leave: 100 * ms},
		{phase: "at home, the release that brings its turn under way", ownFirst: true, release: 50 * ms,
			leave:  100 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{Delay: 100 * ms})},
		{phase: "at home, the answer to that release under way", ownFirst: true, release: 50 * ms,
			leave:  100 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{DelayReply: 100 * ms})},
		{phase: "at home, that answer comes as it leaves", ownFirst: true, release: 50 * ms,
			leave:  150 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{DelayReply: 100 * ms})},
		{phase: "at home, that answer is lost", ownFirst: true, release: 50 * ms, leave: 100 * ms,
			faults: tests.OnlyNth(2, fake.Txn, fake.Effect{DelayReply: 100 * ms, After: fake.Unavailable})},
		{phase: "queueing, the request under way", leave: 50 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{Delay: 100 * ms})},
		{phase: "queueing, the answer under way", leave: 50 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{DelayReply: 100 * ms})},
		{phase: "queueing, the answer comes as it leaves", leave: 100 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{DelayReply: 100 * ms})},
		{phase: "queueing first, the request under way", nobody: true, leave: 50 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{Delay: 100 * ms})},
		{phase: "queueing first, the answer under way", nobody: true, leave: 50 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{DelayReply: 100 * ms})},
		{phase: "waiting in etcd", leave: 100 * ms},
		{phase: "waiting in etcd, as its turn comes", release: 100 * ms, leave: 100 * ms},
		{phase: "waiting in etcd, the event under way", release: 50 * ms, leave: 100 * ms,
			faults: ofLeaver(fake.Event, fake.Effect{Delay: 100 * ms})},
		{phase: "waiting in etcd, the watch under way", leave: 100 * ms,
			faults: ofLeaver(fake.Watch, fake.Effect{Delay: 200 * ms})},
		{phase: "the grant under way", leave: 50 * ms,
			faults: ofLeaver(fake.Grant, fake.Effect{Delay: 100 * ms})},
		{phase: "the grant's answer under way", leave: 50 * ms,
			faults: ofLeaver(fake.Grant, fake.Effect{DelayReply: 100 * ms})},
		{phase: "the grant's answer comes as it leaves", leave: 100 * ms,
			faults: ofLeaver(fake.Grant, fake.Effect{DelayReply: 100 * ms})},
	}
	for _, row := range rows {
		t.Run(row.phase, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				a, b := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
				first := contract.MutexOf(t, b, "n")
				if row.ownFirst {
					first = contract.MutexOf(t, a, "n")
				}
				if !row.nobody {
					tests.LockWithin(t, first, time.Second)
				}
				etcd.Intercept(row.faults)
				start := time.Now()

				leaver := contract.MutexOf(t, a, "n")
				left := make(chan time.Duration, 1)
				held := make(chan bool, 1)
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), row.leave)
					defer cancel()
					err := leaver.Lock(ctx)
					left <- time.Since(start)
					held <- err == nil // both may happen at the same moment
					if err == nil {
						if err := leaver.Unlock(context.Background()); err != nil {
							t.Error(err)
						}
					} else if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
				}()
				synctest.Wait()
				q := &queue{t: t, etcd: etcd}
				q.joins("behind it", contract.MutexOf(t, a, "n"), 10*ms)
				q.joins("another process", contract.MutexOf(t, tests.SessionOf(t, etcd, "c"), "n"), 10*ms)
				if release := row.release; !row.nobody {
					if release == 0 {
						release = time.Second
					}
					time.Sleep(release - time.Since(start))
					require.NoError(t, first.Unlock(context.Background()))
				}
				took := <-left
				require.GreaterOrEqual(t, took, row.leave)
				require.LessOrEqual(t, took, row.leave+100*ms)
				if <-held {
					require.Equal(t, row.leave, took)
				}
				require.Len(t, q.order(), 2)
				require.Less(t, time.Since(start), 3*time.Second, "the others got in late")
				time.Sleep(time.Second)
				require.Empty(t, etcd.Keys("n/"))
			})
		})
	}
}

// Waiters stand in the local line, in etcd's line, and before a grant that does not come.
func TestCloseWakesAllThatWait(t *testing.T) {
	closes := map[string]func(*etcdlock.Session, *etcdlock.Mutex) error{
		"of the Mutex": func(_ *etcdlock.Session, mu *etcdlock.Mutex) error {
			return mu.Close(context.Background())
		},
		"of the Session": func(s *etcdlock.Session, _ *etcdlock.Mutex) error {
			return s.Close(context.Background())
		},
	}
	for way, closeIt := range closes {
		for _, where := range []string{"at home", "in etcd", "before a grant", "before a transaction"} {
			t.Run(way+", waiting "+where, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a")
					mu := contract.MutexOf(t, s, "n")
					holder := contract.MutexOf(t, s, "n")
					if where != "at home" {
						holder = contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
					}
					hold := tests.LockWithin(t, holder, time.Second)
					etcd.Intercept(func(c fake.Call) fake.Effect {
						return fake.Effect{Drop: c.Process == "a" &&
							(where == "before a grant" && c.Method == fake.Grant || where == "before a transaction" &&
								c.Method == fake.Txn)}
					})
					errs := make(chan error, 5)
					for range 5 {
						go func() { errs <- mu.Lock(context.Background()) }()
						synctest.Wait()
					}
					time.Sleep(100 * time.Millisecond)
					etcd.Intercept(nil)
					start := time.Now()
					require.NoError(t, closeIt(s, mu))
					for range 5 {
						require.ErrorIs(t, tests.SoonOr(t, errs, "a wait goes on after Close"), etcdlock.ErrClosed)
					}
					require.Less(t, time.Since(start), 2*time.Second)
					require.ErrorIs(t, mu.Lock(context.Background()), etcdlock.ErrClosed)
					if where == "at home" && way == "of the Session" {
						require.Equal(t, etcdlock.ErrClosed, context.Cause(hold))
						return
					}
					require.NoError(t, hold.Err())
					time.Sleep(2 * tests.TTL)
					require.Equal(t, []string{holder.Key()}, etcd.Keys("n/"))
					require.NoError(t, holder.Unlock(context.Background()))
				})
			})
		}
	}
}
