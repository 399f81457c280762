package etcdlock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
)

// These tests are about how the keys of holds are watched, and what a hold or a wait costs
// etcd while nothing happens.

const (
	renewalPeriod = virtualTTL / 3

	// keeperTick is the time within which the keeper sees that something is due.
	keeperTick = 350 * time.Millisecond

	// watchedBy is the age by which a hold is watched.
	watchedBy = time.Second + keeperTick

	// unwatchedLook is the time within which an audit of the lease's keys comes while no
	// watch covers a hold that lasts. seldomLook is that time while watches cover all.
	unwatchedLook = renewalPeriod + keeperTick
	seldomLook    = 4*renewalPeriod + keeperTick
)

// putsOf returns the transactions that put something.
func putsOf(calls []fake.Call) (puts []fake.Call) {
	for _, c := range calls {
		if len(c.Puts) > 0 {
			puts = append(puts, c)
		}
	}
	return puts
}

// by returns the calls of a process.
func by(process string, calls []fake.Call) (of []fake.Call) {
	for _, c := range calls {
		if c.Process == process && c.Method != fake.Event {
			of = append(of, c)
		}
	}
	return of
}

// A hold shorter than a second costs the put and the release, besides its lease. One that
// lasts is watched, by one watch and one read. Then it costs nothing but an audit now and
// then.
func TestAShortHoldCostsNothingAndALongOneIsWatched(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
		for range 60 {
			lockWithin(t, mu, time.Second)
			time.Sleep(999 * time.Millisecond)
			require.NoError(t, mu.Unlock(context.Background()))
			time.Sleep(time.Millisecond)
		}
		require.Empty(t, etcd.Calls(fake.Watch))
		require.LessOrEqual(t, len(etcd.Calls(fake.TimeToLive)), 2)
		require.Len(t, etcd.Calls(fake.Txn), 120)

		looks := len(etcd.Calls(fake.TimeToLive))
		lockWithin(t, mu, time.Second)
		time.Sleep(seldomLook)
		require.Len(t, etcd.Calls(fake.Watch), 1)
		require.Len(t, etcd.Calls(fake.Txn), 122, "the put, and a read of the key")
		require.LessOrEqual(t, len(etcd.Calls(fake.TimeToLive)), looks+2)
		require.Equal(t, 1, etcd.Watches())
		require.NoError(t, mu.Unlock(context.Background()))
		synctest.Wait()
		require.Zero(t, etcd.Watches(), "a watch is left")
	})
}

// An idle hold costs at most 1.3 times the messages of its renewals, in the long run.
func TestAnIdleHoldCostsItsRenewalsAndLittleElse(t *testing.T) {
	for _, how := range []string{
		"plain", "after a wait behind few", "after a wait behind many", "with linger", "ten names",
	} {
		t.Run(how, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := processIn(t, etcd, "a")
				names := 1
				switch how {
				case "after a wait behind few", "after a wait behind many":
					behind := 3
					if how == "after a wait behind many" {
						behind = 12
					}
					_, in, keys := waitsFor(t, etcd, s, "n", behind)
					for _, key := range keys {
						etcd.DeleteKey(key)
					}
					require.NoError(t, soonOr(t, in, "the waiter does not get in"))
				case "with linger":
					lockWithin(t, contract.MutexOf(t, s, "n", etcdlock.WithLinger(time.Minute)), time.Second)
				default:
					names = 10
					fallthrough
				case "plain":
					for i := range names {
						lockWithin(t, contract.MutexOf(t, s, fmt.Sprint("n", i)), time.Second)
					}
				}
				time.Sleep(10 * virtualTTL)
				synctest.Wait()
				require.LessOrEqual(t, etcd.Watches(), names)
				before := len(by("a", etcd.Calls("")))
				renewals := len(etcd.Calls(fake.KeepAlive))
				time.Sleep(100 * virtualTTL)
				renewals = len(etcd.Calls(fake.KeepAlive)) - renewals
				sent := len(by("a", etcd.Calls(""))) - before
				require.InDelta(t, 300, renewals, 1)
				t.Logf("%d messages, %d of them renewals", sent, renewals)
				require.LessOrEqual(t, float64(sent), 1.3*float64(renewals))
			})
		})
	}
}

// With any TTL that etcd grants, up to 285 years, a hold and a wait cost etcd next to nothing, and
// the wait ends with the hold.
func TestTheLongestTTLsCostNoMoreThanOthers(t *testing.T) {
	for _, ttl := range []time.Duration{400_000_000, 7_000_000_000, 9_000_000_000} {
		t.Run(fmt.Sprintf("%d s", ttl), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				long := etcdlock.WithTTL(ttl * time.Second)
				held := contract.MutexOf(t, processIn(t, etcd, "a", long), "n")
				lockWithin(t, held, time.Second)
				next := contract.MutexOf(t, processIn(t, etcd, "b", long), "n")
				in := contract.Async(func() error { return next.Lock(context.Background()) })
				etcd.Intercept(func(fake.Call) fake.Effect { return fake.Effect{DelayReply: time.Second} })
				time.Sleep(time.Hour)
				before := etcd.Counts()
				time.Sleep(time.Hour)
				sent := 0
				for method, n := range etcd.Counts() {
					sent += n - before[method]
				}
				t.Logf("%d requests in an hour", sent)
				require.LessOrEqual(t, sent, 4)
				etcd.Intercept(nil)
				require.NoError(t, held.Unlock(context.Background()))
				require.NoError(t, soonOr(t, in, "the waiter does not get in"))
				require.NoError(t, next.Unlock(context.Background()))
			})
		})
	}
}

// So does an idle wait, in a short line and in one of a hundred. In the first minutes it
// rechecks more often.
func TestAnIdleWaitCostsItsRenewalsAndLittleElse(t *testing.T) {
	for _, behind := range []int{1, 8, 9, 100} {
		t.Run(fmt.Sprint("behind ", behind), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				_, in, keys := waitsFor(t, etcd, processIn(t, etcd, "a"), "n", behind)
				time.Sleep(10 * virtualTTL)
				early := len(by("a", etcd.Calls("")))
				require.LessOrEqual(t, early, 30+2+25)
				renewals := len(etcd.Calls(fake.KeepAlive))
				time.Sleep(100 * virtualTTL)
				require.Empty(t, in)
				renewals = len(etcd.Calls(fake.KeepAlive)) - renewals
				sent := len(by("a", etcd.Calls(""))) - early
				t.Logf("%d messages, %d of them renewals", sent, renewals)
				require.LessOrEqual(t, float64(sent), 1.3*float64(renewals))
				for _, key := range keys {
					etcd.DeleteKey(key)
				}
				require.NoError(t, soonOr(t, in, "the waiter does not get in"))
			})
		})
	}
}

// In a line of 1,000 waiters, each with a client of its own, all rechecks together are at
// most 20 requests a second.
func TestTheRechecksOfALongLineAreFew(t *testing.T) {
	line := race.Fewer(1000, 100)
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		lockWithin(t, contract.MutexOf(t, processIn(t, etcd, "holder"), "n"), time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, line)
		for i := range line {
			mu := contract.MutexOf(t, processIn(t, etcd, fmt.Sprint("p", i)), "n")
			go func() { done <- mu.Lock(ctx) }()
		}
		time.Sleep(2 * time.Minute)
		before := len(etcd.Calls(fake.Txn)) + len(etcd.Calls(fake.Range))
		const minutes = 5
		time.Sleep(minutes * time.Minute)
		asked := len(etcd.Calls(fake.Txn)) + len(etcd.Calls(fake.Range)) - before
		t.Logf("%.1f a second", float64(asked)/minutes/60)
		require.LessOrEqual(t, float64(asked)/minutes/60, 20.0)
		cancel()
		for range line {
			require.ErrorIs(t, <-done, context.Canceled)
		}
	})
}

// If an operator takes something from a hold that is watched, the event shows that: at
// once, except that the library asks etcd for the reason.
func TestALossIsToldByTheEvent(t *testing.T) {
	for name, row := range map[string]struct {
		take   func(etcd *fake.Server, s *etcdlock.Session, key string)
		reason error
	}{
		"deleted": {func(etcd *fake.Server, _ *etcdlock.Session, key string) {
			etcd.DeleteKey(key)
		}, etcdlock.ErrKeyDeleted},
		"revoked": {func(etcd *fake.Server, s *etcdlock.Session, _ string) {
			etcd.RevokeLease(s.Lease())
		}, etcdlock.ErrLeaseRevoked},
		"put over without a lease": {func(etcd *fake.Server, _ *etcdlock.Session, key string) {
			_ = etcd.PutKey(key, clientv3.NoLease)
		}, etcdlock.ErrKeyOverwritten},
		"put over with another lease": {func(etcd *fake.Server, _ *etcdlock.Session, key string) {
			other, _ := etcd.Client("other").Grant(context.Background(), 3000)
			_ = etcd.PutKey(key, other.ID)
		}, etcdlock.ErrKeyOverwritten},
	} {
		for _, opts := range [][]etcdlock.Option{nil, {etcdlock.WithLinger(time.Minute)}} {
			for _, silent := range []bool{false, true} {
				how := fmt.Sprintf("%s, linger %t, nothing else answers %t", name, opts != nil, silent)
				t.Run(how, func(t *testing.T) {
					inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						s := processIn(t, etcd, "a")
						mu := contract.MutexOf(t, s, "n", opts...)
						hold := lockWithin(t, mu, time.Second)
						time.Sleep(watchedBy)
						require.Equal(t, 1, etcd.Watches())
						const rtt = time.Millisecond
						etcd.Intercept(func(c fake.Call) fake.Effect {
							if c.Process != "a" || c.Method == fake.Event {
								return fake.Effect{}
							}
							return fake.Effect{DelayReply: rtt, Drop: silent}
						})
						taken := time.Now()
						row.take(etcd, s, mu.Key())
						if silent {
							require.LessOrEqual(t, endsAfter(t, hold, taken), 100*time.Millisecond)
							require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLost)
							return
						}
						require.LessOrEqual(t, endsAfter(t, hold, taken), rtt)
						if opts == nil || row.reason != etcdlock.ErrLeaseRevoked { // a view does not ask
							require.ErrorIs(t, context.Cause(hold), row.reason)
						}
						require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
						synctest.Wait()
						if opts == nil {
							require.Zero(t, etcd.Watches())
						}
					})
				})
			}
		}
	}
}

// The watch is there, and delivers nothing, so the audits show the loss. Without a watch
// they come once per renewal period.
func TestALossIsToldThoughAllWatchesAreSilent(t *testing.T) {
	for name, row := range map[string]struct {
		faults func(fake.Call) fake.Effect
		within time.Duration
	}{
		"no watch is answered": {noWatches, unwatchedLook},
		"every watch fails": {func(c fake.Call) fake.Effect {
			if c.Method != fake.Watch {
				return fake.Effect{}
			}
			return fake.Effect{Before: fake.Unavailable}
		}, unwatchedLook},
		"the first read is not answered": {
			onlyNth(2, fake.Txn, fake.Effect{Drop: true}), time.Millisecond,
		},
		"every event is lost": {func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Event}
		}, seldomLook},
	} {
		t.Run(name, func(t *testing.T) {
			for age := 5 * time.Second; age < 2*seldomLook; age += 7 * time.Second {
				inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
					etcd.Intercept(row.faults)
					hold := lockWithin(t, mu, time.Second)
					time.Sleep(age)
					taken := time.Now()
					etcd.DeleteKey(mu.Key())
					require.LessOrEqual(t, endsAfter(t, hold, taken), row.within, "deleted after %v", age)
					require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
				})
			}
		})
	}
}

// A watch that ends is made anew. The new one shows what happened meanwhile. A watch that
// fails each time costs one watch per renewal period in the end.
func TestAWatchOfAHoldIsMadeAnew(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, processIn(t, etcd, "a"), "n")
		for range 5 {
			hold := lockWithin(t, mu, time.Second)
			time.Sleep(watchedBy)
			etcd.CancelWatches()
			taken := time.Now()
			etcd.DeleteKey(mu.Key())
			require.LessOrEqual(t, endsAfter(t, hold, taken), 100*time.Millisecond)
			require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		}
		etcd.Intercept(fromNth(1, fake.Watch, fake.Effect{Before: fake.Unavailable}))
		lockWithin(t, mu, time.Second)
		time.Sleep(10 * virtualTTL)
		before := len(etcd.Calls(fake.Watch))
		time.Sleep(10 * virtualTTL)
		require.LessOrEqual(t, len(etcd.Calls(fake.Watch))-before, 40, "for 30 renewals")
		require.Greater(t, len(etcd.Calls(fake.Watch))-before, 10)
		etcd.Intercept(nil)
		time.Sleep(virtualTTL)
		hold, taken := mu.Context(context.Background()), time.Now()
		etcd.DeleteKey(mu.Key())
		require.LessOrEqual(t, endsAfter(t, hold, taken), time.Millisecond)
	})
}

// The user may not watch. The library tries that once a minute, and the audits show a loss.
// An expired token is another matter: the next watch is on another stream, soon.
func TestAHoldWhoseWatchIsRefused(t *testing.T) {
	for name, row := range map[string]struct {
		refusal error
		within  time.Duration // until the holder knows of a loss
		most    int           // watches in four minutes
	}{
		"permission": {rpctypes.ErrGRPCPermissionDenied, unwatchedLook, 7},
		"token":      {rpctypes.ErrGRPCInvalidAuthToken, unwatchedLook, 60},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				client := etcd.Client("a")
				w := streamsOf(client, time.Hour)
				w.never = row.refusal
				mu := contract.MutexOf(t, sessionsOf(t, client, 1)[0], "n")
				hold := lockWithin(t, mu, time.Second)
				time.Sleep(4 * time.Minute)
				_, _, begun, _ := w.counts()
				require.LessOrEqual(t, begun, row.most)
				require.Greater(t, begun, 2)
				require.NoError(t, hold.Err())
				taken := time.Now()
				etcd.DeleteKey(mu.Key())
				require.LessOrEqual(t, endsAfter(t, hold, taken), row.within)
				require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)

				w.becomes(func() { w.never = nil })
				hold = lockWithin(t, mu, time.Second)
				time.Sleep(2 * time.Minute)
				taken = time.Now()
				etcd.DeleteKey(mu.Key())
				require.Zero(t, endsAfter(t, hold, taken), "it is not watched")
			})
		})
	}
}

// A token has expired, on a stream that another watch keeps open. That delays no watch of a
// hold: etcd refuses the first one, and the next one is on another stream.
func TestAnExpiredTokenHoldsUpNoWatchOfAHold(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		streamsOf(client, time.Minute)
		s := sessionsOf(t, client, 1)[0]
		lockWithin(t, contract.MutexOf(t, s, "old"), time.Second)
		time.Sleep(2 * time.Minute)
		mu := contract.MutexOf(t, s, "n")
		hold := lockWithin(t, mu, time.Second)
		time.Sleep(watchedBy + time.Second)
		taken := time.Now()
		etcd.DeleteKey(mu.Key())
		require.Zero(t, endsAfter(t, hold, taken), "it is not watched")
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// Above a hundred names none has a watch: one audit per renewal period covers all.
func TestTenThousandHoldsHaveNoWatchEach(t *testing.T) {
	names := race.Fewer(10_000, 1_000)
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		holds := contract.HoldMany(t, s, "n", names)
		time.Sleep(5 * virtualTTL)
		require.Empty(t, etcd.Calls(fake.Watch))
		require.InDelta(t, 15, len(etcd.Calls(fake.TimeToLive)), 1)
		taken := time.Now()
		etcd.DeleteKey(etcd.Keys("n77/")[0])
		require.LessOrEqual(t, endsAfter(t, holds[77], taken), unwatchedLook)
		require.NoError(t, holds[78].Err())
	})
}

// Up to a hundred names are watched, and read in one transaction or two when the watches
// are there. When there are more names, these watches stay.
func TestManyHoldsAreWatchedTogether(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		holds := contract.HoldMany(t, s, "n", 100)
		asked := len(etcd.Calls(fake.Txn))
		etcd.Intercept(fromNth(1, fake.Txn, fake.Effect{DelayReply: time.Millisecond}))
		time.Sleep(2 * watchedBy)
		require.Equal(t, 100, etcd.Watches())
		require.LessOrEqual(t, len(etcd.Calls(fake.Txn))-asked, 3)
		etcd.Intercept(nil)
		more := contract.HoldMany(t, s, "more", 50)
		time.Sleep(2 * watchedBy)
		require.Equal(t, 100, etcd.Watches())
		taken := time.Now()
		etcd.DeleteKey(etcd.Keys("n5/")[0])
		require.Zero(t, endsAfter(t, holds[5], taken))
		etcd.DeleteKey(etcd.Keys("more5/")[0])
		require.LessOrEqual(t, endsAfter(t, more[5], taken), unwatchedLook)
		etcd.RevokeLease(s.Lease())
		for i, hold := range holds {
			if i != 5 {
				endsAfter(t, hold, taken)
				require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLeaseRevoked)
			}
		}
		synctest.Wait()
		require.Zero(t, etcd.Watches())
	})
}

// A member that is behind serves its own "now": the watch of a hold then delivers an
// earlier use of the key's name. A put that keeps the lease keeps the place.
func TestAnEventOfAnEarlierUseOfTheNameEndsNoHold(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		late := &replaying{Watcher: client.Watcher}
		client.Watcher = late
		s := sessionsOf(t, client, 1)[0]
		mu := contract.MutexOf(t, s, "n")
		lockWithin(t, mu, time.Second)
		first := mu.Key()
		require.NoError(t, mu.Unlock(context.Background()))
		lockWithin(t, mu, time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
		// The history of the name: put, deleted, and put again by the hold.
		late.history = []*clientv3.Event{
			deletionOf(first, 3), putOf(first, 2, 2, int64(s.Lease())), deletionOf(first, 3),
		}
		hold := lockWithin(t, mu, time.Second)
		require.Equal(t, first, mu.Key(), "the schedule needs the same name")
		require.Greater(t, mu.Token(), int64(3))
		time.Sleep(watchedBy)
		require.NoError(t, etcd.PutKey(first, s.Lease()))
		require.NoError(t, etcd.PutKey("n/"+uuid.NewString(), clientv3.NoLease))
		time.Sleep(virtualTTL)
		require.NoError(t, hold.Err(), context.Cause(hold))
		require.NoError(t, mu.Unlock(context.Background()))
		etcd.DeleteKey(etcd.Keys("n/")[0])
	})
}

func putOf(key string, create, at, lease int64) *clientv3.Event {
	return &clientv3.Event{Kv: &mvccpb.KeyValue{
		Key: []byte(key), CreateRevision: create, ModRevision: at, Lease: lease,
	}}
}

func deletionOf(key string, at int64) *clientv3.Event {
	e := putOf(key, 0, at, 0)
	e.Type = clientv3.EventTypeDelete
	return e
}

// replaying is a Watcher that delivers history first, twice.
type replaying struct {
	clientv3.Watcher
	history []*clientv3.Event
}

func (w *replaying) Watch(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) clientv3.WatchChan {
	in := w.Watcher.Watch(ctx, key, opts...)
	out := make(chan clientv3.WatchResponse, 3)
	history := w.history
	go func() { // ends with ctx
		defer close(out)
		for resp := range in {
			out <- resp
			if resp.Created {
				out <- clientv3.WatchResponse{Header: resp.Header, Events: history}
				out <- clientv3.WatchResponse{Header: resp.Header, Events: history}
			}
		}
	}()
	return out
}

// The event of the release comes before its answer, or instead of it: the release is no loss.
func TestTheOwnReleaseIsNoLoss(t *testing.T) {
	effects := []fake.Effect{{DelayReply: time.Second}, {After: fake.Unavailable}, {Delay: time.Second}}
	options := [][]etcdlock.Option{nil, {etcdlock.WithHandoff(3)}, {etcdlock.WithMaxHold(time.Hour)}}
	for _, effect := range effects {
		for _, opts := range options {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				lost := 0
				s := processIn(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
					Lost: func(string, int64, time.Duration, error) { lost++ },
				}))
				mu := contract.MutexOf(t, s, "n", opts...)
				for range 5 {
					lockWithin(t, mu, 3*time.Second)
					time.Sleep(2 * watchedBy)
					etcd.Intercept(onlyNext(etcd, fake.Txn, effect))
					require.NoError(t, mu.Unlock(context.Background()))
					etcd.Intercept(nil)
				}
				synctest.Wait()
				require.Zero(t, lost)
				require.Zero(t, etcd.Watches())
			})
		}
	}
}

// A hold is passed on again and again, each time for a moment. Its key is watched all the
// same, and the current holder learns of its loss.
func TestAKeyThatIsPassedOnIsWatched(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := processIn(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n", etcdlock.WithHandoff(1000))
		lockWithin(t, mu, time.Second)
		for range 50 {
			in := contract.Async(func() error { return mu.Lock(context.Background()) })
			synctest.Wait()
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, mu.Unlock(context.Background()))
			require.NoError(t, <-in)
		}
		require.Len(t, etcd.Calls(fake.Watch), 1)
		hold, taken := mu.Context(context.Background()), time.Now()
		etcd.DeleteKey(mu.Key())
		require.Zero(t, endsAfter(t, hold, taken))
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// etcd is set back under a hold that is watched. If its key is still there, the hold goes
// on and is watched anew. Otherwise its holder learns of the loss.
func TestAHoldThatIsWatchedWhileEtcdIsSetBack(t *testing.T) {
	for _, cluster := range []uint64{1, 2} {
		for _, kept := range []bool{true, false} {
			t.Run(fmt.Sprintf("cluster %d, key kept %t", cluster, kept), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := processIn(t, etcd, "a")
					lockWithin(t, contract.MutexOf(t, s, "other"), time.Second)
					mu := contract.MutexOf(t, s, "n")
					snapshot := etcd.Snapshot()
					hold := lockWithin(t, mu, time.Second)
					if kept {
						snapshot = etcd.Snapshot()
					}
					for range 5 {
						require.NoError(t, etcd.PutKey("something else", 0))
					}
					time.Sleep(seldomLook + 2*time.Second) // the next audit is three renewals away
					back := time.Now()
					etcd.Restore(snapshot, cluster)
					if !kept {
						require.LessOrEqual(t, endsAfter(t, hold, back), 2*renewalPeriod+keeperTick)
						require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
						return
					}
					time.Sleep(2 * virtualTTL)
					require.NoError(t, hold.Err(), context.Cause(hold))
					if cluster == 2 {
						taken := time.Now()
						etcd.DeleteKey(mu.Key())
						require.Zero(t, endsAfter(t, hold, taken), "it is not watched anew")
						return
					}
					require.NoError(t, mu.Unlock(context.Background()))
				})
			})
		}
	}
}
