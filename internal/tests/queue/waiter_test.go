package queue

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// getsInAfter waits until a waiter gets in, which must be after exactly so long, and unlocks.
func getsInAfter(t *testing.T, mu *etcdlock.Mutex, in <-chan error, d time.Duration) {
	t.Helper()
	start := time.Now()
	require.NoError(t, tests.SoonOr(t, in, "it does not get in"))
	require.Equal(t, d, time.Since(start))
	require.NoError(t, mu.Unlock(context.Background()))
}

// putsOf returns the transactions that put something.
func putsOf(calls []fake.Call) (puts []fake.Call) {
	for _, c := range calls {
		if len(c.Puts) > 0 {
			puts = append(puts, c)
		}
	}
	return puts
}

// h holds, w waits behind it, x behind w. w's key is deleted: x moves up, and w, which has
// no key any more, queues behind x. When h releases, x alone gets in.
func TestAWaiterWhoseKeyWasDeletedQueuesAnew(t *testing.T) {
	for _, delay := range []time.Duration{0, 100 * time.Millisecond} {
		t.Run(fmt.Sprintf("events take %v", delay), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(tests.FromNth(1, fake.Event, fake.Effect{Delay: delay}))
				h := contract.MutexOf(t, tests.SessionOf(t, etcd, "h"), "n")
				tests.LockWithin(t, h, time.Second)
				q := &queue{t: t, etcd: etcd}
				q.joins("w", contract.MutexOf(t, tests.SessionOf(t, etcd, "w"), "n"), time.Second)
				keyOfW := etcd.Keys("n/")[1]
				q.joins("x", contract.MutexOf(t, tests.SessionOf(t, etcd, "x"), "n"), time.Second)
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
		{"the event is lost", tests.FromNth(1, fake.Event, fake.Effect{Drop: true}), nil, 2 * time.Second},
		{"each watch is silent", tests.FromNth(1, fake.Watch, fake.Effect{DropReply: true}), nil, 3 * time.Second},
		{"each watch fails", tests.FromNth(1, fake.Watch, fake.Effect{Before: fake.Unavailable}), nil, 2 * time.Second},
		{"its member restarts", nil, (*fake.Server).CancelWatches, time.Second},
		{"the history is compacted",
			tests.FromNth(1, fake.Event, fake.Effect{Delay: event}), func(etcd *fake.Server) {
				_ = etcd.PutKey("other", 0)
				etcd.Compact()
				etcd.DeleteKey("other")
			}, event},
		{"the member that answers is behind",
			tests.FromNth(3, fake.Range, fake.Effect{Before: status.Error(codes.OutOfRange,
				"etcdserver: mvcc: required revision is a future revision")}), func(etcd *fake.Server) {
				etcd.Intercept(nil)
			}, time.Second},
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
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				etcd.Intercept(row.faults)
				var line []*etcdlock.Mutex
				entered := make(chan int, 3)
				for i := range 3 {
					line = append(line, queuesAs(t, etcd, i, entered))
					time.Sleep(2 * time.Second) // for watches that fail
				}
				require.Equal(t, 0, <-entered)
				require.NoError(t, line[0].Unlock(context.Background()))
				require.Equal(t, 1,
					tests.SoonOr(t, entered, "the waiter directly behind the holder does not get in"))
				// The waiter before may have rechecked. The event of its turn must arrive,
				// since the next event would travel behind it.
				time.Sleep(event)
				start := time.Now()
				require.NoError(t, line[1].Unlock(context.Background()))
				if row.meddle != nil {
					row.meddle(etcd)
				}
				require.Equal(t, 2, tests.SoonOr(t, entered, "the waiter does not get in"))
				require.LessOrEqual(t, time.Since(start), row.within)
				require.NoError(t, line[2].Unlock(context.Background()))
			})
		})
	}
}

// The one before goes while the request for the watch is under way. So no event will show
// that. The look after the created notice does.
func TestAReleaseBeforeTheWatchIsThereIsNotMissed(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.Intercept(tests.FromNth(1, fake.Watch, fake.Effect{Delay: 200 * time.Millisecond}))
		start := time.Now()
		holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		tests.LockWithin(t, holder, time.Second)
		q := &queue{t: t, etcd: etcd}
		q.joins("b", contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n"), 0)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, holder.Unlock(context.Background()))
		require.Equal(t, []string{"b"}, q.order())
		require.Equal(t, 200*time.Millisecond, time.Since(start))
	})
}

// The answers to a client took long for a while. Then a waiter comes whose watch does not begin, as
// if its stream led to a member that hangs, and the one before it goes. The waiter gets in within
// the time that an attempt may take, and not after three times as long as the answers took.
func TestSlowAnswersOfBeforeDoNotDelayAWaiter(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const slow, attempt = 8 * time.Second, 10 * time.Second
		ctx := context.Background()
		a, b := tests.SessionOf(t, etcd, "a"),
			tests.SessionOf(t, etcd, "b", etcdlock.WithTTL(time.Minute))
		holder, waits := contract.MutexOf(t, a, "n"), contract.MutexOf(t, b, "n")
		tests.LockWithin(t, holder, time.Second)
		etcd.Delay("b", slow)
		for range 4 {
			require.ErrorIs(t, waits.TryLock(ctx), etcdlock.ErrLocked)
		}
		etcd.Delay("b", 0)

		etcd.Intercept(tests.FromNth(1, fake.Watch, fake.Effect{DropReply: true}))
		in := make(chan error, 1)
		go func() { in <- waits.Lock(ctx) }()
		time.Sleep(100 * time.Millisecond)
		require.Empty(t, in)
		require.NoError(t, holder.Unlock(ctx))
		start := time.Now()
		require.NoError(t, <-in)
		require.LessOrEqual(t, time.Since(start), attempt)
		require.NoError(t, waits.Unlock(ctx))
	})
}

// A waiter in a long line watches one key, and gets in whatever becomes of that watch.
func TestALongLineGetsInWhateverBecomesOfItsWatches(t *testing.T) {
	const late = 300 * time.Millisecond
	future := status.Error(codes.OutOfRange,
		"etcdserver: mvcc: required revision is a future revision")
	rows := []meddling{
		{"nothing", nil, nil, 0},
		{"the one before it goes before the watch is there", tests.FromNth(1, fake.Watch, fake.Effect{Delay: late}), nil, late},
		{"the event is lost", tests.FromNth(1, fake.Event, fake.Effect{Drop: true}), nil, 2 * time.Second},
		{"each watch is silent", tests.FromNth(1, fake.Watch, fake.Effect{DropReply: true}), nil, 3 * time.Second},
		{"each watch fails", tests.FromNth(1, fake.Watch, fake.Effect{Before: fake.Unavailable}), nil, 2 * time.Second},
		{"its member restarts", nil, (*fake.Server).CancelWatches, time.Second},
		{"the history is compacted", tests.FromNth(1, fake.Event, fake.Effect{Delay: late}), (*fake.Server).Compact, late},
		{"the member that answers is behind", tests.OnlyNth(2, fake.Range, fake.Effect{Before: future}), nil, time.Second},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				others := etcd.Client("others")
				lease, err := others.Grant(context.Background(), 3000)
				require.NoError(t, err)
				for range 12 {
					require.NoError(t, etcd.PutKey("n/"+uuid.NewString(), lease.ID))
				}
				line, err := etcdlock.Contenders(context.Background(), others, "n")
				require.NoError(t, err)
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
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
				require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "holder"), "n")
		waiter := contract.MutexOf(t, tests.SessionOf(t, etcd, "waiter"), "n")
		tests.LockWithin(t, holder, time.Second)
		in := tests.LockLater(waiter)
		require.NoError(t, holder.Unlock(context.Background()))
		require.NoError(t, <-in)
		require.NoError(t, waiter.Unlock(context.Background()))
		synctest.Wait()

		late := tests.FromNth(1, fake.Event, fake.Effect{Delay: 2 * time.Second})
		etcd.Intercept(func(c fake.Call) fake.Effect {
			isRecheck := c.Method == fake.Txn && len(c.Puts)+len(c.Deletes) == 0
			if c.Process == "waiter" && isRecheck { // then the line is read
				return fake.Effect{Edit: func(reply any) { reply.(*pb.TxnResponse).Succeeded = false }}
			}
			return late(c)
		})
		tests.LockWithin(t, waiter, time.Second)
		own := waiter.Key()
		require.NoError(t, waiter.Unlock(context.Background()))
		tests.LockWithin(t, holder, time.Second)
		key := holder.Key()
		require.NoError(t, holder.Unlock(context.Background()))
		hold := tests.LockWithin(t, holder, time.Second)
		require.Equal(t, key, holder.Key())
		in = tests.LockLater(waiter)
		line := etcd.Keys("n/")
		require.Equal(t, []string{key, own}, line)
		puts := len(putsOf(etcd.Calls(fake.Txn)))
		time.Sleep(20 * time.Second)
		require.Equal(t, line, etcd.Keys("n/"))
		require.Len(t, putsOf(etcd.Calls(fake.Txn)), puts, "the waiter queued anew")
		require.NoError(t, hold.Err())
		require.Empty(t, in, "both are in")
		require.NoError(t, holder.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
		require.NoError(t, waiter.Unlock(context.Background()))
	})
}

// oneWaits makes "b" wait by a Session s behind "a", who holds.
func oneWaits(
	t *testing.T, etcd *fake.Server,
) (holder *etcdlock.Mutex, s *etcdlock.Session, q *queue) {
	t.Helper()
	holder = contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
	tests.LockWithin(t, holder, time.Second)
	s, q = tests.SessionOf(t, etcd, "b"), &queue{t: t, etcd: etcd}
	q.joins("b", contract.MutexOf(t, s, "n"), time.Second)
	return holder, s, q
}

// The waiter's renewals are carried out but not answered. At 21 s it gives up its old
// place, removes the key, and queues with another lease.
func TestAWaiterWhoseTrustEndsQueuesAnewAtOnce(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
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
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
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

// A waiter whose key an operator deletes before the answer to its put has come queues anew, though
// the view of the line has shown the deletion already.
func TestAKeyThatGoesBeforeItsPutIsAnsweredLetsNobodyIn(t *testing.T) {
	for name, read := range map[string]bool{"by an event": false, "by a read": true} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				a, b := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
				held, err := a.Lock(t.Context(), "n")
				require.NoError(t, err)
				_, err = b.Lock(tests.Within(t, time.Second), "n") // its view stays for a while
				require.ErrorIs(t, err, etcdlock.ErrLocked)
				const late = 100 * time.Millisecond
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Process == "b" && len(c.Puts) > 0 {
						return fake.Effect{DelayReply: late}
					}
					return fake.Effect{}
				})
				in := make(chan *etcdlock.Hold, 1)
				go func() {
					if h, err := b.Lock(context.Background(), "n"); err == nil {
						in <- h
					}
				}()
				time.Sleep(late / 4)
				etcd.Intercept(nil)
				keys := etcd.Keys("n/")
				require.Len(t, keys, 2)
				etcd.DeleteKey(slices.DeleteFunc(keys, func(k string) bool { return k == held.Key() })[0])
				if read {
					etcd.CancelWatches() // and the view reads the line
				}
				time.Sleep(late)
				require.NoError(t, held.Unlock(t.Context()))
				h := tests.SoonOr(t, in, "it does not get in")
				require.Equal(t, []string{h.Key()}, etcd.Keys("n/"))
				require.NoError(t, h.Unlock(t.Context()))
			})
		})
	}
}
