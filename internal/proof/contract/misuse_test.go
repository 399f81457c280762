package contract_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// noContext is a nil context that linters do not see.
var noContext context.Context

// longest is the longest text that an error may have, whatever was handed in: it has to fit
// into a log line.
const longest = 2048

// A refusal is a bad input, and what the error must say about it.
type refusal struct {
	name  string
	try   func() error
	says  []string
	isErr error // by errors.Is, if not nil
}

// checkRefusals runs each refusal as a test of its own. The error must name what was wrong,
// come from this package, and have a bearable length. The call must send no request.
func checkRefusals(t *testing.T, counter *contract.Counter, refusals []refusal) {
	t.Helper()
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			before := counter.Counts()
			defer func() {
				if value := recover(); value != nil {
					t.Fatalf("panic: %v", value) // the other cases go on
				}
			}()
			err := r.try()
			require.Error(t, err)
			require.True(t, strings.HasPrefix(err.Error(), "etcdlock: "), "%v", err)
			require.LessOrEqual(t, len(err.Error()), longest, "the length of the text")
			for _, text := range r.says {
				require.ErrorContains(t, err, text)
			}
			if r.isErr != nil {
				require.ErrorIs(t, err, r.isErr)
			}
			sentNothing(t, counter, before)
		})
	}
}

// sentNothing fails the test if anything was sent since before.
func sentNothing(t *testing.T, counter *contract.Counter, before contract.Counts) {
	t.Helper()
	counter.Costs(t, before, "none")
}

// stillHolds fails the test unless mu holds its lock, in etcd's eyes too.
func stillHolds(t *testing.T, client *clientv3.Client, mu *etcdlock.Mutex) {
	t.Helper()
	require.NotZero(t, mu.Token())
	require.NoError(t, mu.Context(t.Context()).Err())
	resp, err := client.Txn(t.Context()).If(mu.IsOwner()).Commit()
	require.NoError(t, err)
	require.True(t, resp.Succeeded, "the key of the hold is there")
}

// countedWorld is a cluster of one with a client whose requests are counted. Nothing may be
// left in etcd at its end.
func countedWorld(t *testing.T) (*clientv3.Client, *contract.Counter) {
	t.Helper()
	etcdtest.VerifyNoLeaks(t)
	counter := contract.NewCounter()
	client := etcdtest.Start(t, 1).Client(t, contract.With(counter))
	contract.VerifyClean(t, client, "")
	return client, counter
}

// nothing is a critical section that must not be entered.
func nothing(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		t.Error("the critical section was entered")
		return nil
	}
}

func TestABadNameIsAnErrorOfTheConstructor(t *testing.T) {
	t.Parallel()
	client, counter := countedWorld(t)
	s := contract.NewSession(t, client)
	names := []struct {
		about, name string
		says        []string
	}{
		{"an empty name", "", []string{`""`, "empty"}},
		{"a slash only", "/", []string{`"/"`, `ends with "/"`}},
		{"a slash at the end", "orders/", []string{`"orders/"`, `ends with "/"`}},
		{"two slashes at the end", "orders//", []string{`"orders//"`, `ends with "/"`}},
		{"NUL alone", "\x00", []string{`"\x00"`, "NUL"}},
		{"NUL inside", "or\x00ders", []string{`"or\x00ders"`, "NUL"}},
		{"a byte that is not UTF-8", "orders\xff", []string{`"orders\xff"`, "UTF-8"}},
		{"half a surrogate pair", "\xed\xa0\x80", []string{"UTF-8"}},
		{"1025 bytes", strings.Repeat("n", 1025), []string{`"nnnnnnnn`, "1025 bytes", "1024"}},
		{"1025 bytes in fewer characters", strings.Repeat("日本語", 113) + "12345678", []string{"1025 bytes"}},
		{"2 MiB", strings.Repeat("n", 2<<20), []string{"2097152 bytes"}},
		{"2 MiB that are not UTF-8", strings.Repeat("\xff", 2<<20), []string{"2097152 bytes"}},
	}
	var refusals []refusal
	for _, n := range names {
		for by, build := range map[string]func() error{
			"New":           func() error { _, err := etcdlock.New(client, n.name); return err },
			"Session.Mutex": func() error { _, err := s.Mutex(n.name); return err },
			"Contenders": func() error {
				_, err := etcdlock.Contenders(t.Context(), client, n.name)
				return err
			},
		} {
			refusals = append(refusals, refusal{name: n.about + " for " + by, try: build, says: n.says})
		}
	}
	checkRefusals(t, counter, refusals)
}

func TestAnOddNameIsANameLikeAnyOther(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	s := contract.NewSession(t, client)
	for about, name := range map[string]string{
		"a space":                       " ",
		"spaces around":                 " orders 42 ",
		"a newline":                     "orders\n42",
		"a control character":           "\x01",
		"a slash at the beginning":      "/orders",
		"two slashes inside":            "a//b",
		"dots":                          "../..",
		"format verbs":                  "%s%d%!",
		"quotes":                        `"orders" \ 'n`,
		"another script":                "заказы/日本語",
		"an emoji":                      "🔒",
		"the replacement character":     "\uFFFD",
		"a name like a contender's key": "orders/6ba7b810-9dad-41d1-80b4-00c04fd430c8",
		"exactly 1024 bytes":            strings.Repeat("n", 1024),
		"exactly 1024 bytes of unicode": strings.Repeat("日本語", 113) + "1234567",
	} {
		t.Run(about, func(t *testing.T) {
			ctx := contract.Patient(t)
			mu := contract.MutexOf(t, s, name)
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

			other := contract.NewMutex(t, client, name)
			err = other.TryLock(ctx)
			locked, ok := errors.AsType[*etcdlock.LockedError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, name, locked.Name)
			require.Equal(t, mu.Key(), locked.Holder.Key)
			require.NoError(t, mu.Unlock(ctx))
			require.NoError(t, other.TryLock(ctx))
			require.NoError(t, other.Unlock(ctx))
		})
	}
}

// ofLocks returns opts, if all of them are options of what a Session makes.
func ofLocks(opts []etcdlock.SessionOption) (of []etcdlock.Option, are bool) {
	for _, o := range opts {
		l, is := o.(etcdlock.Option)
		if !is && o != nil {
			return nil, false
		}
		of = append(of, l)
	}
	return of, true
}

func TestABadOptionIsAnErrorOfTheConstructor(t *testing.T) {
	t.Parallel()
	client, counter := countedWorld(t)
	s := contract.NewSession(t, client)
	type opts []etcdlock.SessionOption
	const second = time.Second
	cases := []struct {
		name string
		opts opts
		says []string
	}{
		{"a TTL of 0", opts{etcdlock.WithTTL(0)}, []string{"WithTTL(0s)"}},
		{"a negative TTL", opts{etcdlock.WithTTL(-3 * second)}, []string{"WithTTL(-3s)"}},
		{"the least TTL there is", opts{etcdlock.WithTTL(math.MinInt64)}, []string{"WithTTL(-2562047h47m16.854775808s)"}},
		{"a TTL above etcd's limit", opts{etcdlock.WithTTL(math.MaxInt64)}, []string{"WithTTL(2562047h47m16.854775807s)", "2500000h"}},
		{"a TTL just above etcd's limit", opts{etcdlock.WithTTL(9_000_000_000*second + 1)}, []string{"WithTTL(2500000h0m0.000000001s)", "2500000h"}},
		{"a margin of 0", opts{etcdlock.WithSafetyMargin(0)}, []string{"WithSafetyMargin(0s)"}},
		{"a negative margin", opts{etcdlock.WithSafetyMargin(-1)}, []string{"WithSafetyMargin(-1ns)"}},
		{"a margin of the default TTL", opts{etcdlock.WithSafetyMargin(15 * second)}, []string{"margin", "15s"}},
		{"a margin above the default TTL", opts{etcdlock.WithSafetyMargin(math.MaxInt64)}, []string{"margin", "2562047h47m16.854775807s"}},
		{"a margin of the TTL, given after it", opts{etcdlock.WithTTL(3 * second), etcdlock.WithSafetyMargin(3 * second)}, []string{"margin 3s", "TTL 3s"}},
		{"a margin of the TTL, given before it", opts{etcdlock.WithSafetyMargin(3 * second), etcdlock.WithTTL(3 * second)}, []string{"margin 3s", "TTL 3s"}},
		{"a margin above the TTL, given after it", opts{etcdlock.WithTTL(3 * second), etcdlock.WithSafetyMargin(4 * second)}, []string{"margin 4s", "TTL 3s"}},
		{"a margin above the TTL, given before it", opts{etcdlock.WithSafetyMargin(4 * second), etcdlock.WithTTL(3 * second)}, []string{"margin 4s", "TTL 3s"}},
		{"a longest hold of 0", opts{etcdlock.WithMaxHold(0)}, []string{"WithMaxHold(0s)"}},
		{"a negative longest hold", opts{etcdlock.WithMaxHold(-second)}, []string{"WithMaxHold(-1s)"}},
		{"an acquire timeout of 0", opts{etcdlock.WithAcquireTimeout(0)}, []string{"WithAcquireTimeout(0s)"}},
		{"a negative acquire timeout", opts{etcdlock.WithAcquireTimeout(-second)}, []string{"WithAcquireTimeout(-1s)"}},
		{"an empty owner", opts{etcdlock.WithOwner("")}, []string{`WithOwner("")`, "empty"}},
		{"an owner that is not UTF-8", opts{etcdlock.WithOwner("api\xff")}, []string{`WithOwner("api\xff")`, "UTF-8"}},
		{"an owner of 1025 bytes", opts{etcdlock.WithOwner(strings.Repeat("o", 1025))}, []string{`WithOwner("oooooo`, "1025 bytes", "1024"}},
		{"an owner of 2 MiB", opts{etcdlock.WithOwner(strings.Repeat("o", 2<<20))}, []string{"WithOwner(", "2097152 bytes"}},
		{"a nil Option alone", opts{nil}, []string{"option 1 is nil"}},
		{"a nil Option between others", opts{etcdlock.WithOwner("api"), nil, etcdlock.WithReentrancy()}, []string{"option 2 is nil"}},
		{"a nil logger", opts{etcdlock.WithLogger(nil)}, []string{"WithLogger(nil)"}},
		{"a nil trace", opts{etcdlock.WithTrace(nil)}, []string{"WithTrace(nil)"}},
		{"a bad option before a good one of its kind", opts{etcdlock.WithMaxHold(0), etcdlock.WithMaxHold(second)}, []string{"WithMaxHold(0s)"}},
	}
	var refusals []refusal
	for _, c := range cases {
		refusals = append(refusals,
			refusal{c.name + " for New", func() error {
				_, err := etcdlock.New(client, "a", c.opts...)
				return err
			}, c.says, nil},
			refusal{c.name + " for NewSession", func() error {
				_, err := etcdlock.NewSession(client, c.opts...)
				return err
			}, c.says, nil})
		if of, are := ofLocks(c.opts); are {
			refusals = append(refusals, refusal{
				c.name + " for Session.Mutex", func() error {
					_, err := s.Mutex("a", of...)
					return err
				}, c.says, nil,
			})
		}
	}
	for name, option := range map[string]etcdlock.Option{
		"WithHandoff": etcdlock.WithHandoff(1), "WithLinger": etcdlock.WithLinger(second),
		"WithReentrancy": etcdlock.WithReentrancy(),
	} {
		says := []string{name, "not for a Semaphore"}
		refusals = append(refusals,
			refusal{name + " for NewSemaphore", func() error {
				_, err := etcdlock.NewSemaphore(client, "a", 1, option)
				return err
			}, says, nil},
			refusal{name + " for Session.Semaphore", func() error {
				_, err := s.Semaphore("a", 1, option)
				return err
			}, says, nil})
		as, err := etcdlock.NewSession(client, option)
		require.NoError(t, err, "a default")
		_, err = as.Semaphore("a", 1)
		require.NoError(t, err, "it is ignored there")
		require.NoError(t, as.Close(t.Context()))
	}
	checkRefusals(t, counter, refusals)
}

// Values at the limits work.
func TestAnOptionAtItsLimitWorks(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for name, opts := range map[string][]etcdlock.SessionOption{
		"no options":                     nil,
		"a TTL at etcd's limit":          {etcdlock.WithTTL(9_000_000_000 * second)},
		"a margin just below the TTL":    {etcdlock.WithTTL(10 * second), etcdlock.WithSafetyMargin(5 * second)},
		"a margin before its TTL":        {etcdlock.WithSafetyMargin(16 * second), etcdlock.WithTTL(20 * second)},
		"a margin of 1 ns":               {etcdlock.WithSafetyMargin(1)},
		"a longest hold above the TTL":   {etcdlock.WithMaxHold(math.MaxInt64)},
		"a very long acquire timeout":    {etcdlock.WithAcquireTimeout(math.MaxInt64)},
		"an owner of 1024 bytes":         {etcdlock.WithOwner(strings.Repeat("o", 1024))},
		"an owner that needs escaping":   {etcdlock.WithOwner("\x00\"\\\n<&>\u2028🔒")},
		"two of a kind: the last counts": {etcdlock.WithTTL(2 * second), etcdlock.WithSafetyMargin(second), etcdlock.WithTTL(20 * second)},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := countedWorld(t)
			ctx := contract.Patient(t)
			mu := contract.NewMutex(t, client, "a", opts...)
			for op, lock := range map[string]func(context.Context) error{"TryLock": mu.TryLock,
				"Lock": mu.Lock} {
				require.NoError(t, lock(ctx), op)
				stillHolds(t, client, mu)
				require.NoError(t, mu.Unlock(ctx), op)
			}
		})
	}
}

func TestATTLIsRoundedUpToWholeSeconds(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	const second = time.Second
	for asked, want := range map[time.Duration]time.Duration{
		1: second, second: second, second + 1: 2 * second, 2500 * time.Millisecond: 3 * second,
		0: 15 * second,
	} {
		t.Run(asked.String(), func(t *testing.T) {
			granted := make(chan time.Duration, 10)
			opts := []etcdlock.SessionOption{etcdlock.WithTrace(&etcdlock.Trace{
				LeaseGranted: func(_ context.Context, e etcdlock.LeaseGrantedEvent) { granted <- e.TTL },
			})}
			if asked != 0 {
				opts = append(opts, etcdlock.WithTTL(asked))
			}
			s, err := etcdlock.NewSession(client, opts...)
			require.NoError(t, err)
			require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
			require.NoError(t, contract.MutexOf(t, s, "a").Lock(t.Context()))
			require.Equal(t, want, receive(t, granted, "the lease"))
			require.NoError(t, s.Close(t.Context()))
		})
	}
}

func TestABadClientIsAnErrorOfTheConstructor(t *testing.T) {
	t.Parallel()
	ctx := contract.Patient(t)
	noClient := (*clientv3.Client)(nil)
	zero := &clientv3.Client{}
	whole := etcdtest.Start(t, 1).Client(t)
	checkRefusals(t, contract.NewCounter(), []refusal{
		{"a nil client for New", func() error { _, err := etcdlock.New(nil, "a"); return err }, []string{"nil client"}, nil},
		{"a nil client for NewSession", func() error { _, err := etcdlock.NewSession(nil); return err }, []string{"nil client"}, nil},
		{"a zero client for New", func() error { _, err := etcdlock.New(zero, "a"); return err }, []string{"client", "clientv3.New"}, nil},
		{"a zero client for NewSession", func() error { _, err := etcdlock.NewSession(zero); return err }, []string{"client", "clientv3.New"}, nil},
		{"a client with a KV only", func() error { _, err := etcdlock.NewSession(&clientv3.Client{KV: whole.KV}); return err }, []string{"Lease"}, nil},
		{"a client without a Lease", func() error {
			_, err := etcdlock.NewSession(&clientv3.Client{KV: whole.KV, Watcher: whole.Watcher})
			return err
		}, []string{"Lease"}, nil},
		{"a client without a Watcher", func() error {
			_, err := etcdlock.NewSession(&clientv3.Client{KV: whole.KV, Lease: whole.Lease})
			return err
		}, []string{"Watcher"}, nil},
		{"a nil KV for Contenders", func() error { _, err := etcdlock.Contenders(ctx, nil, "a"); return err }, []string{"nil KV", `"a"`}, nil},
		{"a nil KV for Holders", func() error { _, err := etcdlock.Holders(ctx, nil, "a"); return err }, []string{"nil KV", `"a"`}, nil},
		{"a nil KV for Break", func() error { return etcdlock.Break(ctx, nil, etcdlock.Contender{Key: "a/b", Token: 1}) }, []string{"nil KV"}, nil},

		// The same mistakes when the variable is a *clientv3.Client.
		{"a nil client for Contenders", func() error { _, err := etcdlock.Contenders(ctx, noClient, "a"); return err }, []string{"nil"}, nil},
		{"a nil client for Holders", func() error { _, err := etcdlock.Holders(ctx, noClient, "a"); return err }, []string{"nil"}, nil},
		{"a nil client for Break", func() error { return etcdlock.Break(ctx, noClient, etcdlock.Contender{Key: "a/b", Token: 1}) }, []string{"nil"}, nil},
		{"a zero client for Contenders", func() error { _, err := etcdlock.Contenders(ctx, zero, "a"); return err }, []string{"KV"}, nil},
		{"a zero client for Holders", func() error { _, err := etcdlock.Holders(ctx, zero, "a"); return err }, []string{"KV"}, nil},
		{"a zero client for Break", func() error { return etcdlock.Break(ctx, zero, etcdlock.Contender{Key: "a/b", Token: 1}) }, []string{"KV"}, nil},
	})
}

func TestANilContextOrFunctionIsAnErrorAndNothingElse(t *testing.T) {
	t.Parallel()
	client, counter := countedWorld(t)
	s := contract.NewSession(t, client)
	held, free := contract.MutexOf(t, s, "held"), contract.MutexOf(t, s, "free")
	own := contract.NewMutex(t, client, "own")
	require.NoError(t, held.Lock(t.Context()))
	require.NoError(t, own.Lock(t.Context()))
	c := etcdlock.Contender{Name: "held", Key: held.Key(), Token: held.Token()}
	checkRefusals(t, counter, []refusal{
		{"Lock without a context", func() error { return free.Lock(noContext) }, []string{"nil context", `"free"`}, nil},
		{"TryLock without a context", func() error { return free.TryLock(noContext) }, []string{"nil context", `"free"`}, nil},
		{"Do without a context", func() error { return free.Do(noContext, nothing(t)) }, []string{"nil context", `"free"`}, nil},
		{"TryDo without a context", func() error { return free.TryDo(noContext, nothing(t)) }, []string{"nil context", `"free"`}, nil},
		{"Do without a function", func() error { return free.Do(t.Context(), nil) }, []string{"nil function"}, nil},
		{"TryDo without a function", func() error { return free.TryDo(t.Context(), nil) }, []string{"nil function"}, nil},
		{"Unlock without a context of what is held", func() error { return held.Unlock(noContext) }, []string{"nil context", `"held"`}, nil},
		{"Unlock without a context of what is not", func() error { return free.Unlock(noContext) }, []string{`"free"`}, nil},
		{"Lock without a context of what is held", func() error { return held.Lock(noContext) }, []string{"nil context", `"held"`}, nil},
		{"Close without a context of a Session's Mutex", func() error { return held.Close(noContext) }, []string{"nil context", `"held"`}, nil},
		{"Close without a context of a Mutex of its own", func() error { return own.Close(noContext) }, []string{"nil context", `"own"`}, nil},
		{"Close without a context of a Session", func() error { return s.Close(noContext) }, []string{"nil context"}, nil},
		{"Contenders without a context", func() error { _, err := etcdlock.Contenders(noContext, client, "held"); return err }, []string{"nil context", `"held"`}, nil},
		{"Holders without a context", func() error { _, err := etcdlock.Holders(noContext, client, "he"); return err }, []string{"nil context", `"he"`}, nil},
		{"Holders without a context for a prefix of 2 MiB", func() error {
			_, err := etcdlock.Holders(noContext, client, strings.Repeat("p", 2<<20))
			return err
		}, []string{"nil context"}, nil},
		{"Break without a context", func() error { return etcdlock.Break(noContext, client, c) }, []string{"nil context", `"held"`}, nil},
	})

	ctx := held.Context(noContext)
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.ErrorContains(t, context.Cause(ctx), "nil context")
	token, ok := etcdlock.TokenFrom(noContext)
	require.False(t, ok)
	require.Zero(t, token)

	// After all of this everything is as it was.
	stillHolds(t, client, held)
	stillHolds(t, client, own)
	require.NoError(t, free.Lock(t.Context()))
	require.NoError(t, free.Unlock(t.Context()))
	require.NoError(t, held.Unlock(t.Context()))
	require.NoError(t, own.Unlock(t.Context()))
}

func TestAZeroMutexReturnsErrors(t *testing.T) {
	t.Parallel()
	client, counter := countedWorld(t)
	var never *etcdlock.Mutex
	for which, mu := range map[string]*etcdlock.Mutex{"nil": never, "zero": {}} {
		t.Run(which, func(t *testing.T) {
			made := []string{"not made with New"}
			ctx := contract.Patient(t)
			checkRefusals(t, counter, []refusal{
				{"Lock", func() error { return mu.Lock(ctx) }, made, nil},
				{"Lock without a context", func() error { return mu.Lock(noContext) }, made, nil},
				{"TryLock", func() error { return mu.TryLock(ctx) }, made, nil},
				{"Do", func() error { return mu.Do(ctx, nothing(t)) }, made, nil},
				{"TryDo", func() error { return mu.TryDo(ctx, nothing(t)) }, made, nil},
				{"Do without a function", func() error { return mu.Do(ctx, nil) }, nil, nil},
				{"Unlock", func() error { return mu.Unlock(ctx) }, nil, etcdlock.ErrNotHeld},
				{"Unlock without a context", func() error { return mu.Unlock(noContext) }, nil, nil},
				{"Close", func() error { return mu.Close(ctx) }, made, nil},
				{"Close without a context", func() error { return mu.Close(noContext) }, made, nil},
				{"Locker().Lock", func() error { return panicOf(mu.Locker().Lock) }, made, nil},
				{"Locker().Unlock", func() error { return panicOf(mu.Locker().Unlock) }, nil, etcdlock.ErrNotHeld},
			})
			require.Zero(t, mu.Token())
			require.Empty(t, mu.Key())
			require.Empty(t, mu.Name())
			require.True(t, mu.Deadline().IsZero())
			neverHeld(t, mu)
			falseInEtcd(t, client, mu.IsOwner())
		})
	}
}

func TestAZeroSessionReturnsErrors(t *testing.T) {
	t.Parallel()
	var never *etcdlock.Session
	for which, s := range map[string]*etcdlock.Session{"nil": never, "zero": {}} {
		t.Run(which, func(t *testing.T) {
			made := []string{"not made with NewSession"}
			checkRefusals(t, contract.NewCounter(), []refusal{
				{"Mutex", func() error { _, err := s.Mutex("a"); return err }, made, nil},
				{"Mutex with an option", func() error { _, err := s.Mutex("a", etcdlock.WithReentrancy()); return err }, made, nil},
				{"Close", func() error { return s.Close(t.Context()) }, made, nil},
				{"Close without a context", func() error { return s.Close(noContext) }, made, nil},
			})
			require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
		})
	}
}

// panicOf returns the error that f panics with. A panic with any other value is a failure.
func panicOf(f func()) (err error) {
	defer func() {
		if value := recover(); value != nil {
			var ok bool
			if err, ok = value.(error); !ok {
				err = fmt.Errorf("panicked with a %T: %v", value, value)
			}
		}
	}()
	f()
	return nil
}

// neverHeld fails the test unless mu's Context is that of a Mutex that is not held.
func neverHeld(t *testing.T, mu *etcdlock.Mutex) {
	t.Helper()
	ctx := mu.Context(t.Context())
	select {
	case <-ctx.Done():
	default:
		t.Error("the context of what is not held is not done")
	}
	require.Equal(t, context.Canceled, ctx.Err())
	require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrNotHeld)
}

// falseInEtcd fails the test unless a transaction that is guarded by cmp is
// carried out and does nothing.
func falseInEtcd(t *testing.T, client *clientv3.Client, cmp clientv3.Cmp) {
	t.Helper()
	resp, err := client.Txn(t.Context()).If(cmp).Then(clientv3.OpPut("unguarded", "")).Commit()
	require.NoError(t, err)
	require.False(t, resp.Succeeded)
}

// The guard of a hold that is over, or never was, is false, whatever stands below the
// prefix. The transaction has no error.
func TestIsOwnerWithoutAHoldIsFalse(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := contract.Patient(t)
	mu := contract.NewMutex(t, client, "a")
	falseInEtcd(t, client, mu.IsOwner())

	require.NoError(t, mu.Lock(ctx))
	of := mu.IsOwner()
	require.NoError(t, mu.Unlock(ctx))
	falseInEtcd(t, client, mu.IsOwner())
	falseInEtcd(t, client, of)

	other := contract.NewMutex(t, client, "a")
	require.NoError(t, other.Lock(ctx))
	falseInEtcd(t, client, mu.IsOwner())
	falseInEtcd(t, client, of)
	stillHolds(t, client, other)
	require.NoError(t, other.Unlock(ctx))

	_, err := client.Put(ctx, "a/", "a key that is the bare prefix")
	require.NoError(t, err)
	falseInEtcd(t, client, mu.IsOwner())
	_, err = client.Delete(ctx, "a/")
	require.NoError(t, err)
}

func TestUnlockOfWhatIsNotHeldDoesNothing(t *testing.T) {
	t.Parallel()
	client, counter := countedWorld(t)
	ctx := contract.Patient(t)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	s := contract.NewSession(t, client)
	mu := contract.MutexOf(t, s, "a")
	twin := contract.MutexOf(t, s, "a")
	sibling := contract.MutexOf(t, s, "b")
	stranger := contract.NewMutex(t, client, "a")

	checkRefusals(t, counter, []refusal{
		{"before the first Lock", func() error { return mu.Unlock(ctx) }, []string{`"a"`, "not held"}, etcdlock.ErrNotHeld},
		{"before the first Lock, with an ended context", func() error { return mu.Unlock(ended) }, []string{`"a"`}, etcdlock.ErrNotHeld},
		{"by a Locker before its Lock", func() error { return panicOf(mu.Locker().Unlock) }, []string{`"a"`}, etcdlock.ErrNotHeld},
	})
	require.NoError(t, mu.Lock(ctx))
	token := mu.Token()
	checkRefusals(t, counter, []refusal{
		{"by another Mutex of the Session", func() error { return twin.Unlock(ctx) }, []string{`"a"`}, etcdlock.ErrNotHeld},
		{"by a Mutex of another name", func() error { return sibling.Unlock(ctx) }, []string{`"b"`}, etcdlock.ErrNotHeld},
		{"by another Session", func() error { return stranger.Unlock(ctx) }, []string{`"a"`}, etcdlock.ErrNotHeld},
		{"by a Locker of another Mutex", func() error { return panicOf(twin.Locker().Unlock) }, []string{`"a"`}, etcdlock.ErrNotHeld},
	})
	stillHolds(t, client, mu)
	require.Equal(t, token, mu.Token(), "it is the same hold")
	require.NoError(t, mu.Unlock(ctx))
	checkRefusals(t, counter, []refusal{
		{"twice", func() error { return mu.Unlock(ctx) }, []string{`"a"`}, etcdlock.ErrNotHeld},
		{"three times", func() error { return mu.Unlock(ctx) }, []string{`"a"`}, etcdlock.ErrNotHeld},
	})
	require.NoError(t, stranger.TryLock(ctx), "the lock is free")
	checkRefusals(t, counter, []refusal{
		{"after another has got it", func() error { return mu.Unlock(ctx) }, []string{`"a"`}, etcdlock.ErrNotHeld},
	})
	stillHolds(t, client, stranger)
	require.NoError(t, stranger.Unlock(ctx))
}

func TestAClosedMutexSaysSo(t *testing.T) {
	t.Parallel()
	type closer struct {
		mu         *etcdlock.Mutex
		closeIt    func(context.Context) error
		mutexAgain func() error
	}
	for how, setUp := range map[string]func(*testing.T, *clientv3.Client) closer{
		"a Mutex with a lease of its own": func(t *testing.T, client *clientv3.Client) closer {
			mu := contract.NewMutex(t, client, "a")
			return closer{mu: mu, closeIt: mu.Close}
		},
		"a Session's Mutex": func(t *testing.T, client *clientv3.Client) closer {
			mu := contract.MutexOf(t, contract.NewSession(t, client), "a")
			return closer{mu: mu, closeIt: mu.Close}
		},
		"a Session": func(t *testing.T, client *clientv3.Client) closer {
			s := contract.NewSession(t, client)
			mutexAgain := func() error { _, err := s.Mutex("a"); return err }
			return closer{contract.MutexOf(t, s, "a"), s.Close, mutexAgain}
		},
	} {
		for when, before := range map[string]func(*testing.T, *etcdlock.Mutex){
			"never used": func(*testing.T, *etcdlock.Mutex) {},
			"after a hold": func(t *testing.T, mu *etcdlock.Mutex) {
				require.NoError(t, mu.Do(t.Context(), func(context.Context) error { return nil }))
			},
			"while held": func(t *testing.T, mu *etcdlock.Mutex) {
				require.NoError(t, mu.Lock(t.Context()))
			},
		} {
			t.Run(how+" "+when, func(t *testing.T) {
				client, counter := countedWorld(t)
				ctx := contract.Patient(t)
				c := setUp(t, client)
				mu := c.mu
				before(t, mu)
				hold := mu.Context(ctx)
				require.NoError(t, c.closeIt(ctx))
				if when == "while held" {
					require.Equal(t, etcdlock.ErrClosed, context.Cause(hold))
				}

				refusals := []refusal{
					{"Lock", func() error { return mu.Lock(ctx) }, []string{`"a"`}, etcdlock.ErrClosed},
					{"TryLock", func() error { return mu.TryLock(ctx) }, []string{`"a"`}, etcdlock.ErrClosed},
					{"Do", func() error { return mu.Do(ctx, nothing(t)) }, []string{`"a"`}, etcdlock.ErrClosed},
					{"TryDo", func() error { return mu.TryDo(ctx, nothing(t)) }, []string{`"a"`}, etcdlock.ErrClosed},
					{"Locker().Lock", func() error { return panicOf(mu.Locker().Lock) }, []string{`"a"`}, etcdlock.ErrClosed},
					{"Unlock", func() error { return mu.Unlock(ctx) }, []string{`"a"`}, etcdlock.ErrNotHeld},
				}
				if c.mutexAgain != nil {
					refusals = append(refusals,
						refusal{"Session.Mutex", c.mutexAgain, []string{`"a"`}, etcdlock.ErrClosed})
				}
				beforeClose := counter.Counts()
				checkRefusals(t, counter, refusals)
				require.NoError(t, c.closeIt(ctx), "closed again")
				require.NoError(t, mu.Close(ctx), "closed again")
				sentNothing(t, counter, beforeClose)
				require.Zero(t, mu.Token())
				require.Empty(t, mu.Key())
				require.True(t, mu.Deadline().IsZero())
				require.Equal(t, "a", mu.Name())
				require.Error(t, mu.Context(ctx).Err())
				falseInEtcd(t, client, mu.IsOwner())
			})
		}
	}
}

func TestAClosedMutexLeavesItsSessionAlone(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := contract.Patient(t)
	s := contract.NewSession(t, client)
	a, b := contract.MutexOf(t, s, "a"), contract.MutexOf(t, s, "b")
	require.NoError(t, a.Lock(ctx))
	require.NoError(t, b.Lock(ctx))
	lease := s.Lease()
	require.NoError(t, a.Close(ctx))
	stillHolds(t, client, b)
	again := contract.MutexOf(t, s, "a")
	require.NoError(t, again.TryLock(ctx))
	require.Equal(t, lease, s.Lease())
	require.NoError(t, again.Unlock(ctx))
	require.NoError(t, b.Unlock(ctx))
}

// detached returns a context that derives from ctx, does not end with it, and does not last
// for ever.
func detached(t *testing.T, ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), contract.Patience)
	t.Cleanup(cancel)
	return ctx
}

// contextsFrom returns contexts that derive from a hold's context in each possible way.
func contextsFrom(t *testing.T, hold context.Context) map[string]context.Context {
	cancelled, cancel := context.WithCancel(hold)
	t.Cleanup(cancel)
	bounded, cancel := context.WithTimeout(hold, time.Hour)
	t.Cleanup(cancel)
	type key struct{}
	return map[string]context.Context{
		"the hold's own context":     hold,
		"one that can be cancelled":  cancelled,
		"one with a deadline":        bounded,
		"one with a value":           context.WithValue(hold, key{}, 1),
		"one without cancellation":   detached(t, hold),
		"one from all of the former": detached(t, context.WithValue(bounded, key{}, 1)),
	}
}

func TestLockWithAContextOfItsOwnHoldIsADeadlock(t *testing.T) {
	t.Parallel()
	client, counter := countedWorld(t)
	ctx := contract.Patient(t)
	s := contract.NewSession(t, client)
	mu, twin, other := contract.MutexOf(t, s, "a"), contract.MutexOf(t, s, "a"),
		contract.MutexOf(t, s, "b")
	require.NoError(t, mu.Lock(ctx))
	token := mu.Token()
	says := []string{`"a"`}
	var refusals []refusal
	for about, from := range contextsFrom(t, mu.Context(ctx)) {
		refusals = append(refusals,
			refusal{"Lock with " + about, func() error { return mu.Lock(from) }, says, etcdlock.ErrDeadlock},
			refusal{"TryLock with " + about, func() error {
				return mu.TryLock(from)
			}, says, etcdlock.ErrDeadlock},
			refusal{"Do with " + about, func() error {
				return mu.Do(from, nothing(t))
			}, says, etcdlock.ErrDeadlock},
			refusal{"TryDo with " + about, func() error {
				return mu.TryDo(from, nothing(t))
			}, says, etcdlock.ErrDeadlock},
			refusal{"another Mutex of the name with " + about, func() error {
				return twin.Lock(from)
			}, says, etcdlock.ErrDeadlock})
	}
	checkRefusals(t, counter, refusals)
	stillHolds(t, client, mu)
	require.Equal(t, token, mu.Token())

	// The hold of another name in between hides nothing.
	require.NoError(t, other.Lock(mu.Context(ctx)), "another name is no deadlock")
	between := other.Context(mu.Context(ctx))
	checkRefusals(t, counter, []refusal{
		{"Lock with a context of both holds", func() error { return mu.Lock(between) }, says, etcdlock.ErrDeadlock},
		{"Lock of the inner one with it", func() error { return other.Lock(between) }, []string{`"b"`}, etcdlock.ErrDeadlock},
	})
	require.NoError(t, other.Unlock(ctx))

	// Once the hold is over, its contexts are contexts like any other.
	old := detached(t, mu.Context(ctx))
	require.NoError(t, mu.Unlock(ctx))
	require.NoError(t, mu.Lock(old))
	require.NoError(t, mu.Unlock(ctx))
}

func TestReentrantLocksAreCountedAndTheLastUnlockReleases(t *testing.T) {
	t.Parallel()
	client, counter := countedWorld(t)
	ctx := contract.Patient(t)
	s := contract.NewSession(t, client, etcdlock.WithReentrancy())
	mu := contract.MutexOf(t, s, "a")
	rival := contract.NewMutex(t, client, "a")
	require.NoError(t, mu.Lock(ctx))
	token, before := mu.Token(), counter.Counts()
	nested := 0
	for about, from := range contextsFrom(t, mu.Context(ctx)) {
		require.NoError(t, mu.Lock(from), about)
		require.NoError(t, mu.TryLock(from), about)
		require.NoError(t, mu.Do(from, func(ctx context.Context) error {
			inner, ok := etcdlock.TokenFrom(ctx)
			require.True(t, ok)
			require.Equal(t, token, inner)
			return nil
		}), about)
		nested += 2
	}
	sentNothing(t, counter, before)
	for range nested {
		require.NoError(t, mu.Unlock(ctx))
		require.Equal(t, token, mu.Token(), "the same hold goes on")
	}
	stillHolds(t, client, mu)
	require.ErrorIs(t, rival.TryLock(ctx), etcdlock.ErrLocked)
	hold := mu.Context(ctx)
	require.NoError(t, mu.Unlock(ctx), "the last one")
	require.Equal(t, etcdlock.ErrUnlocked, context.Cause(hold))
	require.NoError(t, rival.TryLock(ctx), "the last Unlock released")
	require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrNotHeld)
	stillHolds(t, client, rival)
	require.NoError(t, rival.Unlock(ctx))
}

func TestReentrancyGoesByTheContextAlone(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := contract.Patient(t)
	mu := contract.NewMutex(t, client, "a", etcdlock.WithReentrancy())
	require.NoError(t, mu.Lock(ctx))
	require.ErrorIs(t, mu.TryLock(ctx), etcdlock.ErrLocked, "another context is another caller")
	other := contract.NewMutex(t, client, "a", etcdlock.WithReentrancy())
	require.ErrorIs(t, other.TryLock(mu.Context(ctx)), etcdlock.ErrLocked,
		"another Session is another holder")
	require.NoError(t, mu.Unlock(ctx))
}

func TestAHoldMayBeNestedInByAnotherMutexOfTheSession(t *testing.T) {
	t.Parallel()
	for order, unlockFirst := range map[string]int{"the inner one unlocks first": 1,
		"the outer one unlocks first": 0} {
		t.Run(order, func(t *testing.T) {
			client, _ := countedWorld(t)
			ctx := contract.Patient(t)
			s := contract.NewSession(t, client, etcdlock.WithReentrancy())
			both := []*etcdlock.Mutex{contract.MutexOf(t, s, "a"), contract.MutexOf(t, s, "a")}
			rival := contract.NewMutex(t, client, "a")
			require.NoError(t, both[0].Lock(ctx))
			require.NoError(t, both[1].Lock(both[0].Context(ctx)))
			require.Equal(t, both[0].Token(), both[1].Token(), "one hold")

			first, last := both[unlockFirst], both[1-unlockFirst]
			require.NoError(t, first.Unlock(ctx))
			require.ErrorIs(t, first.Unlock(ctx), etcdlock.ErrNotHeld, "each unlocks its own only")
			require.Zero(t, first.Token())
			stillHolds(t, client, last)
			require.ErrorIs(t, rival.TryLock(ctx), etcdlock.ErrLocked)
			require.NoError(t, last.Unlock(ctx))
			require.NoError(t, rival.TryLock(ctx))
			require.NoError(t, rival.Unlock(ctx))
		})
	}
}

// A Mutex of the Session without the option keeps its own rule.
func TestReentrancyIsTheOptionOfTheOneThatNests(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := contract.Patient(t)
	s := contract.NewSession(t, client)
	plain, reentrant := contract.MutexOf(t, s, "a"),
		contract.MutexOf(t, s, "a", etcdlock.WithReentrancy())
	require.NoError(t, reentrant.Lock(ctx))
	require.ErrorIs(t, plain.Lock(reentrant.Context(ctx)), etcdlock.ErrDeadlock)
	require.NoError(t, reentrant.Unlock(ctx))
	require.NoError(t, plain.Lock(ctx))
	require.NoError(t, reentrant.Lock(plain.Context(ctx)))
	require.NoError(t, reentrant.Unlock(ctx))
	require.NoError(t, plain.Unlock(ctx))
}

// Nesting in a hold that is lost would be a critical section without a lock.
func TestNobodyNestsInALostHold(t *testing.T) {
	t.Parallel()
	client, counter := countedWorld(t)
	ctx := contract.Patient(t)
	s := contract.NewSession(t, client, etcdlock.WithReentrancy())
	mu := contract.MutexOf(t, s, "a")
	require.NoError(t, mu.Lock(ctx))
	hold := mu.Context(ctx)
	_, err := client.Delete(ctx, mu.Key())
	require.NoError(t, err)
	<-hold.Done()
	checkRefusals(t, counter, []refusal{
		{"Lock", func() error { return mu.Lock(detached(t, hold)) }, []string{`"a"`}, etcdlock.ErrLost},
		{"TryLock", func() error { return mu.TryLock(detached(t, hold)) }, []string{`"a"`}, etcdlock.ErrLost},
		{"Lock with the hold's context", func() error { return mu.Lock(hold) }, []string{`"a"`}, etcdlock.ErrLost},
	})
	require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrLost)
	require.NoError(t, mu.Lock(ctx), "free for the next Lock")
	require.NoError(t, mu.Unlock(ctx))
}

func TestAnEndedContextIsReportedWithoutARequest(t *testing.T) {
	t.Parallel()
	client, counter := countedWorld(t)
	s := contract.NewSession(t, client)
	mu := contract.MutexOf(t, s, "a")
	maintenance := errors.New("maintenance")

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	caused, cancelCause := context.WithCancelCause(t.Context())
	cancelCause(maintenance)
	past := time.Now().Add(-time.Second)
	late, cancel := context.WithDeadline(t.Context(), past)
	defer cancel()
	lateCaused, cancel := context.WithDeadlineCause(t.Context(), past, maintenance)
	defer cancel()
	for about, c := range map[string]struct {
		ctx  context.Context
		says string
	}{
		"a cancelled context":              {cancelled, "context canceled"},
		"one cancelled with a cause":       {caused, "maintenance"},
		"one whose deadline has passed":    {late, "context deadline exceeded"},
		"one whose deadline had a cause":   {lateCaused, "maintenance"},
		"a context of nothing that's held": {mu.Context(t.Context()), "not held"},
	} {
		t.Run(about, func(t *testing.T) {
			says := []string{`"a"`, c.says}
			for _, is := range []error{c.ctx.Err(), context.Cause(c.ctx)} {
				checkRefusals(t, counter, []refusal{
					{"Lock", func() error { return mu.Lock(c.ctx) }, says, is},
					{"TryLock", func() error { return mu.TryLock(c.ctx) }, says, is},
					{"Do", func() error { return mu.Do(c.ctx, nothing(t)) }, says, is},
					{"TryDo", func() error { return mu.TryDo(c.ctx, nothing(t)) }, says, is},
				})
			}
			_, err := etcdlock.Contenders(c.ctx, client, "a")
			require.ErrorIs(t, err, c.ctx.Err())
			_, err = etcdlock.Holders(c.ctx, client, "a")
			require.ErrorIs(t, err, c.ctx.Err())
			err = etcdlock.Break(c.ctx, client, etcdlock.Contender{Name: "a", Key: "a/b", Token: 1})
			require.ErrorIs(t, err, c.ctx.Err())
		})
	}
	require.Equal(t, clientv3.LeaseID(clientv3.NoLease), s.Lease())
}

func TestBreakOfNoContenderIsAnError(t *testing.T) {
	t.Parallel()
	client, counter := countedWorld(t)
	ctx := contract.Patient(t)
	mu := contract.NewMutex(t, client, "a")
	require.NoError(t, mu.Lock(ctx))
	breakIt := func(c etcdlock.Contender) func() error {
		return func() error { return etcdlock.Break(ctx, client, c) }
	}
	checkRefusals(t, counter, []refusal{
		{"a zero Contender", breakIt(etcdlock.Contender{}), []string{`key ""`, "token 0"}, nil},
		{"a Contender without a key", breakIt(etcdlock.Contender{Name: "a", Token: mu.Token()}), []string{`key ""`}, nil},
		{"a Contender without a token", breakIt(etcdlock.Contender{Name: "a", Key: mu.Key()}), []string{mu.Key(), "token 0"}, nil},
		{"a Contender with a negative token", breakIt(etcdlock.Contender{Name: "a", Key: mu.Key(), Token: -1}), []string{mu.Key(), "token -1"}, nil},
	})
	stillHolds(t, client, mu)

	// What etcd refuses comes back as an error of a bearable length.
	huge := strings.Repeat("k", 3<<20)
	for about, err := range map[string]error{
		"a key of 3 MiB": etcdlock.Break(ctx, client,
			etcdlock.Contender{Name: "a", Key: huge, Token: 1}),
		"a name of 3 MiB": etcdlock.Break(ctx, client,
			etcdlock.Contender{Name: huge, Key: huge, Token: 1}),
		"a prefix of 3 MiB": func() error { _, err := etcdlock.Holders(ctx, client, huge); return err }(),
	} {
		require.Error(t, err, about)
		require.LessOrEqual(t, len(err.Error()), longest, about)
	}
	require.NoError(t, mu.Unlock(ctx))
}

// Do reports what its function did to the Mutex. It releases nothing that is not its own.
func TestDoTellsWhatItsFunctionDidToTheHold(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := contract.Patient(t)
	t.Run("it unlocked", func(t *testing.T) {
		mu := contract.NewMutex(t, client, "a")
		err := mu.Do(ctx, func(ctx context.Context) error { return mu.Unlock(ctx) })
		require.ErrorIs(t, err, etcdlock.ErrNotHeld)
	})
	t.Run("it unlocked and locked again", func(t *testing.T) {
		mu := contract.NewMutex(t, client, "a")
		err := mu.Do(ctx, func(inner context.Context) error {
			require.NoError(t, mu.Unlock(inner))
			return mu.Lock(ctx)
		})
		require.ErrorIs(t, err, etcdlock.ErrNotHeld)
		stillHolds(t, client, mu)
		require.NoError(t, mu.Unlock(ctx))
	})
	t.Run("it closed the Mutex", func(t *testing.T) {
		mu := contract.NewMutex(t, client, "a")
		err := mu.Do(ctx, func(ctx context.Context) error {
			err := mu.Close(ctx)
			require.Equal(t, etcdlock.ErrClosed, context.Cause(ctx))
			return err
		})
		require.Error(t, err, "the hold was not whole until the end")
	})
}
