package etcdlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
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
func (q *queue) allJoin(n int, holds time.Duration, mutexOf func(who string) *etcdlock.Mutex) (came []string) {
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
	soonOr(q.t, done, "somebody does not get in")
	var order []string
	for _, e := range q.entries {
		order = append(order, e.who)
	}
	return order
}

// soonOr returns what comes within an hour, and otherwise fails: in virtual time a test
// that waits for ever would spin.
func soonOr[T any](t *testing.T, ch <-chan T, failure string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(time.Hour):
		require.FailNow(t, failure)
	}
	return v
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a")
				first := contract.MutexOf(t, s, "n")
				lockWithin(t, first, time.Second)
				q := &queue{t: t, etcd: etcd}
				came := q.allJoin(50, holds, func(string) *etcdlock.Mutex { return contract.MutexOf(t, s, "n") })
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
		lockWithin(t, mu, time.Second)
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				first := contract.MutexOf(t, processIn(t, etcd, "first"), "n")
				lockWithin(t, first, time.Second)
				q := &queue{t: t, etcd: etcd}
				came := q.allJoin(40, holds, func(who string) *etcdlock.Mutex {
					return contract.MutexOf(t, processIn(t, etcd, who), "n")
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
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Process == "reader" {
				return fake.Effect{}
			}
			return fake.Effect{Delay: time.Millisecond, DelayReply: time.Millisecond}
		})
		q := &queue{t: t, etcd: etcd}
		for i := range 5 {
			who := fmt.Sprint("p", i)
			s := processIn(t, etcd, who)
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
			if c.Process == "a" && c.Method == method && (method != fake.Txn || len(c.Puts) > 0 || len(c.Deletes) > 0) {
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
		{phase: "at home, the release that brings its turn under way", ownFirst: true, release: 50 * ms, leave: 100 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{Delay: 100 * ms})},
		{phase: "at home, the answer to that release under way", ownFirst: true, release: 50 * ms, leave: 100 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{DelayReply: 100 * ms})},
		{phase: "at home, that answer comes as it leaves", ownFirst: true, release: 50 * ms, leave: 150 * ms,
			faults: ofLeaver(fake.Txn, fake.Effect{DelayReply: 100 * ms})},
		{phase: "at home, that answer is lost", ownFirst: true, release: 50 * ms, leave: 100 * ms,
			faults: onlyNth(2, fake.Txn, fake.Effect{DelayReply: 100 * ms, After: fake.Unavailable})},
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
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				a, b := processIn(t, etcd, "a"), processIn(t, etcd, "b")
				first := contract.MutexOf(t, b, "n")
				if row.ownFirst {
					first = contract.MutexOf(t, a, "n")
				}
				if !row.nobody {
					lockWithin(t, first, time.Second)
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
				q.joins("another process", contract.MutexOf(t, processIn(t, etcd, "c"), "n"), 10*ms)
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

// 0 s a holds, its second goroutine waits in the local line, b in etcd. 5 s a's key is
// deleted: a has lost, b gets in. Until a's first goroutine unlocks, the second one must
// neither get in nor put a key.
func TestALostHoldExcludesItsSessionUntilUnlock(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		loser, second := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
		other := contract.MutexOf(t, processIn(t, etcd, "b"), "n")
		hold := lockWithin(t, loser, time.Second)
		got := make(chan *etcdlock.Mutex, 2)
		for _, mu := range []*etcdlock.Mutex{second, other} {
			go func() {
				if mu.Lock(context.Background()) == nil {
					got <- mu
				}
			}()
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		etcd.DeleteKey(loser.Key())
		require.Same(t, other, <-got)
		<-hold.Done()
		require.NoError(t, other.Unlock(context.Background()))
		locked, ok := errors.AsType[*etcdlock.LockedError](second.TryLock(context.Background()))
		require.True(t, ok)
		require.Positive(t, locked.Ahead)
		for range 100 {
			time.Sleep(time.Second)
			require.Empty(t, got)
			require.Empty(t, etcd.Keys("n/"))
		}
		require.ErrorIs(t, loser.Unlock(context.Background()), etcdlock.ErrLost)
		synctest.Wait()
		require.Len(t, got, 1)
		require.NoError(t, (<-got).Unlock(context.Background()))
	})
}

// Once a hold is lost another process may hold. Then an error of the loser's Session does not call
// the lost hold the holder. It says that the lost hold is yet to be unlocked.
func TestALostHoldIsNotToldAsTheHolder(t *testing.T) {
	type acquire func(t *testing.T, s *etcdlock.Session) (unlock func(context.Context) error)
	locks := func(opts ...etcdlock.Option) acquire {
		return func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
			mu := contract.MutexOf(t, s, "n", opts...)
			lockWithin(t, mu, time.Second)
			return mu.Unlock
		}
	}
	deletes := func(etcd *fake.Server) { etcd.DeleteKey(etcd.Keys("n/")[0]) }
	for name, row := range map[string]struct {
		acquire acquire
		loses   func(etcd *fake.Server)
		reason  error
	}{
		"a Mutex":                      {locks(), deletes, etcdlock.ErrKeyDeleted},
		"a Mutex whose lease has gone": {locks(), func(etcd *fake.Server) { etcd.RevokeLease(etcd.Leases()[0]) }, etcdlock.ErrLeaseRevoked},
		"a Mutex that held for too long": {
			locks(etcdlock.WithMaxHold(8 * time.Second)), func(*fake.Server) { time.Sleep(5 * time.Second) }, etcdlock.ErrMaxHold,
		},
		"a read": {func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
			return readWithin(t, rwIn(t, s), time.Second).Unlock
		}, deletes, etcdlock.ErrKeyDeleted},
		"a permit": {func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
			return acquireWithin(t, semaIn(t, s, 1), 1, time.Second).Unlock
		}, deletes, etcdlock.ErrKeyDeleted},
		"several names": {func(t *testing.T, s *etcdlock.Session) func(context.Context) error {
			return holdWithin(t, time.Second, func(ctx context.Context) (*etcdlock.Hold, error) { return s.LockAll(ctx, "m", "n") }).Unlock
		}, deletes, etcdlock.ErrKeyDeleted},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				holders := make(chan etcdlock.Contender, 7)
				s := processIn(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
					Queued: func(_ string, _ int, holder etcdlock.Contender) { holders <- holder },
				}))
				unlock := row.acquire(t, s)
				time.Sleep(5 * time.Second) // a hold that lasts is watched
				row.loses(etcd)
				time.Sleep(time.Second)
				other := contract.MutexOf(t, processIn(t, etcd, "b"), "n")
				lockWithin(t, other, time.Second)

				mu, rw := contract.MutexOf(t, s, "n"), rwIn(t, s)
				for call, err := range map[string]error{
					"TryLock": mu.TryLock(context.Background()),
					"Lock":    mu.Lock(in(t, time.Second)),
					"TryRLock": func() error {
						_, err := rw.TryRLock(context.Background())
						return err
					}(),
					"TryLockAll": func() error {
						_, err := s.TryLockAll(context.Background(), "k", "n")
						return err
					}(),
					"LockAll": func() error {
						_, err := s.LockAll(in(t, time.Second), "k", "n")
						return err
					}(),
				} {
					locked, ok := errors.AsType[*etcdlock.LockedError](err)
					require.True(t, ok, "%s: %v", call, err)
					require.Equal(t, 1, locked.Ahead, call)
					holders <- locked.Holder
					require.NotContains(t, err.Error(), "held by", call)
					require.Contains(t, err.Error(), "waits for the Unlock of a hold lost here", call)
				}
				for range cap(holders) { // two calls have queued
					holder := soonOr(t, holders, "a hook tells, too")
					require.Equal(t, "a", holder.Owner, "it is this process that has to unlock")
					require.False(t, holder.Holds)
					require.Empty(t, holder.Key)
					require.Zero(t, holder.Token)
					require.Zero(t, holder.Lease)
				}
				err := unlock(context.Background())
				require.ErrorIs(t, err, etcdlock.ErrLost)
				require.ErrorIs(t, err, row.reason)
				locked, ok := errors.AsType[*etcdlock.LockedError](mu.TryLock(context.Background()))
				require.True(t, ok)
				require.Equal(t, other.Token(), locked.Holder.Token)
				require.NoError(t, other.Unlock(context.Background()))
			})
		})
	}
}

// Where some of a Session's holds of a name are lost, one that is whole is told as the holder.
func TestOfSeveralHoldsOfASessionOneThatIsWholeIsToldAsTheHolder(t *testing.T) {
	permits := func(lost int) func(*testing.T, *fake.Server, *etcdlock.Session) []*etcdlock.Hold {
		return func(t *testing.T, etcd *fake.Server, s *etcdlock.Session) []*etcdlock.Hold {
			sem := semaIn(t, s, 2)
			holds := []*etcdlock.Hold{acquireWithin(t, sem, 1, time.Second), acquireWithin(t, sem, 1, time.Second)}
			time.Sleep(5 * time.Second) // holds that last are watched
			line, err := etcdlock.Contenders(context.Background(), etcd.Client("op"), "n")
			require.NoError(t, err)
			etcd.DeleteKey(line[lost].Key)
			time.Sleep(time.Second)
			return holds
		}
	}
	reads := func(lost int) func(*testing.T, *fake.Server, *etcdlock.Session) []*etcdlock.Hold {
		return func(t *testing.T, _ *fake.Server, s *etcdlock.Session) []*etcdlock.Hold {
			rws := []*etcdlock.RWMutex{rwIn(t, s), rwIn(t, s)}
			rws[lost] = rwIn(t, s, etcdlock.WithMaxHold(8*time.Second))
			holds := []*etcdlock.Hold{readWithin(t, rws[0], time.Second), readWithin(t, rws[1], time.Second)}
			time.Sleep(9 * time.Second)
			return holds
		}
	}
	for name, row := range map[string]struct {
		hold func(*testing.T, *fake.Server, *etcdlock.Session) []*etcdlock.Hold
		lost int
	}{
		"the first permit is lost":             {permits(0), 0},
		"the second permit is lost":            {permits(1), 1},
		"the first has read for too long":      {reads(0), 0},
		"the second one has read for too long": {reads(1), 1},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a")
				holds := row.hold(t, etcd, s)
				lost, whole := holds[row.lost], holds[1-row.lost]
				require.Zero(t, lost.Token())
				err := contract.MutexOf(t, s, "n").TryLock(context.Background())
				locked, ok := errors.AsType[*etcdlock.LockedError](err)
				require.True(t, ok, "%v", err)
				require.True(t, locked.Holder.Holds)
				require.Equal(t, whole.Token(), locked.Holder.Token)
				require.ErrorContains(t, err, "held by a")
				require.ErrorIs(t, lost.Unlock(context.Background()), etcdlock.ErrLost)
				done(t, whole)
			})
		})
	}
}

// A permit is lost, and the put of the next one is under way: that is who is told.
func TestALostPermitIsNotToldAsTheHolderWhileTheNextOneIsOnItsWay(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		sem := semaIn(t, s, 1)
		lost := acquireWithin(t, sem, 1, time.Second)
		time.Sleep(5 * time.Second)
		etcd.DeleteKey(etcd.Keys("n/")[0])
		time.Sleep(time.Second)
		etcd.Freeze()
		next := acquiresLater(sem, 1)
		locked, ok := errors.AsType[*etcdlock.LockedError](contract.MutexOf(t, s, "n").TryLock(context.Background()))
		require.True(t, ok)
		require.False(t, locked.Holder.Holds)
		require.Zero(t, locked.Holder.Token)
		etcd.Thaw()
		done(t, soonOr(t, next, "the next one does not get in"))
		require.ErrorIs(t, lost.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// callsBy counts requests by process and method.
func callsBy(calls []fake.Call) map[string]int {
	counts := make(map[string]int)
	for _, c := range calls {
		if c.Method != fake.Event {
			counts[c.Process+" "+c.Method]++
		}
	}
	return counts
}

func TestAHandOverAtHomeIsOneTransaction(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		mu, next := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
		lockWithin(t, mu, time.Second)
		for range 20 {
			entered := writesLater(next)
			before, rev := len(etcd.Calls("")), etcd.Rev()
			require.NoError(t, mu.Unlock(context.Background()))
			require.NoError(t, <-entered)
			require.Equal(t, map[string]int{"a Txn": 1}, callsBy(etcd.Calls("")[before:]))
			require.Equal(t, rev+1, etcd.Rev())
			require.Len(t, etcd.Keys("n/"), 1)
			mu, next = next, mu
		}
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// queuesAs makes the i-th process stand in line, and report when it is in.
func queuesAs(t *testing.T, etcd *fake.Server, i int, entered chan<- int) *etcdlock.Mutex {
	t.Helper()
	mu := contract.MutexOf(t, processIn(t, etcd, fmt.Sprint(i)), "n")
	go func() { // ends with its turn
		if err := mu.Lock(context.Background()); err != nil {
			t.Error(err)
		}
		entered <- i
	}()
	synctest.Wait()
	return mu
}

// The line is 0, 1, 2, ... A process behind at most eight sees the whole line, and reads
// nothing when its turn comes. The others read once.
func TestAHandOverInEtcdCostsAtMostOneRead(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const n = 14
		var line []*etcdlock.Mutex
		entered := make(chan int, n)
		for i := range n {
			line = append(line, queuesAs(t, etcd, i, entered))
		}
		require.Equal(t, 0, <-entered)
		for i := range n - 1 {
			time.Sleep(10 * time.Millisecond)
			before := len(etcd.Calls(""))
			require.NoError(t, line[i].Unlock(context.Background()))
			require.Equal(t, i+1, <-entered)
			synctest.Wait()
			want := map[string]int{fmt.Sprint(i, " Txn"): 1}
			if i+1 > 8 {
				want[fmt.Sprint(i+1, " Range")] = 1
			}
			require.Equal(t, want, callsBy(etcd.Calls("")[before:]))
		}
		require.NoError(t, line[n-1].Unlock(context.Background()))
	})
}

// h holds, w waits behind it, x behind w. w's key is deleted: x moves up, and w, which has
// no key any more, queues behind x. When h releases, x alone gets in.
func TestAWaiterWhoseKeyWasDeletedQueuesAnew(t *testing.T) {
	for _, delay := range []time.Duration{0, 100 * time.Millisecond} {
		t.Run(fmt.Sprintf("events take %v", delay), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(fromNth(1, fake.Event, fake.Effect{Delay: delay}))
				h := contract.MutexOf(t, processIn(t, etcd, "h"), "n")
				lockWithin(t, h, time.Second)
				q := &queue{t: t, etcd: etcd}
				q.joins("w", contract.MutexOf(t, processIn(t, etcd, "w"), "n"), time.Second)
				keyOfW := etcd.Keys("n/")[1]
				q.joins("x", contract.MutexOf(t, processIn(t, etcd, "x"), "n"), time.Second)
				etcd.DeleteKey(keyOfW)
				if delay == 0 {
					time.Sleep(100 * time.Millisecond)
				}
				require.NoError(t, h.Unlock(context.Background()))
				require.Equal(t, []string{"x", "w"}, q.order())
			})
		})
	}
}

func TestKeyNamesAreUsedAgain(t *testing.T) {
	rows := []struct {
		way   string
		names int
		cycle func(t *testing.T, mu, other *etcdlock.Mutex)
	}{
		{"one goroutine", 2, func(t *testing.T, mu, _ *etcdlock.Mutex) {
			lockWithin(t, mu, time.Second)
			time.Sleep(time.Millisecond)
			require.NoError(t, mu.Unlock(context.Background()))
		}},
		{"two in turn", 2, func(t *testing.T, mu, other *etcdlock.Mutex) {
			lockWithin(t, mu, time.Second)
			entered := writesLater(other)
			require.NoError(t, mu.Unlock(context.Background()))
			require.NoError(t, <-entered)
			require.NoError(t, other.Unlock(context.Background()))
		}},
	}
	for _, row := range rows {
		t.Run(row.way, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a")
				mu, other := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
				for range 100 {
					row.cycle(t, mu, other)
				}
				names := make(map[string]bool)
				for _, c := range etcd.Calls(fake.Txn) {
					for _, key := range c.Puts {
						names[key] = true
					}
				}
				require.LessOrEqual(t, len(names), row.names)
				require.Len(t, etcd.Leases(), 1)
			})
		})
	}
}

// A name whose put may still be under way is not used again: the Session would take the
// late copy for the new hold's key.
func TestANameWithADoubtfulPutIsNotUsedAgain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		lockWithin(t, contract.MutexOf(t, s, "keeps the lease"), time.Second)
		etcd.Intercept(onlyNth(2, fake.Txn, fake.Effect{After: fake.Unavailable, Again: 3 * time.Second}))
		lockWithin(t, mu, time.Second)
		doubtful := mu.Key()
		require.NoError(t, mu.Unlock(context.Background()))
		for range 50 {
			hold := lockWithin(t, mu, 2*time.Second)
			require.NotEqual(t, doubtful, mu.Key())
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, hold.Err())
			require.NoError(t, mu.Unlock(context.Background()))
		}
	})
}

// 0 s the release that puts the next place is sent, 1 s Unlock gives up, 5 s the release
// arrives, and until 6 s the removal of its own key does not get through. Audits show
// nothing, and another hold keeps the lease. If the next place were removed before the
// release's own key, that removal would find nothing, and leave what the release then puts.
func TestTheNextPlaceIsRemovedAfterTheReleaseThatMayPutIt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		lockWithin(t, contract.MutexOf(t, s, "keeps the lease"), time.Second)
		mu, next := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
		lockWithin(t, mu, time.Second)
		in := contract.Async(func() error { return next.Lock(context.Background()) })
		synctest.Wait()
		start := time.Now()
		etcd.Intercept(func(c fake.Call) fake.Effect {
			switch {
			case c.Method == fake.TimeToLive:
				return fake.Effect{Drop: true}
			case len(c.Deletes) > 0 && len(c.Puts) > 0:
				return fake.Effect{Delay: 5 * time.Second}
			case len(c.Deletes) > 0 && time.Since(start) < 6*time.Second:
				return fake.Effect{Before: fake.Unavailable}
			}
			return fake.Effect{}
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrUnconfirmed)
		require.NoError(t, <-in)
		require.Equal(t, 5*time.Second, time.Since(start), "when the release arrives")
		time.Sleep(3 * time.Second)
		require.Equal(t, []string{next.Key()}, etcd.Keys("n/"), "others wait behind a key of nobody's")
		require.NoError(t, next.Unlock(context.Background()))
	})
}

// Waiters stand in the local line, in etcd's line, and before a grant that does not come.
func TestCloseWakesAllThatWait(t *testing.T) {
	closes := map[string]func(*etcdlock.Session, *etcdlock.Mutex) error{
		"of the Mutex":   func(_ *etcdlock.Session, mu *etcdlock.Mutex) error { return mu.Close(context.Background()) },
		"of the Session": func(s *etcdlock.Session, _ *etcdlock.Mutex) error { return s.Close(context.Background()) },
	}
	for way, closeIt := range closes {
		for _, where := range []string{"at home", "in etcd", "before a grant", "before a transaction"} {
			t.Run(way+", waiting "+where, func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := processIn(t, etcd, "a")
					mu := contract.MutexOf(t, s, "n")
					holder := contract.MutexOf(t, s, "n")
					if where != "at home" {
						holder = contract.MutexOf(t, processIn(t, etcd, "b"), "n")
					}
					hold := lockWithin(t, holder, time.Second)
					etcd.Intercept(func(c fake.Call) fake.Effect {
						return fake.Effect{Drop: c.Process == "a" &&
							(where == "before a grant" && c.Method == fake.Grant || where == "before a transaction" && c.Method == fake.Txn)}
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
						require.ErrorIs(t, soonOr(t, errs, "a wait goes on after Close"), etcdlock.ErrClosed)
					}
					require.Less(t, time.Since(start), 2*time.Second)
					require.ErrorIs(t, mu.Lock(context.Background()), etcdlock.ErrClosed)
					if where == "at home" && way == "of the Session" {
						require.Equal(t, etcdlock.ErrClosed, context.Cause(hold))
						return
					}
					require.NoError(t, hold.Err())
					time.Sleep(2 * virtualTTL)
					require.Equal(t, []string{holder.Key()}, etcd.Keys("n/"))
					require.NoError(t, holder.Unlock(context.Background()))
				})
			})
		}
	}
}

// A meddling is something that happens to a waiter's watch.
type meddling struct {
	promise string
	faults  func(fake.Call) fake.Effect
	meddle  func(*fake.Server) // when the one before it goes
	within  time.Duration      // after that the waiter must get in
}

// A waiter gets in whatever becomes of its watch and of the history.
func TestAWaiterGetsInWhateverBecomesOfItsWatch(t *testing.T) {
	const event = 300 * time.Millisecond
	rows := []meddling{
		{"the event is lost", fromNth(1, fake.Event, fake.Effect{Drop: true}), nil, 2 * time.Second},
		{"each watch is silent", fromNth(1, fake.Watch, fake.Effect{DropReply: true}), nil, 3 * time.Second},
		{"each watch fails", fromNth(1, fake.Watch, fake.Effect{Before: fake.Unavailable}), nil, 2 * time.Second},
		{"its member restarts", nil, (*fake.Server).CancelWatches, time.Second},
		{"the history is compacted", fromNth(1, fake.Event, fake.Effect{Delay: event}), func(etcd *fake.Server) {
			_ = etcd.PutKey("other", 0)
			etcd.Compact()
			etcd.DeleteKey("other")
		}, event},
		{"the member that answers is behind", fromNth(3, fake.Range, fake.Effect{Before: status.Error(codes.OutOfRange,
			"etcdserver: mvcc: required revision is a future revision")}), func(etcd *fake.Server) { etcd.Intercept(nil) }, time.Second},
		{"the server stops for a second", nil, func(etcd *fake.Server) {
			etcd.Freeze()
			time.AfterFunc(time.Second, etcd.Thaw)
		}, 2 * time.Second},
		{"it is cut off for a second", nil, func(etcd *fake.Server) {
			etcd.Cut("2")
			time.AfterFunc(time.Second, func() { etcd.Heal("2") })
		}, 3 * time.Second},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(row.faults)
				var line []*etcdlock.Mutex
				entered := make(chan int, 3)
				for i := range 3 {
					line = append(line, queuesAs(t, etcd, i, entered))
					time.Sleep(2 * time.Second) // for watches that fail
				}
				require.Equal(t, 0, <-entered)
				require.NoError(t, line[0].Unlock(context.Background()))
				require.Equal(t, 1, soonOr(t, entered, "the waiter directly behind the holder does not get in"))
				// The waiter before may have rechecked. The event of its turn must arrive,
				// since the next event would travel behind it.
				time.Sleep(event)
				start := time.Now()
				require.NoError(t, line[1].Unlock(context.Background()))
				if row.meddle != nil {
					row.meddle(etcd)
				}
				require.Equal(t, 2, soonOr(t, entered, "the waiter does not get in"))
				require.LessOrEqual(t, time.Since(start), row.within)
				require.NoError(t, line[2].Unlock(context.Background()))
			})
		})
	}
}

// The one before goes while the request for the watch is under way. So no event will show
// that. The look after the created notice does.
func TestAReleaseBeforeTheWatchIsThereIsNotMissed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(fromNth(1, fake.Watch, fake.Effect{Delay: 200 * time.Millisecond}))
		start := time.Now()
		holder := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
		lockWithin(t, holder, time.Second)
		q := &queue{t: t, etcd: etcd}
		q.joins("b", contract.MutexOf(t, processIn(t, etcd, "b"), "n"), 0)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, holder.Unlock(context.Background()))
		require.Equal(t, []string{"b"}, q.order())
		require.Equal(t, 200*time.Millisecond, time.Since(start))
	})
}

// A waiter in a long line watches one key, and gets in whatever becomes of that watch.
func TestALongLineGetsInWhateverBecomesOfItsWatches(t *testing.T) {
	const late = 300 * time.Millisecond
	future := status.Error(codes.OutOfRange, "etcdserver: mvcc: required revision is a future revision")
	rows := []meddling{
		{"nothing", nil, nil, 0},
		{"the one before it goes before the watch is there", fromNth(1, fake.Watch, fake.Effect{Delay: late}), nil, late},
		{"the event is lost", fromNth(1, fake.Event, fake.Effect{Drop: true}), nil, 2 * time.Second},
		{"each watch is silent", fromNth(1, fake.Watch, fake.Effect{DropReply: true}), nil, 3 * time.Second},
		{"each watch fails", fromNth(1, fake.Watch, fake.Effect{Before: fake.Unavailable}), nil, 2 * time.Second},
		{"its member restarts", nil, (*fake.Server).CancelWatches, time.Second},
		{"the history is compacted", fromNth(1, fake.Event, fake.Effect{Delay: late}), (*fake.Server).Compact, late},
		{"the member that answers is behind", onlyNth(1, fake.Range, fake.Effect{Before: future}), nil, time.Second},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				others := etcd.Client("others")
				lease, err := others.Grant(context.Background(), 3000)
				require.NoError(t, err)
				for range 12 {
					require.NoError(t, etcd.PutKey("n/"+uuid.NewString(), lease.ID))
				}
				line, err := etcdlock.Contenders(context.Background(), others, "n")
				require.NoError(t, err)
				mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
				etcd.Intercept(row.faults)
				in := make(chan error, 1)
				go func() { in <- mu.Lock(context.Background()) }()
				time.Sleep(50 * time.Millisecond)
				for _, c := range line {
					require.Empty(t, in)
					etcd.DeleteKey(c.Key)
				}
				start := time.Now()
				if row.meddle != nil {
					row.meddle(etcd)
				}
				require.NoError(t, soonOr(t, in, "the waiter does not get in"))
				require.LessOrEqual(t, time.Since(start), row.within)
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// A view is still there from an earlier wait, and its events are late. It learns the line
// by its recheck. After that come the deletions of the holder's key and of the own one at
// their earlier uses. They let nobody in and cost no place.
func TestAViewTakesNoEventTwice(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		holder := contract.MutexOf(t, processIn(t, etcd, "holder"), "n")
		waiter := contract.MutexOf(t, processIn(t, etcd, "waiter"), "n")
		lockWithin(t, holder, time.Second)
		in := writesLater(waiter)
		require.NoError(t, holder.Unlock(context.Background()))
		require.NoError(t, <-in)
		require.NoError(t, waiter.Unlock(context.Background()))
		synctest.Wait()

		late := fromNth(1, fake.Event, fake.Effect{Delay: 2 * time.Second})
		etcd.Intercept(func(c fake.Call) fake.Effect {
			isRecheck := c.Method == fake.Txn && len(c.Puts)+len(c.Deletes) == 0
			if c.Process == "waiter" && isRecheck { // then the line is read
				return fake.Effect{Edit: func(reply any) { reply.(*pb.TxnResponse).Succeeded = false }}
			}
			return late(c)
		})
		lockWithin(t, waiter, time.Second)
		own := waiter.Key()
		require.NoError(t, waiter.Unlock(context.Background()))
		lockWithin(t, holder, time.Second)
		key := holder.Key()
		require.NoError(t, holder.Unlock(context.Background()))
		hold := lockWithin(t, holder, time.Second)
		require.Equal(t, key, holder.Key())
		in = writesLater(waiter)
		line := etcd.Keys("n/")
		require.Equal(t, []string{key, own}, line)
		puts := len(putsOf(etcd.Calls(fake.Txn)))
		time.Sleep(20 * time.Second)
		require.Equal(t, line, etcd.Keys("n/"))
		require.Len(t, putsOf(etcd.Calls(fake.Txn)), puts, "the waiter queued anew")
		require.NoError(t, hold.Err())
		require.Empty(t, in, "both are in")
		require.NoError(t, holder.Unlock(context.Background()))
		require.NoError(t, soonOr(t, in, "the waiter does not get in"))
		require.NoError(t, waiter.Unlock(context.Background()))
	})
}

// oneWaits makes "b" wait by a Session s behind "a", who holds.
func oneWaits(t *testing.T, etcd *fake.Server) (holder *etcdlock.Mutex, s *etcdlock.Session, q *queue) {
	t.Helper()
	holder = contract.MutexOf(t, processIn(t, etcd, "a"), "n")
	lockWithin(t, holder, time.Second)
	s, q = processIn(t, etcd, "b"), &queue{t: t, etcd: etcd}
	q.joins("b", contract.MutexOf(t, s, "n"), time.Second)
	return holder, s, q
}

// The waiter's renewals are carried out but not answered. At 21 s it gives up its old
// place, removes the key, and queues with another lease.
func TestAWaiterWhoseTrustEndsQueuesAnewAtOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		holder, s, q := oneWaits(t, etcd)
		first, old := s.Lease(), etcd.Keys("n/")[1]
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{DropReply: c.Method == fake.KeepAlive && c.Lease == first}
		})
		time.Sleep(20 * time.Second)
		require.Equal(t, first, s.Lease())
		time.Sleep(time.Second + 100*time.Millisecond)
		require.NotEqual(t, first, s.Lease())
		require.Len(t, etcd.Keys("n/"), 2)
		require.NotContains(t, etcd.Keys("n/"), old)
		require.NoError(t, holder.Unlock(context.Background()))
		require.Equal(t, []string{"b"}, q.order())
	})
}

func TestAWaiterWhoseLeaseIsLostQueuesAnew(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		holder, s, q := oneWaits(t, etcd)
		for range 3 {
			time.Sleep(5 * time.Second)
			require.Len(t, etcd.Keys("n/"), 2)
			lost := s.Lease()
			etcd.RevokeLease(lost)
			require.Len(t, etcd.Keys("n/"), 1)
			time.Sleep(2 * time.Second)
			require.Len(t, etcd.Keys("n/"), 2, "it did not queue anew")
			require.NotEqual(t, lost, s.Lease())
		}
		require.NoError(t, holder.Unlock(context.Background()))
		require.Equal(t, []string{"b"}, q.order())
	})
}

// Keys below the prefix that are no contenders block nobody. Neither does a contender's key
// that is mistaken for the own one.
func TestStrayKeysBlockNobody(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		strays := []string{"n/config", "n/" + uuid.NewString(), "n/sub/" + uuid.NewString(), "n/" + strings.ToUpper(uuid.NewString())}
		for _, key := range strays {
			require.NoError(t, etcd.PutKey(key, 0))
		}
		s := processIn(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		lockWithin(t, mu, time.Millisecond)
		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, mu.TryLock(context.Background()))
		require.NoError(t, mu.Unlock(context.Background()))
		require.Subset(t, etcd.Keys("n/"), strays)
		for _, key := range strays {
			etcd.DeleteKey(key)
		}
	})
}

// schedules is how many random schedules the test tries, a few milliseconds each.
var schedules = flag.Uint64("schedules", uint64(race.Fewer(200, 60)), "random schedules that TestRandomSchedules tries")

// Three processes of three goroutines contend for two names. Meanwhile requests, answers
// and events are late, lost, repeated or refused, processes are cut off, and the server
// stops, compacts and drops its watches. In every fourth schedule keys and leases are also
// taken away from outside. Then two may believe that they hold.
//
// The seed decides how bad it gets and, as far as goroutines run in the same order, what
// becomes of each request. To repeat one: -run 'TestRandomSchedules/seed_17$' -count 100.
func TestRandomSchedules(t *testing.T) {
	holds := 0
	for seed := range *schedules {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				c := newChaos(t, etcd, seed)
				c.run()
				holds += c.holds
			})
		})
	}
	t.Logf("%d holds", holds)
}

type chaos struct {
	t      *testing.T
	etcd   *fake.Server
	bad    float64 // how likely a request meets a fault
	taking bool    // keys and leases are taken away
	shared bool    // the goroutines of a process share their Mutexes
	ends   time.Time

	mu     sync.Mutex
	rand   *rand.Rand
	calm   bool               // the faults are over
	holder map[string]*belief // by name: the last one that believed to hold
	holds  int
}

type belief struct {
	who   string
	token int64
	hold  context.Context
	left  bool
}

const (
	chaosTTL   = 3 * time.Second
	chaosLasts = 12 * time.Second
)

func newChaos(t *testing.T, etcd *fake.Server, seed uint64) *chaos {
	return &chaos{
		t: t, etcd: etcd,
		bad:    []float64{0.01, 0.05, 0.2, 0.5}[seed/2%4],
		taking: seed%4 == 3,
		shared: seed/4%2 == 1,
		ends:   time.Now().Add(chaosLasts),
		rand:   rand.New(rand.NewPCG(seed, 0)),
		holder: make(map[string]*belief),
	}
}

func (c *chaos) run() {
	c.etcd.Intercept(c.fault)
	var workers sync.WaitGroup
	for p := range 3 {
		process := fmt.Sprint("p", p)
		s := processIn(c.t, c.etcd, process, etcdlock.WithTTL(chaosTTL))
		locks := c.mutexes(s)
		for g := range 3 {
			own := locks
			if !c.shared {
				own = c.mutexes(s)
			}
			workers.Go(func() { c.work(fmt.Sprint(process, "/", g), own) })
		}
	}
	for time.Now().Before(c.ends) {
		time.Sleep(c.upTo(3 * time.Second))
		c.meddle()
	}
	c.mu.Lock()
	c.calm = true
	c.mu.Unlock()
	for p := range 3 {
		c.etcd.Heal(fmt.Sprint("p", p))
	}
	c.etcd.Thaw()
	workers.Wait()
}

func (c *chaos) mutexes(s *etcdlock.Session) map[string]*etcdlock.Mutex {
	return map[string]*etcdlock.Mutex{
		"a": contract.MutexOf(c.t, s, "a"),
		"b": contract.MutexOf(c.t, s, "b", etcdlock.WithMaxHold(4*time.Second)),
	}
}

// chance is true with probability p.
func (c *chaos) chance(p float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.Float64() < p
}

// upTo is a time between 0 and most, more often short than long.
func (c *chaos) upTo(most time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.rand.Float64()
	return time.Duration(x * x * float64(most))
}

func (c *chaos) pick(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.IntN(n)
}

// fault decides what becomes of a request.
func (c *chaos) fault(call fake.Call) fake.Effect {
	effect := fake.Effect{Delay: c.upTo(2 * time.Millisecond), DelayReply: c.upTo(2 * time.Millisecond)}
	c.mu.Lock()
	calm := c.calm
	c.mu.Unlock()
	if calm || !c.chance(c.bad) {
		return effect
	}
	repeated := status.Error(codes.DeadlineExceeded, "fake: try again")
	switch c.pick(10) {
	case 0:
		effect.Delay = c.upTo(2 * chaosTTL)
	case 1:
		effect.DelayReply = c.upTo(2 * chaosTTL)
	case 2:
		effect.Drop = true
	case 3:
		effect.DropReply = true
	case 4:
		effect.Before = fake.Unavailable
	case 5:
		effect.After = fake.Unavailable
	case 6:
		effect.Before = repeated
	case 7:
		effect.After = repeated
	case 8:
		effect.Again = 1 + c.upTo(2*chaosTTL)
	case 9:
		effect.After = rpctypes.ErrGRPCNoSpace
	}
	return effect
}

// meddle does something to a process or to the server.
func (c *chaos) meddle() {
	switch c.pick(6) {
	case 0, 1:
		process := fmt.Sprint("p", c.pick(3))
		c.etcd.Cut(process)
		time.AfterFunc(c.upTo(3*chaosTTL), func() { c.etcd.Heal(process) })
	case 2:
		c.etcd.Freeze()
		time.AfterFunc(c.upTo(2*chaosTTL), c.etcd.Thaw)
	case 3:
		c.etcd.Compact()
	case 4:
		c.etcd.CancelWatches()
	case 5:
		if keys := c.etcd.Keys(""); c.taking && len(keys) > 0 {
			c.etcd.DeleteKey(keys[c.pick(len(keys))])
		}
		if leases := c.etcd.Leases(); c.taking && len(leases) > 0 && c.chance(0.3) {
			c.etcd.RevokeLease(leases[c.pick(len(leases))])
		}
	}
}

// work is the life of a goroutine. It locks what it can while there are faults. Afterwards
// it must get in everywhere.
func (c *chaos) work(who string, locks map[string]*etcdlock.Mutex) {
	for time.Now().Before(c.ends) {
		name := []string{"a", "b"}[c.pick(2)]
		c.locksAndUnlocks(who, name, locks[name], c.upTo(10*time.Second))
		time.Sleep(c.upTo(time.Second))
	}
	time.Sleep(chaosTTL) // by then what was on its way has arrived or been given up
	for name, mu := range locks {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := mu.Lock(ctx); err != nil {
			c.t.Errorf("%s: %q is not to be had after the faults: %v", who, name, err)
			continue
		}
		if waited := time.Since(start); waited > 8*chaosTTL {
			c.t.Errorf("%s: waited %v for %q after the faults", who, waited, name)
		}
		b := c.enter(who, name, mu.Token(), mu.Context(context.Background()))
		time.Sleep(time.Millisecond)
		c.leave(b)
		if err := mu.Unlock(context.Background()); err != nil {
			c.t.Errorf("%s: unlock %q after the faults: %v", who, name, err)
		}
	}
}

// soon is the time in which a call returns after its context has ended.
const soon = 100 * time.Millisecond

func (c *chaos) locksAndUnlocks(who, name string, mu *etcdlock.Mutex, wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	start := time.Now()
	lock := mu.Lock
	if c.chance(0.2) {
		lock = mu.TryLock
	}
	err := lock(ctx)
	if took := time.Since(start); took > wait+soon {
		c.t.Errorf("%s: lock %q took %v with a context of %v", who, name, took, wait)
	}
	if err != nil {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, etcdlock.ErrLocked) {
			c.t.Errorf("%s: %v", who, err)
		}
		return
	}
	if until := mu.Deadline(); !until.After(time.Now()) {
		c.t.Errorf("%s: lock %q returned nil, deadline %v", who, name, until)
	}
	hold := mu.Context(context.Background())
	b := c.enter(who, name, mu.Token(), hold)
	work := time.NewTimer(c.upTo(2 * chaosTTL))
	select {
	case <-work.C:
	case <-hold.Done():
		time.Sleep(c.upTo(chaosTTL)) // it is slow to notice
	}

	bound := min(chaosTTL, 5*time.Second)
	ctx, cancel = context.WithTimeout(context.Background(), c.upTo(5*time.Second))
	defer cancel()
	if c.chance(0.5) {
		cancel()
	} else if until, ok := ctx.Deadline(); ok && time.Until(until) > 0 {
		bound = time.Until(until)
	}
	start = time.Now()
	certain := mu.Deadline().Add(chaosTTL / 8) // its key is there until then
	whole := c.leave(b)
	err = mu.Unlock(ctx)
	if took := time.Since(start); took > bound+soon {
		c.t.Errorf("%s: unlock %q took %v with a bound of %v", who, name, took, bound)
	}
	switch {
	case err == nil && !whole:
		c.t.Errorf("%s: unlock %q returned nil, but the hold had ended: %v", who, name, context.Cause(hold))
	case err == nil, errors.Is(err, etcdlock.ErrLost), errors.Is(err, etcdlock.ErrUnconfirmed):
	default:
		c.t.Errorf("%s: unlock: %v", who, err)
	}
	if errors.Is(err, etcdlock.ErrLost) && whole && time.Now().Before(certain) && !c.taking {
		c.t.Errorf("%s: %v, though nobody took it and its context had not ended", who, err)
	}
}

// enter records that who believes to hold name. Nobody else may believe so, and the token
// must be greater than all before. The exception is when keys are taken away: an answer
// that is under way may then show a key that is there no more.
func (c *chaos) enter(who, name string, token int64, hold context.Context) *belief {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &belief{who: who, token: token, hold: hold}
	if before := c.holder[name]; before != nil {
		if !before.left && before.hold.Err() == nil && !c.taking {
			c.t.Errorf("%s and %s hold %q at once, with tokens %d and %d", before.who, who, name, before.token, token)
		}
		if token <= before.token && !c.taking {
			c.t.Errorf("%s holds %q with token %d, %s had %d before", who, name, token, before.who, before.token)
		}
	}
	c.holder[name] = b
	c.holds++
	return b
}

// leave records that who is about to unlock, and reports whether the hold is whole.
func (c *chaos) leave(b *belief) (whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b.left = true
	return b.hold.Err() == nil
}

// An etcd that takes longer for each answer than an attempt waits at first is slow, and not
// dead: the attempts wait longer, and every call gets its answer.
func TestASlowEtcdKeepsNobodyOut(t *testing.T) {
	for name, slow := range map[string]fake.Effect{
		"slow requests": {Delay: 4 * time.Second},
		"slow answers":  {DelayReply: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				a := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
				b := contract.MutexOf(t, processIn(t, etcd, "b"), "n")
				etcd.Intercept(func(fake.Call) fake.Effect { return slow })
				lockWithin(t, a, time.Minute)
				waiting := make(chan error, 1)
				go func() { waiting <- b.Lock(context.Background()) }()
				time.Sleep(time.Minute)
				require.NoError(t, a.Unlock(context.Background()))
				start := time.Now()
				require.NoError(t, <-waiting)
				require.Less(t, time.Since(start), 30*time.Second)
				require.NoError(t, b.Unlock(context.Background()))
			})
		})
	}
}
