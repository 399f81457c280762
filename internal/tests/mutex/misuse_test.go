package mutex

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A copy of a Mutex would hold what its original holds, and release it twice.
func TestGoVetReportsACopyOfAMutexOrASession(t *testing.T) {
	const program = `package copies

import "github.com/etcdlock/etcdlock"

type server struct{ etcdlock.Mutex }

func ofAMutex(mu *etcdlock.Mutex) { other := *mu; _ = &other }
func ofAStruct(s *server) { other := *s; _ = &other }
func ofASession(s *etcdlock.Session) { other := *s; _ = &other }
func ofAPointer(mu *etcdlock.Mutex) { other := mu; _ = other }
`
	file := filepath.Join(t.TempDir(), "copies.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	// Where nothing is built yet it compiles clientv3 and gRPC first, which takes as long as it
	// takes.
	report, err := exec.CommandContext(t.Context(), "go", "vet", "-copylocks", file).CombinedOutput()
	require.Error(t, err, "go vet finds nothing:\n%s", report)
	for line, what := range map[int]string{7: "Mutex", 8: "Mutex", 9: "Session"} {
		finding := fmt.Sprintf(`copies\.go:%d:.* copies .*etcdlock\.%s contains`, line, what)
		require.Regexp(t, finding, string(report))
	}
	require.NotContains(t, string(report), "copies.go:10:")
}

func TestATokenComesFromHoldsOnly(t *testing.T) {
	token, ok := etcdlock.TokenFrom(t.Context())
	require.False(t, ok)
	require.Zero(t, token)
	token, ok = etcdlock.TokenFrom((*etcdlock.Mutex)(nil).Context(t.Context()))
	require.False(t, ok)
	require.Zero(t, token)
	var none context.Context // which linters do not see
	token, ok = etcdlock.TokenFrom(none)
	require.False(t, ok)
	require.Zero(t, token)
}

// A mistake of the program is an error that names it. It is not a panic, not a request, and not a
// lock that works by accident.
func TestABadInputIsAnErrorThatNamesIt(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		m := contract.Misuse(t, etcd.Client("a"))
		for _, in := range contract.BadInputs() {
			before := etcd.Counts()
			assert.Empty(t, in.Wrong(in.Try(m)), in.Name)
			assert.Equal(t, before, etcd.Counts(), in.Name)
		}
		m.IsUnharmed(t)
	})
}

// refuses requires that a call has an error, which names the lock, and sends nothing.
func refuses(t *testing.T, etcd *fake.Server, is error, name string, call func() error) {
	t.Helper()
	before := etcd.Counts()
	err := call()
	require.ErrorIs(t, err, is)
	require.ErrorContains(t, err, name)
	require.Equal(t, before, etcd.Counts())
}

func TestAnOddNameIsANameLikeAnyOther(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client, ctx := etcd.Client("a"), contract.Patient(t)
		s, elsewhere := contract.NewSession(t, client), contract.NewSession(t, client)
		for _, name := range []string{
			" ", " orders 42 ", "orders\n42", "\x01", "/orders", "a//b", "../..", "%s%d%!",
			`"orders" \ 'n`, "заказы/日本語", "🔒", "\uFFFD",
			"orders/6ba7b810-9dad-41d1-80b4-00c04fd430c8", // like a contender's key
			strings.Repeat("n", 1024), strings.Repeat("日本語", 113) + "1234567",
		} {
			mu, other := contract.MutexOf(t, s, name), contract.MutexOf(t, elsewhere, name)
			require.NoError(t, mu.Lock(ctx))
			require.Equal(t, name, mu.Name())
			require.Equal(t, name, mu.Key()[:len(mu.Key())-37], "the key is name/UUID")

			line, err := etcdlock.Contenders(ctx, client, name)
			require.NoError(t, err)
			require.Len(t, line, 1)
			require.Equal(t, mu.Key(), line[0].Key)
			holders, err := etcdlock.Holders(ctx, client, name)
			require.NoError(t, err)
			require.Equal(t, line, holders)

			err = other.TryLock(ctx)
			var locked *etcdlock.LockedError
			ok := errors.As(err, &locked)
			require.True(t, ok, "%v", err)
			require.Equal(t, name, locked.Name)
			require.Equal(t, mu.Key(), locked.Holder.Key)
			require.NoError(t, mu.Unlock(ctx))
			require.NoError(t, other.TryLock(ctx))
			require.NoError(t, other.Unlock(ctx))
		}
	})
}

// Values at the limits work. (The etcd in memory has the limit of real ones: proof/conformance.)
func TestAnOptionAtItsLimitWorks(t *testing.T) {
	const second = time.Second
	for name, opts := range map[string][]etcdlock.SessionOption{
		"no options":                  nil,
		"a TTL at etcd's limit":       {etcdlock.WithTTL(9_000_000_000 * second)},
		"a margin just below the TTL": {etcdlock.WithTTL(10 * second), etcdlock.WithSafetyMargin(5 * second)},
		"a margin before its TTL":     {etcdlock.WithSafetyMargin(16 * second), etcdlock.WithTTL(20 * second)},
		"the shortest TTL and margin": {etcdlock.WithTTL(100 * time.Millisecond), etcdlock.WithSafetyMargin(time.Millisecond)},
		"the shortest of all others": {
			etcdlock.WithLinger(time.Millisecond), etcdlock.WithMinHold(time.Millisecond),
			etcdlock.WithRecall(time.Millisecond),
			etcdlock.WithAsk(etcdlock.RecallRequest{Grace: time.Millisecond}),
		},
		"a longest hold above the TTL":   {etcdlock.WithMaxHold(math.MaxInt64)},
		"a very long acquire timeout":    {etcdlock.WithAcquireTimeout(math.MaxInt64)},
		"an owner of 1024 bytes":         {etcdlock.WithOwner(strings.Repeat("o", 1024))},
		"an owner that needs escaping":   {etcdlock.WithOwner("\x00\"\\\n<&>\u2028🔒")},
		"two of a kind: the last counts": {etcdlock.WithTTL(2 * second), etcdlock.WithSafetyMargin(second), etcdlock.WithTTL(20 * second)},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				client, ctx := etcd.Client("a"), contract.Patient(t)
				mu := contract.NewMutex(t, client, "a", opts...)
				for _, lock := range []func(context.Context) error{mu.TryLock, mu.Lock} {
					require.NoError(t, lock(ctx))
					contract.StillHolds(t, client, mu)
					require.NoError(t, mu.Unlock(ctx))
				}
			})
		})
	}
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) { // defaults that a Semaphore ignores
		for _, option := range []etcdlock.Option{etcdlock.WithHandoff(1), etcdlock.WithLinger(second),
			etcdlock.WithReentrancy()} {
			_, err := contract.NewSession(t, etcd.Client("a"), option).Semaphore("a", 1)
			require.NoError(t, err)
		}
	})
}

func TestATTLIsRoundedUpToWholeSeconds(t *testing.T) {
	const second = time.Second
	for asked, want := range map[time.Duration]time.Duration{
		100 * time.Millisecond: second, second: second, second + 1: 2 * second,
		2500 * time.Millisecond: 3 * second,
		0:                       15 * second,
	} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			var granted time.Duration
			opts := []etcdlock.SessionOption{etcdlock.WithTrace(&etcdlock.Trace{
				LeaseGranted: func(_ context.Context, e etcdlock.LeaseGrantedEvent) { granted = e.TTL },
			})}
			if asked != 0 {
				opts = append(opts, etcdlock.WithTTL(asked))
			}
			s, err := etcdlock.NewSession(etcd.Client("a"), opts...)
			require.NoError(t, err)
			require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
			require.NoError(t, contract.MutexOf(t, s, "a").Lock(t.Context()))
			require.NoError(t, s.Close(t.Context()))
			synctest.Wait() // the hook has run
			require.Equal(t, want, granted, "of %v", asked)
		})
	}
}

// holdsNothing requires that mu says so in every way in which it can be asked.
func holdsNothing(t *testing.T, client *clientv3.Client, mu *etcdlock.Mutex) {
	t.Helper()
	require.Zero(t, mu.Token())
	require.Empty(t, mu.Key())
	require.Zero(t, mu.Status())
	ctx := mu.Context(t.Context())
	select {
	case <-ctx.Done():
	default:
		t.Error("the context of what is not held is not done")
	}
	require.Equal(t, context.Canceled, ctx.Err())
	require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrNotHeld)
	guarded := client.Txn(t.Context()).If(mu.IsOwner()).Then(clientv3.OpPut("unguarded", ""))
	resp, err := guarded.Commit()
	require.NoError(t, err)
	require.False(t, resp.Succeeded)
}

func TestAMutexThatNoConstructorHasMadeHoldsNothing(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		for _, mu := range []*etcdlock.Mutex{nil, {}} {
			holdsNothing(t, etcd.Client("a"), mu)
			require.Empty(t, mu.Name())
		}
		for _, s := range []*etcdlock.Session{nil, {}} {
			require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
		}
	})
}

// A call with a context that has ended does not even ask for a lease.
func TestAnEndedContextIsReportedWithoutARequest(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		mu := contract.NewMutex(t, client, "a")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, lock := range contract.Locking {
			refuses(t, etcd, context.Canceled, `"a"`, func() error { return lock(mu, ended) })
		}
		require.Empty(t, etcd.Counts())
		_, err := etcdlock.Contenders(ended, client, "a")
		require.ErrorIs(t, err, context.Canceled)
		_, err = etcdlock.Holders(ended, client, "a")
		require.ErrorIs(t, err, context.Canceled)
		err = etcdlock.Break(ended, client, etcdlock.Contender{Name: "a", Key: "a/b", Token: 1})
		require.ErrorIs(t, err, context.Canceled)
	})
}

// What is closed, used or not, refuses every call, and its second Close sends nothing.
func TestAClosedMutexSaysSo(t *testing.T) {
	for how, setUp := range map[string]func(*testing.T, *clientv3.Client) (
		*etcdlock.Mutex, func(context.Context) error,
	){
		"a Mutex with a lease of its own": func(t *testing.T, client *clientv3.Client) (
			*etcdlock.Mutex, func(context.Context) error,
		) {
			mu := contract.NewMutex(t, client, "a")
			return mu, mu.Close
		},
		"a Session's Mutex": func(t *testing.T, client *clientv3.Client) (
			*etcdlock.Mutex, func(context.Context) error,
		) {
			mu := contract.MutexOf(t, contract.NewSession(t, client), "a")
			return mu, mu.Close
		},
		"a Session": func(t *testing.T, client *clientv3.Client) (
			*etcdlock.Mutex, func(context.Context) error,
		) {
			s := contract.NewSession(t, client)
			return contract.MutexOf(t, s, "a"), s.Close
		},
	} {
		for _, used := range []bool{false, true} {
			for _, held := range []bool{false, true} {
				t.Run(fmt.Sprint(how, ", used: ", used, ", held: ", held), func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						client, ctx := etcd.Client("a"), contract.Patient(t)
						mu, closes := setUp(t, client)
						if used {
							require.NoError(t, mu.Do(ctx, func(context.Context) error { return nil }))
						}
						if held {
							require.NoError(t, mu.Lock(ctx))
						}
						hold := mu.Context(ctx)
						require.NoError(t, closes(ctx))
						if held {
							require.Equal(t, etcdlock.ErrClosed, context.Cause(hold))
						}
						before := etcd.Counts()
						for _, lock := range contract.Locking {
							refuses(t, etcd, etcdlock.ErrClosed, `"a"`, func() error { return lock(mu, ctx) })
						}
						refuses(t, etcd, etcdlock.ErrNotHeld, `"a"`, func() error { return mu.Unlock(ctx) })
						require.NoError(t, closes(ctx), "closed again")
						require.NoError(t, mu.Close(ctx), "closed again")
						require.Equal(t, before, etcd.Counts())
						holdsNothing(t, client, mu)
						require.Equal(t, "a", mu.Name())
					})
				})
			}
		}
	}
}

func TestAClosedMutexLeavesItsSessionAlone(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client, ctx := etcd.Client("a"), contract.Patient(t)
		s := contract.NewSession(t, client)
		a, b := contract.MutexOf(t, s, "a"), contract.MutexOf(t, s, "b")
		require.NoError(t, a.Lock(ctx))
		require.NoError(t, b.Lock(ctx))
		lease := s.Lease()
		require.NoError(t, a.Close(ctx))
		contract.StillHolds(t, client, b)
		again := contract.MutexOf(t, s, "a")
		require.NoError(t, again.TryLock(ctx))
		require.Equal(t, lease, s.Lease())
		require.NoError(t, again.Unlock(ctx))
		require.NoError(t, b.Unlock(ctx))
	})
}

// Do reports what its function did to the Mutex. (TestDoLeavesTheNextHoldOfItsMutexAlone: it
// releases nothing that is not its own.)
func TestDoTellsWhatItsFunctionDidToTheHold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client, ctx := etcd.Client("a"), contract.Patient(t)
		mu := contract.NewMutex(t, client, "a")
		require.ErrorIs(t, mu.Do(ctx, mu.Unlock), etcdlock.ErrNotHeld)
		err := mu.Do(ctx, func(ctx context.Context) error {
			err := mu.Close(ctx)
			require.Equal(t, etcdlock.ErrClosed, context.Cause(ctx))
			return err
		})
		require.Error(t, err, "the hold was not whole until the end")
	})
}

// A failing KV is that of a user whose interceptor panics, or calls runtime.Goexit, in a
// transaction.
type failingKV struct {
	clientv3.KV
	fails  func()
	before bool        // it is sent
	fail   atomic.Bool // in the next one
}

func (k *failingKV) Txn(ctx context.Context) clientv3.Txn {
	if !k.fail.Swap(false) {
		return k.KV.Txn(ctx)
	}
	return &failingTxn{Txn: k.KV.Txn(ctx), k: k}
}

type failingTxn struct {
	clientv3.Txn
	k *failingKV
}

func (t *failingTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(cs...)
	return t
}

func (t *failingTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *failingTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *failingTxn) Commit() (*clientv3.TxnResponse, error) {
	if !t.k.before {
		_, _ = t.Txn.Commit()
	}
	t.k.fails()
	return nil, nil
}

// An interceptor panics in a request of a call, or ends its goroutine, before the request is sent
// or once it was carried out. A program that recovers, as net/http does, goes on with the Session,
// and no key of the call is left.
func TestAPanicInARequestBlocksNobody(t *testing.T) {
	panics, exits := func() { panic("in an interceptor") }, runtime.Goexit
	for name, call := range map[string]func(ctx context.Context, s *etcdlock.Session) error{
		"Lock": func(ctx context.Context, s *etcdlock.Session) error {
			_, err := s.Lock(ctx, "n")
			return err
		},
		"TryLock": func(ctx context.Context, s *etcdlock.Session) error {
			_, err := s.TryLock(ctx, "n")
			return err
		},
		"LockAll": func(ctx context.Context, s *etcdlock.Session) error {
			_, err := s.LockAll(ctx, "m", "n")
			return err
		},
		"Unlock":                          nil,
		"Unlock, which puts the next key": nil,
	} {
		for how, fails := range map[string]func(){"panic": panics, "Goexit": exits} {
			for _, before := range []bool{true, false} {
				t.Run(fmt.Sprint(name, ", ", how, ", before ", before), func(t *testing.T) {
					tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
						client := etcd.Client("a")
						kv := &failingKV{KV: client.KV, fails: fails, before: before}
						client.KV = kv
						s := contract.NewSession(t, client)
						h, err := s.Lock(t.Context(), "n")
						require.NoError(t, err)
						next := make(chan error, 1)
						if name == "Unlock, which puts the next key" {
							go func() { next <- s.Do(t.Context(), "n", nothing) }()
							synctest.Wait()
						} else {
							next <- nil
						}
						if call != nil {
							require.NoError(t, h.Unlock(t.Context()))
						}
						over := make(chan struct{})
						go func() {
							defer close(over)
							defer func() { _ = recover() }()
							kv.fail.Store(true)
							if call != nil {
								err = call(t.Context(), s)
							} else {
								err = h.Unlock(t.Context())
							}
							assert.Fail(t, "it has returned", err)
						}()
						<-over
						require.NoError(t, tests.SoonOr(t, next, "the next one does not get in"))
						synctest.Wait()
						require.Empty(t, etcd.Keys("n/"), "a key is left")
						require.Empty(t, etcd.Keys("m/"), "a key is left")
						other := tests.SessionOf(t, etcd, "b")
						for _, s := range []*etcdlock.Session{other, s} {
							require.NoError(t, s.Do(tests.Within(t, time.Second), "n", nothing))
						}
					})
				})
			}
		}
	}
}

func nothing(context.Context) error { return nil }
