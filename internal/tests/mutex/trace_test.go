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
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
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
		"Unlock that lingers": {[]etcdlock.Option{etcdlock.WithLinger(second)}, func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			_ = mu.Unlock(context.Background())
		}, []string{"released after 1s"}},
		"Close of the Mutex": {nil, func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			_ = mu.Close(context.Background())
		}, []string{"released after 1s"}},
		"Close of the Session": {nil, func(_ *fake.Server, s *etcdlock.Session, _ *etcdlock.Mutex) {
			_ = s.Close(context.Background())
		}, []string{"released after 1s", "replaced"}},
		"Unlock that is not confirmed": {nil, func(etcd *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
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
		"MaxHold": {[]etcdlock.Option{etcdlock.WithMaxHold(2 * second)}, func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			time.Sleep(3 * second)
			_ = mu.Unlock(context.Background())
		}, []string{"lost after 2s: etcdlock: held for as long as WithMaxHold allows", "pending", "done"}},
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
				require.Equal(t, row.want, got)
			})
		})
	}
}

// When a hold that shares its lock has begun, a hook reports at once how it shares, and
// with how many permits. That happens for each one that joins, and for no exclusive one.
func TestAHoldThatSharesIsToldToDoSo(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var o tests.Told
		trace := o.Trace()
		trace.AcquiredContext = func(context.Context, string, int64, time.Duration, int) { o.Add("context") }
		var tokens []int64
		trace.Shared = func(name string, token int64, mode string, weight int) {
			o.Add("shared %s %s %d", name, mode, weight)
			tokens = append(tokens, token)
		}
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(trace))
		rw, sem := tests.RWMutexOf(t, s), tests.SemaphoreOf(t, s, 5)
		const acquired, released = "acquired after 0s behind 0", "released after 0s"

		first, err := rw.RLock(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Second)
		joins, err := rw.TryRLock(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{
			acquired, "context", "shared n read 1", acquired, "context", "shared n read 1",
		}, o.Take())
		require.Equal(t, []int64{first.Token(), joins.Token()}, tokens)
		require.NoError(t, first.Unlock(t.Context()))
		require.NoError(t, joins.Unlock(t.Context()))
		require.Equal(t, []string{"released after 1s", released}, o.Take())

		three, two := tests.AcquireWithin(t, sem, 3, time.Second), tests.AcquireWithin(t, sem, 2, time.Second)
		require.Equal(t, []string{
			acquired, "context", "shared n permit 3", acquired, "context", "shared n permit 2",
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
		require.NotContains(t, strings.Join(o.Take(), " "), "shared")
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
		locked, ok := errors.AsType[*etcdlock.LockedError](err)
		require.True(t, ok, "%v", err)
		who := fmt.Sprintf("holder (%s:%d)", locked.Holder.Host, os.Getpid())
		require.Equal(t, []string{`gave up after 0s behind 0: etcdlock: lock "n": held by ` + who}, o.Take())

		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		require.ErrorIs(t, mu.Lock(ctx), context.DeadlineExceeded)
		require.Equal(t, []string{
			"queued behind 1, holder", "pending", "done",
			`gave up after 3s behind 1: etcdlock: lock "n": 2nd in line, held by ` + who + `: context deadline exceeded`,
		}, o.Take())
		require.NoError(t, holder.Unlock(context.Background()))
	})
}

// The error of a wait that a time-out ends has the cause of the context, if there is one, and tells
// what it waited for.
func TestATimeOutTellsWhatTheWaitWasFor(t *testing.T) {
	closing := errors.New("the shop is closing")
	acquire := []etcdlock.Option{etcdlock.WithAcquireTimeout(time.Second)}
	for name, row := range map[string]struct {
		opts    []etcdlock.Option
		timeout time.Duration // of the context
		cause   error
		text    string
		is      []error
	}{
		"of the context": {nil, time.Second, nil, "context deadline exceeded", nil},
		"with a cause":   {nil, time.Second, closing, "the shop is closing", []error{closing}},
		"to acquire":     {acquire, time.Hour, nil, "context deadline exceeded", nil},
		"to acquire, before that of a context with a cause": {
			acquire, time.Hour, closing, "context deadline exceeded", nil,
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
				require.Regexp(t, `^etcdlock: lock "n": 2nd in line, held by api-7:1234 \(.*:\d+\): `+row.text+"$", err.Error())
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
		trace.LeaseAtRisk = func(_ clientv3.LeaseID, remaining time.Duration) {
			o.Add("at risk, %t", 0 < remaining && remaining < tests.TTL/2)
		}
		logger := slog.New(slog.NewTextHandler(contract.WriterFunc(func(record []byte) (int, error) {
			_, message, _ := strings.Cut(string(record), `msg="`)
			message, _, _ = strings.Cut(message, `"`)
			o.Add("%s", message)
			return len(record), nil
		}), nil))
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(trace), etcdlock.WithLogger(logger)), "n")
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
		QueuedContext: func(ctx context.Context, _ string, ahead int, holder etcdlock.Contender) {
			add(ctx, fmt.Sprintf("queued behind %d, %s,", ahead, holder.Owner))
		},
		GaveUpContext: func(ctx context.Context, _ string, waited time.Duration, ahead int, err error) {
			add(ctx, fmt.Sprintf("gave up after %v behind %d,", waited, ahead))
		},
		AcquiredContext: func(ctx context.Context, _ string, _ int64, waited time.Duration, ahead int) {
			add(ctx, fmt.Sprintf("acquired after %v behind %d", waited, ahead))
		},
		ReleasedContext: func(ctx context.Context, _ string, _ int64, held time.Duration) {
			add(ctx, fmt.Sprintf("released after %v", held))
		},
		LostContext: func(ctx context.Context, _ string, _ int64, held time.Duration, reason error) {
			add(ctx, fmt.Sprintf("lost after %v", held))
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
		"Lock and Unlock": {nil, func(t *testing.T, _ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
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

// Each hook about a call has a twin with the call's context and the same arguments.
func TestEachHookOfACallHasOneWithTheContext(t *testing.T) {
	hooks := make(map[string]reflect.Type)
	for name, hook := range hooksOf(new(etcdlock.Trace)) {
		require.Equal(t, reflect.Func, hook.Kind(), name)
		require.Zero(t, hook.Type().NumOut(), name)
		hooks[name] = hook.Type()
	}
	arguments := func(hook reflect.Type, from int) (types []reflect.Type) {
		for i := from; i < hook.NumIn(); i++ {
			types = append(types, hook.In(i))
		}
		return types
	}
	twins := 0
	for name, hook := range hooks {
		plain, withContext := strings.CutSuffix(name, "Context")
		switch {
		case withContext:
			require.Contains(t, hooks, plain)
			require.Equal(t, reflect.TypeFor[context.Context](), hook.In(0), name)
			require.Equal(t, arguments(hooks[plain], 0), arguments(hook, 1), name)
			twins++
		case name == "Recalled": // it is about a request by another, and about no call
		case name == "Shared": // it adds to the event that AcquiredContext reports
		case hook.In(0).Kind() == reflect.String && hook.NumIn() > 1: // about a lock, not about a key
			require.Contains(t, hooks, name+"Context")
		}
	}
	require.Equal(t, 6, twins)
}

// Hooks without a context and with one report the same events, in the same order. The one
// without comes first.
func TestHooksWithTheContextTellTheSame(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var both, plain tests.Told
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(
			etcdlock.JoinTraces(both.Trace(), callers(&both), plain.Trace())))
		mu := contract.MutexOf(t, s, "n")
		tests.LockWithin(t, contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "other"), time.Second)
		require.NoError(t, mu.Lock(call("x")))
		require.ErrorIs(t, contract.MutexOf(t, s, "n").TryLock(call("x")), etcdlock.ErrLocked)
		ctx, cancel := context.WithTimeout(call("x"), time.Second)
		defer cancel()
		require.ErrorIs(t, contract.MutexOf(t, s, "n").Lock(ctx), context.DeadlineExceeded)
		require.NoError(t, mu.Unlock(call("x")))
		first := func(line string) string { return strings.Fields(line)[0] }
		var got, want []string
		for _, line := range both.Take() {
			got = append(got, first(line))
		}
		for _, line := range plain.Take() {
			want = append(want, first(line), first(line))
		}
		require.Equal(t, []string{
			"acquired", "acquired", "gave", "gave", "queued", "queued", "gave", "gave",
			"released", "released",
		}, got)
		require.Equal(t, want, got)
	})
}

// recorder returns a Trace all of whose hooks append who and which to calls.
func recorder(who string, calls *[]string) *etcdlock.Trace {
	trace := new(etcdlock.Trace)
	for name, hook := range hooksOf(trace) {
		hook.Set(reflect.MakeFunc(hook.Type(), func(args []reflect.Value) []reflect.Value {
			last := args[len(args)-1].Interface()
			*calls = append(*calls, fmt.Sprintf("%s %s %v", who, name, last))
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
	joined.CleanupDone("key")
	require.Equal(t, []string{"a CleanupDone key"}, calls)
}
