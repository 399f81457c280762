package outages

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// The world of these tests: etcd is set back under contenders, by a restore from a
// snapshot, a wipe, or a move to another cluster. A holder whose key is no longer there
// learns of it, nobody gets in beside another, and the line goes on.

// setBackTold is the time in which a hold must end whose key went with a set-back.
const setBackTold = 2 * time.Second

// goesOn is the time in which a line must go on after the lock delay of a set-back, if no lease of
// a dead process is in the way. In a line of which a Session has not read all, the delay is longer
// than the TTL.
const (
	goesOn    = 5 * time.Second
	mostDelay = time.Minute
)

// A believer sees who believes to hold. No two may, unless no answer shows that etcd was set back,
// that has taken the key of one of them, and that one need not know yet.
type believer struct {
	t      *testing.T
	etcd   *fake.Server
	mu     sync.Mutex
	held   map[string]entered
	n      int
	hidden time.Time // when etcd was set back without a trace, zero if it was not
}

type entered struct {
	hold context.Context
	key  string
}

func newBeliever(t *testing.T, etcd *fake.Server) *believer {
	return &believer{t: t, etcd: etcd, held: make(map[string]entered)}
}

func (b *believer) enters(who string, mu *etcdlock.Mutex) (hold context.Context) {
	hold = mu.Context(context.Background())
	now := entered{hold, mu.Key()}
	keys := b.etcd.Keys("")
	there := func(a entered) bool { return slices.Contains(keys, a.key) }
	b.mu.Lock()
	defer b.mu.Unlock()
	due := time.Since(b.hidden) > setBackTold
	for other, believed := range b.held {
		if believed.hold.Err() == nil && hold.Err() == nil && (due || there(believed) && there(now)) {
			b.t.Errorf("%s holds beside %s", who, other)
		}
	}
	b.held[who] = now
	b.n++
	return hold
}

func (b *believer) leaves(who string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.held, who)
}

func (b *believer) setBackUnseen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hidden = time.Now()
}

func (b *believer) holds() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// contend locks and unlocks until ctx ends.
func contend(ctx context.Context, b *believer, who string, mu *etcdlock.Mutex, work time.Duration) {
	for ctx.Err() == nil {
		if mu.Lock(ctx) != nil {
			continue
		}
		hold := b.enters(who, mu)
		select {
		case <-hold.Done():
		case <-time.After(work):
		}
		b.leaves(who)
		_ = mu.Unlock(context.Background())
		time.Sleep(time.Millisecond)
	}
}

func TestNoTwoHoldAfterEtcdWasSetBack(t *testing.T) {
	both := []etcdlock.SessionOption{etcdlock.WithHandoff(3), etcdlock.WithLinger(time.Second)}
	lines := []struct {
		name     string
		sessions int
		options  []etcdlock.SessionOption
	}{
		{"4 Sessions with hand-off and linger", 4, both},
		{"20 Sessions", 20, nil},
		{"2 Sessions", 2, nil},
		{"4 Sessions", 4, nil},
		{"20 Sessions with hand-off and linger", 20, both},
	}
	lines = lines[:race.Fewer(len(lines), 2)]
	backs := []struct {
		name    string
		wiped   bool
		cluster uint64
	}{
		{"restored", false, 1},
		{"restored as another cluster", false, 2},
		{"wiped", true, 1},
		{"wiped as another cluster", true, 2},
	}
	// Once etcd has passed the revision that it had, its answers are no lower than what is
	// known, and silent watches go on.
	passes := []struct {
		name  string
		after time.Duration
	}{
		{"at once", 0},
		{"soon", 400 * time.Millisecond},
		{"late", time.Hour},
	}
	for _, line := range lines {
		for _, back := range backs {
			for _, pass := range passes {
				if pass.after == 0 && back == backs[0] {
					// No answer shows the set-back. A connection would, but there is none
					// here.
					continue
				}
				t.Run(fmt.Sprintf("%s, %s, passed %s", line.name, back.name, pass.name), func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						b := newBeliever(t, etcd)
						ctx, cancel := context.WithCancel(context.Background())
						var all sync.WaitGroup
						defer all.Wait()
						defer cancel()
						for i := range line.sessions {
							s := tests.SessionOf(t, etcd, fmt.Sprint("p", i), line.options...)
							for n := range 2 {
								mu := contract.MutexOf(t, s, "n")
								all.Go(func() { contend(ctx, b, fmt.Sprintf("p%d.%d", i, n), mu, 20*time.Millisecond) })
							}
						}
						time.Sleep(time.Second)
						snapshot := etcd.Snapshot()
						if back.wiped {
							snapshot = 0
						}
						time.Sleep(time.Second)
						require.Greater(t, b.holds(), 20)

						reached := etcd.Rev()
						etcd.Restore(snapshot, back.cluster)
						if pass.after == 0 && back.cluster == 1 {
							b.setBackUnseen()
						}
						time.Sleep(pass.after % time.Hour)
						for pass.after < time.Hour && etcd.Rev() <= reached {
							require.NoError(t, etcd.PutKey("something else", 0))
						}
						etcd.DeleteKey("something else")
						time.Sleep(mostDelay + goesOn)
						before := b.holds()
						time.Sleep(goesOn)
						require.Greater(t, b.holds(), before+20, "the line does not go on")
					})
				})
			}
		}
	}
}

// If etcd has passed its old revision before anybody reads, no answer shows that it was set
// back, and a view goes on. If the view does not know a key, that is no proof that the key
// is gone.
func TestAViewFromBeforeASetBackLetsNobodyIn(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
		tests.LockWithin(t, a, time.Second)
		require.ErrorIs(t, lockFor(b, 10*time.Millisecond), context.DeadlineExceeded) // so it has a view
		require.NoError(t, a.Unlock(context.Background()))
		snapshot := etcd.Snapshot()
		for range 20 {
			tests.LockWithin(t, b, time.Second)
			require.NoError(t, b.Unlock(context.Background()))
		}
		reached := etcd.Rev()
		etcd.Restore(snapshot, 1)
		tests.LockWithin(t, a, time.Second)
		for etcd.Rev() <= reached {
			require.NoError(t, etcd.PutKey("something else", 0))
		}
		etcd.DeleteKey("something else")
		require.ErrorIs(t, lockFor(b, time.Second), context.DeadlineExceeded)
		require.NoError(t, a.Unlock(context.Background()))
		tests.LockWithin(t, b, 5*time.Second)
		require.NoError(t, b.Unlock(context.Background()))
	})
}

// lockFor locks, and waits for at most the given time.
func lockFor(mu *etcdlock.Mutex, most time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	return mu.Lock(ctx)
}

// A Session holds many names as etcd is restored, with all keys. All are read in time, so that the
// renewals count again, and no hold is lost, though etcd is far.
func TestManyHoldsOutliveARestoreThatHasTheirKeys(t *testing.T) {
	rows := []struct {
		names     int
		ttl, away time.Duration
	}{
		{3_000, 5 * time.Second, 150 * time.Millisecond},
		{10_000, 15 * time.Second, 150 * time.Millisecond},
		{10_000, 5 * time.Second, 50 * time.Millisecond},
		{10_000, 2 * time.Second, 20 * time.Millisecond},
		{20_000, 15 * time.Second, 100 * time.Millisecond},
		{20_000, 15 * time.Second, 150 * time.Millisecond},
	}
	for _, row := range rows[:race.Fewer(len(rows), 1)] {
		t.Run(fmt.Sprintf("%d names, %v, %v away", row.names, row.ttl, row.away), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithTTL(row.ttl))
				var all []*etcdlock.Hold
				for i := 0; i < row.names; i += 25 {
					var some []string
					for n := range 25 {
						some = append(some, fmt.Sprint("n", i+n))
					}
					h, err := s.LockAll(t.Context(), some...)
					require.NoError(t, err)
					all = append(all, h)
				}
				restore := etcd.Save()
				etcd.Delay("a", row.away)
				time.Sleep(time.Minute)
				restore(2)
				time.Sleep(time.Minute)
				for _, h := range all {
					require.NoError(t, h.Context(t.Context()).Err())
				}
				etcd.Delay("a", 0)
				tests.UnlockAll(t, all...)
			})
		})
	}
}

// The holder of a hold whose key went with a set-back learns of it, whatever the hold's
// age, and Unlock says so. A hold whose key is still there goes on.
func TestAHoldWhoseKeyWentWithASetBackIsLost(t *testing.T) {
	for _, cluster := range []uint64{1, 2} {
		t.Run(fmt.Sprint("cluster ", cluster), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				kept, lost := contract.MutexOf(t, s, "kept"), contract.MutexOf(t, s, "lost")
				keptHold := tests.LockWithin(t, kept, time.Second)
				snapshot := etcd.Snapshot()
				lostHold := tests.LockWithin(t, lost, time.Second)
				time.Sleep(tests.TTL)

				etcd.Restore(snapshot, cluster)
				began := time.Now()
				other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "lost")
				tests.LockWithin(t, other, time.Second)
				<-lostHold.Done()
				// No connection shows it here. A renewal does.
				require.LessOrEqual(t, time.Since(began), 2*tests.RenewalPeriod+tests.CareTakes)
				require.ErrorIs(t, context.Cause(lostHold), etcdlock.ErrLost)
				require.ErrorIs(t, lost.Unlock(context.Background()), etcdlock.ErrLost)
				time.Sleep(tests.TTL)
				require.NoError(t, keptHold.Err(), "%v", context.Cause(keptHold))
				require.NoError(t, kept.Unlock(context.Background()))
				require.NoError(t, other.Unlock(context.Background()))
			})
		})
	}
}

// A lease that went with a set-back is the reason of the loss, also if a read of the key shows it
// first.
func TestAHoldWhoseLeaseWentWithASetBackIsToldSo(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		hold := tests.LockWithin(t, mu, time.Second)
		etcd.Intercept(func(c fake.Call) (effect fake.Effect) {
			if c.Method == fake.TimeToLive { // so SetInfo itself learns of it late
				effect.Delay = 10 * time.Millisecond
			}
			return effect
		})
		etcd.Restore(0, 1)
		require.ErrorIs(t, mu.SetInfo(context.Background(), "x"), etcdlock.ErrLeaseRevoked)
		require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLeaseRevoked)
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLeaseRevoked)
	})
}

// The answer to a release is lost, and before the release is sent again etcd is restored
// without the key. Until a release of its own, nobody knows whether the hold was whole.
// Unlock does not say that it was.
func TestAReleaseThatASetBackOvertakesIsNotConfirmed(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		first, mu := contract.MutexOf(t, s, "first"), contract.MutexOf(t, s, "n")
		tests.LockWithin(t, first, time.Second)
		snapshot := etcd.Snapshot()
		tests.LockWithin(t, mu, time.Second)
		var once sync.Once
		etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			if len(c.Deletes) > 0 {
				once.Do(func() {
					e.Before = fake.Unavailable // the caller does not know whether it was carried out
					time.AfterFunc(time.Millisecond, func() { etcd.Restore(snapshot, 1) })
				})
			}
			return e
		})
		err := mu.Unlock(context.Background())
		require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
		require.ErrorContains(t, err, "etcd was set back")
		require.NoError(t, first.Unlock(context.Background()))
	})
}

// Everybody gets in even in a line that is too long for views.
func TestALongLineGoesOnAfterASetBack(t *testing.T) {
	for _, cluster := range []uint64{1, 2} {
		t.Run(fmt.Sprint("cluster ", cluster), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "holder"), "n")
				tests.LockWithin(t, holder, time.Second)
				snapshot := etcd.Snapshot()
				b := newBeliever(t, etcd)
				var all sync.WaitGroup
				for i := range 20 {
					who := fmt.Sprint("p", i)
					mu := contract.MutexOf(t, tests.SessionOf(t, etcd, who), "n")
					all.Go(func() {
						if err := mu.Lock(context.Background()); err != nil {
							t.Errorf("%s: %v", who, err)
							return
						}
						b.enters(who, mu)
						time.Sleep(time.Millisecond)
						b.leaves(who)
						if err := mu.Unlock(context.Background()); err != nil {
							t.Errorf("%s: %v", who, err)
						}
					})
				}
				time.Sleep(time.Second)
				etcd.Restore(snapshot, cluster)
				time.Sleep(time.Second)
				require.NoError(t, holder.Unlock(context.Background()))
				began := time.Now()
				all.Wait()
				require.Less(t, time.Since(began), mostDelay+goesOn)
				require.Equal(t, 20, b.holds())
			})
		})
	}
}

// A set-back of etcd is reported once, however many find it out.
func TestASetBackIsTold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var mu sync.Mutex
		var told []etcdlock.SetBackEvent
		var log strings.Builder
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithRestoreDelay(tests.TTL),
			etcdlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
			etcdlock.WithTrace(&etcdlock.Trace{SetBack: func(_ context.Context, e etcdlock.SetBackEvent) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, e)
			}}))
		for i := range 5 {
			tests.LockWithin(t, contract.MutexOf(t, s, fmt.Sprint("n", i)), time.Second)
		}
		time.Sleep(tests.TTL)
		known := etcd.Rev()
		etcd.Restore(0, 1)
		restored := time.Now()
		time.Sleep(2 * tests.TTL)
		for i := range 5 {
			tests.LockWithin(t, contract.MutexOf(t, s, fmt.Sprint("m", i)), time.Second)
		}
		mu.Lock()
		defer mu.Unlock()

		require.Len(t, told, 1)
		require.Equal(t, known, told[0].Known)
		require.Less(t, told[0].Revision, known)
		// The next renewal finds no lease, and etcd's history none of the keys.
		noticed := told[0].Until.Add(-tests.TTL).Sub(restored)
		require.LessOrEqual(t, noticed, tests.RenewalPeriod+tests.CareTakes)
		require.Equal(t, 1, strings.Count(log.String(), "etcdlock: etcd was set back"), log.String())
		require.Contains(t, log.String(), fmt.Sprint("known=", known))
		require.Contains(t, log.String(), fmt.Sprint("delay=", tests.TTL))
	})
}

// A client whose endpoints belong to two clusters meets a set-back with every other answer.
// No lock can be right then, but it costs each cluster little.
func TestEndpointsOfTwoClustersCostLittle(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "holder"), "n")
		tests.LockWithin(t, holder, time.Second)
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		var cluster atomic.Uint64
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Process != "a" {
				return fake.Effect{}
			}
			return fake.Effect{Edit: func(reply any) {
				if of, ok := reply.(interface{ GetHeader() *pb.ResponseHeader }); ok {
					of.GetHeader().ClusterId = 1 + cluster.Add(1)%2
				}
			}}
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		before := len(etcd.Calls(""))
		require.ErrorIs(t, mu.Lock(ctx), context.DeadlineExceeded)
		sent := len(etcd.Calls("")) - before
		t.Logf("%d requests in a minute", sent)
		require.Less(t, sent, 15*60)
	})
}

// A key that came back ends no hold behind it: its Session removes it.
func TestAHoldBehindAKeyThatASetBackRevivedGoesOn(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		before := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "w"), "n")
		tests.LockWithin(t, before, time.Second)
		locked := tests.LockLater(mu)
		synctest.Wait()
		restore := etcd.Save()
		require.NoError(t, before.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, locked, "it does not get in"))
		restore(2)
		time.Sleep(10 * tests.TTL)
		tests.RequireWhole(t, mu)
		require.Len(t, etcd.Keys("n/"), 1)
		require.NoError(t, mu.Unlock(context.Background()))
	})
}
