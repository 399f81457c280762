package faults

import (
	"context"
	"fmt"
	"math"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/side"
)

// S27. A mistake of the program is an error that names it. It is not a panic, not a hang
// and not a lock that works by accident. It asks etcd nothing if the mistake shows without
// that.
//
//	for each input: a call with it | an error
func TestS27ABadInputIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	inputs := badInputs()
	require.GreaterOrEqual(t, len(inputs), 60)
	c := etcdtest.Start(t, 1)
	prove(t, row{
		id: "S27", quick: len(inputs), full: len(inputs),
		fault: fmt.Sprintf("%d bad inputs: clients, contexts, names, options, calls out of turn",
			len(inputs)),
		must:    "a clear error each, at once: no panic, no hang, nothing accepted silently, no request to etcd",
		command: "go test . -run '^TestS27ABadInputIsAnErrorThatNamesIt$' -peer",
	}, func(tr *trial) {
		in := inputs[tr.i]
		b := &bench{tr: tr, ctx: tr.bounded(patience)}
		b.client = c.Client(tr, b.counts)
		try := in.ours
		if tr.side.Name == side.Theirs.Name {
			try = in.theirs
		}
		if try == nil {
			tr.figures.add("inputs that it does not have", 1)
			return
		}
		b.ready()
		err := make(chan error, 1)
		go func() { // ends with the call
			defer func() {
				if r := recover(); r != nil {
					err <- panicked{r}
				}
			}()
			err <- try(b)
		}()
		select {
		case err := <-err:
			b.judge(in, err)
		case <-time.After(slack):
			tr.figures.add("hangs", 1)
			tr.broke("%s: it has not returned after %v", in.name, slack)
		}
	})
}

// S27. A TTL that is too short for etcd is no mistake: the lease gets the shortest TTL that
// etcd has.
//
//	a locks with a TTL of 1 ns | its lease has a second | a unlocks
func TestS27ATTLOfANanosecondIsTheShortestThereIs(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S27", name: "a TTL of 1 ns", quick: 2,
		fault: "a TTL of 1 ns",
		must:  "it is rounded up to a second, and the lock works",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		a := tr.party("a", c, 1)
		a.locks()
		held, err := admin.Get(tr.bounded(patience), a.lock.Key())
		require.NoError(tr, err)
		require.Len(tr, held.Kvs, 1)
		lease, err := admin.TimeToLive(tr.bounded(patience), clientv3.LeaseID(held.Kvs[0].Lease))
		require.NoError(tr, err)
		tr.must(lease.GrantedTTL == 1, "the TTL is %d s", lease.GrantedTTL)
		a.unlocks()
	})
}

// A panicked is the value with which a call panicked.
type panicked struct{ value any }

func (p panicked) Error() string { return fmt.Sprint("panic: ", p.value) }

// A bench is where the test tries a bad input.
type bench struct {
	tr     *trial
	client *clientv3.Client
	ctx    context.Context
	sent   atomic.Int32 // requests, by the call and by whatever else runs
	before int32        // requests sent before the call
}

// ready notes that the call comes next. The requests so far are not the call's.
func (b *bench) ready() { b.before = b.sent.Load() }

// counts makes the client count what it sends. (An interceptor would count failed attempts,
// too.)
func (b *bench) counts(cfg *clientv3.Config) {
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithStatsHandler(b))
}

// byThemselves are the requests that belong to a session, not to a call.
type byThemselves struct{}

// TagRPC, HandleRPC, TagConn and HandleConn are as in stats.Handler.
func (b *bench) TagRPC(ctx context.Context, rpc *stats.RPCTagInfo) context.Context {
	switch path.Base(rpc.FullMethodName) {
	case "LeaseKeepAlive", "LeaseTimeToLive":
		return context.WithValue(ctx, byThemselves{}, true)
	}
	return ctx
}

func (b *bench) HandleRPC(ctx context.Context, what stats.RPCStats) {
	if _, sent := what.(*stats.OutPayload); sent && ctx.Value(byThemselves{}) == nil {
		b.sent.Add(1)
	}
}

func (b *bench) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (b *bench) HandleConn(context.Context, stats.ConnStats)                       {}

// judge says what is wrong with the answer to a bad input.
func (b *bench) judge(in input, err error) {
	const longest = 2048 // so that it fits into a log line, whatever was handed in
	tr := b.tr
	sent := b.sent.Load() - b.before
	_, panics := err.(panicked)
	switch {
	case panics:
		tr.figures.add("panics", 1)
		tr.broke("%s: %v", in.name, err)
	case err == nil:
		tr.figures.add("accepted silently", 1)
		tr.broke("%s: accepted", in.name)
	case sent != 0:
		tr.figures.add("errors that took a request", 1)
		tr.broke("%s: %d requests for the error %v", in.name, sent, err)
	case tr.side.Name == side.Ours.Name:
		text := err.Error()
		tr.must(strings.HasPrefix(text, "etcdlock: ") && strings.Contains(text, in.says) &&
			len(text) <= longest,
			"%s: the error does not name it: %.200s", in.name, text)
	}
}

// An input is a bad input, and the call that gets it.
type input struct {
	name   string
	says   string // the text that names the mistake
	ours   func(*bench) error
	theirs func(*bench) error // nil if it takes no such input
}

// noContext is a nil context that linters do not see.
var noContext context.Context

func badInputs() (all []input) {
	const second = time.Second
	const years = 365 * 24 * 3600 // seconds
	long := strings.Repeat("n", 2<<20)
	add := func(name, says string, ours, theirs func(*bench) error) {
		all = append(all, input{name, says, ours, theirs})
	}

	// Clients.
	clients := []struct {
		name, says string
		of         func(*bench) *clientv3.Client
	}{
		{"a nil client", "nil client", func(*bench) *clientv3.Client { return nil }},
		{"a zero client", "clientv3.New", func(*bench) *clientv3.Client { return new(clientv3.Client) }},
		{"a client without a Lease", "Lease", func(b *bench) *clientv3.Client {
			return &clientv3.Client{KV: b.client.KV, Watcher: b.client.Watcher}
		}},
	}
	for _, c := range clients {
		add(c.name+" for New", c.says,
			func(b *bench) error { _, err := etcdlock.New(c.of(b), "a"); return err }, nil)
		add(c.name+" for NewSession", c.says,
			func(b *bench) error { _, err := etcdlock.NewSession(c.of(b)); return err },
			func(b *bench) error { _, err := concurrency.NewSession(c.of(b)); return err })
	}
	add("a client that was closed", "closed",
		func(b *bench) error { mu := b.mutex(); b.client.Close(); return mu.Lock(b.ctx) },
		func(b *bench) error { b.client.Close(); _, err := concurrency.NewSession(b.client); return err })
	add("a nil KV for Contenders", "nil KV",
		func(b *bench) error { _, err := etcdlock.Contenders(b.ctx, nil, "a"); return err }, nil)
	add("a nil KV for Holders", "nil KV",
		func(b *bench) error { _, err := etcdlock.Holders(b.ctx, nil, "a"); return err }, nil)
	add("a nil KV for Break", "nil KV",
		func(b *bench) error {
			return etcdlock.Break(b.ctx, nil, etcdlock.Contender{Key: "a/b", Token: 1})
		}, nil)

	// Contexts and functions.
	add("a nil context for Lock", "nil context",
		func(b *bench) error { return b.mutex().Lock(noContext) },
		func(b *bench) error { return b.theirs().Lock(noContext) })
	add("a nil context for TryLock", "nil context",
		func(b *bench) error { return b.mutex().TryLock(noContext) },
		func(b *bench) error { return b.theirs().TryLock(noContext) })
	add("a nil context for Unlock", "nil context",
		func(b *bench) error { return b.held().Unlock(noContext) },
		func(b *bench) error { return b.theirsHeld().Unlock(noContext) })
	add("a nil context for Do", "nil context",
		func(b *bench) error { return b.mutex().Do(noContext, nothing) }, nil)
	add("a nil context for TryDo", "nil context",
		func(b *bench) error { return b.mutex().TryDo(noContext, nothing) }, nil)
	add("a nil context for Close", "nil context",
		func(b *bench) error { return b.held().Close(noContext) }, nil)
	add("a nil context for Session.Close", "nil context",
		func(b *bench) error { return b.session().Close(noContext) }, nil)
	add("a nil context to come from", "nil context", // the parent of a hold's context, or of a session
		func(b *bench) error { return cause(b.held().Context(noContext)) },
		func(b *bench) error {
			_, err := concurrency.NewSession(b.client, concurrency.WithContext(noContext))
			return err
		})
	add("a nil context for Contenders", "nil context",
		func(b *bench) error { _, err := etcdlock.Contenders(noContext, b.client, "a"); return err }, nil)
	add("a nil context for Holders", "nil context",
		func(b *bench) error { _, err := etcdlock.Holders(noContext, b.client, "a"); return err }, nil)
	add("a nil context for Break", "nil context",
		func(b *bench) error {
			return etcdlock.Break(noContext, b.client, etcdlock.Contender{Key: "a/b", Token: 1})
		}, nil)
	add("a nil function for Do", "nil function",
		func(b *bench) error { return b.mutex().Do(b.ctx, nil) }, nil)
	add("a nil function for TryDo", "nil function",
		func(b *bench) error { return b.mutex().TryDo(b.ctx, nil) }, nil)
	add("a context that has ended for Lock", "canceled",
		func(b *bench) error { return b.mutex().Lock(ended()) },
		func(b *bench) error { return b.theirs().Lock(ended()) })
	add("a context that has ended for TryLock", "canceled",
		func(b *bench) error { return b.mutex().TryLock(ended()) },
		func(b *bench) error { return b.theirs().TryLock(ended()) })

	// Values that no constructor has made.
	add("Lock of a zero Mutex", "not made with",
		func(b *bench) error { return new(etcdlock.Mutex).Lock(b.ctx) },
		func(b *bench) error { return new(concurrency.Mutex).Lock(b.ctx) })
	add("TryLock of a zero Mutex", "not made with",
		func(b *bench) error { return new(etcdlock.Mutex).TryLock(b.ctx) },
		func(b *bench) error { return new(concurrency.Mutex).TryLock(b.ctx) })
	add("Unlock of a zero Mutex", "not held",
		func(b *bench) error { return new(etcdlock.Mutex).Unlock(b.ctx) },
		func(b *bench) error { return new(concurrency.Mutex).Unlock(b.ctx) })
	add("Do of a zero Mutex", "not made with",
		func(b *bench) error { return new(etcdlock.Mutex).Do(b.ctx, nothing) }, nil)
	add("Close of a zero Mutex", "not made with",
		func(b *bench) error { return new(etcdlock.Mutex).Close(b.ctx) }, nil)
	add("Lock of a nil Mutex", "not made with",
		func(b *bench) error { return (*etcdlock.Mutex)(nil).Lock(b.ctx) },
		func(b *bench) error { return (*concurrency.Mutex)(nil).Lock(b.ctx) })
	add("Unlock of a nil Mutex", "not held",
		func(b *bench) error { return (*etcdlock.Mutex)(nil).Unlock(b.ctx) },
		func(b *bench) error { return (*concurrency.Mutex)(nil).Unlock(b.ctx) })
	add("a Mutex of a zero Session", "not made with",
		func(b *bench) error { _, err := new(etcdlock.Session).Mutex("a"); return err },
		func(b *bench) error { return concurrency.NewMutex(new(concurrency.Session), "a").Lock(b.ctx) })
	add("a Mutex of a nil Session", "not made with",
		func(b *bench) error { _, err := (*etcdlock.Session)(nil).Mutex("a"); return err },
		func(b *bench) error { return concurrency.NewMutex(nil, "a").Lock(b.ctx) })
	add("Close of a zero Session", "not made with",
		func(b *bench) error { return new(etcdlock.Session).Close(b.ctx) },
		func(b *bench) error { return new(concurrency.Session).Close() })

	// Names.
	names := []struct{ about, name, says string }{
		{"an empty name", "", "empty"},
		{"the name /", "/", `ends with "/"`},
		{"a name that ends with /", "orders/", `ends with "/"`},
		{"a name with NUL", "or\x00ders", "NUL"},
		{"a name that is not UTF-8", "orders\xff", "UTF-8"},
		{"a name of 2 MiB", long, "2097152 bytes"},
	}
	for _, n := range names {
		add(n.about+" for New", n.says,
			func(b *bench) error { _, err := etcdlock.New(b.client, n.name); return err }, nil)
		add(n.about+" for Session.Mutex", n.says,
			func(b *bench) error { _, err := b.session().Mutex(n.name); return err },
			func(b *bench) error {
				s := b.theirSession()
				b.ready()
				return concurrency.NewMutex(s, n.name).Lock(b.ctx)
			})
		add(n.about+" for Contenders", n.says,
			func(b *bench) error { _, err := etcdlock.Contenders(b.ctx, b.client, n.name); return err }, nil)
	}
	add("a name of 1,025 bytes", "1025 bytes",
		func(b *bench) error {
			_, err := etcdlock.New(b.client, strings.Repeat("n", 1025))
			return err
		}, nil)

	// Options.
	option := func(name, says string, opts ...etcdlock.SessionOption) {
		add(name, says, func(b *bench) error {
			_, err := etcdlock.NewSession(b.client, opts...)
			return err
		}, nil)
	}
	ttls := []struct {
		name, says string
		ours       time.Duration
		theirs     int
	}{
		{"a TTL of 0", "WithTTL(0s)", 0, 0},
		{"a negative TTL", "WithTTL(-3s)", -3 * second, -3},
		{"the least TTL there is", "WithTTL(-", math.MinInt64, math.MinInt},
		// A Duration ends at 292 years; etcd's own limit is at 285.
		{"a TTL of 300 years", "2500000h", math.MaxInt64, 300 * years},
	}
	for _, ttl := range ttls {
		add(ttl.name, ttl.says,
			func(b *bench) error {
				_, err := etcdlock.NewSession(b.client, etcdlock.WithTTL(ttl.ours))
				return err
			},
			func(b *bench) error {
				_, err := concurrency.NewSession(b.client, concurrency.WithTTL(ttl.theirs))
				return err
			})
	}
	option("a margin of 0", "WithSafetyMargin(0s)", etcdlock.WithSafetyMargin(0))
	option("a negative margin", "WithSafetyMargin(-1ns)", etcdlock.WithSafetyMargin(-1))
	option("a margin of the default TTL", "margin 15s", etcdlock.WithSafetyMargin(15*second))
	option("a margin of the TTL", "margin 3s", etcdlock.WithTTL(3*second),
		etcdlock.WithSafetyMargin(3*second))
	option("a margin above the TTL", "margin 4s", etcdlock.WithSafetyMargin(4*second),
		etcdlock.WithTTL(3*second))
	option("a margin above a TTL of 1 ns", "margin", etcdlock.WithTTL(1), etcdlock.WithSafetyMargin(1))
	option("a longest hold of 0", "WithMaxHold(0s)", etcdlock.WithMaxHold(0))
	option("a negative longest hold", "WithMaxHold(-1s)", etcdlock.WithMaxHold(-second))
	option("an acquire timeout of 0", "WithAcquireTimeout(0s)", etcdlock.WithAcquireTimeout(0))
	option("a negative acquire timeout", "WithAcquireTimeout(-1s)",
		etcdlock.WithAcquireTimeout(-second))
	option("a negative hand-off", "WithHandoff(-1)", etcdlock.WithHandoff(-1))
	option("a linger of 0", "WithLinger(0s)", etcdlock.WithLinger(0))
	option("a negative linger", "WithLinger(-1s)", etcdlock.WithLinger(-second))
	option("an empty owner", `WithOwner("")`, etcdlock.WithOwner(""))
	option("an owner that is not UTF-8", "UTF-8", etcdlock.WithOwner("api\xff"))
	option("an owner of 2 MiB", "2097152 bytes", etcdlock.WithOwner(long))
	option("a nil logger", "WithLogger(nil)", etcdlock.WithLogger(nil))
	option("a nil trace", "WithTrace(nil)", etcdlock.WithTrace(nil))
	add("a nil option", "option 1 is nil",
		func(b *bench) error { _, err := etcdlock.NewSession(b.client, nil); return err },
		func(b *bench) error { _, err := concurrency.NewSession(b.client, nil); return err })
	add("a handoff of a Semaphore", "WithHandoff is not for a Semaphore", func(b *bench) error {
		_, err := b.session().Semaphore("a", 1, etcdlock.WithHandoff(1))
		return err
	}, nil)

	// Calls out of turn.
	add("Unlock before Lock", "not held",
		func(b *bench) error { return b.mutex().Unlock(b.ctx) },
		func(b *bench) error { return b.theirs().Unlock(b.ctx) })
	add("Unlock twice", "not held",
		func(b *bench) error { mu := b.unlocked(); return mu.Unlock(b.ctx) },
		func(b *bench) error { mu := b.theirsUnlocked(); return mu.Unlock(b.ctx) })
	add("Unlock by another", "not held",
		func(b *bench) error { b.held(); return b.mutex().Unlock(b.ctx) },
		func(b *bench) error { b.theirsHeld(); return b.theirs().Unlock(b.ctx) })
	add("Lock of what one holds", "already",
		func(b *bench) error { mu := b.held(); return mu.Lock(mu.Context(b.ctx)) },
		func(b *bench) error { return b.theirsHeld().Lock(b.ctx) })
	add("TryLock of what one holds", "already",
		func(b *bench) error { mu := b.held(); return mu.TryLock(mu.Context(b.ctx)) },
		func(b *bench) error { return b.theirsHeld().TryLock(b.ctx) })
	add("Lock after Close", "closed",
		func(b *bench) error { return b.closed().Lock(b.ctx) },
		func(b *bench) error { return b.theirsClosed().Lock(b.ctx) })
	add("TryLock after Close", "closed",
		func(b *bench) error { return b.closed().TryLock(b.ctx) },
		func(b *bench) error { return b.theirsClosed().TryLock(b.ctx) })
	add("Unlock after Close", "not held",
		func(b *bench) error { return b.closed().Unlock(b.ctx) },
		func(b *bench) error { return b.theirsClosed().Unlock(b.ctx) })
	add("Do after Close", "closed",
		func(b *bench) error { return b.closed().Do(b.ctx, nothing) }, nil)
	add("a Mutex of a Session that was closed", "closed",
		func(b *bench) error {
			s := b.session()
			require.NoError(b.tr, s.Close(b.ctx))
			_, err := s.Mutex("a")
			return err
		}, nil)
	add("Break of a zero Contender", `key ""`,
		func(b *bench) error { return etcdlock.Break(b.ctx, b.client, etcdlock.Contender{}) }, nil)
	add("Break of a Contender without a key", `key ""`,
		func(b *bench) error {
			return etcdlock.Break(b.ctx, b.client, etcdlock.Contender{Token: 1})
		}, nil)
	add("Break of a Contender without a token", "token 0",
		func(b *bench) error {
			return etcdlock.Break(b.ctx, b.client, etcdlock.Contender{Key: "a/b"})
		}, nil)
	return all
}

func nothing(context.Context) error { return nil }

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// cause is why ctx has ended.
func cause(ctx context.Context) error { return context.Cause(ctx) }

func (b *bench) session() *etcdlock.Session {
	s, err := etcdlock.NewSession(b.client)
	require.NoError(b.tr, err)
	b.tr.Cleanup(func() { s.Close(b.ctx) })
	return s
}

func (b *bench) mutex() *etcdlock.Mutex {
	mu, err := b.session().Mutex(b.tr.name)
	require.NoError(b.tr, err)
	return mu
}

// held, unlocked and closed make a Mutex with a past, and are ready for the call.

func (b *bench) held() *etcdlock.Mutex {
	mu := b.mutex()
	require.NoError(b.tr, mu.Lock(b.ctx))
	b.ready()
	return mu
}

func (b *bench) unlocked() *etcdlock.Mutex {
	mu := b.held()
	require.NoError(b.tr, mu.Unlock(b.ctx))
	b.ready()
	return mu
}

func (b *bench) closed() *etcdlock.Mutex {
	mu := b.held()
	require.NoError(b.tr, mu.Close(b.ctx))
	b.ready()
	return mu
}

func (b *bench) theirSession() *concurrency.Session {
	s, err := concurrency.NewSession(b.client, concurrency.WithContext(b.ctx))
	require.NoError(b.tr, err)
	b.tr.Cleanup(func() { s.Close() })
	return s
}

func (b *bench) theirs() *concurrency.Mutex {
	mu := concurrency.NewMutex(b.theirSession(), b.tr.name)
	b.ready()
	return mu
}

func (b *bench) theirsHeld() *concurrency.Mutex {
	mu := b.theirs()
	require.NoError(b.tr, mu.Lock(b.ctx))
	b.ready()
	return mu
}

func (b *bench) theirsUnlocked() *concurrency.Mutex {
	mu := b.theirsHeld()
	require.NoError(b.tr, mu.Unlock(b.ctx))
	b.ready()
	return mu
}

func (b *bench) theirsClosed() *concurrency.Mutex {
	s := b.theirSession()
	mu := concurrency.NewMutex(s, b.tr.name)
	require.NoError(b.tr, mu.Lock(b.ctx))
	require.NoError(b.tr, s.Close())
	b.ready()
	return mu
}
