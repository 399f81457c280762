package etcdlocktest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// took returns how long f takes.
func took(f func()) time.Duration {
	begun := time.Now()
	f()
	return time.Since(begun)
}

// watched returns the events that a watch delivers in d, as "put k" and "delete k", with
// the time.
func watched(ch clientv3.WatchChan, d time.Duration) (events []string) {
	begun := time.Now()
	over := time.After(d)
	for {
		select {
		case resp := <-ch:
			for _, event := range resp.Events {
				events = append(events, fmt.Sprint(event.Type, " ", string(event.Kv.Value), " after ",
					time.Since(begun)))
			}
		case <-over:
			return events
		}
	}
}

func TestExpireEndsALeaseAndDeleteAKey(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		lease, err := client.Grant(t.Context(), 600)
		require.NoError(t, err)
		put := func() {
			_, err = client.Put(t.Context(), "k", "v", clientv3.WithLease(lease.ID))
			require.NoError(t, err)
		}
		put()
		etcd.Delete("k")
		require.Empty(t, value(t, client, "k"))
		put()
		etcd.Expire(lease.ID)
		require.Empty(t, value(t, client, "k"))
		_, err = client.Put(t.Context(), "k", "v", clientv3.WithLease(lease.ID))
		require.ErrorContains(t, err, "requested lease not found")
		etcd.Delete("k")
		etcd.Expire(lease.ID)
	})
}

func TestCutKeepsBackWhatIsSent(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client, other := etcd.Client(), etcd.Client()
		ctx := t.Context()
		watch := client.Watch(ctx, "", clientv3.WithPrefix())
		heal := etcd.Cut(client)

		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		require.Equal(t, time.Second, took(func() {
			_, err := client.Put(short, "lost", "v")
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}))
		late := contract.Async(func() error { _, err := client.Put(ctx, "late", "3"); return err })
		synctest.Wait()
		require.Empty(t, value(t, other, "late"), "it has not arrived")
		for _, v := range []string{"1", "2"} {
			_, err := other.Put(ctx, "k", v)
			require.NoError(t, err)
		}
		require.Empty(t, watched(watch, 9*time.Second))
		again := etcd.Cut(client)
		heal()
		heal()
		require.Empty(t, watched(watch, time.Second), "it is cut off still")
		again()
		require.NoError(t, <-late)
		require.Equal(t, []string{"PUT 1 after 0s", "PUT 2 after 0s", "PUT 3 after 0s"},
			watched(watch, time.Second))
		require.Empty(t, value(t, other, "lost"))

		heal() // a second call ends no later cut
		defer etcd.Cut(client)()
		heal()
		again()
		short, cancel = context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := client.Get(short, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// An answer that is on its way at the cut comes after heal.
func TestCutKeepsBackAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client, other := etcd.Client(), etcd.Client()
		etcd.Delay(client, 10*time.Second)
		answered := contract.Async(func() error {
			_, err := client.Put(t.Context(), "k", "v")
			return err
		})
		time.Sleep(5 * time.Second)
		heal := etcd.Cut(client)
		time.Sleep(10 * time.Second)
		require.Equal(t, "v", value(t, other, "k"))
		require.Empty(t, answered)
		heal()
		require.NoError(t, <-answered)
	})
}

func TestALockIsLostWhenItsClientIsCutOff(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		mu := contract.NewMutex(t, client, "n", etcdlock.WithTTL(8*time.Second))
		require.NoError(t, mu.Lock(t.Context()))
		hold := mu.Context(t.Context())
		next := contract.NewMutex(t, etcd.Client(), "n")
		heal := etcd.Cut(client)
		require.Equal(t, 7*time.Second, took(func() { <-hold.Done() }))
		require.ErrorIs(t, context.Cause(hold), etcdlock.ErrExpired)
		require.Equal(t, time.Second, took(func() { require.NoError(t, next.Lock(t.Context())) }))
		heal()
		require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestDelayIsOnceForEachRoundTripAndEvent(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client, other := etcd.Client(), etcd.Client()
		ctx := t.Context()
		const d = 3 * time.Second
		etcd.Delay(client, d)
		lease, err := client.Grant(ctx, 600)
		require.NoError(t, err)
		var watch clientv3.WatchChan
		for name, call := range map[string]func() error{
			"a read":    func() error { _, err := client.Get(ctx, "k"); return err },
			"a put":     func() error { _, err := client.Put(ctx, "x", "v"); return err },
			"a renewal": func() error { _, err := client.KeepAliveOnce(ctx, lease.ID); return err },
			"a watch": func() error {
				watch = client.Watch(ctx, "k", clientv3.WithCreatedNotify())
				require.True(t, (<-watch).Created)
				return nil
			},
		} {
			require.Equal(t, d, took(func() { require.NoError(t, call()) }), name)
			require.Zero(t, took(func() { value(t, other, "k") }), "of another client")
		}
		for _, v := range []string{"1", "2", "3"} {
			_, err := other.Put(ctx, "k", v)
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		require.Equal(t, []string{"PUT 1 after 0s", "PUT 2 after 1s", "PUT 3 after 2s"},
			watched(watch, 5*time.Second))

		// A request that was given up is already on its way.
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = client.Put(short, "given up", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Empty(t, value(t, other, "given up"))
		time.Sleep(d)
		require.Equal(t, "v", value(t, other, "given up"))

		etcd.Delay(client, 0)
		require.Zero(t, took(func() { value(t, client, "k") }))
		_, err = other.Put(ctx, "k", "4")
		require.NoError(t, err)
		require.Equal(t, []string{"PUT 4 after 0s"}, watched(watch, time.Second))
	})
}

// The renewals of several leases on one stream travel together.
func TestDelayHoldsUpNoRenewalBehindAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		etcd.Delay(client, time.Second)
		var answers []<-chan *clientv3.LeaseKeepAliveResponse
		var ids []clientv3.LeaseID
		for range 20 {
			lease, err := client.Grant(t.Context(), 60)
			require.NoError(t, err)
			ids = append(ids, lease.ID)
		}
		for _, id := range ids {
			of, err := client.KeepAlive(t.Context(), id)
			require.NoError(t, err)
			answers = append(answers, of)
		}
		require.Less(t, took(func() {
			for _, of := range answers {
				<-of
			}
		}), 2*time.Second)
	})
}

func TestLoseAnswersCarriesOut(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client, other := etcd.Client(), etcd.Client()
		ctx := t.Context()
		lease, err := client.Grant(ctx, 10)
		require.NoError(t, err)
		unavailable := func(_ any, err error) {
			t.Helper()
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		}
		time.Sleep(5 * time.Second)
		etcd.LoseAnswers(client, 3)
		unavailable(client.Put(ctx, "k", "v", clientv3.WithLease(lease.ID)))
		watch := client.Watch(ctx, "k", clientv3.WithCreatedNotify())
		require.True(t, (<-watch).Created, "a watch is no answer of these")
		unavailable(client.KeepAliveOnce(ctx, lease.ID))
		require.Equal(t, "v", value(t, other, "k"), "of another client")
		unavailable(client.Get(ctx, "k"))
		require.Equal(t, "v", value(t, client, "k"))
		time.Sleep(9 * time.Second)
		require.Equal(t, "v", value(t, client, "k"), "the lease was renewed")
		etcd.LoseAnswers(client, 5)
		etcd.LoseAnswers(client, 0)
		require.Equal(t, "v", value(t, client, "k"))
	})
}

// A stream of renewals ends with the answer that is lost, and clientv3 opens another.
func TestLoseAnswersOfAStreamOfRenewals(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		lease, err := client.Grant(t.Context(), 9)
		require.NoError(t, err)
		answers, err := client.KeepAlive(t.Context(), lease.ID)
		require.NoError(t, err)
		<-answers
		sent := etcd.Counts().LeaseKeepAlive
		etcd.LoseAnswers(client, 2)
		<-answers
		require.Equal(t, sent+3, etcd.Counts().LeaseKeepAlive)
	})
}

func TestFreezeEndsLeasesAtTheThaw(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		ctx := t.Context()
		short, err := client.Grant(ctx, 5)
		require.NoError(t, err)
		long, err := client.Grant(ctx, 60)
		require.NoError(t, err)
		for value, lease := range map[string]clientv3.LeaseID{"short": short.ID, "long": long.ID} {
			_, err := client.Put(ctx, value, value, clientv3.WithLease(lease))
			require.NoError(t, err)
		}
		watch := client.Watch(ctx, "", clientv3.WithPrefix())
		thaw := etcd.Freeze()
		also := etcd.Freeze()
		renewed := contract.Async(func() error {
			_, err := client.KeepAliveOnce(ctx, short.ID)
			return err
		})
		given, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = client.Put(given, "given up", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		etcd.Delete("long")
		begun := client.Watch(given, "k", clientv3.WithCreatedNotify())
		_, open := <-begun
		require.False(t, open)
		require.Empty(t, watched(watch, 10*time.Second))
		thaw()
		thaw()
		require.Empty(t, watched(watch, 10*time.Second), "it is frozen still")
		require.Empty(t, renewed)
		also()
		events := watched(watch, time.Second)
		require.Len(t, events, 3)
		require.Equal(t, "DELETE  after 0s", events[0], "the lease that has run out")
		require.ErrorContains(t, <-renewed, "requested lease not found")
		require.Equal(t, "v", value(t, client, "given up"))
		require.Empty(t, value(t, client, "short"))
		require.Empty(t, value(t, client, "long"))
		_, err = client.KeepAliveOnce(ctx, long.ID)
		require.NoError(t, err)
	})
}

func TestSetBackWipes(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		ctx := t.Context()
		lease, err := client.Grant(ctx, 600)
		require.NoError(t, err)
		watch := client.Watch(ctx, "k")
		for _, v := range []string{"1", "2", "3"} {
			_, err := client.Put(ctx, "k", v, clientv3.WithLease(lease.ID))
			require.NoError(t, err)
		}
		require.Len(t, watched(watch, time.Second), 3)
		was, err := client.Get(ctx, "k")
		require.NoError(t, err)
		etcd.SetBack()
		is, err := client.Get(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, int64(1), is.Header.Revision)
		require.NotEqual(t, was.Header.ClusterId, is.Header.ClusterId)
		require.Zero(t, is.Count)
		_, err = client.KeepAliveOnce(ctx, lease.ID)
		require.ErrorContains(t, err, "requested lease not found")
		for rev := int64(2); rev <= 5; rev++ {
			_, err := client.Put(ctx, "k", fmt.Sprint("at ", rev))
			require.NoError(t, err)
		}
		require.Equal(t, []string{"PUT at 5 after 0s"}, watched(watch, time.Second), "it had reached 4")
		etcd.SetBack()
		again, err := client.Get(ctx, "k")
		require.NoError(t, err)
		require.NotContains(t, []uint64{was.Header.ClusterId, is.Header.ClusterId},
			again.Header.ClusterId)
	})
}

func TestSnapshotIsWentBackTo(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		ctx := t.Context()
		lease, err := client.Grant(ctx, 10)
		require.NoError(t, err)
		_, err = client.Put(ctx, "k", "old", clientv3.WithLease(lease.ID))
		require.NoError(t, err)
		restore := etcd.Snapshot()
		was, err := client.Put(ctx, "k", "new")
		require.NoError(t, err)
		granted := []clientv3.LeaseID{lease.ID}
		for range 2 {
			etcd.SetBack()
			restore()
			is, err := client.Get(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, "old", string(is.Kvs[0].Value))
			require.Equal(t, was.Header.Revision-1, is.Header.Revision)
			require.NotEqual(t, was.Header.ClusterId, is.Header.ClusterId)
			time.Sleep(10*time.Second - time.Nanosecond)
			require.Equal(t, "old", value(t, client, "k"), "the lease began anew")
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Empty(t, value(t, client, "k"))
			other, err := client.Grant(ctx, 10)
			require.NoError(t, err)
			require.NotContains(t, granted, other.ID)
			granted = append(granted, other.ID)
		}
	})
}

func TestProgressIsToldByItself(t *testing.T) {
	inBubble(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		watch := client.Watch(t.Context(), "k", clientv3.WithProgressNotify())
		_, err := client.Put(t.Context(), "other", "v")
		require.NoError(t, err)
		resp := <-watch
		require.True(t, resp.IsProgressNotify())
		require.Equal(t, int64(2), resp.Header.Revision)
	})
}
