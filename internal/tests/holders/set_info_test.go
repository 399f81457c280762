package holders

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// These tests are about SetInfo.

// informer is a Mutex or a Hold.
type informer interface {
	SetInfo(ctx context.Context, info string) error
	Token() int64
	Unlock(ctx context.Context) error
}

// informers have a lock each, whatever its kind. The names are "n", and "m" if there are two.
var informers = map[string]func(t *testing.T, s *etcdlock.Session) informer{
	"a Mutex": func(t *testing.T, s *etcdlock.Session) informer {
		mu := contract.MutexOf(t, s, "n")
		tests.LockWithin(t, mu, time.Second)
		return mu
	},
	"a lock by name": func(t *testing.T, s *etcdlock.Session) informer {
		h, err := s.Lock(context.Background(), "n")
		require.NoError(t, err)
		return h
	},
	"a read": func(t *testing.T, s *etcdlock.Session) informer {
		return tests.RLockWithin(t, tests.RWMutexOf(t, s), time.Second)
	},
	"permits": func(t *testing.T, s *etcdlock.Session) informer {
		return tests.AcquireWithin(t, tests.SemaphoreOf(t, s, 3), 2, time.Second)
	},
	"several names": func(t *testing.T, s *etcdlock.Session) informer {
		h, err := s.LockAll(context.Background(), "n", "m")
		require.NoError(t, err)
		return h
	},
}

// valueOf is the value of the first key in the line of a name.
func valueOf(t *testing.T, etcd *fake.Server, name string) (v map[string]any) {
	t.Helper()
	resp, err := etcd.Client("op").Get(context.Background(), tests.PlaceOf(t, etcd, name, 0).Key)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(resp.Kvs[0].Value, &v))
	return v
}

// setsInfo lets an effect happen to the transactions by which the process "a" puts an info.
func setsInfo(key string, effect fake.Effect) func(fake.Call) fake.Effect {
	return func(c fake.Call) fake.Effect {
		if c.Process == "a" && slices.Contains(c.Puts, key) {
			return effect
		}
		return fake.Effect{}
	}
}

// SetInfo is a read, a transaction and one revision. Only the value changes, and in the value only
// the info. The hold goes on, a waiter behind it notices nothing, and its own process tells the
// same as etcd. If the key has that info already only the read is sent.
func TestSetInfoChangesTheInfoAlone(t *testing.T) {
	for name, lock := range informers {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithInfo("starts"), tests.Listens)
				h := lock(t, s)
				next := tests.LockLater(contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n"))
				time.Sleep(tests.WatchedBy)
				names := []string{"n"}
				if name == "several names" {
					names = append(names, "m")
				}
				for _, info := range []string{"10.0.0.1:80", `<"é">`, "", strings.Repeat("x", 1024)} {
					was, value, token := make([]etcdlock.Contender, len(names)),
						make([]map[string]any, len(names)), h.Token()
					for i, n := range names {
						was[i], value[i] = tests.PlaceOf(t, etcd, n, 0), valueOf(t, etcd, n)
					}
					cost := tests.CallsSince(etcd)
					require.NoError(t, h.SetInfo(context.Background(), info))
					tests.Costs(t, cost, "Txn 2", 1)
					cost = tests.CallsSince(etcd)
					require.NoError(t, h.SetInfo(context.Background(), info))
					tests.Costs(t, cost, "Txn 1", 0)
					for i, n := range names {
						was[i].Info, value[i]["info"] = info, info
						require.Equal(t, was[i], tests.PlaceOf(t, etcd, n, 0))
						require.Equal(t, value[i], valueOf(t, etcd, n))
					}
					require.Equal(t, token, h.Token())
					time.Sleep(time.Minute)
					require.Equal(t, token, h.Token())
					lease, err := etcd.Client("op").TimeToLive(context.Background(), was[0].Lease,
						clientv3.WithAttachedKeys())
					require.NoError(t, err)
					require.Len(t, lease.Keys, len(names))

					own := new(etcdlock.LockedError)
					require.ErrorAs(t, contract.MutexOf(t, s, "n").TryLock(context.Background()), &own)
					require.Equal(t, info, own.Holder.Info)
				}
				tests.StillWaits(t, next, "the hold goes on")
				require.NoError(t, h.Unlock(context.Background()))
				require.NoError(t, tests.SoonOr(t, next, "the next one does not get in"))

				require.ErrorIs(t, h.SetInfo(context.Background(), "too late"), etcdlock.ErrNotHeld)
				require.Empty(t, tests.PlaceOf(t, etcd, "n", 0).Info)
			})
		})
	}
}

// The next hold has the info that its options say.
func TestTheNextHoldHasItsOwnInfo(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithInfo("first"))
		for range 3 {
			tests.LockWithin(t, mu, time.Second)
			require.Equal(t, "first", tests.PlaceOf(t, etcd, "n", 0).Info)
			require.NoError(t, mu.SetInfo(context.Background(), "second"))
			require.Equal(t, "second", tests.PlaceOf(t, etcd, "n", 0).Info)
			require.NoError(t, mu.Unlock(context.Background()))
		}
	})
}

// Another Lock by name that nests in one of several names changes the info of that name alone.
func TestSetInfoOfANestedNameIsOfThatName(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithReentrancy())
		all, err := s.LockAll(context.Background(), "n", "m")
		require.NoError(t, err)
		inner, err := s.Lock(all.Context(context.Background()), "m")
		require.NoError(t, err)
		require.NoError(t, inner.SetInfo(context.Background(), "inner"))
		require.Equal(t, "inner", tests.PlaceOf(t, etcd, "m", 0).Info)
		require.Empty(t, tests.PlaceOf(t, etcd, "n", 0).Info)
		require.NoError(t, inner.Unlock(context.Background()))
		require.ErrorIs(t, inner.SetInfo(context.Background(), "over"), etcdlock.ErrNotHeld)
		require.NoError(t, all.SetInfo(context.Background(), "all"))
		require.Equal(t, "all", tests.PlaceOf(t, etcd, "m", 0).Info)
		require.Equal(t, "all", tests.PlaceOf(t, etcd, "n", 0).Info)
		require.NoError(t, all.Unlock(context.Background()))
	})
}

// A recall stays in the value: one from before, one that comes between the read and the
// transaction, and one that comes later. The holder hears of each, and the info is set.
func TestSetInfoKeepsARecall(t *testing.T) {
	for _, when := range []string{"before", "in between", "after", "after, and no event tells"} {
		t.Run(when, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", tests.Listens)
				hold := tests.LockWithin(t, mu, time.Second)
				token := mu.Token()
				time.Sleep(tests.WatchedBy)
				cost, txns := tests.CallsSince(etcd), "Txn 2"
				if when == "before" {
					tests.Recall(t, etcd, 5*time.Second)
					cost = tests.CallsSince(etcd)
				}
				if when == "in between" {
					etcd.Intercept(setsInfo(mu.Key(), fake.Effect{Delay: 100 * time.Millisecond}))
				}
				set := contract.Async(func() error { return mu.SetInfo(context.Background(), "10.0.0.1:80") })
				synctest.Wait()
				if when == "in between" {
					etcd.Intercept(nil)
					cost = tests.CallsSince(etcd)
					tests.Recall(t, etcd, 5*time.Second)
					_, revisions := cost()
					require.EqualValues(t, 1, revisions)
					cost, txns = tests.CallsSince(etcd), "Txn 1" // the one that was sent does nothing
				}
				require.NoError(t, tests.SoonOr(t, set, "SetInfo does not return"))
				tests.Costs(t, cost, txns, 1)
				if strings.HasPrefix(when, "after") {
					etcd.Intercept(func(c fake.Call) fake.Effect {
						return fake.Effect{Drop: c.Method == fake.Event && when != "after"}
					})
					tests.Recall(t, etcd, 5*time.Second)
				}
				require.Equal(t, "10.0.0.1:80", tests.PlaceOf(t, etcd, "n", 0).Info)
				request, _ := valueOf(t, etcd, "n")["recall"].(map[string]any)
				require.Equal(t, "op", request["by"])
				require.Equal(t, 5000., request["grace_ms"])
				tests.SoonOr(t, etcdlock.RecallFrom(hold), "the holder does not hear of it")
				require.Equal(t, token, mu.Token())
				require.NoError(t, mu.SetInfo(context.Background(), "leaves"))
				require.NotNil(t, valueOf(t, etcd, "n")["recall"])
				<-hold.Done()
				require.ErrorIs(t, mu.SetInfo(context.Background(), "gone"), etcdlock.ErrRecalled)
				require.Equal(t, "leaves", tests.PlaceOf(t, etcd, "n", 0).Info)
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// A late copy of the request meets a key that has a newer info, or the one that it was to change,
// or a recall, or that is gone.
func TestALateCopyOfASetInfoDoesNothing(t *testing.T) {
	for what, then := range map[string]func(t *testing.T, etcd *fake.Server, mu *etcdlock.Mutex){
		"a newer info": func(t *testing.T, _ *fake.Server, mu *etcdlock.Mutex) {
			require.NoError(t, mu.SetInfo(context.Background(), "newer"))
		},
		"the info of before": func(t *testing.T, _ *fake.Server, mu *etcdlock.Mutex) {
			require.NoError(t, mu.SetInfo(context.Background(), "first"))
		},
		"a recall": func(t *testing.T, etcd *fake.Server, _ *etcdlock.Mutex) {
			tests.Recall(t, etcd, time.Hour)
		},
		"another use of its name": func(t *testing.T, _ *fake.Server, mu *etcdlock.Mutex) {
			key := mu.Key()
			for begun := false; !begun || mu.Key() != key; begun = true { // names are used in turn
				require.NoError(t, mu.Unlock(context.Background()))
				tests.LockWithin(t, mu, time.Second)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithRecall(time.Hour))
				tests.LockWithin(t, mu, time.Second)
				time.Sleep(tests.WatchedBy)
				require.NoError(t, mu.SetInfo(context.Background(), "first"))
				etcd.Intercept(setsInfo(mu.Key(), fake.Effect{Again: 5 * time.Second}))
				require.NoError(t, mu.SetInfo(context.Background(), "older"))
				etcd.Intercept(nil)
				then(t, etcd, mu)
				value, before := valueOf(t, etcd, "n"), etcd.Rev()
				time.Sleep(10 * time.Second)
				require.Equal(t, before, etcd.Rev())
				require.Equal(t, value, valueOf(t, etcd, "n"))
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// The answer is lost: SetInfo asks again, and finds that the info is there. It puts nothing twice.
func TestSetInfoWhoseAnswerIsLostIsSetOnce(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		tests.LockWithin(t, mu, time.Second)
		lost, key := 0, mu.Key()
		etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			if c.Process == "a" && slices.Contains(c.Puts, key) {
				lost++
				e.DropReply = lost < 3
			}
			return e
		})
		before := etcd.Rev()
		require.NoError(t, mu.SetInfo(tests.Within(t, time.Minute), "10.0.0.1:80"))
		require.Equal(t, before+1, etcd.Rev())
		require.Greater(t, lost, 1)
		require.Equal(t, "10.0.0.1:80", tests.PlaceOf(t, etcd, "n", 0).Info)
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// Without an answer SetInfo ends with its context. It may have set the info, and the next call says
// the truth. A hold whose lease runs out meanwhile ends it, with a LostError.
func TestSetInfoEndsWithItsContextOrItsHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n", etcdlock.WithLinger(time.Hour))
		hold := tests.LockWithin(t, mu, time.Second)
		etcd.Intercept(setsInfo(mu.Key(), fake.Effect{DropReply: true}))
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(context.Background())
		set := contract.Async(func() error { return mu.SetInfo(ctx, "10.0.0.1:80") })
		time.Sleep(time.Second)
		tests.StillWaits(t, set, "etcd does not answer")
		cancel(stop)
		err := tests.SoonOr(t, set, "SetInfo does not return")
		require.ErrorIs(t, err, stop)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, etcdlock.ErrLost)
		require.Equal(t, "10.0.0.1:80", tests.PlaceOf(t, etcd, "n", 0).Info)
		tests.RequireWhole(t, mu)
		etcd.Intercept(nil)
		require.NoError(t, mu.SetInfo(context.Background(), "10.0.0.2:80"))

		etcd.Cut("a")
		for _, ctx := range []context.Context{context.Background(), hold} {
			set = contract.Async(func() error { return mu.SetInfo(ctx, "10.0.0.3:80") })
			lost := new(etcdlock.LostError)
			require.ErrorAs(t, tests.SoonOr(t, set, "SetInfo does not return"), &lost)
			require.ErrorIs(t, lost, etcdlock.ErrExpired)
		}
		etcd.Heal("a")
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		require.ErrorIs(t, mu.SetInfo(context.Background(), "over"), etcdlock.ErrNotHeld)
	})
}

// A key that may have another info is not handed on, and does not linger, though SetInfo has
// failed. Its next hold has the info that its options say, whenever the request comes.
func TestAKeyThatMayHaveAnotherInfoIsNotSharedOn(t *testing.T) {
	for _, keeps := range []etcdlock.SessionOption{etcdlock.WithHandoff(100),
		etcdlock.WithLinger(time.Hour)} {
		for what, effect := range map[string]fake.Effect{
			"answered": {}, "the answer is lost": {DropReply: true}, "it comes late": {Drop: true, Again: 10 * time.Second},
		} {
			t.Run(fmt.Sprintf("%v %s", keeps, what), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					s := tests.SessionOf(t, etcd, "a", keeps)
					mu, same := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "n")
					tests.LockWithin(t, mu, time.Second)
					token := mu.Token()
					etcd.Intercept(setsInfo(mu.Key(), effect))
					err := mu.SetInfo(tests.Within(t, time.Second), "10.0.0.1:80")
					require.Equal(t, what == "answered", err == nil, "%v", err)
					etcd.Intercept(nil)
					next := tests.LockLater(same)
					require.NoError(t, mu.Unlock(context.Background()))
					require.NoError(t, tests.SoonOr(t, next, "the next one does not get in"))
					require.NotEqual(t, token, same.Token())
					require.Empty(t, tests.PlaceOf(t, etcd, "n", 0).Info)
					time.Sleep(time.Minute)
					require.Empty(t, tests.PlaceOf(t, etcd, "n", 0).Info)
					require.NoError(t, same.Unlock(context.Background()))
				})
			})
		}
	}
	t.Run("nobody waits", func(t *testing.T) {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithLinger(time.Hour)), "n")
			tests.LockWithin(t, mu, time.Second)
			require.NoError(t, mu.SetInfo(context.Background(), "10.0.0.1:80"))
			require.NoError(t, mu.Unlock(context.Background()))
			require.Empty(t, etcd.Keys("n/"))
		})
	})
}

// Readers of a Session share their key, and so its info, those too that join later. The readers
// that come after all of them have the info of their options.
func TestReadersOfASessionShareTheInfo(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", tests.Listens)
		rw := tests.RWMutexOf(t, s, etcdlock.WithInfo("starts"))
		first := tests.RLockWithin(t, rw, time.Second)
		second := tests.RLockWithin(t, rw, time.Second)
		require.NoError(t, first.SetInfo(context.Background(), "reads"))
		require.NoError(t, first.Unlock(context.Background()))
		require.ErrorIs(t, first.SetInfo(context.Background(), "gone"), etcdlock.ErrNotHeld)
		third := tests.RLockWithin(t, rw, time.Second)
		require.Equal(t, second.Token(), third.Token())
		require.Equal(t, "reads", tests.PlaceOf(t, etcd, "n", 0).Info)
		require.NoError(t, second.SetInfo(context.Background(), "reads on"))

		cost := tests.CallsSince(etcd)
		fourth := tests.RLockWithin(t, rw, time.Second)
		time.Sleep(2 * time.Second) // the next recheck of the view by which it has joined
		calls, _ := cost()
		require.NotContains(t, calls, "Range", "it is as it is known")
		tests.Recall(t, etcd, time.Hour)
		require.True(t, tests.IsRecalled(third.Context(context.Background())))
		tests.UnlockAll(t, second, third, fourth)
		require.NoError(t, tests.RLockWithin(t, rw, time.Second).Unlock(context.Background()))
		last := tests.RLockWithin(t, rw, time.Second)
		require.Equal(t, "starts", tests.PlaceOf(t, etcd, "n", 0).Info)
		tests.UnlockAll(t, last)
	})
}

// SetInfo never touches a key that is not the hold's own, and says how the hold was lost. It finds
// a loss that nothing else has shown yet.
func TestSetInfoOfALostHold(t *testing.T) {
	for name, row := range map[string]struct {
		opts   []etcdlock.Option
		lose   func(etcd *fake.Server, key string, lease clientv3.LeaseID)
		reason error
	}{
		"deleted": {lose: func(etcd *fake.Server, key string, _ clientv3.LeaseID) { etcd.DeleteKey(key) }, reason: etcdlock.ErrKeyDeleted},
		"put over": {lose: func(etcd *fake.Server, key string, _ clientv3.LeaseID) {
			_ = etcd.PutKey(key, clientv3.NoLease)
		}, reason: etcdlock.ErrKeyOverwritten},
		"put again": {lose: func(etcd *fake.Server, key string, lease clientv3.LeaseID) {
			etcd.DeleteKey(key)
			_ = etcd.PutKey(key, lease)
		}, reason: etcdlock.ErrKeyDeleted},
		"revoked":  {lose: func(etcd *fake.Server, _ string, lease clientv3.LeaseID) { etcd.RevokeLease(lease) }, reason: etcdlock.ErrLeaseRevoked},
		"restored": {lose: func(etcd *fake.Server, _ string, _ clientv3.LeaseID) { etcd.Restore(0, 1) }, reason: etcdlock.ErrLeaseRevoked},
		"held for too long": {
			opts: []etcdlock.Option{etcdlock.WithMaxHold(time.Second)}, reason: etcdlock.ErrMaxHold,
			lose: func(*fake.Server, string, clientv3.LeaseID) { time.Sleep(time.Second) },
		},
	} {
		for _, between := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", after the read ", between), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", row.opts...)
					hold := tests.LockWithin(t, mu, time.Second)
					token, key, lease := mu.Token(), mu.Key(), tests.PlaceOf(t, etcd, "n", 0).Lease
					if between {
						etcd.Intercept(setsInfo(key, fake.Effect{Delay: 10 * time.Millisecond}))
					}
					var set <-chan error
					call := func() error { return mu.SetInfo(context.Background(), "10.0.0.1:80") }
					if between {
						set = contract.Async(call)
						synctest.Wait()
					}
					row.lose(etcd, key, lease)
					rev := etcd.Rev()
					if !between {
						set = contract.Async(call)
					}
					err := tests.SoonOr(t, set, "SetInfo does not return")
					if row.reason == etcdlock.ErrMaxHold && between {
						require.NoError(t, err) // it was held then
						err = call()
						rev = etcd.Rev()
					}
					lost := new(etcdlock.LostError)
					require.ErrorAs(t, err, &lost)
					require.Equal(t, token, lost.Token)
					require.ErrorIs(t, err, row.reason)
					require.LessOrEqual(t, etcd.Rev(), rev+1, "no more than the removal of what blocks the line")
					require.ErrorIs(t, context.Cause(hold), row.reason)
					require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
					etcd.Intercept(nil)
					etcd.DeleteKey(key)
				})
			})
		}
	}
}

// Wrong arguments are named, and nothing is asked. There is nothing to set without a hold.
func TestSetInfoOfWhatCannotBeSet(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		ctx := context.Background()
		require.EqualError(t, mu.SetInfo(ctx, "x"), `etcdlock: set the info of "n": not held`)
		require.ErrorIs(t, mu.SetInfo(ctx, "x"), etcdlock.ErrNotHeld)
		require.ErrorIs(t, (*etcdlock.Mutex)(nil).SetInfo(ctx, "x"), etcdlock.ErrNotHeld)
		require.ErrorIs(t, new(etcdlock.Mutex).SetInfo(ctx, "x"), etcdlock.ErrNotHeld)
		require.ErrorIs(t, (*etcdlock.Hold)(nil).SetInfo(ctx, "x"), etcdlock.ErrNotHeld)
		require.ErrorIs(t, new(etcdlock.Hold).SetInfo(ctx, "x"), etcdlock.ErrNotHeld)

		tests.LockWithin(t, mu, time.Second)
		before := len(etcd.Calls(""))
		var none context.Context
		require.EqualError(t, mu.SetInfo(none, "x"), `etcdlock: set the info of "n": nil context`)
		require.EqualError(t, mu.SetInfo(ctx, strings.Repeat("x", 1025)),
			`etcdlock: SetInfo("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"...): 1025 bytes, more than 1024`)
		require.EqualError(t, mu.SetInfo(ctx, "a\xff"), `etcdlock: SetInfo("a\xff"): not valid UTF-8`)
		require.Len(t, etcd.Calls(""), before)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, mu.SetInfo(ended, "x"), context.Canceled)
		tests.RequireWhole(t, mu)
		etcd.Intercept(setsInfo(mu.Key(), fake.Effect{Before: tests.PermissionDenied}))
		require.ErrorIs(t, mu.SetInfo(ctx, "x"), rpctypes.ErrPermissionDenied)
		tests.RequireWhole(t, mu)
		etcd.Intercept(nil)
		require.Empty(t, tests.PlaceOf(t, etcd, "n", 0).Info)

		require.NoError(t, mu.Close(ctx))
		require.ErrorIs(t, mu.SetInfo(ctx, "x"), etcdlock.ErrNotHeld)
	})
}

// A key that outlasts its hold goes on telling the info that was set. A SetInfo that comes late
// does nothing.
func TestAKeyThatOutlastsItsHoldKeepsTheInfo(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n",
			etcdlock.WithMinHold(10*time.Second))
		tests.LockWithin(t, mu, time.Second)
		etcd.Intercept(setsInfo(mu.Key(), fake.Effect{Again: 5 * time.Second}))
		require.NoError(t, mu.SetInfo(context.Background(), "10.0.0.1:80"))
		etcd.Intercept(nil)
		require.Zero(t, tests.PlaceOf(t, etcd, "n", 0).Until)
		require.NoError(t, mu.Unlock(context.Background()))
		require.ErrorIs(t, mu.SetInfo(context.Background(), "gone"), etcdlock.ErrNotHeld)
		kept := tests.PlaceOf(t, etcd, "n", 0)
		require.NotZero(t, kept.Until)
		require.Equal(t, "10.0.0.1:80", kept.Info)
		time.Sleep(9 * time.Second)
		require.Equal(t, kept, tests.PlaceOf(t, etcd, "n", 0))
	})
}

// An Unlock meanwhile ends the call, and the key of the next hold is left alone.
func TestSetInfoBesideAnUnlock(t *testing.T) {
	for _, between := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithLinger(time.Hour)), "n")
			tests.LockWithin(t, mu, time.Second)
			etcd.Intercept(func(c fake.Call) (e fake.Effect) {
				if c.Process == "a" && c.Method == fake.Txn && (len(c.Puts) > 0 || !between) &&
					len(c.Deletes) == 0 {
					e.Delay = 100 * time.Millisecond
				}
				return e
			})
			set := contract.Async(func() error { return mu.SetInfo(context.Background(), "10.0.0.1:80") })
			synctest.Wait()
			etcd.Intercept(nil)
			require.NoError(t, mu.Unlock(context.Background()))
			require.ErrorIs(t, tests.SoonOr(t, set, "SetInfo does not return"), etcdlock.ErrNotHeld)
			tests.LockWithin(t, mu, time.Second)
			time.Sleep(time.Minute)
			require.Empty(t, tests.PlaceOf(t, etcd, "n", 0).Info)
			require.NoError(t, mu.Unlock(context.Background()))
		})
	}
}

// Of calls at the same time each is nil, and one info stays.
func TestSetInfoMayBeCalledAtTheSameTime(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n")
		tests.LockWithin(t, mu, time.Second)
		var calls []<-chan error
		for i := range 10 {
			calls = append(calls, contract.Async(func() error {
				return mu.SetInfo(context.Background(), fmt.Sprint(i))
			}))
		}
		for _, call := range calls {
			require.NoError(t, tests.SoonOr(t, call, "SetInfo does not return"))
		}
		require.NotEmpty(t, tests.PlaceOf(t, etcd, "n", 0).Info)
		own := new(etcdlock.LockedError)
		require.ErrorAs(t, contract.MutexOf(t, s, "n").TryLock(context.Background()), &own)
		require.Equal(t, tests.PlaceOf(t, etcd, "n", 0).Info, own.Holder.Info)
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// A follower sees each info, in order, at once, or soon if the events are lost. A recall in between
// is no change, and costs nothing.
func TestWatchHolderSeesAChangedInfo(t *testing.T) {
	for _, lost := range []bool{false, true} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithRecall(time.Hour))
			tests.LockWithin(t, mu, time.Second)
			w := watches(etcd.Client("w"), "n")
			defer w.end()
			time.Sleep(tests.WatchedBy)
			synctest.Wait()
			etcd.Intercept(func(c fake.Call) fake.Effect {
				return fake.Effect{Drop: lost && c.Process == "w" && c.Method == fake.Event}
			})
			want := []string{""}
			for i := range 3 {
				want = append(want, fmt.Sprint("10.0.0.", i))
				require.NoError(t, mu.SetInfo(context.Background(), want[i+1]))
				require.NoError(t, mu.SetInfo(context.Background(), want[i+1]))
				if lost {
					time.Sleep(2 * time.Second)
				}
				synctest.Wait()
				require.Len(t, w.all(), i+2)
				before := len(etcd.Calls(fake.Range))
				tests.Recall(t, etcd, time.Hour-time.Duration(i)*time.Minute)
				time.Sleep(time.Minute)
				if !lost {
					require.Len(t, etcd.Calls(fake.Range), before+2, "that of the operator and of the recall")
				}
			}
			var infos []string
			for _, c := range w.all() {
				infos = append(infos, c.Info)
				require.Equal(t, mu.Token(), c.Token)
				require.True(t, c.Holds)
			}
			require.Equal(t, want, infos)
			require.NoError(t, mu.Unlock(context.Background()))
		})
	}
}
