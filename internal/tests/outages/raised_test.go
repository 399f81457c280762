package outages

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// The world of these tests: etcd is restored with a raised revision, as its own page recommends,
// and the cluster keeps its id. No revision goes back, and what was put before the restore looks
// like what was put long ago.

// byTheBook is how much etcd's page on disaster recovery has the revision raised.
const byTheBook = 1_000_000_000

// tried is a taking that asks every 50 ms.
func tried(call func(context.Context, *etcdlock.Session) (*etcdlock.Hold, error)) taking {
	return of(func(_ *testing.T, s *etcdlock.Session) func(context.Context) (*etcdlock.Hold, error) {
		return func(ctx context.Context) (*etcdlock.Hold, error) {
			for {
				h, err := call(ctx, s)
				if err == nil || ctx.Err() != nil {
					return h, err
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
	})
}

// tryings are the ways to take "n" by calls that only try.
var tryings = map[string]taking{
	"TryLock": tried(func(ctx context.Context, s *etcdlock.Session) (*etcdlock.Hold, error) {
		return s.TryLock(ctx, "n")
	}),
	"TryLockAll": tried(func(ctx context.Context, s *etcdlock.Session) (*etcdlock.Hold, error) {
		return s.TryLockAll(ctx, "m", "n")
	}),
}

// The holder is cut off as etcd is restored by the book. Another process, which has used etcd
// before, waits in line, tries again and again, or comes later. It gets in once the hold has ended.
func TestARestoreWithARaisedRevisionIsNoticed(t *testing.T) {
	pairs := [][2]string{
		{"Lock", "Lock"}, {"Lock", "TryLock"}, {"RWMutex.Lock", "RWMutex.Lock"},
		{"RLock", "RWMutex.Lock"}, {"RWMutex.Lock", "RLock"}, {"Acquire", "Acquire"},
		{"LockAll", "TryLockAll"}, {"Lock", "LockAll"},
	}
	for _, pair := range pairs {
		for _, idle := range []time.Duration{0, time.Minute, 2 * time.Hour} {
			for _, before := range []bool{true, false} {
				name := fmt.Sprintf("%s, then %s, idle for %v, waits before %v", pair[0], pair[1], idle, before)
				if before && idle > time.Minute {
					continue // it is not idle
				}
				t.Run(name, func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						a, b := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
						takes := func(s *etcdlock.Session, how string) <-chan entry {
							if tries, ok := tryings[how]; ok {
								return takesLater(t, tries, s)
							}
							return takesLater(t, takings[how], s)
						}
						knows(t, etcd, a)
						knows(t, etcd, b)
						etcd.DeleteKey("something else")
						snapshot := etcd.Snapshot()
						time.Sleep(idle)
						held := tests.SoonOr(t, takes(a, pair[0]), "a does not get in")
						var later <-chan entry
						if before {
							later = takes(b, pair[1])
							time.Sleep(time.Second)
						}
						etcd.Cut("a")
						etcd.RestoreRaised(snapshot, byTheBook, true)
						restored := time.Now()
						if !before {
							later = takes(b, pair[1])
						}
						in := tests.SoonOr(t, later, "b does not get in")
						require.ErrorIs(t, context.Cause(held.hold), etcdlock.ErrExpired,
							"b got in %v after the restore", in.at.Sub(restored))
						most := time.Minute
						if _, tries := tryings[pair[1]]; before && !tries {
							most = tests.TTL // it stood in line
						}
						require.Less(t, in.at.Sub(restored), most+tests.RenewalPeriod)
						require.NoError(t, in.unlock(t.Context()))
						require.ErrorIs(t, held.unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
					})
				})
			}
		}
	}
}

// The first answer that shows the raised revision is that of a watch. Those that come later do not
// look like answers of the etcd of before.
func TestARaisedRevisionIsNoticedByAWatch(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		noticed := make(chan etcdlock.SetBackEvent, 10)
		a := tests.SessionOf(t, etcd, "a")
		b := tests.SessionOf(t, etcd, "b", etcdlock.WithTrace(&etcdlock.Trace{
			SetBack: func(_ context.Context, e etcdlock.SetBackEvent) { noticed <- e },
		}))
		knows(t, etcd, a)
		etcd.DeleteKey("something else")
		snapshot := etcd.Snapshot()
		held := takes(t, takings["Lock"], a)
		later := takesLater(t, takings["Lock"], b)
		time.Sleep(time.Second)
		known := etcd.Rev()
		etcd.Intercept(func(c fake.Call) (effect fake.Effect) {
			if c.Process == "b" && c.Method != fake.Watch {
				effect.Delay = 300 * time.Millisecond
			}
			return effect
		})
		etcd.Cut("a")
		etcd.RestoreRaised(snapshot, byTheBook, true)
		time.Sleep(10 * time.Millisecond)
		require.Len(t, noticed, 1)
		require.Equal(t, known, (<-noticed).Known)
		in := tests.SoonOr(t, later, "b does not get in")
		require.ErrorIs(t, context.Cause(held.hold), etcdlock.ErrExpired)
		require.NoError(t, in.unlock(t.Context()))
		require.ErrorIs(t, held.unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
	})
}

// etcd writes as many revisions as it can, and a million more, between two requests of a
// Session: that is no restore.
func TestAnEtcdThatWritesMuchWasNotSetBack(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
			SetBack: func(context.Context, etcdlock.SetBackEvent) { t.Error("it was set back") },
		}))
		for _, quiet := range []time.Duration{0, 10 * time.Second, time.Hour} {
			h := takes(t, takings["Lock"], s)
			require.NoError(t, h.unlock(t.Context()))
			for range quiet / time.Second {
				time.Sleep(time.Second)
				etcd.Raise(100_000)
			}
			etcd.Raise(899_000) // a renewal may have come before the last of the seconds
			h = takes(t, takings["Lock"], s)
			require.NoError(t, h.unlock(t.Context()))
		}
	})
}

// The revision was raised by no more than etcd may have written. Whoever stood in line finds that
// etcd's history does not have its key, or, if that is compacted, waits for a TTL.
func TestAKeyThatWasNeverThereShowsASetBack(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		for _, waiters := range []int{1, 12} {
			for _, lease := range []bool{true, false} {
				name := fmt.Sprintf("compacted %v, waiters %d, its lease is there %v",
					compacted, waiters, lease)
				t.Run(name, func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						a := tests.SessionOf(t, etcd, "a")
						knows(t, etcd, a)
						var all []*etcdlock.Session
						etcd.DeleteKey("something else")
						snapshot := etcd.Snapshot()
						for i := range waiters {
							s := tests.SessionOf(t, etcd, fmt.Sprint("b", i))
							knows(t, etcd, s)
							all = append(all, s)
						}
						etcd.DeleteKey("something else")
						if lease {
							snapshot = etcd.Snapshot()
						}
						held := takes(t, takings["Lock"], a)
						in := make(chan entry, waiters)
						for _, s := range all {
							later := takesLater(t, takings["Lock"], s)
							go func() {
								e := <-later
								in <- e
								_ = e.unlock(context.Background())
							}()
						}
						time.Sleep(3 * time.Second)
						by := etcd.Rev() // so that it ends above all that was known
						etcd.Cut("a")
						etcd.RestoreRaised(snapshot, by, compacted)
						first := tests.SoonOr(t, in, "none gets in")
						require.ErrorIs(t, context.Cause(held.hold), etcdlock.ErrExpired, "%v", first.at)
						for range waiters - 1 {
							tests.SoonOr(t, in, "not all get in")
						}
						require.ErrorIs(t, held.unlock(tests.Within(t, time.Second)), etcdlock.ErrLost)
					})
				})
			}
		}
	}
}

// An operator deletes the key of a waiter, or revokes its lease. etcd's history tells, and the
// waiter gets in as soon as it is its turn.
func TestAnOperatorIsNoSetBack(t *testing.T) {
	for name, takesAway := range map[string]func(*testing.T, *fake.Server, string, clientv3.LeaseID){
		"deletes": func(_ *testing.T, etcd *fake.Server, key string, _ clientv3.LeaseID) { etcd.DeleteKey(key) },
		"revokes": func(t *testing.T, etcd *fake.Server, _ string, id clientv3.LeaseID) {
			_, err := etcd.Client("operator").Revoke(t.Context(), id)
			require.NoError(t, err)
		},
	} {
		for _, others := range []int{0, 12} {
			t.Run(fmt.Sprintf("%s, %d others", name, others), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					a, b := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
					held := takes(t, takings["Lock"], a)
					strangers, _ := tests.Strangers(t, etcd, "n", others)
					before := etcd.Keys("n/")
					later := takesLater(t, takings["Lock"], b)
					time.Sleep(3 * time.Second)
					for _, key := range etcd.Keys("n/") {
						if !slices.Contains(before, key) {
							takesAway(t, etcd, key, b.Lease())
						}
					}
					time.Sleep(5 * time.Second)
					for _, key := range strangers {
						etcd.DeleteKey(key)
					}
					require.NoError(t, held.unlock(t.Context()))
					freed := time.Now()
					in := tests.SoonOr(t, later, "b does not get in")
					require.Less(t, in.at.Sub(freed), 5*time.Second)
					require.NoError(t, in.unlock(t.Context()))
				})
			})
		}
	}
}

// A lease is unknown to etcd. Either etcd has compacted the revision of its key, so its history
// does not tell why, or etcd does not answer: calls are told of a doubt, and not of a set-back. The
// log has a doubt that goes on, and none that is over.
func TestACallIsToldThatEtcdMayHaveBeenSetBack(t *testing.T) {
	const (
		why = "etcd may have been set back, and a hold from before may last for "
		log = "etcd may have been set back"
	)
	for _, answers := range []bool{true, false} {
		t.Run(fmt.Sprint("answers ", answers), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var lines strings.Builder
				a := tests.SessionOf(t, etcd, "a", etcdlock.WithLogger(
					slog.New(slog.NewTextHandler(&lines, nil))))
				held := takes(t, takings["Lock"], a)
				etcd.RevokeLease(a.Lease())
				if answers {
					etcd.DeleteKey("something else")
					etcd.Compact()
				} else {
					etcd.Intercept(func(c fake.Call) fake.Effect {
						return fake.Effect{Drop: len(c.Gets) > 0 && len(c.Puts) == 0}
					})
				}
				<-held.hold.Done()
				require.ErrorIs(t, held.unlock(t.Context()), etcdlock.ErrLost)
				if answers {
					_, err := a.TryLock(t.Context(), "n")
					require.ErrorIs(t, err, etcdlock.ErrLocked)
					require.ErrorContains(t, err, `etcdlock: lock "n": `+why)
				}
				_, err := a.Lock(tests.Within(t, 2*time.Second), "n")
				require.ErrorContains(t, err, why)
				time.Sleep(tests.TTL)
				etcd.Intercept(nil)
				in := tests.SoonOr(t, takesLater(t, takings["Lock"], a), "it does not get in")
				require.NoError(t, in.unlock(t.Context()))
				require.Equal(t, answers, strings.Contains(lines.String(), log))
			})
		})
	}
}
