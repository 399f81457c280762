package mutex

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/events"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// Each hold that begins ends once for the hooks: released or lost.
func TestEachHoldIsToldToBeginAndToEndOnce(t *testing.T) {
	const second = time.Second
	ends := map[string]struct {
		opts []etcdlock.Option
		end  func(etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex)
		want []string
	}{
		"Unlock": {nil, func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			_ = mu.Unlock(context.Background())
		}, []string{"released after 1s"}},
		"Unlock that lingers": {[]etcdlock.Option{etcdlock.WithLinger(second)}, func(_ *fake.Server,
			_ *etcdlock.Session, mu *etcdlock.Mutex) {
			_ = mu.Unlock(context.Background())
		}, []string{"released after 1s"}},
		"Close of the Mutex": {nil, func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			_ = mu.Close(context.Background())
		}, []string{"released after 1s"}},
		"Close of the Session": {nil, func(_ *fake.Server, s *etcdlock.Session, _ *etcdlock.Mutex) {
			_ = s.Close(context.Background())
		}, []string{"released after 1s", "replaced"}},
		"Unlock that is not confirmed": {nil, func(etcd *fake.Server, _ *etcdlock.Session,
			mu *etcdlock.Mutex) {
			etcd.Cut("a")
			ctx, cancel := context.WithTimeout(context.Background(), second)
			defer cancel()
			_ = mu.Unlock(ctx)
			etcd.Heal("a")
			time.Sleep(5 * second)
		}, []string{"replaced", "pending", "released after 2s", "done"}},
		"loss": {nil, func(etcd *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			etcd.DeleteKey(mu.Key())
			_ = mu.Unlock(context.Background())
		}, []string{"lost after 1s: etcdlock: its key was deleted"}},
		"MaxHold": {[]etcdlock.Option{etcdlock.WithMaxHold(2 * second)}, func(_ *fake.Server,
			_ *etcdlock.Session, mu *etcdlock.Mutex) {
			time.Sleep(3 * second)
			_ = mu.Unlock(context.Background())
		}, []string{"lost after 2s: etcdlock: held for as long as WithMaxHold allows",
			"pending", "done"}},
	}
	for name, row := range ends {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var o tests.Told
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(o.Trace()))
				mu := contract.MutexOf(t, s, "n", row.opts...)
				tests.LockWithin(t, mu, second)
				require.Equal(t, []string{"acquired after 0s behind 0"}, o.Take())
				time.Sleep(second)
				row.end(etcd, s, mu)
				got := o.Take()
				if name == "MaxHold" {
					require.Len(t, got, 3)
					require.True(t, strings.HasPrefix(got[0], "lost after 2s: "), "%v", got)
					return
				}
				if name == "Close of the Session" { // one goroutine ends the holds, another the lease
					require.ElementsMatch(t, row.want, got)
					return
				}
				require.Equal(t, row.want, got)
			})
		})
	}
}

// A hold that shares its lock says in which mode, and with how many permits: the first one, and
// each that joins. So does an exclusive one.
func TestAHoldTellsHowItShares(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var o tests.Told
		trace := o.Trace()
		var tokens []int64
		trace.Acquired = func(_ context.Context, e etcdlock.AcquiredEvent) {
			o.Add("%s %s %d", e.Name, e.Mode, e.Weight)
			tokens = append(tokens, e.Token)
		}
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(trace))
		rw, sem := tests.RWMutexOf(t, s), tests.SemaphoreOf(t, s, 5)
		const released = "released after 0s"

		first, err := rw.RLock(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Second)
		joins, err := rw.TryRLock(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{
			"n read 1", "n read 1",
		}, o.Take())
		require.Equal(t, []int64{first.Token(), joins.Token()}, tokens)
		require.NoError(t, first.Unlock(t.Context()))
		require.NoError(t, joins.Unlock(t.Context()))
		require.Equal(t, []string{"released after 1s", released}, o.Take())

		three, two := tests.AcquireWithin(t, sem, 3, time.Second),
			tests.AcquireWithin(t, sem, 2, time.Second)
		require.Equal(t, []string{
			"n permit 3", "n permit 2",
		}, o.Take())
		require.Equal(t, []int64{three.Token(), two.Token()}, tokens[2:])
		require.NoError(t, three.Unlock(t.Context()))
		require.NoError(t, two.Unlock(t.Context()))
		require.Equal(t, []string{released, released}, o.Take())

		require.NoError(t, rw.Lock(t.Context()))
		require.NoError(t, rw.Unlock(t.Context()))
		all, err := s.LockAll(t.Context(), "n", "other")
		require.NoError(t, err)
		require.NoError(t, all.Unlock(t.Context()))
		require.Equal(t, []string{
			"n exclusive 1", released, "n exclusive 1", "other exclusive 1", released, released,
		}, o.Take())
	})
}

// A wait that ends without a hold is reported, with what it waited for.
func TestAWaitWithoutAHoldIsToldToHaveGivenUp(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "holder"), "n")
		tests.LockWithin(t, holder, time.Second)
		var o tests.Told
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(o.Trace())), "n")

		err := mu.TryLock(context.Background())
		var locked *etcdlock.LockedError
		ok := errors.As(err, &locked)
		require.True(t, ok, "%v", err)
		who := fmt.Sprintf("holder (%s:%d)", locked.Holder.Host, os.Getpid())
		require.Equal(t, []string{`gave up after 0s behind 0: etcdlock: lock "n": held by ` + who},
			o.Take())

		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		require.ErrorIs(t, mu.Lock(ctx), context.DeadlineExceeded)
		require.Equal(t, []string{
			"queued behind 1, holder", "pending", "done",
			`gave up after 3s behind 1: etcdlock: lock "n": 2nd in line, held by ` + who +
				`: context deadline exceeded`,
		}, o.Take())
		require.NoError(t, holder.Unlock(context.Background()))
	})
}

// The error of a wait that a time-out ends has the cause of the context, if there is one, and tells
// what it waited for.
func TestATimeOutTellsWhatTheWaitWasFor(t *testing.T) {
	closing := errors.New("the shop is closing")
	acquire := []etcdlock.Option{etcdlock.WithAcquireTimeout(time.Second)}
	const toAcquire = "the bound of WithAcquireTimeout, 1s, is over: context deadline exceeded"
	for name, row := range map[string]struct {
		opts    []etcdlock.Option
		timeout time.Duration // of the context
		cause   error
		text    string
		is      []error
	}{
		"of the context": {nil, time.Second, nil, "context deadline exceeded", nil},
		"with a cause":   {nil, time.Second, closing, "the shop is closing", []error{closing}},
		"to acquire":     {acquire, time.Hour, nil, toAcquire, nil},
		"to acquire, before that of a context with a cause": {
			acquire, time.Hour, closing, toAcquire, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "api-7:1234"), "n")
				tests.LockWithin(t, holder, time.Second)
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", row.opts...)
				ctx, cancel := context.WithTimeoutCause(t.Context(), row.timeout, row.cause)
				defer cancel()
				err := mu.Lock(ctx)
				require.Regexp(t, `^etcdlock: lock "n": 2nd in line, held by api-7:1234 \(.*:\d+\): `+row.text+
					"$", err.Error())
				contract.RequireIs(t, err, append(row.is, context.DeadlineExceeded, etcdlock.ErrLocked)...)
				require.NoError(t, holder.Unlock(t.Context()))
			})
		})
	}
}

// While etcd is silent no renewal fails. Still, the Trace and the log report something
// before the loss.
func TestASilentEtcdIsToldOfBeforeTheLoss(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var o tests.Told
		trace := o.Trace()
		trace.LeaseAtRisk = func(_ context.Context, e etcdlock.LeaseAtRiskEvent) {
			o.Add("at risk, %t", 0 < e.Remaining && e.Remaining < tests.TTL/2)
		}
		logger := slog.New(slog.NewTextHandler(contract.WriterFunc(func(record []byte) (int, error) {
			_, message, _ := strings.Cut(string(record), `msg="`)
			message, _, _ = strings.Cut(message, `"`)
			o.Add("%s", message)
			return len(record), nil
		}), nil))
		mu := contract.MutexOf(t,
			tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(trace), etcdlock.WithLogger(logger)), "n")
		tests.LockWithin(t, mu, time.Second)
		etcd.Freeze()
		time.Sleep(2 * tests.TTL)
		got := o.Take()
		require.Equal(t, []string{
			"acquired after 0s behind 0", "etcdlock: lease at risk", "at risk, true",
		}, got[:3])
		lost := slices.Index(got, "etcdlock: lock lost")
		require.Positive(t, lost, "%v", got)
		require.LessOrEqual(t, lost, 2+2*3+2, "few records: %v", got)
		require.NotContains(t, got[:lost], "etcdlock: lease not renewed", "it would tell by itself")
		require.NotContains(t, got[lost:], "etcdlock: lease at risk", "after the loss")
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// Two goroutines hold for a nanosecond in turn. Each end is reported after its beginning.
func TestHooksComeInTheOrderOfTheEvents(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var o tests.Told
		s := tests.SessionOf(t, etcd, "a",
			etcdlock.WithTrace(o.Trace()), etcdlock.WithHandoff(1), etcdlock.WithLinger(time.Second))
		var wg sync.WaitGroup
		for range 3 {
			mu := contract.MutexOf(t, s, "n")
			wg.Go(func() {
				for range 200 {
					if err := mu.Lock(context.Background()); err != nil {
						t.Error(err)
					}
					if err := mu.Unlock(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		holding, ends := 0, 0
		for _, line := range o.Take() {
			switch strings.Fields(line)[0] {
			case "acquired":
				holding++
			case "released":
				holding--
				ends++
			}
			require.Contains(t, []int{0, 1}, holding, "after %s", line)
		}
		require.Equal(t, 600, ends)
	})
}

// The error of the hook is the very error that the call returns. That of a Do is ErrNotRun.
func TestGaveUpTellsTheErrorThatTheCallReturns(t *testing.T) {
	type locks struct {
		s   *etcdlock.Session
		mu  *etcdlock.Mutex
		rw  *etcdlock.RWMutex
		sem *etcdlock.Semaphore
	}
	never := func(context.Context) error { return errors.New("it was called") }
	of := func(_ *etcdlock.Hold, err error) error { return err }
	names := []string{"m", "n"}
	for what, call := range map[string]func(ctx context.Context, l locks) error{
		"Mutex.Lock":           func(ctx context.Context, l locks) error { return l.mu.Lock(ctx) },
		"Mutex.TryLock":        func(ctx context.Context, l locks) error { return l.mu.TryLock(ctx) },
		"Mutex.Do":             func(ctx context.Context, l locks) error { return l.mu.Do(ctx, never) },
		"Mutex.TryDo":          func(ctx context.Context, l locks) error { return l.mu.TryDo(ctx, never) },
		"Mutex.Lead":           func(ctx context.Context, l locks) error { return l.mu.Lead(ctx, never) },
		"RWMutex.Do":           func(ctx context.Context, l locks) error { return l.rw.Do(ctx, never) },
		"RWMutex.RLock":        func(ctx context.Context, l locks) error { return of(l.rw.RLock(ctx)) },
		"RWMutex.TryRLock":     func(ctx context.Context, l locks) error { return of(l.rw.TryRLock(ctx)) },
		"RWMutex.RDo":          func(ctx context.Context, l locks) error { return l.rw.RDo(ctx, never) },
		"RWMutex.TryRDo":       func(ctx context.Context, l locks) error { return l.rw.TryRDo(ctx, never) },
		"Semaphore.Acquire":    func(ctx context.Context, l locks) error { return of(l.sem.Acquire(ctx, 2)) },
		"Semaphore.TryAcquire": func(ctx context.Context, l locks) error { return of(l.sem.TryAcquire(ctx, 2)) },
		"Semaphore.Do":         func(ctx context.Context, l locks) error { return l.sem.Do(ctx, 2, never) },
		"Semaphore.TryDo":      func(ctx context.Context, l locks) error { return l.sem.TryDo(ctx, 2, never) },
		"Session.Lock":         func(ctx context.Context, l locks) error { return of(l.s.Lock(ctx, "n")) },
		"Session.TryLock":      func(ctx context.Context, l locks) error { return of(l.s.TryLock(ctx, "n")) },
		"Session.Do":           func(ctx context.Context, l locks) error { return l.s.Do(ctx, "n", never) },
		"Session.TryDo":        func(ctx context.Context, l locks) error { return l.s.TryDo(ctx, "n", never) },
		"Session.Lead":         func(ctx context.Context, l locks) error { return l.s.Lead(ctx, "n", never) },
		"Session.LockAll":      func(ctx context.Context, l locks) error { return of(l.s.LockAll(ctx, names...)) },
		"Session.TryLockAll":   func(ctx context.Context, l locks) error { return of(l.s.TryLockAll(ctx, names...)) },
		"Session.DoAll":        func(ctx context.Context, l locks) error { return l.s.DoAll(ctx, names, never) },
		"Session.TryDoAll":     func(ctx context.Context, l locks) error { return l.s.TryDoAll(ctx, names, never) },
	} {
		t.Run(what, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				told := make(chan error, len(names))
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
					GaveUp: func(_ context.Context, e etcdlock.GaveUpEvent) { told <- e.Err },
				}))
				all := locks{s, contract.MutexOf(t, s, "n"), tests.RWMutexOf(t, s),
					tests.SemaphoreOf(t, s, 2)}
				other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
				tests.LockWithin(t, other, time.Second)

				err := call(tests.Within(t, 10*time.Second), all)
				require.Error(t, err)
				runs := strings.Contains(what, "Do")
				require.Equal(t, runs, errors.Is(err, etcdlock.ErrNotRun), "%v", err)
				events := 1
				if strings.HasSuffix(what, "All") {
					events = len(names)
				}
				for range events {
					require.Same(t, err, tests.SoonOr(t, told, "no hook is called"))
				}
				require.Empty(t, told)
			})
		})
	}
}

// A callerKey is the key of the value that tells contexts of calls from each other.
type callerKey struct{}

// call returns a context that says to which call it belongs.
func call(name string) context.Context {
	return context.WithValue(context.Background(), callerKey{}, name)
}

// callers returns hooks that record the call to which each event belongs.
func callers(o *tests.Told) *etcdlock.Trace {
	add := func(ctx context.Context, what string) {
		if ctx.Err() != nil {
			what += " (ended)"
		}
		o.Add("%s of %v", what, ctx.Value(callerKey{}))
	}
	return &etcdlock.Trace{
		Queued: func(ctx context.Context, e etcdlock.QueuedEvent) {
			add(ctx, fmt.Sprintf("queued behind %d, %s,", e.Ahead, e.Holder.Owner))
		},
		GaveUp: func(ctx context.Context, e etcdlock.GaveUpEvent) {
			add(ctx, fmt.Sprintf("gave up after %v behind %d,", e.Waited, e.Ahead))
		},
		Acquired: func(ctx context.Context, e etcdlock.AcquiredEvent) {
			add(ctx, fmt.Sprintf("acquired after %v behind %d", e.Waited, e.Ahead))
		},
		Released: func(ctx context.Context, e etcdlock.ReleasedEvent) {
			add(ctx, fmt.Sprintf("released after %v", e.Held))
		},
		Lost: func(ctx context.Context, e etcdlock.LostEvent) {
			add(ctx, fmt.Sprintf("lost after %v", e.Held))
		},
		Recalled: func(ctx context.Context, e etcdlock.RecalledEvent) {
			add(ctx, fmt.Sprintf("recalled with a grace of %v", e.Request.Grace))
		},
	}
}

// Each event of a call comes with that call's context, which has not ended unless the
// caller ended it. That is so in etcd's line, in the Session's own, by hand-off, and with a
// key that lingered. The end of a hold comes with the context of its beginning.
func TestHooksGetTheContextOfTheirCall(t *testing.T) {
	const second = time.Second
	for name, row := range map[string]struct {
		opts []etcdlock.Option
		do   func(t *testing.T, etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex)
		want []string
	}{
		"Lock and Unlock": {nil, func(t *testing.T, _ *fake.Server, _ *etcdlock.Session,
			mu *etcdlock.Mutex) {
			require.NoError(t, mu.Lock(call("Lock")))
			time.Sleep(second)
			require.NoError(t, mu.Unlock(call("Unlock")))
		}, []string{"acquired after 0s behind 0 of Lock", "released after 1s of Lock"}},
		"Do": {nil, func(t *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			require.NoError(t, mu.Do(call("Do"), func(context.Context) error { return nil }))
		}, []string{"acquired after 0s behind 0 of Do", "released after 0s of Do"}},
		"TryDo of a context that ends": {nil, func(
			t *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex,
		) {
			ctx, cancel := context.WithTimeout(call("TryDo"), second)
			defer cancel()
			toItsEnd := func(ctx context.Context) error { <-ctx.Done(); return nil }
			require.NoError(t, mu.TryDo(ctx, toItsEnd))
		}, []string{"acquired after 0s behind 0 of TryDo", "released after 1s (ended) of TryDo"}},
		"Locker": {nil, func(t *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			mu.Locker().Lock()
			time.Sleep(second)
			mu.Locker().Unlock()
		}, []string{"acquired after 0s behind 0 of <nil>", "released after 1s of <nil>"}},
		"TryLock of a taken name": {nil, func(
			t *testing.T, _ *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex,
		) {
			require.NoError(t, mu.Lock(call("Lock")))
			require.ErrorIs(t, contract.MutexOf(t, s, "n").TryLock(call("TryLock")), etcdlock.ErrLocked)
			require.NoError(t, mu.Close(call("Close")))
		}, []string{
			"acquired after 0s behind 0 of Lock", "gave up after 0s behind 0, of TryLock",
			"released after 0s of Lock",
		}},
		"a wait behind another process": {nil, func(
			t *testing.T, etcd *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex,
		) {
			other := contract.MutexOf(t, tests.SessionOf(t, etcd, "other"), "n")
			tests.LockWithin(t, other, second)
			go func() { time.Sleep(2 * second); _ = other.Unlock(context.Background()) }()
			require.NoError(t, mu.Lock(call("Lock")))
			etcd.DeleteKey(mu.Key())
			synctest.Wait()
			require.ErrorIs(t, mu.Unlock(call("Unlock")), etcdlock.ErrLost)
		}, []string{
			"queued behind 1, other, of Lock", "acquired after 2s behind 1 of Lock",
			"lost after 0s of Lock",
		}},
		"a wait in the Session's line": {
			[]etcdlock.Option{etcdlock.WithHandoff(1)},
			func(t *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
				require.NoError(t, mu.Lock(call("the first")))
				ctx, cancel := context.WithTimeout(call("the third"), second)
				defer cancel()
				waited := contract.Async(func() error { return mu.Lock(call("the second")) })
				synctest.Wait()
				require.ErrorIs(t, mu.Lock(ctx), context.DeadlineExceeded)
				require.NoError(t, mu.Unlock(call("Unlock")))
				require.NoError(t, <-waited)
				require.NoError(t, mu.Unlock(call("Unlock")))
			},
			[]string{
				"acquired after 0s behind 0 of the first", "queued behind 1, a, of the second",
				"queued behind 2, a, of the third", "gave up after 1s behind 2, (ended) of the third",
				"released after 1s of the first", "acquired after 1s behind 1 of the second",
				"released after 0s of the second",
			},
		},
		"a key that lingers": {
			[]etcdlock.Option{etcdlock.WithLinger(time.Minute)},
			func(t *testing.T, _ *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex) {
				require.NoError(t, mu.Lock(call("the first")))
				synctest.Wait()
				require.NoError(t, mu.Unlock(call("Unlock")))
				key := mu.Key()
				require.NoError(t, mu.Lock(call("the second")))
				require.Empty(t, key)
				require.NoError(t, s.Close(call("Close")))
			},
			[]string{
				"acquired after 0s behind 0 of the first", "released after 0s of the first",
				"acquired after 0s behind 0 of the second", "released after 0s of the second",
			},
		},
		"MaxHold": {
			[]etcdlock.Option{etcdlock.WithMaxHold(second)},
			func(t *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
				require.NoError(t, mu.Lock(call("Lock")))
				time.Sleep(2 * second)
				require.ErrorIs(t, mu.Unlock(call("Unlock")), etcdlock.ErrLost)
			},
			[]string{"acquired after 0s behind 0 of Lock", "lost after 1s of Lock"},
		},
		"a recall": {
			[]etcdlock.Option{etcdlock.WithRecall(time.Minute)},
			func(t *testing.T, etcd *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
				require.NoError(t, mu.Lock(call("Lock")))
				time.Sleep(2 * second) // a young hold has no watch
				tests.Recall(t, etcd, second)
				synctest.Wait()
				require.NoError(t, mu.Unlock(call("Unlock")))
			},
			[]string{
				"acquired after 0s behind 0 of Lock", "recalled with a grace of 1s of Lock",
				"released after 2s of Lock",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var o tests.Told
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(callers(&o)))
				row.do(t, etcd, s, contract.MutexOf(t, s, "n", row.opts...))
				require.Equal(t, row.want, o.Take())
			})
		})
	}
}

// hooksOf goes through the hooks of a Trace, which are its fields.
func hooksOf(trace *etcdlock.Trace) iter.Seq2[string, reflect.Value] {
	fields := reflect.ValueOf(trace).Elem()
	return func(yield func(string, reflect.Value) bool) {
		for i := range fields.NumField() {
			if !yield(fields.Type().Field(i).Name, fields.Field(i)) {
				return
			}
		}
	}
}

// Each hook takes a context and one struct, to which fields may be added, and only Start returns
// something.
func TestEachHookTakesAContextAndAnEvent(t *testing.T) {
	for name, hook := range hooksOf(new(etcdlock.Trace)) {
		require.Equal(t, reflect.Func, hook.Kind(), name)
		require.Equal(t, 2, hook.Type().NumIn(), name)
		require.Equal(t, reflect.TypeFor[context.Context](), hook.Type().In(0), name)
		require.Equal(t, name+"Event", hook.Type().In(1).Name())
		require.Equal(t, reflect.Struct, hook.Type().In(1).Kind(), name)
		require.Equal(t, name == "Start", hook.Type().NumOut() == 1, name)
	}
}

// recorder returns a Trace all of whose hooks append who and which to calls.
func recorder(who string, calls *[]string) *etcdlock.Trace {
	trace := new(etcdlock.Trace)
	for name, hook := range hooksOf(trace) {
		hook.Set(reflect.MakeFunc(hook.Type(), func(args []reflect.Value) []reflect.Value {
			last := args[len(args)-1].Interface()
			*calls = append(*calls, fmt.Sprintf("%s %s %v", who, name, last))
			if name == "Start" {
				return []reflect.Value{args[0]}
			}
			return nil
		}))
	}
	return trace
}

// JoinTraces also joins hooks that Trace will get later.
func TestJoinTracesCallsEachHookOfEachTraceInOrder(t *testing.T) {
	var calls, want []string
	joined := etcdlock.JoinTraces(
		recorder("a", &calls), nil, new(etcdlock.Trace), recorder("b", &calls))
	for name, hook := range hooksOf(joined) {
		require.False(t, hook.IsNil(), name)
		args := make([]reflect.Value, hook.Type().NumIn())
		for j := range args {
			args[j] = reflect.Zero(hook.Type().In(j))
		}
		hook.Call(args)
		last := args[len(args)-1].Interface()
		for _, who := range []string{"a", "b"} {
			want = append(want, fmt.Sprintf("%s %s %v", who, name, last))
		}
	}
	require.NotEmpty(t, want)
	require.Equal(t, want, calls)
}

// A hook that no Trace has stays nil, so that the library queues nothing for it.
func TestJoinTracesLeavesHooksNilThatNobodyHas(t *testing.T) {
	require.Equal(t, etcdlock.Trace{}, *etcdlock.JoinTraces(nil, new(etcdlock.Trace)))
	require.Equal(t, etcdlock.Trace{}, *etcdlock.JoinTraces())
	var calls []string
	one := &etcdlock.Trace{CleanupDone: recorder("a", &calls).CleanupDone}
	joined := etcdlock.JoinTraces(one)
	require.Nil(t, joined.CleanupPending)
	joined.CleanupDone(t.Context(), etcdlock.CleanupDoneEvent{Key: "key"})
	require.Equal(t, []string{"a CleanupDone {key}"}, calls)
}

// Start is called once for each call that locks, before anything is sent, and the context that it
// returns is that of the later hooks and the parent of the work.
func TestStartBeginsACall(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var started []etcdlock.StartEvent
		var o tests.Told
		trace := callers(&o)
		trace.Start = func(ctx context.Context, e etcdlock.StartEvent) context.Context {
			started = append(started, e)
			return context.WithValue(ctx, callerKey{}, fmt.Sprint(ctx.Value(callerKey{}), "'s call"))
		}
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(trace), etcdlock.WithReentrancy())
		mu, rw, sem := contract.MutexOf(t, s, "n"), tests.RWMutexOf(t, s), tests.SemaphoreOf(t, s, 3)
		again := 0
		of := func(want string) func(context.Context) error {
			return func(ctx context.Context) error {
				again++
				require.Equal(t, want, ctx.Value(callerKey{}))
				_, held := etcdlock.TokenFrom(ctx)
				require.True(t, held)
				return nil
			}
		}
		took := func(want ...etcdlock.StartEvent) {
			t.Helper()
			require.Equal(t, want, started)
			started = nil
			for _, line := range o.Take() {
				require.Contains(t, line, "of x's call")
			}
		}
		exclusive := etcdlock.StartEvent{Name: "n", Mode: etcdlock.ModeExclusive, Weight: 1}
		tries := exclusive
		tries.Try = true
		require.NoError(t, mu.Do(call("x"), of("x's call")))
		took(exclusive)
		require.NoError(t, mu.TryDo(call("x"), of("x's call")))
		took(tries)
		require.NoError(t, s.Do(call("x"), "n", of("x's call")))
		took(exclusive)
		require.NoError(t, rw.RDo(call("x"), of("x's call")))
		took(etcdlock.StartEvent{Name: "n", Mode: etcdlock.ModeRead, Weight: 1})
		require.NoError(t, sem.TryDo(call("x"), 2, of("x's call")))
		took(etcdlock.StartEvent{Name: "n", Mode: etcdlock.ModePermit, Weight: 2, Try: true})
		require.NoError(t, s.DoAll(call("x"), []string{"n", "o"}, of("x's call")))
		all := exclusive
		all.Names = []string{"n", "o"}
		took(all)
		require.NoError(t, s.DoAll(call("x"), []string{"n"}, of("x's call")))
		took(exclusive)
		require.ErrorIs(t, mu.Lead(call("x"), func(ctx context.Context) error {
			return errors.Join(of("x's call")(ctx), etcdlock.ErrStopLeading)
		}), etcdlock.ErrStopLeading)
		took(exclusive)
		require.Equal(t, 8, again)

		// A call that nests begins none, nor does one that is refused. No hook tells of it.
		require.NoError(t, mu.Do(call("x"), func(ctx context.Context) error {
			started = nil
			return mu.Do(ctx, of("x's call"))
		}))
		require.Error(t, s.Do(call("x"), "", of("")))
		var nilContext context.Context
		require.Error(t, mu.Lock(nilContext))
		ended, cancel := context.WithCancel(call("x"))
		cancel()
		require.ErrorIs(t, mu.Do(ended, of("")), context.Canceled)
		require.Error(t, s.DoAll(ended, []string{"n", "o"}, of("")))
		o.Take()
		require.NoError(t, rw.RDo(call("x"), func(ctx context.Context) error {
			started = nil
			require.ErrorIs(t, mu.Lock(ctx), etcdlock.ErrDeadlock)
			_, err := s.LockAll(ctx, "n", "o")
			require.ErrorIs(t, err, etcdlock.ErrDeadlock)
			require.Equal(t, []string{"acquired after 0s behind 0 of x's call"}, o.Take())
			return nil
		}))
		took()

		// It may return nothing, and panic.
		for _, start := range []func(context.Context, etcdlock.StartEvent) context.Context{
			func(context.Context, etcdlock.StartEvent) context.Context { return nil },
			func(context.Context, etcdlock.StartEvent) context.Context { panic("no") },
		} {
			trace.Start = start
			require.NoError(t, mu.Do(call("y"), of("y")))
		}
		o.Take()

		// Of several Traces each gets what the one before has returned.
		wraps := func(with string) *etcdlock.Trace {
			return &etcdlock.Trace{Start: func(ctx context.Context, _ etcdlock.StartEvent) context.Context {
				return context.WithValue(ctx, callerKey{}, fmt.Sprint(ctx.Value(callerKey{}), with))
			}}
		}
		none := &etcdlock.Trace{Start: func(context.Context, etcdlock.StartEvent) context.Context {
			return nil
		}}
		joined := contract.MutexOf(t, s, "n",
			etcdlock.WithTrace(etcdlock.JoinTraces(wraps("1"), none, wraps("2"))))
		require.NoError(t, joined.Do(call("z"), of("z12")))
	})
}

// told is a Call that is put into the context of each call. It may panic, or make nothing.
type told struct {
	waited []time.Duration
	makes  func(ctx context.Context) context.Context
}

func (h *told) Holds(ctx context.Context, waited time.Duration) context.Context {
	h.waited = append(h.waited, waited)
	return h.makes(ctx)
}

// What Start has put into the context of a call learns of the hold before the work begins, and
// once, though hooks are blocked. What it makes of the context is the parent of the work.
func TestTheContextOfACallLearnsOfTheHoldAtOnce(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		h, release := new(told), make(chan struct{})
		defer close(release)
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
			Start: func(ctx context.Context, _ etcdlock.StartEvent) context.Context {
				return context.WithValue(ctx, events.CallKey{}, h)
			},
			LeaseGranted: func(context.Context, etcdlock.LeaseGrantedEvent) { <-release },
		}))
		mu, rw, sem := contract.MutexOf(t, s, "n"), tests.RWMutexOf(t, s), tests.SemaphoreOf(t, s, 3)
		lingers := contract.MutexOf(t, s, "n", etcdlock.WithLinger(time.Second))
		inside := func(want string) func(context.Context) error {
			return func(ctx context.Context) error {
				require.Len(t, h.waited, 1)
				h.waited = nil
				require.Equal(t, want, ctx.Value(callerKey{}))
				return nil
			}
		}
		within := func(ctx context.Context) context.Context {
			return context.WithValue(ctx, callerKey{}, "hold")
		}
		for _, row := range []struct {
			makes func(context.Context) context.Context
			want  string
		}{
			{within, "hold"},
			{func(context.Context) context.Context { return nil }, "x"},
			{func(context.Context) context.Context { panic("no") }, "x"},
		} {
			h.makes = row.makes
			fn := inside(row.want)
			var err error
			require.NotPanics(t, func() { err = mu.Do(call("x"), fn) })
			require.NoError(t, err)
			require.NoError(t, s.TryDo(call("x"), "n", fn))
			require.NoError(t, sem.Do(call("x"), 2, fn))
			require.NoError(t, s.DoAll(call("x"), []string{"n", "o"}, fn))
			require.ErrorIs(t, mu.Lead(call("x"), func(ctx context.Context) error {
				return errors.Join(fn(ctx), etcdlock.ErrStopLeading)
			}), etcdlock.ErrStopLeading)
			require.NoError(t, lingers.Do(call("x"), fn))
			require.NoError(t, lingers.Do(call("x"), fn))
			require.NoError(t, rw.RDo(call("x"), func(ctx context.Context) error {
				return errors.Join(fn(ctx), rw.RDo(call("x"), fn))
			}))
		}

		h.makes = within
		require.NoError(t, mu.Lock(call("x")))
		require.Equal(t, []time.Duration{0}, h.waited)
		require.ErrorIs(t, s.TryDo(call("x"), "n", nil), etcdlock.ErrNotRun)
		require.ErrorIs(t, mu.TryLock(call("x")), etcdlock.ErrLocked)
		time.AfterFunc(2*time.Second, func() { _ = mu.Unlock(context.Background()) })
		next, err := s.Lock(call("x"), "n")
		require.NoError(t, err)
		require.Equal(t, []time.Duration{0, 2 * time.Second}, h.waited)
		require.NoError(t, next.Unlock(context.Background()))
	})
}

// If one of several Traces' Start panics, what the others have begun goes on.
func TestAStartThatPanicsUndoesNoOther(t *testing.T) {
	adds := func(what string) *etcdlock.Trace {
		return &etcdlock.Trace{Start: func(ctx context.Context, _ etcdlock.StartEvent) context.Context {
			return context.WithValue(ctx, callerKey{}, fmt.Sprint(ctx.Value(callerKey{}), what))
		}}
	}
	panics := &etcdlock.Trace{Start: func(context.Context, etcdlock.StartEvent) context.Context {
		panic("no")
	}}
	joined := etcdlock.JoinTraces(adds("1"), panics, adds("2"))
	require.Equal(t, "x12", joined.Start(call("x"), etcdlock.StartEvent{}).Value(callerKey{}))
}
