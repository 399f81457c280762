package watching

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// oneByOne creates watches as clientv3 does on a stream: one at a time, each a round trip.
type oneByOne struct {
	clientv3.Watcher
	turn chan struct{}
	rtt  time.Duration
	made atomic.Int64
}

func (w *oneByOne) Watch(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) clientv3.WatchChan {
	select {
	case w.turn <- struct{}{}:
		time.Sleep(w.rtt)
		w.made.Add(1)
		<-w.turn
	case <-ctx.Done():
	}
	return w.Watcher.Watch(ctx, key, opts...)
}

// Many views that begin at once take longer than one watch may take. They do not end each
// other for that.
func TestManyViewsOfASlowEtcdComeToRest(t *testing.T) {
	const views = 30
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		w := &oneByOne{Watcher: client.Watcher, turn: make(chan struct{}, 1), rtt: 50 * time.Millisecond}
		client.Watcher = w
		s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
		other := tests.SessionOf(t, etcd, "b")
		for i := range views {
			name := fmt.Sprint("n", i)
			tests.LockWithin(t, contract.MutexOf(t, other, name), time.Second)
			mu := contract.MutexOf(t, s, name)
			go func() { _ = mu.Lock(context.Background()) }()
		}
		time.Sleep(5 * time.Second)
		etcd.CancelWatches()
		time.Sleep(time.Minute)
		made := w.made.Load()
		time.Sleep(time.Minute)
		require.Equal(t, made, w.made.Load(), "watches are made anew though nothing happens")
	})
}

// A view that nobody needs ends, even if its watch cannot be made, or etcd is silent.
func TestAViewThatNobodyNeedsEnds(t *testing.T) {
	rows := map[string]func(fake.Call) fake.Effect{
		"no watch can be made": func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Watch}
		},
		"etcd is silent": func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method != fake.Txn}
		},
	}
	for name, faults := range rows {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "holder"), "n")
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
				tests.LockWithin(t, mu, time.Second) // so that it has a lease
				require.NoError(t, mu.Unlock(context.Background()))
				tests.LockWithin(t, holder, time.Second)
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Process != "a" {
						return fake.Effect{}
					}
					return faults(c)
				})
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				require.ErrorIs(t, mu.Lock(ctx), context.DeadlineExceeded)
				require.NoError(t, holder.Unlock(context.Background()))
				time.Sleep(8 * tests.TTL)
				tests.AsksNothing(t, etcd, 8*tests.TTL)
			})
		})
	}
}

// So does the view of a hold that was lost and is never unlocked.
func TestAViewOfALostHoldEnds(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n",
			etcdlock.WithMaxHold(time.Second), etcdlock.WithLinger(time.Second))
		tests.LockWithin(t, mu, time.Second)
		time.Sleep(4 * tests.TTL)
		require.Empty(t, etcd.Leases())
		tests.AsksNothing(t, etcd, 10*tests.TTL)
	})
}

// Two Mutexes of a name each keep the key for their own time.
func TestAShorterLingerIsNotHeldUpByALongerOne(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		for _, linger := range []time.Duration{time.Hour, time.Second} {
			mu := contract.MutexOf(t, s, "n", etcdlock.WithLinger(linger))
			tests.LockWithin(t, mu, time.Second)
			require.NoError(t, mu.Unlock(context.Background()))
		}
		time.Sleep(2 * time.Second)
		require.Empty(t, etcd.Keys("n/"))
	})
}

// The event that another has queued behind a key that lingers is lost. A recheck shows it,
// even if the key has been there for long.
func TestAKeyThatLingersGivesWayThoughNoEventTells(t *testing.T) {
	for _, held := range []time.Duration{2 * time.Second, 5 * tests.TTL} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithLinger(time.Hour))
			b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
			tests.LockWithin(t, a, time.Second)
			time.Sleep(held)
			require.NoError(t, a.Unlock(context.Background()))
			require.Len(t, etcd.Keys("n/"), 1, "it does not linger")
			etcd.Intercept(func(c fake.Call) fake.Effect {
				return fake.Effect{Drop: c.Process == "a" && c.Method == fake.Event}
			})
			tests.LockWithin(t, b, 3*time.Second)
			etcd.Intercept(nil)
			require.NoError(t, b.Unlock(context.Background()))
		})
	}
}

// While the line cannot be read, and no event comes, nothing could show that others wait.
// Then no key lingers.
func TestAKeyDoesNotLingerUnseen(t *testing.T) {
	for _, from := range []string{"from the beginning", "later"} {
		t.Run(from, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithLinger(time.Hour))
				b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
				blind := func(c fake.Call) fake.Effect {
					switch {
					case c.Process == "a" && c.Method == fake.Range:
						return fake.Effect{Before: fake.Unavailable}
					case c.Process == "a" && c.Method == fake.Event:
						return fake.Effect{Drop: true}
					}
					return fake.Effect{}
				}
				if from != "later" {
					etcd.Intercept(blind)
				}
				tests.LockWithin(t, a, time.Second)
				require.NoError(t, a.Unlock(context.Background()))
				time.Sleep(time.Second)
				etcd.Intercept(blind)
				tests.LockWithin(t, b, 10*time.Second)
				etcd.Intercept(nil)
				require.NoError(t, b.Unlock(context.Background()))
			})
		})
	}
}

// Whoever is ahead of a key goes before the answer comes that tells who is ahead of it: that to the
// put, or to a read if the put has read nothing but strays. The event comes before that answer.
func TestADeletionThatIsToldBeforeTheAnswerToThePutCounts(t *testing.T) {
	for _, by := range []string{"a call", "a call behind strays", "a release"} {
		t.Run(by, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				a := contract.MutexOf(t, s, "n", etcdlock.WithLinger(time.Hour)) // it has a view
				tests.LockWithin(t, a, time.Second)
				b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
				held := make(chan error, 1)
				go func() { held <- b.Lock(context.Background()) }()
				synctest.Wait()
				if by != "a release" {
					require.NoError(t, a.Unlock(context.Background()))
					require.NoError(t, tests.SoonOr(t, held, "it does not get in"))
				}
				slow, answered, strays := fake.Txn, 500*time.Millisecond, []string(nil)
				if by == "a call behind strays" { // it reads twice
					slow, answered, strays = fake.Range, time.Second, tests.PutStrays(t, etcd, 10)
				}
				etcd.Intercept(func(c fake.Call) (e fake.Effect) {
					if c.Process == "a" && c.Method == slow {
						e.DelayReply = 500 * time.Millisecond
					}
					return e
				})
				began := time.Now()
				in := make(chan error, 1)
				go func() { in <- contract.MutexOf(t, s, "n").Lock(context.Background()) }()
				synctest.Wait()
				if by == "a release" {
					go func() { _ = a.Unlock(context.Background()) }()
					require.NoError(t, tests.SoonOr(t, held, "it does not get in"))
				}
				require.Len(t, etcd.Keys("n/"), 2+len(strays), "b's, and the next one of a")
				time.Sleep(answered - 100*time.Millisecond)
				require.NoError(t, b.Unlock(context.Background()))
				require.NoError(t, tests.SoonOr(t, in, "it does not get in"))
				require.Equal(t, answered, time.Since(began))
				for _, key := range strays {
					etcd.DeleteKey(key)
				}
			})
		})
	}
}

// Whoever holds with WithLinger, and whoever joins readers, depends on the watch of the line for as
// long as that lasts. Now and then a re-check makes up for lost events. What it reads does not grow
// with what else is below the name: keys of nested names, held or in use.
func TestAReCheckDoesNotReadTheKeysOfNestedNames(t *testing.T) {
	const nested, minutes = 1000, 10
	for _, kind := range []string{"a lock is held", "a key lingers", "readers join"} {
		for _, when := range []string{"before", "after", "in use"} {
			t.Run(kind+", nested names "+when, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					granted, err := etcd.Client("nested").Grant(context.Background(), 3000)
					require.NoError(t, err)
					var keys []string
					put := func() {
						for range nested {
							key := "n/5/" + uuid.NewString() // among the keys of writers
							require.NoError(t, etcd.PutKey(key, granted.ID))
							keys = append(keys, key)
						}
					}
					if when != "after" {
						put()
					}
					s := tests.SessionOf(t, etcd, "a")
					a, rw := contract.MutexOf(t, s, "n", etcdlock.WithLinger(time.Hour)), tests.RWMutexOf(t, s)
					joins := func() {}
					switch kind {
					case "a lock is held":
						tests.LockWithin(t, a, time.Second)
					case "a key lingers":
						tests.LockWithin(t, a, time.Second)
						require.NoError(t, a.Unlock(context.Background()))
					default:
						reads := tests.RLockWithin(t, rw, time.Second)
						joins = func() { tests.UnlockAll(t, tests.RLockWithin(t, rw, time.Second)) }
						defer tests.UnlockAll(t, reads)
					}
					if when == "after" {
						put()
					}
					joins() // the view begins with a read of all
					var read atomic.Int64
					asked := tests.CallsSince(etcd)
					etcd.Intercept(func(c fake.Call) (e fake.Effect) {
						if c.Process == "a" {
							e.Edit = func(reply any) { read.Add(int64(tests.KeysIn(reply))) }
						}
						return e
					})
					for range minutes * 60 {
						time.Sleep(time.Second)
						joins()
						if when == "in use" {
							etcd.DeleteKey(keys[0])
							require.NoError(t, etcd.PutKey(keys[0], granted.ID))
							keys = append(keys[1:], keys[0])
						}
					}
					calls, _ := asked()
					require.LessOrEqual(t, int(read.Load()), nested, calls)
					if kind != "readers join" {
						require.Len(t, etcd.Keys("n/"), nested+1)
					}
					for _, key := range keys {
						etcd.DeleteKey(key)
					}
				})
			})
		}
	}
}
