package etcdlocktest_test

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(t *testing.T, etcd *etcdlocktest.Etcd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, etcdlocktest.New(t)) })
}

// A reporter is a testing.TB that keeps what the test reports.
type reporter struct {
	testing.TB
	cleanups []func()
	errors   []string
	fatal    string
}

func (r *reporter) Helper() {}

func (r *reporter) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *reporter) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *reporter) Fatal(args ...any) {
	r.fatal = fmt.Sprint(args...)
	runtime.Goexit()
}

// end does what happens at the end of the test.
func (r *reporter) end() {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		f()
	}
}

func TestASessionLeftOpenIsNamed(t *testing.T) {
	ends := map[string]struct {
		test func(t *testing.T, etcd *etcdlocktest.Etcd, client *clientv3.Client) (lease clientv3.LeaseID)
		told bool
	}{
		"it holds": {func(t *testing.T, _ *etcdlocktest.Etcd, client *clientv3.Client) clientv3.LeaseID {
			s, mu := sessionWith(t, client, "jobs/import")
			require.NoError(t, mu.Lock(t.Context()))
			return s.Lease()
		}, true},
		"it has held": {func(t *testing.T, _ *etcdlocktest.Etcd,
			client *clientv3.Client) clientv3.LeaseID {
			s, mu := sessionWith(t, client, "jobs/import")
			require.NoError(t, mu.Lock(t.Context()))
			require.NoError(t, mu.Unlock(t.Context()))
			return s.Lease()
		}, true},
		"it reads": {func(t *testing.T, _ *etcdlocktest.Etcd, client *clientv3.Client) clientv3.LeaseID {
			s, _ := sessionWith(t, client, "n")
			rw, err := s.RWMutex("jobs/import")
			require.NoError(t, err)
			_, err = rw.RLock(t.Context())
			require.NoError(t, err)
			return s.Lease()
		}, true},
		"it has permits": {func(t *testing.T, _ *etcdlocktest.Etcd,
			client *clientv3.Client) clientv3.LeaseID {
			s, _ := sessionWith(t, client, "n")
			permits, err := s.Semaphore("jobs/import", 3)
			require.NoError(t, err)
			_, err = permits.Acquire(t.Context(), 2)
			require.NoError(t, err)
			return s.Lease()
		}, true},
		"it holds several names": {func(t *testing.T, _ *etcdlocktest.Etcd,
			client *clientv3.Client) clientv3.LeaseID {
			s, _ := sessionWith(t, client, "n")
			_, err := s.LockAll(t.Context(), "jobs/export", "jobs/import")
			require.NoError(t, err)
			return s.Lease()
		}, true},
		"it never held": {func(t *testing.T, etcd *etcdlocktest.Etcd,
			client *clientv3.Client) clientv3.LeaseID {
			other, holder := sessionWith(t, etcd.Client(), "jobs/import")
			require.NoError(t, holder.Lock(t.Context()))
			s, mu := sessionWith(t, client, "jobs/import")
			require.ErrorIs(t, mu.TryLock(t.Context()), etcdlock.ErrLocked)
			require.NoError(t, other.Close(t.Context()))
			return s.Lease()
		}, true},
		"it was closed": {func(t *testing.T, _ *etcdlocktest.Etcd,
			client *clientv3.Client) clientv3.LeaseID {
			s, mu := sessionWith(t, client, "jobs/import")
			require.NoError(t, mu.Lock(t.Context()))
			require.NoError(t, s.Close(t.Context()))
			return 0
		}, false},
		"it is of another kind": {func(t *testing.T, _ *etcdlocktest.Etcd,
			client *clientv3.Client) clientv3.LeaseID {
			s, err := concurrency.NewSession(client)
			require.NoError(t, err)
			require.NoError(t, concurrency.NewMutex(s, "jobs/import").Lock(t.Context()))
			return s.Lease()
		}, false},
		"its client was closed": {func(t *testing.T, _ *etcdlocktest.Etcd,
			client *clientv3.Client) clientv3.LeaseID {
			s, mu := sessionWith(t, client, "jobs/import")
			require.NoError(t, mu.Lock(t.Context()))
			require.Error(t, client.Close(), "it says that it is closed")
			return s.Lease()
		}, false},
	}
	for name, row := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &reporter{TB: t}
				etcd := etcdlocktest.New(r)
				lease := row.test(t, etcd, etcd.Client())
				r.end() // otherwise goroutines would be left, and the bubble would not end
				if !row.told {
					require.Empty(t, r.errors)
					return
				}
				require.Len(t, r.errors, 1)
				for _, said := range []string{
					`"jobs/import"`, `"me"`, fmt.Sprintf("%x", int64(lease)), "client 1", "call Close",
				} {
					require.Contains(t, r.errors[0], said)
				}
			})
		})
	}
}

// sessionWith returns a Session with a Mutex that "me" owns.
func sessionWith(
	t *testing.T, client *clientv3.Client, name string,
) (*etcdlock.Session, *etcdlock.Mutex) {
	t.Helper()
	s, err := etcdlock.NewSession(client, etcdlock.WithOwner("me"))
	require.NoError(t, err)
	return s, contract.MutexOf(t, s, name)
}

func TestASessionThatWasClosedWhileEtcdWasAwayIsNoneLeftOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reporter{TB: t}
		etcd := etcdlocktest.New(r)
		client := etcd.Client()
		s, mu := sessionWith(t, client, "n")
		require.NoError(t, mu.Lock(t.Context()))
		etcd.Cut(client)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.Close(ctx), etcdlock.ErrUnconfirmed)
		r.end()
		require.Empty(t, r.errors)
	})
}

// If a goroutine were left, the bubble would not end. (An etcd that is made in a bubble
// waits for them.)
func TestASessionWhoseClientIsClosedEndsItsGoroutines(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, mu, other *etcdlock.Mutex){
		"it holds": func(t *testing.T, mu, _ *etcdlock.Mutex) {
			require.NoError(t, mu.Lock(t.Context()))
		},
		"it has held": func(t *testing.T, mu, _ *etcdlock.Mutex) {
			require.NoError(t, mu.Lock(t.Context()))
			require.NoError(t, mu.Unlock(t.Context()))
		},
		"it waits": func(t *testing.T, mu, other *etcdlock.Mutex) {
			require.NoError(t, other.Lock(t.Context()))
			go func() { _ = mu.Lock(context.Background()) }()
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
				client := etcd.Client()
				_, mu := sessionWith(t, client, "n")
				use(t, mu, contract.NewMutex(t, etcd.Client(), "n"))
				_ = client.Close()
			})
		})
	}
}

func TestAClosedClientIsAProcessThatHasDied(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client, other := etcd.Client(), etcd.Client()
		require.NoError(t, client.Ctx().Err())
		lease, err := client.Grant(t.Context(), 10)
		require.NoError(t, err)
		_, err = client.Put(t.Context(), "k", "v", clientv3.WithLease(lease.ID))
		require.NoError(t, err)
		kept, err := client.KeepAlive(t.Context(), lease.ID)
		require.NoError(t, err)
		watch := client.Watch(t.Context(), "k")
		time.Sleep(30 * time.Second)

		require.Error(t, client.Close())
		require.Error(t, client.Ctx().Err())
		_, open := <-watch
		require.False(t, open, "the watch has ended")
		for range kept { //nolint:revive // until it is closed
		}
		_, err = client.Get(t.Context(), "k")
		require.Equal(t, codes.Canceled, status.Code(err))
		_, open = <-client.Watch(t.Context(), "k")
		require.False(t, open, "and none begins")
		require.Error(t, client.RequestProgress(t.Context()))
		require.Equal(t, "v", value(t, other, "k"))
		time.Sleep(10 * time.Second)
		require.Empty(t, value(t, other, "k"), "its lease has run out")
	})
}

// value returns the value of a key, and "" if the key is not there.
func value(t *testing.T, client *clientv3.Client, key string) string {
	t.Helper()
	resp, err := client.Get(t.Context(), key)
	require.NoError(t, err)
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}

func TestALeaseKeptAliveLivesAndOneThatIsNotExpiresToTheInstant(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		for asked, granted := range map[int64]int64{-1: 1, 0: 1, 1: 1, 7: 7} {
			lease, err := client.Grant(t.Context(), asked)
			require.NoError(t, err)
			require.Equal(t, granted, lease.TTL)
			_, err = client.Put(t.Context(), "k", "v", clientv3.WithLease(lease.ID))
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			answers, err := client.KeepAlive(ctx, lease.ID)
			require.NoError(t, err)
			for range 20 {
				require.Equal(t, granted, (<-answers).TTL)
			}
			cancel()
			for range answers { //nolint:revive // until it is closed
			}
			once, err := client.KeepAliveOnce(t.Context(), lease.ID)
			require.NoError(t, err)
			require.Equal(t, granted, once.TTL)
			time.Sleep(time.Duration(granted)*time.Second - time.Nanosecond)
			require.Equal(t, "v", value(t, client, "k"))
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Empty(t, value(t, client, "k"))
			answers, err = client.KeepAlive(t.Context(), lease.ID)
			require.NoError(t, err)
			_, open := <-answers
			require.False(t, open, "there is nothing to keep alive")
		}
	})
}

func TestEachMessageIsCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		one, two := etcd.Client(), etcd.Client()
		ctx := t.Context()
		must := func(_ any, err error) {
			t.Helper()
			require.NoError(t, err)
		}
		must(one.Get(ctx, "k"))
		must(two.Get(ctx, "k"))
		must(one.Put(ctx, "k", "v"))
		must(one.Delete(ctx, "k"))
		must(one.Txn(ctx).Then(clientv3.OpPut("k", "v"), clientv3.OpGet("k")).Commit())
		must(one.Compact(ctx, 2))
		lease, err := one.Grant(ctx, 60)
		require.NoError(t, err)
		must(one.KeepAliveOnce(ctx, lease.ID))
		must(one.KeepAliveOnce(ctx, lease.ID))
		must(one.TimeToLive(ctx, lease.ID))
		must(one.Leases(ctx))
		must(one.Revoke(ctx, lease.ID))
		one.Watch(ctx, "k")
		etcd.Delete("k")
		thaw := etcd.Freeze()
		late, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = two.Get(late, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		thaw()
		require.Equal(t, etcdlocktest.Counts{
			Range: 3, Put: 1, DeleteRange: 1, Txn: 1, Compact: 1,
			LeaseGrant: 1, LeaseRevoke: 1, LeaseKeepAlive: 2, LeaseTimeToLive: 1, Watch: 1,
		}, etcd.Counts())
	})
}

func TestWhatIsNotThereSaysSo(t *testing.T) {
	client := etcdlocktest.New(t).Client()
	ctx := t.Context()
	calls := map[string]func() error{
		"Auth":      func() error { _, err := client.RoleAdd(ctx, "r"); return err },
		"login":     func() error { _, err := client.Authenticate(ctx, "u", "p"); return err },
		"Cluster":   func() error { _, err := client.MemberList(ctx); return err },
		"Sync":      func() error { return client.Sync(ctx) },
		"Status":    func() error { _, err := client.Status(ctx, ""); return err },
		"Snapshot":  func() error { _, err := client.Snapshot(ctx); return err },
		"AlarmList": func() error { _, err := client.AlarmList(ctx); return err },
	}
	// clientv3 has it since 3.7.
	if get := reflect.ValueOf(client.KV).MethodByName("GetStream"); get.IsValid() {
		calls["GetStream"] = func() error {
			got := get.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf("k")})
			return got[1].Interface().(error)
		}
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			err := call()
			require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
			require.Contains(t, err.Error(), "the etcd in memory does not have /etcdserverpb.")
		})
	}
}

func TestAClientOfAnotherEtcdEndsTheTest(t *testing.T) {
	stranger := etcdlocktest.New(t).Client()
	for name, call := range map[string]func(*etcdlocktest.Etcd){
		"Cut":         func(e *etcdlocktest.Etcd) { e.Cut(stranger) },
		"Delay":       func(e *etcdlocktest.Etcd) { e.Delay(stranger, time.Second) },
		"LoseAnswers": func(e *etcdlocktest.Etcd) { e.LoseAnswers(stranger, 1) },
		"nil":         func(e *etcdlocktest.Etcd) { e.Cut(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			r := &reporter{TB: t}
			etcd := etcdlocktest.New(r)
			etcd.Client()
			went := false
			done := make(chan struct{})
			go func() { // ends with the call
				defer close(done)
				call(etcd)
				went = true
			}()
			<-done
			require.False(t, went, "the test went on")
			require.Contains(t, r.fatal, "not one of this Etcd's")
		})
	}
}

// Others do not see what a test does with an answer.
func TestAnAnswerMayBeChanged(t *testing.T) {
	etcd := etcdlocktest.New(t)
	client := etcd.Client()
	ctx := t.Context()
	watch := client.Watch(ctx, "k", clientv3.WithPrevKV())
	for range 2 {
		_, err := client.Put(ctx, "k", "value")
		require.NoError(t, err)
	}
	spoil := func(b []byte) { copy(b, "spoilt") }
	got, err := client.Get(ctx, "k")
	require.NoError(t, err)
	spoil(got.Kvs[0].Value)
	spoil((<-watch).Events[0].Kv.Value)
	spoil((<-watch).Events[0].PrevKv.Value)
	txn, err := client.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet("k")},
		nil)).Commit()
	require.NoError(t, err)
	spoil(txn.Responses[0].GetResponseTxn().Responses[0].GetResponseRange().Kvs[0].Value)
	put, err := client.Put(ctx, "k", "other", clientv3.WithPrevKV())
	require.NoError(t, err)
	require.Equal(t, "value", string(put.PrevKv.Value))
	spoil(put.PrevKv.Value)
	past, err := client.Get(ctx, "k", clientv3.WithRev(put.Header.Revision-1))
	require.NoError(t, err)
	require.Equal(t, "value", string(past.Kvs[0].Value))
}

// Parallel tests, in bubbles and outside, have etcds that do not affect each other.
func TestParallelTests(t *testing.T) {
	for i := range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			exclude := func(t *testing.T) {
				etcd := etcdlocktest.New(t)
				a := contract.NewMutex(t, etcd.Client(), "n")
				b := contract.NewMutex(t, etcd.Client(), "n")
				require.NoError(t, a.Lock(t.Context()))
				require.ErrorIs(t, b.TryLock(t.Context()), etcdlock.ErrLocked)
				waited := contract.Async(func() error { return b.Lock(t.Context()) })
				require.NoError(t, a.Unlock(t.Context()))
				require.NoError(t, <-waited)
				require.NoError(t, b.Unlock(t.Context()))
			}
			if i%2 == 0 {
				synctest.Test(t, exclude)
			} else {
				exclude(t)
			}
		})
	}
}

// The library's peer works with it, too, in its own way of using KeepAlive and Watch.
func TestThePeerLocks(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		held := make(chan string)
		for _, name := range []string{"a", "b"} {
			s, err := concurrency.NewSession(etcd.Client(), concurrency.WithTTL(5))
			require.NoError(t, err)
			defer s.Close()
			mu := concurrency.NewMutex(s, "n")
			go func() { // ends when it has held
				_ = mu.Lock(context.Background())
				held <- name
				_ = mu.Unlock(context.Background())
			}()
		}
		time.Sleep(time.Minute)
		require.NotEqual(t, <-held, <-held)
	})
}

// A key that WithMinHold keeps is in etcd after its Session was closed.
func TestAKeyThatOutlastsItsHoldIsNoSessionLeftOpen(t *testing.T) {
	etcd, err := etcdlocktest.Start()
	require.NoError(t, err)
	session, err := etcdlock.NewSession(etcd.Client())
	require.NoError(t, err)
	short, err := session.Lock(t.Context(), "short", etcdlock.WithMinHold(time.Hour))
	require.NoError(t, err)
	require.NoError(t, short.Unlock(t.Context()))
	require.NoError(t, session.Close(t.Context()))
	require.NoError(t, etcd.Close())
}

// An Etcd without a test says what was left open as an error of its Close, and closes its clients.
func TestAnEtcdOfNoTest(t *testing.T) {
	etcd, err := etcdlocktest.Start()
	require.NoError(t, err)
	client, other := etcd.Client(), etcd.Client()
	_, closed := sessionWith(t, client, "closed")
	require.NoError(t, closed.Lock(t.Context()))
	_, left := sessionWith(t, other, "left")
	require.NoError(t, left.Lock(t.Context()))
	require.Error(t, client.Close(), "it says that it is closed")

	err = etcd.Close()
	require.ErrorContains(t, err, `its last lock is "left"`)
	require.NotContains(t, err.Error(), "closed")
	require.Error(t, other.Ctx().Err())
	require.NoError(t, etcd.Close(), "once more")

	require.PanicsWithValue(t, "etcdlocktest: this client is not one of this Etcd's", func() {
		etcd.Delay(etcdlocktest.New(t).Client(), time.Second)
	})

	clean, err := etcdlocktest.Start()
	require.NoError(t, err)
	session, mu := sessionWith(t, clean.Client(), "n")
	require.NoError(t, mu.Do(t.Context(), func(context.Context) error { return nil }))
	require.NoError(t, session.Close(t.Context()))
	require.NoError(t, clean.Close())
}
