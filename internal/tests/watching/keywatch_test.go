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
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// These tests are about how the keys of holds are watched.

// A hold shorter than a second costs the put and the release, besides its lease. One that
// lasts is watched, by one watch and one read. Then it costs nothing but an audit now and
// then.
func TestAShortHoldCostsNothingAndALongOneIsWatched(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		for range 60 {
			tests.LockWithin(t, mu, time.Second)
			time.Sleep(999 * time.Millisecond)
			require.NoError(t, mu.Unlock(context.Background()))
			time.Sleep(time.Millisecond)
		}
		require.Empty(t, etcd.Calls(fake.Watch))
		require.LessOrEqual(t, len(etcd.Calls(fake.TimeToLive)), 2)
		require.Len(t, etcd.Calls(fake.Txn), 120)

		looks := len(etcd.Calls(fake.TimeToLive))
		tests.LockWithin(t, mu, time.Second)
		time.Sleep(tests.SeldomLook)
		require.Len(t, etcd.Calls(fake.Watch), 1)
		require.Len(t, etcd.Calls(fake.Txn), 122, "the put, and a read of the key")
		require.LessOrEqual(t, len(etcd.Calls(fake.TimeToLive)), looks+2)
		require.Equal(t, 1, etcd.Watches())
		require.NoError(t, mu.Unlock(context.Background()))
		synctest.Wait()
		require.Zero(t, etcd.Watches(), "a watch is left")
	})
}

// Each hold is watched from its second second on, whichever others begin before and after it.
func TestEachHoldIsWatchedOnceItLasts(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const holds, apart = 10, 90 * time.Millisecond
		s, began := tests.SessionOf(t, etcd, "a"), time.Now()
		for i := range holds {
			tests.LockWithin(t, contract.MutexOf(t, s, fmt.Sprint("n", i)), time.Second)
			time.Sleep(apart)
		}
		for i := range holds {
			time.Sleep(time.Until(began.Add(time.Duration(i)*apart + tests.WatchedBy)))
			require.Equal(t, i+1, etcd.Watches())
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
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						s := tests.SessionOf(t, etcd, "a")
						mu := contract.MutexOf(t, s, "n", opts...)
						hold := tests.LockWithin(t, mu, time.Second)
						time.Sleep(tests.WatchedBy)
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
							require.LessOrEqual(t, tests.EndsAfter(t, hold, taken), 100*time.Millisecond)
							require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLost)
							return
						}
						require.LessOrEqual(t, tests.EndsAfter(t, hold, taken), rtt)
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
		"no watch is answered": {tests.NoWatches, tests.UnwatchedLook},
		"every watch fails": {func(c fake.Call) fake.Effect {
			if c.Method != fake.Watch {
				return fake.Effect{}
			}
			return fake.Effect{Before: fake.Unavailable}
		}, tests.UnwatchedLook},
		"the first read is not answered": {
			tests.OnlyNth(2, fake.Txn, fake.Effect{Drop: true}), time.Millisecond,
		},
		"every event is lost": {func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Method == fake.Event}
		}, tests.SeldomLook},
	} {
		t.Run(name, func(t *testing.T) {
			for age := 5 * time.Second; age < 2*tests.SeldomLook; age += 7 * time.Second {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
					etcd.Intercept(row.faults)
					hold := tests.LockWithin(t, mu, time.Second)
					time.Sleep(age)
					taken := time.Now()
					etcd.DeleteKey(mu.Key())
					require.LessOrEqual(t, tests.EndsAfter(t, hold, taken), row.within, "deleted after %v", age)
					require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
				})
			}
		})
	}
}

// As soon as no watch covers the key of a hold any more its Session audits the key: it does not
// wait for the next renewal.
func TestAKeyThatIsUncoveredIsAuditedAtOnce(t *testing.T) {
	for name, opts := range map[string][]etcdlock.Option{
		"it had a watch": nil, "its line had": {etcdlock.WithLinger(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", opts...)
				hold := tests.LockWithin(t, mu, time.Second)
				time.Sleep(5*tests.RenewalPeriod + time.Second) // an audit has come in the fourth
				require.Equal(t, 1, etcd.Watches())
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method == fake.Watch {
						return fake.Effect{Before: fake.Unavailable}
					}
					return fake.Effect{}
				})
				etcd.CancelWatches()
				etcd.DeleteKey(mu.Key())
				const again = 100 * time.Millisecond // a watch that fails is made anew, and fails
				require.LessOrEqual(t, tests.EndsAfter(t, hold, time.Now()), again)
			})
		})
	}
}

// As soon as the view of a line has ended the key of a hold there is watched.
func TestAHoldIsWatchedOnceItsViewHasEnded(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		_, in, keys := tests.WaitsFor(t, etcd, tests.SessionOf(t, etcd, "a"), "n", 1)
		etcd.DeleteKey(keys[0])
		require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
		const often = 100 * time.Millisecond
		for range 3 * tests.TTL / often {
			time.Sleep(often)
			synctest.Wait()
			require.Equal(t, 1, etcd.Watches())
		}
		require.Len(t, etcd.Calls(fake.Watch), 2, "of the line, and then of the key")
	})
}

// A watch that ends is made anew. The new one shows what happened meanwhile. A watch that
// fails each time costs one watch per renewal period in the end.
func TestAWatchOfAHoldIsMadeAnew(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		for range 5 {
			hold := tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			etcd.CancelWatches()
			taken := time.Now()
			etcd.DeleteKey(mu.Key())
			require.LessOrEqual(t, tests.EndsAfter(t, hold, taken), 100*time.Millisecond)
			require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		}
		etcd.Intercept(tests.FromNth(1, fake.Watch, fake.Effect{Before: fake.Unavailable}))
		tests.LockWithin(t, mu, time.Second)
		time.Sleep(10 * tests.TTL)
		before := len(etcd.Calls(fake.Watch))
		time.Sleep(10 * tests.TTL)
		require.LessOrEqual(t, len(etcd.Calls(fake.Watch))-before, 40, "for 30 renewals")
		require.Greater(t, len(etcd.Calls(fake.Watch))-before, 10)
		etcd.Intercept(nil)
		time.Sleep(tests.TTL)
		hold, taken := mu.Context(context.Background()), time.Now()
		etcd.DeleteKey(mu.Key())
		require.LessOrEqual(t, tests.EndsAfter(t, hold, taken), time.Millisecond)
	})
}

// Etcd has taken no watch for half an hour, and does again. A hold is watched soon after, however
// long its TTL.
func TestALongTTLDelaysNoWatch(t *testing.T) {
	for _, ttl := range []time.Duration{tests.TTL, time.Hour, 1000 * time.Hour} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			etcd.Intercept(tests.FromNth(1, fake.Watch, fake.Effect{Before: fake.Unavailable}))
			s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(ttl))
			hold := tests.LockWithin(t, contract.MutexOf(t, s, "n"), time.Second)
			time.Sleep(30 * time.Minute)
			etcd.Intercept(nil)
			time.Sleep(15 * time.Second)
			require.Equal(t, 1, etcd.Watches())
			taken := time.Now()
			etcd.DeleteKey(etcd.Keys("n/")[0])
			require.Zero(t, tests.EndsAfter(t, hold, taken))
		})
	}
}

// A proxy ends each watch after a minute. It has lasted, so the next one is made at once, however
// long the TTL and however often that happens.
func TestAWatchThatHasLastedIsMadeAnewAtOnce(t *testing.T) {
	for _, ttl := range []time.Duration{tests.TTL, time.Hour} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(ttl)), "n")
			tests.LockWithin(t, mu, time.Second)
			time.Sleep(tests.WatchedBy)
			for range 20 {
				time.Sleep(time.Minute)
				etcd.CancelWatches()
				time.Sleep(100 * time.Millisecond)
				require.Equal(t, 1, etcd.Watches())
			}
		})
	}
}

// The watch of a hold has failed for a while, so it is made anew after an ever longer pause. Then
// etcd is set back in such a pause, so that a new watch is wanted. The next one is that: it stays.
func TestAWatchThatWasWantedInAPauseStays(t *testing.T) {
	for _, ttl := range []time.Duration{tests.TTL, time.Hour} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(ttl))
			etcd.Intercept(tests.FromNth(1, fake.Watch, fake.Effect{Before: fake.Unavailable}))
			mu := contract.MutexOf(t, s, "n")
			hold := tests.LockWithin(t, mu, time.Second)
			time.Sleep(time.Minute)
			snapshot := etcd.Snapshot()
			etcd.DeleteKey("any") // a revision more
			etcd.Restore(snapshot, 2)
			_, err := s.TryLock(context.Background(), "other") // its answer shows the set-back
			require.ErrorIs(t, err, etcdlock.ErrLocked)
			synctest.Wait()
			etcd.Intercept(nil)
			failed := len(etcd.Calls(fake.Watch))
			time.Sleep(time.Minute)
			require.Equal(t, 1, len(etcd.Calls(fake.Watch))-failed)
			require.Equal(t, 1, etcd.Watches())
			taken := time.Now()
			etcd.DeleteKey(mu.Key())
			require.Zero(t, tests.EndsAfter(t, hold, taken))
		})
	}
}

// The user may not watch. The library tries that once a minute, and the audits show a loss.
// An expired token is another matter: the next watch is on another stream, soon.
func TestAHoldWhoseWatchIsRefused(t *testing.T) {
	for name, row := range map[string]struct {
		refusal error
		within  time.Duration // until the holder knows of a loss
		most    int           // watches in four minutes
	}{
		"permission": {rpctypes.ErrGRPCPermissionDenied, tests.UnwatchedLook, 7},
		"token":      {rpctypes.ErrGRPCInvalidAuthToken, tests.UnwatchedLook, 60},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				client := etcd.Client("a")
				w := streamsOf(client, time.Hour)
				w.never = row.refusal
				mu := contract.MutexOf(t, sessionsOf(t, client, 1)[0], "n")
				hold := tests.LockWithin(t, mu, time.Second)
				time.Sleep(4 * time.Minute)
				_, _, begun, _ := w.counts()
				require.LessOrEqual(t, begun, row.most)
				require.Greater(t, begun, 2)
				require.NoError(t, hold.Err())
				taken := time.Now()
				etcd.DeleteKey(mu.Key())
				require.LessOrEqual(t, tests.EndsAfter(t, hold, taken), row.within)
				require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)

				w.becomes(func() { w.never = nil })
				hold = tests.LockWithin(t, mu, time.Second)
				time.Sleep(2 * time.Minute)
				taken = time.Now()
				etcd.DeleteKey(mu.Key())
				require.Zero(t, tests.EndsAfter(t, hold, taken), "it is not watched")
			})
		})
	}
}

// A token has expired, on a stream that another watch keeps open. That delays no watch of a
// hold: etcd refuses the first one, and the next one is on another stream.
func TestAnExpiredTokenHoldsUpNoWatchOfAHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		streamsOf(client, time.Minute)
		s := sessionsOf(t, client, 1)[0]
		tests.LockWithin(t, contract.MutexOf(t, s, "old"), time.Second)
		time.Sleep(2 * time.Minute)
		mu := contract.MutexOf(t, s, "n")
		hold := tests.LockWithin(t, mu, time.Second)
		time.Sleep(tests.WatchedBy + time.Second)
		taken := time.Now()
		etcd.DeleteKey(mu.Key())
		require.Zero(t, tests.EndsAfter(t, hold, taken), "it is not watched")
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// Above a hundred names none has a watch: one audit per renewal period covers all.
func TestTenThousandHoldsHaveNoWatchEach(t *testing.T) {
	names := race.Fewer(10_000, 1_000)
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		holds := contract.HoldMany(t, s, "n", names)
		time.Sleep(5 * tests.TTL)
		require.Empty(t, etcd.Calls(fake.Watch))
		require.InDelta(t, 15, len(etcd.Calls(fake.TimeToLive)), 1)
		taken := time.Now()
		etcd.DeleteKey(etcd.Keys("n77/")[0])
		require.LessOrEqual(t, tests.EndsAfter(t, holds[77], taken), tests.UnwatchedLook)
		require.NoError(t, holds[78].Err())
	})
}

// Up to a hundred names are watched, and read in one transaction or two when the watches
// are there. When there are more names, these watches stay.
func TestManyHoldsAreWatchedTogether(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		holds := contract.HoldMany(t, s, "n", 100)
		asked := len(etcd.Calls(fake.Txn))
		etcd.Intercept(tests.FromNth(1, fake.Txn, fake.Effect{DelayReply: time.Millisecond}))
		time.Sleep(2 * tests.WatchedBy)
		require.Equal(t, 100, etcd.Watches())
		require.LessOrEqual(t, len(etcd.Calls(fake.Txn))-asked, 3)
		etcd.Intercept(nil)
		more := contract.HoldMany(t, s, "more", 50)
		time.Sleep(2 * tests.WatchedBy)
		require.Equal(t, 100, etcd.Watches())
		taken := time.Now()
		etcd.DeleteKey(etcd.Keys("n5/")[0])
		require.Zero(t, tests.EndsAfter(t, holds[5], taken))
		etcd.DeleteKey(etcd.Keys("more5/")[0])
		require.LessOrEqual(t, tests.EndsAfter(t, more[5], taken), tests.UnwatchedLook)
		etcd.RevokeLease(s.Lease())
		for i, hold := range holds {
			if i != 5 {
				tests.EndsAfter(t, hold, taken)
				require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLeaseRevoked)
			}
		}
		synctest.Wait()
		require.Zero(t, etcd.Watches())
	})
}

// When so many names are released that few are left, the rest are watched soon.
func TestTheRestOfManyHoldsIsWatched(t *testing.T) {
	for _, after := range []time.Duration{0, tests.RenewalPeriod / 2, tests.RenewalPeriod - 1} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a")
			all := make([]*etcdlock.Mutex, 150)
			for i := range all {
				all[i] = contract.MutexOf(t, s, fmt.Sprint("n", i))
				tests.LockWithin(t, all[i], time.Second)
			}
			time.Sleep(tests.WatchedBy + after)
			require.Zero(t, etcd.Watches())
			for _, mu := range all[:60] {
				require.NoError(t, mu.Unlock(context.Background()))
			}
			time.Sleep(tests.WatchedBy)
			require.Equal(t, 90, etcd.Watches())
			hold, taken := all[77].Context(context.Background()), time.Now()
			etcd.DeleteKey(all[77].Key())
			require.Zero(t, tests.EndsAfter(t, hold, taken))
		})
	}
}

// Some of the keys of so many holds that new ones get no watch have one, from before they were as
// many. When etcd is set back these watches are made anew, as those of few are: they count again
// when few holds are left.
func TestTheWatchesOfManyHoldsAreMadeAnew(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		holds := contract.HoldMany(t, s, "n", 80)
		time.Sleep(tests.WatchedBy)
		more := make([]*etcdlock.Mutex, 70)
		for i := range more {
			more[i] = contract.MutexOf(t, s, fmt.Sprint("more", i))
			tests.LockWithin(t, more[i], time.Second)
		}
		snapshot := etcd.Snapshot()
		for range 100 {
			require.NoError(t, etcd.PutKey("something else", 0))
		}
		time.Sleep(tests.UnwatchedLook)
		etcd.Restore(snapshot, 2)
		time.Sleep(2 * tests.RenewalPeriod)
		for _, mu := range more {
			require.NoError(t, mu.Unlock(context.Background()))
		}
		time.Sleep(tests.WatchedBy)
		require.Equal(t, 80, etcd.Watches())
		taken := time.Now()
		etcd.DeleteKey(etcd.Keys("n5/")[0])
		require.Zero(t, tests.EndsAfter(t, holds[5], taken))
	})
}

// A member that is behind serves its own "now": the watch of a hold then delivers an
// earlier use of the key's name. A put that keeps the lease keeps the place.
func TestAnEventOfAnEarlierUseOfTheNameEndsNoHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		late := &replaying{Watcher: client.Watcher}
		client.Watcher = late
		s := sessionsOf(t, client, 1)[0]
		mu := contract.MutexOf(t, s, "n")
		tests.LockWithin(t, mu, time.Second)
		first := mu.Key()
		require.NoError(t, mu.Unlock(context.Background()))
		tests.LockWithin(t, mu, time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
		// The history of the name: put, deleted, and put again by the hold.
		late.history = []*clientv3.Event{
			deletionOf(first, 3), putOf(first, 2, 2, int64(s.Lease())), deletionOf(first, 3),
		}
		hold := tests.LockWithin(t, mu, time.Second)
		require.Equal(t, first, mu.Key(), "the schedule needs the same name")
		require.Greater(t, mu.Token(), int64(3))
		time.Sleep(tests.WatchedBy)
		require.NoError(t, etcd.PutKey(first, s.Lease()))
		require.NoError(t, etcd.PutKey("n/"+uuid.NewString(), clientv3.NoLease))
		time.Sleep(tests.TTL)
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
	effects := []fake.Effect{{DelayReply: time.Second}, {After: fake.Unavailable},
		{Delay: time.Second}}
	options := [][]etcdlock.Option{nil, {etcdlock.WithHandoff(3)}, {etcdlock.WithMaxHold(time.Hour)}}
	for _, effect := range effects {
		for _, opts := range options {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				lost := 0
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
					Lost: func(_ context.Context, _ etcdlock.LostEvent) { lost++ },
				}))
				mu := contract.MutexOf(t, s, "n", opts...)
				for range 5 {
					tests.LockWithin(t, mu, 3*time.Second)
					time.Sleep(2 * tests.WatchedBy)
					etcd.Intercept(tests.OnlyNext(etcd, fake.Txn, effect))
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n", etcdlock.WithHandoff(1000))
		tests.LockWithin(t, mu, time.Second)
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
		require.Zero(t, tests.EndsAfter(t, hold, taken))
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// etcd is set back under a hold that is watched. If its key is still there, the hold goes
// on and is watched anew. Otherwise its holder learns of the loss.
func TestAHoldThatIsWatchedWhileEtcdIsSetBack(t *testing.T) {
	for _, cluster := range []uint64{1, 2} {
		for _, kept := range []bool{true, false} {
			t.Run(fmt.Sprintf("cluster %d, key kept %t", cluster, kept), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a")
					tests.LockWithin(t, contract.MutexOf(t, s, "other"), time.Second)
					mu := contract.MutexOf(t, s, "n")
					snapshot := etcd.Snapshot()
					hold := tests.LockWithin(t, mu, time.Second)
					if kept {
						snapshot = etcd.Snapshot()
					}
					for range 5 {
						require.NoError(t, etcd.PutKey("something else", 0))
					}
					time.Sleep(tests.SeldomLook + 2*time.Second) // the next audit is three renewals away
					back := time.Now()
					etcd.Restore(snapshot, cluster)
					if !kept {
						require.LessOrEqual(t, tests.EndsAfter(t, hold, back), 2*tests.RenewalPeriod+tests.CareTakes)
						require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
						return
					}
					time.Sleep(2 * tests.TTL)
					require.NoError(t, hold.Err(), context.Cause(hold))
					if cluster == 2 {
						taken := time.Now()
						etcd.DeleteKey(mu.Key())
						require.Zero(t, tests.EndsAfter(t, hold, taken), "it is not watched anew")
						return
					}
					require.NoError(t, mu.Unlock(context.Background()))
				})
			})
		}
	}
}

// Something is suspected of the keys on a lease, and the audit of them has no answer. Another one
// comes soon, not when it would without a suspicion, unless etcd has refused the first.
func TestASuspicionOutlastsAnAuditWithoutAnAnswer(t *testing.T) {
	for name, row := range map[string]struct {
		method  string
		failure error
		again   bool
	}{
		"the keys on the lease": {fake.TimeToLive, fake.Unavailable, true},
		"a key":                 {fake.Txn, fake.Unavailable, true},
		"it is refused":         {fake.TimeToLive, rpctypes.ErrGRPCPermissionDenied, false},
	} {
		for _, held := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, another key is held %t", name, held), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a")
					if held {
						tests.LockWithin(t, contract.MutexOf(t, s, "other"), time.Second)
					}
					mu := contract.MutexOf(t, s, "n")
					tests.LockWithin(t, mu, time.Second)
					snapshot := etcd.Snapshot()
					require.NoError(t, mu.Unlock(context.Background()))
					etcd.DeleteKey("any") // a revision more
					time.Sleep(tests.RenewalPeriod / 2)
					etcd.Restore(snapshot, 2) // the key is back
					before := len(etcd.Calls(fake.TimeToLive))
					var audited, failed atomic.Bool
					etcd.Intercept(func(c fake.Call) (e fake.Effect) {
						if c.Method == fake.TimeToLive {
							audited.Store(true)
						}
						if c.Method == row.method && audited.Load() && !(failed.Load() && row.again) {
							failed.Store(true)
							e.Before = row.failure
						}
						return e
					})
					back := contract.MutexOf(t, s, "back")
					require.Error(t, back.TryLock(context.Background()), "its answer shows the set-back")
					const again = 700 * time.Millisecond
					time.Sleep(again + tests.CareTakes)
					synctest.Wait()
					require.True(t, failed.Load())
					if row.again {
						require.Empty(t, etcd.Keys("n/"))
						return
					}
					time.Sleep(tests.SeldomLook)
					require.LessOrEqual(t, len(etcd.Calls(fake.TimeToLive))-before, 3)
				})
			})
		}
	}
}

// Where etcd is slow an audit that has no answer is followed by one in each period of the renewals,
// not by one each second.
func TestAnAuditWithoutAnAnswerIsRepeatedSeldomWhereAnswersAreSlow(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		tests.LockWithin(t, contract.MutexOf(t, s, "n"), time.Second)
		snapshot := etcd.Snapshot()
		etcd.DeleteKey("any") // a revision more
		etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			switch c.Method {
			case fake.TimeToLive:
				e.Before = fake.Unavailable
			case fake.Txn, fake.Range:
				e.DelayReply = 1900 * time.Millisecond // before it is repeated, which makes a doubt
			}
			return e
		})
		for i := range 4 { // the Session learns how slow it is
			mu := contract.MutexOf(t, s, fmt.Sprint("other", i))
			require.NoError(t, mu.Lock(context.Background()))
			require.NoError(t, mu.Unlock(context.Background()))
		}
		time.Sleep(tests.TTL)
		etcd.Restore(snapshot, 2)
		require.Error(t, contract.MutexOf(t, s, "back").TryLock(tests.Within(t, time.Minute)))
		before := len(etcd.Calls(fake.TimeToLive))
		const periods = 4
		time.Sleep(periods * tests.RenewalPeriod)
		require.InDelta(t, periods, len(etcd.Calls(fake.TimeToLive))-before, 2)
	})
}
