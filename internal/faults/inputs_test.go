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

	"github.com/etcdlock/etcdlock/internal/contract"
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
	inputs := contract.BadInputs()
	require.GreaterOrEqual(t, len(inputs), 200)
	theirs := theirInputs()
	for _, in := range inputs {
		delete(theirs, in.Name)
	}
	require.Empty(t, theirs, "inputs of the peer that the library does not have")
	theirs = theirInputs()
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
		call := func() error { return theirs[in.Name](b) }
		if tr.side.Name == side.Ours.Name {
			m := contract.Misuse(tr.T, b.client)
			call = func() error { return in.Try(m) }
		} else if theirs[in.Name] == nil {
			tr.figures.add("inputs that it does not have", 1)
			return
		}
		b.ready()
		err := make(chan error, 1)
		go func() { err <- contract.Caught(call) }() // ends with the call
		select {
		case err := <-err:
			b.judge(in, err)
		case <-time.After(slack):
			tr.figures.add("hangs", 1)
			tr.broke("%s: it has not returned after %v", in.Name, slack)
		}
	})
}

// S27. A TTL that is too short for etcd is no mistake: the lease gets the shortest TTL that
// etcd has.
//
//	a locks with a TTL of 0.1 s | its lease has a second | a unlocks
func TestS27ATTLBelowASecondIsTheShortestThereIs(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S27", name: "a TTL of 100 ms", quick: 2,
		fault: "a TTL of 100 ms, the least that the library takes",
		must:  "it is rounded up to a second, and the lock works",
	}, func(tr *trial) {
		c := etcdtest.Start(tr, 1)
		admin := c.Client(tr)
		a := tr.party("a", c, 100*time.Millisecond)
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
func (b *bench) judge(in contract.BadInput, err error) {
	tr := b.tr
	sent := b.sent.Load() - b.before
	_, panics := err.(contract.Panicked)
	switch {
	case panics:
		tr.figures.add("panics", 1)
		tr.broke("%s: %v", in.Name, err)
	case err == nil:
		tr.figures.add("accepted silently", 1)
		tr.broke("%s: accepted", in.Name)
	case sent != 0:
		tr.figures.add("errors that took a request", 1)
		tr.broke("%s: %d requests for the error %v", in.Name, sent, err)
	case tr.side.Name == side.Ours.Name:
		wrong := in.Wrong(err)
		tr.must(wrong == "", "%s: %s", in.Name, wrong)
	}
}

// noContext is a nil context that linters do not see.
var noContext context.Context

// theirInputs are the calls of etcd's own lock with a bad input, by the input's name.
func theirInputs() map[string]func(*bench) error {
	const years = 365 * 24 * 3600 // seconds
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	opens := func(
		of func(*bench) *clientv3.Client, opts ...concurrency.SessionOption,
	) func(*bench) error {
		return func(b *bench) error { _, err := concurrency.NewSession(of(b), opts...); return err }
	}
	own := func(b *bench) *clientv3.Client { return b.client }
	all := map[string]func(*bench) error{
		"NewSession with a nil client":  opens(func(*bench) *clientv3.Client { return nil }),
		"NewSession with a zero client": opens(func(*bench) *clientv3.Client { return new(clientv3.Client) }),
		"NewSession with a client without a Lease": opens(func(b *bench) *clientv3.Client {
			return &clientv3.Client{KV: b.client.KV, Watcher: b.client.Watcher}
		}),
		"NewSession with a TTL of 0":             opens(own, concurrency.WithTTL(0)),
		"NewSession with a negative TTL":         opens(own, concurrency.WithTTL(-3)),
		"NewSession with the least TTL there is": opens(own, concurrency.WithTTL(math.MinInt)),
		"NewSession with a TTL of 292 years":     opens(own, concurrency.WithTTL(292*years)),
		"NewSession with a nil option":           opens(own, nil),
		"Context with a nil context":             opens(own, concurrency.WithContext(noContext)),

		"Lock with a nil context":               func(b *bench) error { return b.theirs().Lock(noContext) },
		"TryLock with a nil context":            func(b *bench) error { return b.theirs().TryLock(noContext) },
		"Unlock with a nil context":             func(b *bench) error { return b.theirsHeld().Unlock(noContext) },
		"Lock with a context that has ended":    func(b *bench) error { return b.theirs().Lock(ended) },
		"TryLock with a context that has ended": func(b *bench) error { return b.theirs().TryLock(ended) },

		"Lock of a zero Mutex":    func(b *bench) error { return new(concurrency.Mutex).Lock(b.ctx) },
		"TryLock of a zero Mutex": func(b *bench) error { return new(concurrency.Mutex).TryLock(b.ctx) },
		"Unlock of a zero Mutex":  func(b *bench) error { return new(concurrency.Mutex).Unlock(b.ctx) },
		"Lock of a nil Mutex":     func(b *bench) error { return (*concurrency.Mutex)(nil).Lock(b.ctx) },
		"Unlock of a nil Mutex":   func(b *bench) error { return (*concurrency.Mutex)(nil).Unlock(b.ctx) },
		"a Mutex of a zero Session": func(b *bench) error {
			return concurrency.NewMutex(new(concurrency.Session), "a").Lock(b.ctx)
		},
		"a Mutex of a nil Session": func(b *bench) error {
			return concurrency.NewMutex(nil, "a").Lock(b.ctx)
		},
		"Close of a zero Session": func(*bench) error { return new(concurrency.Session).Close() },

		"Unlock before the first Lock": func(b *bench) error { return b.theirs().Unlock(b.ctx) },
		"Unlock of what is not held":   func(b *bench) error { return b.theirsUnlocked().Unlock(b.ctx) },
		"Unlock by another Session": func(b *bench) error {
			b.theirsHeld()
			return b.theirs().Unlock(b.ctx)
		},
		"Lock of what one holds":    func(b *bench) error { return b.theirsHeld().Lock(b.ctx) },
		"TryLock of what one holds": func(b *bench) error { return b.theirsHeld().TryLock(b.ctx) },
		"Lock after Close":          func(b *bench) error { return b.theirsClosed().Lock(b.ctx) },
		"TryLock after Close":       func(b *bench) error { return b.theirsClosed().TryLock(b.ctx) },
		"Unlock of what was closed": func(b *bench) error { return b.theirsClosed().Unlock(b.ctx) },
	}
	for about, name := range map[string]string{
		"an empty name": "", "the name /": "/", "a name that ends with /": "orders/",
		"a name with NUL": "or\x00ders", "a name that is not UTF-8": "orders\xff",
		"a name of 2 MiB": strings.Repeat("n", 2<<20),
	} {
		all["Session.Mutex with "+about] = func(b *bench) error {
			s := b.theirSession()
			b.ready()
			return concurrency.NewMutex(s, name).Lock(b.ctx)
		}
	}
	return all
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
