package contract

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
)

// A BadInput is a mistake of the program, in a call. The call must return an error that names it,
// and must send nothing. They are tried in virtual time (tests/mutex), and on one of etcd's own
// servers beside concurrency.Mutex (S27 in internal/faults).
type BadInput struct {
	Name string
	says []string // texts of the error
	is   error    // by errors.Is, if not nil
	call func(*Misused) error
}

// Misused is what bad inputs are tried on: locks of one client, with a past.
type Misused struct {
	Ctx    context.Context
	Client *clientv3.Client

	s, closed *etcdlock.Session
	unused    *etcdlock.Mutex
	free      *etcdlock.Mutex // used before
	held      *etcdlock.Mutex
	twin      *etcdlock.Mutex // of the name of held, in its Session
	stranger  *etcdlock.Mutex // of the name of held, in another Session
	own       *etcdlock.Mutex // held, with a lease of its own
	shut      *etcdlock.Mutex // of s, closed while it was held
	orphan    *etcdlock.Mutex // of closed
}

// Misuse makes what bad inputs are tried on.
func Misuse(t *testing.T, client *clientv3.Client) *Misused {
	t.Helper()
	s, closed := NewSession(t, client), NewSession(t, client)
	m := &Misused{
		Ctx: Patient(t), Client: client, s: s, closed: closed,
		unused: MutexOf(t, s, "unused"), free: MutexOf(t, s, "free"),
		held: MutexOf(t, s, "held"), twin: MutexOf(t, s, "held"),
		stranger: NewMutex(t, client, "held"), own: NewMutex(t, client, "own"),
		shut: MutexOf(t, s, "shut"), orphan: MutexOf(t, closed, "orphan"),
	}
	for _, mu := range []*etcdlock.Mutex{m.free, m.held, m.own, m.shut} {
		require.NoError(t, mu.Lock(m.Ctx))
	}
	require.NoError(t, m.free.Unlock(m.Ctx))
	require.NoError(t, m.shut.Close(m.Ctx))
	require.NoError(t, closed.Close(m.Ctx))
	return m
}

// IsUnharmed fails the test unless all is as it was made.
func (m *Misused) IsUnharmed(t *testing.T) {
	t.Helper()
	StillHolds(t, m.Client, m.held)
	StillHolds(t, m.Client, m.own)
	require.NoError(t, m.free.Lock(m.Ctx))
	for _, mu := range []*etcdlock.Mutex{m.free, m.held, m.own} {
		require.NoError(t, mu.Unlock(m.Ctx))
	}
}

// A Panicked is the value with which a call has panicked.
type Panicked struct{ Value any }

func (p Panicked) Error() string { return fmt.Sprint("panic: ", p.Value) }

// Caught returns the error of a call, which is a Panicked if the call panics.
func Caught(call func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = Panicked{value}
		}
	}()
	return call()
}

// Try makes the call.
func (in BadInput) Try(m *Misused) error { return Caught(func() error { return in.call(m) }) }

// Wrong says what is wrong with the error of the call, or "". The error fits into a log line,
// whatever was handed in.
func (in BadInput) Wrong(err error) string {
	const longest = 2048
	if err == nil {
		return "accepted"
	}
	text := err.Error()
	switch _, panics := err.(Panicked); {
	case panics, !strings.HasPrefix(text, "etcdlock: "):
		return fmt.Sprintf("%.200s", text)
	case len(text) > longest:
		return fmt.Sprintf("the error has %d bytes", len(text))
	case in.is != nil && !errors.Is(err, in.is):
		return fmt.Sprintf("not %v: %v", in.is, err)
	}
	for _, want := range in.says {
		if !strings.Contains(text, want) {
			return fmt.Sprintf("the error does not name %s: %.200s", want, text)
		}
	}
	return ""
}

// noContext is a nil context that linters do not see.
var noContext context.Context

// never is a critical section that must not be entered.
func never(context.Context) error { panic("the critical section was entered") }

// Locking are the calls that lock, by name. None of them must get the lock.
var Locking = map[string]func(*etcdlock.Mutex, context.Context) error{
	"Lock":    (*etcdlock.Mutex).Lock,
	"TryLock": (*etcdlock.Mutex).TryLock,
	"Do":      func(mu *etcdlock.Mutex, ctx context.Context) error { return mu.Do(ctx, never) },
	"TryDo":   func(mu *etcdlock.Mutex, ctx context.Context) error { return mu.TryDo(ctx, never) },
}

// byLocker is a call of a sync.Locker, which panics with its error.
func byLocker(call func()) error {
	caught := Caught(func() error { call(); return nil })
	if p, ok := caught.(Panicked); ok {
		if err, ok := p.Value.(error); ok {
			return err
		}
	}
	return caught
}

// BadInputs are all of them.
func BadInputs() []BadInput {
	var all inputs
	all.ofClients()
	all.ofContexts()
	all.ofNoConstructor()
	all.ofNames()
	all.ofOptions()
	all.ofDurations()
	all.outOfTurn()
	return all
}

type inputs []BadInput

func (all *inputs) add(name string, is error, call func(*Misused) error, says ...string) {
	*all = append(*all, BadInput{name, says, is, call})
}

// reads adds the calls that take a KV.
func (all *inputs) reads(with string, kv func(*Misused) clientv3.KV, says ...string) {
	all.add("Contenders with "+with, nil, func(m *Misused) error {
		_, err := etcdlock.Contenders(m.Ctx, kv(m), "a")
		return err
	}, says...)
	all.add("Holders with "+with, nil, func(m *Misused) error {
		_, err := etcdlock.Holders(m.Ctx, kv(m), "a")
		return err
	}, says...)
	all.add("Break with "+with, nil, func(m *Misused) error {
		return etcdlock.Break(m.Ctx, kv(m), etcdlock.Contender{Key: "a/b", Token: 1})
	}, says...)
}

func (all *inputs) ofClients() {
	client := func(about string, says string, of func(*Misused) *clientv3.Client) {
		all.add("NewMutex with "+about, nil, func(m *Misused) error {
			_, err := etcdlock.NewMutex(of(m), "a")
			return err
		}, says)
		all.add("NewSession with "+about, nil, func(m *Misused) error {
			_, err := etcdlock.NewSession(of(m))
			return err
		}, says)
	}
	none := func(*Misused) *clientv3.Client { return nil }
	zero := func(*Misused) *clientv3.Client { return &clientv3.Client{} }
	client("a nil client", "nil client", none)
	client("a zero client", "clientv3.New", zero)
	client("a client with a KV only", "Lease", func(m *Misused) *clientv3.Client {
		return &clientv3.Client{KV: m.Client.KV}
	})
	client("a client without a Lease", "Lease", func(m *Misused) *clientv3.Client {
		return &clientv3.Client{KV: m.Client.KV, Watcher: m.Client.Watcher}
	})
	client("a client without a Watcher", "Watcher", func(m *Misused) *clientv3.Client {
		return &clientv3.Client{KV: m.Client.KV, Lease: m.Client.Lease}
	})
	all.reads("a nil KV", func(*Misused) clientv3.KV { return nil }, "nil KV")
	// The same mistakes when the variable is a *clientv3.Client.
	all.reads("a nil client", func(m *Misused) clientv3.KV { return none(m) }, "nil")
	all.reads("a zero client", func(m *Misused) clientv3.KV { return zero(m) }, "KV")
}

func (all *inputs) ofContexts() {
	for op, lock := range Locking {
		all.add(op+" with a nil context", nil, func(m *Misused) error {
			return lock(m.free, noContext)
		}, "nil context", `"free"`)
	}
	maintenance := errors.New("maintenance")
	for about, ctx := range map[string]func() (context.Context, context.CancelFunc){
		"a context that has ended": func() (context.Context, context.CancelFunc) {
			return context.WithCancel(context.Background())
		},
		"a context that has ended with a cause": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(context.Background())
			return ctx, func() { cancel(maintenance) }
		},
		"a deadline that has passed": func() (context.Context, context.CancelFunc) {
			return context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
		},
		"a deadline that has passed, with a cause": func() (context.Context, context.CancelFunc) {
			return context.WithDeadlineCause(context.Background(), time.Now().Add(-time.Second), maintenance)
		},
	} {
		ended, cancel := ctx()
		cancel()
		for op, lock := range Locking {
			call := func(m *Misused) error { return lock(m.free, ended) }
			all.add(op+" with "+about, ended.Err(), call, `"free"`)
			all.add(op+" with "+about+": why", context.Cause(ended), call, context.Cause(ended).Error())
		}
	}
	for op, lock := range Locking {
		all.add(op+" with a context of no hold", context.Canceled, func(m *Misused) error {
			return lock(m.free, m.free.Context(m.Ctx))
		}, `"free"`, "not held")
	}
	all.add("Lock with a nil context of what is held", nil, func(m *Misused) error {
		return m.held.Lock(noContext)
	}, "nil context", `"held"`)
	all.add("Unlock with a nil context", nil, func(m *Misused) error {
		return m.held.Unlock(noContext)
	}, "nil context", `"held"`)
	all.add("Unlock with a nil context of what is not held", nil, func(m *Misused) error {
		return m.free.Unlock(noContext)
	}, `"free"`)
	all.add("Close with a nil context", nil, func(m *Misused) error {
		return m.held.Close(noContext)
	}, "nil context", `"held"`)
	all.add("Close with a nil context of a Mutex of its own", nil, func(m *Misused) error {
		return m.own.Close(noContext)
	}, "nil context", `"own"`)
	all.add("Session.Close with a nil context", nil, func(m *Misused) error {
		return m.s.Close(noContext)
	}, "nil context")
	all.add("Context with a nil context", nil, func(m *Misused) error {
		return context.Cause(m.held.Context(noContext))
	}, "nil context")
	all.add("Contenders with a nil context", nil, func(m *Misused) error {
		_, err := etcdlock.Contenders(noContext, m.Client, "held")
		return err
	}, "nil context", `"held"`)
	for about, prefix := range map[string]string{"": "he", " and 2 MiB": strings.Repeat("p", 2<<20)} {
		all.add("Holders with a nil context"+about, nil, func(m *Misused) error {
			_, err := etcdlock.Holders(noContext, m.Client, prefix)
			return err
		}, "nil context", `"`+prefix[:2])
	}
	all.add("Break with a nil context", nil, func(m *Misused) error {
		return etcdlock.Break(noContext, m.Client,
			etcdlock.Contender{Name: "held", Key: m.held.Key(), Token: m.held.Token()})
	}, "nil context", `"held"`)
	all.add("Do with a nil function", nil, func(m *Misused) error {
		return m.free.Do(m.Ctx, nil)
	}, "nil function")
	all.add("TryDo with a nil function", nil, func(m *Misused) error {
		return m.free.TryDo(m.Ctx, nil)
	}, "nil function")
}

// ofNoConstructor adds the calls of values that no constructor has made.
func (all *inputs) ofNoConstructor() {
	for which, mu := range map[string]*etcdlock.Mutex{"nil": nil, "zero": {}} {
		of := " of a " + which + " Mutex"
		add := func(call string, is error, f func(m *Misused) error, says ...string) {
			all.add(call+of, is, f, says...)
		}
		const made = "not made with New"
		for op, lock := range Locking {
			add(op, nil, func(m *Misused) error { return lock(mu, m.Ctx) }, made)
		}
		add("a Lock with a nil context", nil, func(*Misused) error { return mu.Lock(noContext) }, made)
		add("a Do with a nil function", nil, func(m *Misused) error { return mu.Do(m.Ctx, nil) })
		add("Unlock", etcdlock.ErrNotHeld, func(m *Misused) error { return mu.Unlock(m.Ctx) })
		add("an Unlock with a nil context", nil, func(*Misused) error { return mu.Unlock(noContext) })
		add("Close", nil, func(m *Misused) error { return mu.Close(m.Ctx) }, made)
		add("a Close with a nil context", nil, func(*Misused) error { return mu.Close(noContext) }, made)
		add("Locker().Lock", nil, func(*Misused) error { return byLocker(mu.Locker().Lock) }, made)
		add("Locker().Unlock", etcdlock.ErrNotHeld, func(*Misused) error {
			return byLocker(mu.Locker().Unlock)
		})
	}
	for which, s := range map[string]*etcdlock.Session{"nil": nil, "zero": {}} {
		of := " of a " + which + " Session"
		const made = "not made with NewSession"
		all.add("a Mutex"+of, nil, func(*Misused) error { _, err := s.Mutex("a"); return err }, made)
		all.add("a Mutex with an option"+of, nil, func(*Misused) error {
			_, err := s.Mutex("a", etcdlock.WithReentrancy())
			return err
		}, made)
		all.add("Close"+of, nil, func(m *Misused) error { return s.Close(m.Ctx) }, made)
		all.add("a Close with a nil context"+of, nil, func(*Misused) error {
			return s.Close(noContext)
		}, made)
	}
}

func (all *inputs) ofNames() {
	for _, n := range []struct {
		about, name string
		says        []string
	}{
		{"an empty name", "", []string{`""`, "empty"}},
		{"the name /", "/", []string{`"/"`, `ends with "/"`}},
		{"a name that ends with /", "orders/", []string{`"orders/"`, `ends with "/"`}},
		{"a name that ends with //", "orders//", []string{`"orders//"`, `ends with "/"`}},
		{"the name NUL", "\x00", []string{`"\x00"`, "NUL"}},
		{"a name with NUL", "or\x00ders", []string{`"or\x00ders"`, "NUL"}},
		{"a name that is not UTF-8", "orders\xff", []string{`"orders\xff"`, "UTF-8"}},
		{"half a surrogate pair", "\xed\xa0\x80", []string{"UTF-8"}},
		{"a name of 1,025 bytes", strings.Repeat("n", 1025), []string{`"nnnnnnnn`, "1025 bytes", "1024"}},
		{
			"1,025 bytes in fewer characters", strings.Repeat("日本語", 113) + "12345678",
			[]string{"1025 bytes"},
		},
		{"a name of 2 MiB", strings.Repeat("n", 2<<20), []string{"2097152 bytes"}},
		{"2 MiB that are not UTF-8", strings.Repeat("\xff", 2<<20), []string{"2097152 bytes"}},
	} {
		all.add("NewMutex with "+n.about, nil, func(m *Misused) error {
			_, err := etcdlock.NewMutex(m.Client, n.name)
			return err
		}, n.says...)
		all.add("Session.Mutex with "+n.about, nil, func(m *Misused) error {
			_, err := m.s.Mutex(n.name)
			return err
		}, n.says...)
		all.add("Contenders with "+n.about, nil, func(m *Misused) error {
			_, err := etcdlock.Contenders(m.Ctx, m.Client, n.name)
			return err
		}, n.says...)
	}
}

func (all *inputs) ofOptions() {
	const second = time.Second
	type opts = []etcdlock.SessionOption
	long := strings.Repeat("o", 2<<20)
	for _, o := range []struct {
		about string
		opts  opts
		says  []string
	}{
		{"a TTL of 0", opts{etcdlock.WithTTL(0)}, []string{"WithTTL(0s)"}},
		{"a negative TTL", opts{etcdlock.WithTTL(-3 * second)}, []string{"WithTTL(-3s)"}},
		{
			"the least TTL there is", opts{etcdlock.WithTTL(math.MinInt64)},
			[]string{"WithTTL(-2562047h47m16.854775808s)"},
		},
		// A Duration ends at 292 years; etcd's own limit is at 285.
		{
			"a TTL of 292 years", opts{etcdlock.WithTTL(math.MaxInt64)},
			[]string{"WithTTL(2562047h47m16.854775807s)", "2500000h"},
		},
		{
			"a TTL just above etcd's limit", opts{etcdlock.WithTTL(9_000_000_000*second + 1)},
			[]string{"WithTTL(2500000h0m0.000000001s)", "2500000h"},
		},
		{"a margin of 0", opts{etcdlock.WithSafetyMargin(0)}, []string{"WithSafetyMargin(0s)"}},
		{"a negative margin", opts{etcdlock.WithSafetyMargin(-1)}, []string{"WithSafetyMargin(-1ns)"}},
		{
			"a margin of the default TTL", opts{etcdlock.WithSafetyMargin(15 * second)},
			[]string{"margin 15s"},
		},
		{
			"a margin above the default TTL", opts{etcdlock.WithSafetyMargin(math.MaxInt64)},
			[]string{"margin", "2562047h47m16.854775807s"},
		},
		{
			"a TTL and its margin", opts{etcdlock.WithTTL(3 * second), etcdlock.WithSafetyMargin(3 * second)},
			[]string{"margin 3s", "TTL 3s"},
		},
		{
			"a margin and its TTL", opts{etcdlock.WithSafetyMargin(3 * second), etcdlock.WithTTL(3 * second)},
			[]string{"margin 3s", "TTL 3s"},
		},
		{
			"a TTL and more margin", opts{etcdlock.WithTTL(3 * second), etcdlock.WithSafetyMargin(4 * second)},
			[]string{"margin 4s", "TTL 3s"},
		},
		{
			"a margin and less TTL", opts{etcdlock.WithSafetyMargin(4 * second), etcdlock.WithTTL(3 * second)},
			[]string{"margin 4s", "TTL 3s"},
		},
		{"a longest hold of 0", opts{etcdlock.WithMaxHold(0)}, []string{"WithMaxHold(0s)"}},
		{"a negative longest hold", opts{etcdlock.WithMaxHold(-second)}, []string{"WithMaxHold(-1s)"}},
		{
			"an acquire timeout of 0", opts{etcdlock.WithAcquireTimeout(0)},
			[]string{"WithAcquireTimeout(0s)"},
		},
		{
			"a negative acquire timeout", opts{etcdlock.WithAcquireTimeout(-second)},
			[]string{"WithAcquireTimeout(-1s)"},
		},
		{"a negative hand-off", opts{etcdlock.WithHandoff(-1)}, []string{"WithHandoff(-1)"}},
		{"a linger of 0", opts{etcdlock.WithLinger(0)}, []string{"WithLinger(0s)"}},
		{"a negative linger", opts{etcdlock.WithLinger(-second)}, []string{"WithLinger(-1s)"}},
		{"an empty owner", opts{etcdlock.WithOwner("")}, []string{`WithOwner("")`, "empty"}},
		{
			"an owner that is not UTF-8", opts{etcdlock.WithOwner("api\xff")},
			[]string{`WithOwner("api\xff")`, "UTF-8"},
		},
		{
			"an owner of 1,025 bytes", opts{etcdlock.WithOwner(long[:1025])},
			[]string{`WithOwner("oooooo`, "1025 bytes", "1024"},
		},
		{"an owner of 2 MiB", opts{etcdlock.WithOwner(long)}, []string{"WithOwner(", "2097152 bytes"}},
		{"a nil option", opts{nil}, []string{"option 1 is nil"}},
		{
			"a nil option between others", opts{etcdlock.WithOwner("api"), nil, etcdlock.WithReentrancy()},
			[]string{"option 2 is nil"},
		},
		{"a nil logger", opts{etcdlock.WithLogger(nil)}, []string{"WithLogger(nil)"}},
		{"a nil trace", opts{etcdlock.WithTrace(nil)}, []string{"WithTrace(nil)"}},
		{
			"a bad option before a good one", opts{etcdlock.WithMaxHold(0), etcdlock.WithMaxHold(second)},
			[]string{"WithMaxHold(0s)"},
		},
	} {
		all.add("NewMutex with "+o.about, nil, func(m *Misused) error {
			_, err := etcdlock.NewMutex(m.Client, "a", o.opts...)
			return err
		}, o.says...)
		all.add("NewSession with "+o.about, nil, func(m *Misused) error {
			_, err := etcdlock.NewSession(m.Client, o.opts...)
			return err
		}, o.says...)
		if of, are := ofLocks(o.opts); are {
			all.add("Session.Mutex with "+o.about, nil, func(m *Misused) error {
				_, err := m.s.Mutex("a", of...)
				return err
			}, o.says...)
		}
	}
	for name, option := range map[string]etcdlock.Option{
		"WithHandoff": etcdlock.WithHandoff(1), "WithLinger": etcdlock.WithLinger(second),
		"WithReentrancy": etcdlock.WithReentrancy(),
	} {
		says := name + " is not for a Semaphore"
		all.add("NewSemaphore "+name, nil, func(m *Misused) error {
			_, err := etcdlock.NewSemaphore(m.Client, "a", 1, option)
			return err
		}, says)
		all.add("Session.Semaphore "+name, nil, func(m *Misused) error {
			_, err := m.s.Semaphore("a", 1, option)
			return err
		}, says)
	}
}

// ofDurations adds plain numbers, which are nanoseconds, where an option takes a duration.
func (all *inputs) ofDurations() {
	const ms = time.Millisecond
	for _, o := range []struct {
		name  string
		least time.Duration
		of    func(time.Duration) etcdlock.SessionOption
	}{
		{"WithTTL", 100 * ms, etcdlock.WithTTL},
		{"WithSafetyMargin", ms, etcdlock.WithSafetyMargin},
		{"WithRestoreDelay", ms, etcdlock.WithRestoreDelay},
		{"WithMaxHold", ms, lockOption(etcdlock.WithMaxHold)},
		{"WithMinHold", ms, lockOption(etcdlock.WithMinHold)},
		{"WithAcquireTimeout", ms, lockOption(etcdlock.WithAcquireTimeout)},
		{"WithLinger", ms, lockOption(etcdlock.WithLinger)},
		{"WithRecall", ms, lockOption(etcdlock.WithRecall)},
		{"WithAsk", ms, func(d time.Duration) etcdlock.SessionOption {
			return etcdlock.WithAsk(etcdlock.RecallRequest{Grace: d})
		}},
	} {
		for d, says := range map[time.Duration]string{
			1: "did you mean 1*time.Second?", 15: "a plain 15 is nanoseconds",
			500: "did you mean 500*time.Second?", 15_000: "did you mean 15000*time.Millisecond?",
			o.least - 1: "below " + o.least.String(), -1: "-1ns",
		} {
			all.add(fmt.Sprintf("%s of %v", o.name, d), nil, func(m *Misused) error {
				_, err := etcdlock.NewSession(m.Client, o.of(d))
				return err
			}, o.name, d.String(), says)
		}
	}
	for _, d := range []time.Duration{-1, 1, 15, ms - 1} {
		all.add(fmt.Sprintf("Recall with a grace of %v", d), nil, func(m *Misused) error {
			held := etcdlock.Contender{Name: "held", Key: m.held.Key(), Token: m.held.Token()}
			return etcdlock.Recall(m.Ctx, m.Client, held, etcdlock.RecallRequest{Grace: d})
		}, `"held"`, "grace "+d.String())
	}
}

// lockOption is an option of locks as one of Sessions.
func lockOption(
	of func(time.Duration) etcdlock.Option,
) func(time.Duration) etcdlock.SessionOption {
	return func(d time.Duration) etcdlock.SessionOption { return of(d) }
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

// outOfTurn adds the calls that come when they may not.
func (all *inputs) outOfTurn() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for who, mu := range map[string]func(*Misused) *etcdlock.Mutex{
		"before the first Lock":              func(m *Misused) *etcdlock.Mutex { return m.unused },
		"of what is not held":                func(m *Misused) *etcdlock.Mutex { return m.free },
		"by another Mutex of its Session":    func(m *Misused) *etcdlock.Mutex { return m.twin },
		"by another Session":                 func(m *Misused) *etcdlock.Mutex { return m.stranger },
		"of what was closed":                 func(m *Misused) *etcdlock.Mutex { return m.shut },
		"of a Mutex whose Session is closed": func(m *Misused) *etcdlock.Mutex { return m.orphan },
	} {
		notHeld := func(how string, unlock func(m *Misused) error) {
			all.add("Unlock "+who+how, etcdlock.ErrNotHeld, unlock, "not held")
		}
		notHeld("", func(m *Misused) error { return mu(m).Unlock(m.Ctx) })
		notHeld(", with a context that has ended", func(m *Misused) error { return mu(m).Unlock(ended) })
		notHeld(", with its Locker", func(m *Misused) error { return byLocker(mu(m).Locker().Unlock) })
	}
	for op, lock := range Locking {
		all.add(op+" of what one holds", etcdlock.ErrDeadlock, func(m *Misused) error {
			return lock(m.held, m.held.Context(m.Ctx))
		}, "already", `"held"`)
		all.add(op+" after Close", etcdlock.ErrClosed, func(m *Misused) error {
			return lock(m.shut, m.Ctx)
		}, `"shut"`)
		all.add(op+" after Close of the Session", etcdlock.ErrClosed, func(m *Misused) error {
			return lock(m.orphan, m.Ctx)
		}, `"orphan"`)
	}
	all.add("Locker().Lock after Close", etcdlock.ErrClosed, func(m *Misused) error {
		return byLocker(m.shut.Locker().Lock)
	}, `"shut"`)
	all.add("a Mutex of a closed Session", etcdlock.ErrClosed, func(m *Misused) error {
		_, err := m.closed.Mutex("a")
		return err
	}, `"a"`)
	for about, c := range map[string]struct {
		contender etcdlock.Contender
		says      []string
	}{
		"of a zero Contender":        {etcdlock.Contender{}, []string{`key ""`, "token 0"}},
		"without a key":              {etcdlock.Contender{Name: "a", Token: 1}, []string{`key ""`}},
		"without a token":            {etcdlock.Contender{Name: "a", Key: "a/b"}, []string{"a/b", "token 0"}},
		"of a token that can not be": {etcdlock.Contender{Key: "a/b", Token: -1}, []string{"token -1"}},
	} {
		all.add("Break "+about, nil, func(m *Misused) error {
			return etcdlock.Break(m.Ctx, m.Client, c.contender)
		}, c.says...)
	}
}
