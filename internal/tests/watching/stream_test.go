package watching

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A streamed Watcher tells the streams of its watches apart as clientv3 does, by the
// outgoing metadata of their contexts, and opens and closes them as clientv3 does. It
// refuses a watch whose stream was opened too long ago: the token has expired. A watch on a
// dead stream hangs, and existing watches there get nothing.
type streamed struct {
	clientv3.Watcher
	life  time.Duration // of a token
	says  error         // the error after that
	never error         // the error of every watch, if not nil
	deaf  func(key string) bool

	stillborn bool // each stream is dead from its beginning

	mu      sync.Mutex
	streams map[string]*grpcStream // the open ones
	opened  int
	named   map[string]bool // of all so far
	begun   map[string]int  // watches that were asked for, by key
	refused int
}

type grpcStream struct {
	opened  time.Time
	watches int
	dead    bool
}

// streamsOf makes a client's watches go through streams.
func streamsOf(client *clientv3.Client, life time.Duration) *streamed {
	w := &streamed{
		Watcher: client.Watcher,
		life:    life,
		says:    rpctypes.ErrGRPCInvalidAuthToken,
		streams: make(map[string]*grpcStream),
		begun:   make(map[string]int),
		named:   make(map[string]bool),
	}
	client.Watcher = w
	return w
}

// on returns the stream of a context's watches, with one more watch. It opens the stream if
// need be.
func (w *streamed) on(
	ctx context.Context, key string,
) (stream *grpcStream, leave func(), refused error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	id := fmt.Sprint(md)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun[key]++
	w.named[id] = true
	stream = w.streams[id]
	if stream == nil {
		stream = &grpcStream{opened: time.Now(), dead: w.stillborn}
		w.streams[id] = stream
		w.opened++
	}
	stream.watches++
	leave = sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if stream.watches--; stream.watches == 0 {
			delete(w.streams, id)
		}
	})
	switch {
	case w.never != nil:
		refused = w.never
	case time.Since(stream.opened) >= w.life:
		refused = w.says
	}
	if refused != nil {
		w.refused++
	}
	return stream, leave, refused
}

func (w *streamed) Watch(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) clientv3.WatchChan {
	stream, leave, refused := w.on(ctx, key)
	context.AfterFunc(ctx, leave)
	out := make(chan clientv3.WatchResponse, 1)
	if refused != nil {
		leave()
		out <- fake.Cancelled(&pb.ResponseHeader{}, refused.Error())
		close(out)
		return out
	}
	if w.isDead(stream) {
		<-ctx.Done()
		close(out)
		return out
	}
	in := w.Watcher.Watch(ctx, key, opts...)
	go func() { // ends with ctx, or the watch
		defer close(out)
		defer leave()
		for resp := range in {
			if w.isDead(stream) || !resp.Created && w.deaf != nil && w.deaf(key) {
				<-ctx.Done()
				return
			}
			select {
			case out <- resp:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (w *streamed) isDead(stream *grpcStream) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return stream.dead
}

// becomes changes what w does.
func (w *streamed) becomes(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// die makes all streams that are open dead.
func (w *streamed) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, stream := range w.streams {
		stream.dead = true
	}
}

// counts returns the streams that are open, those opened so far, the watches so far, and
// how many of them were refused.
func (w *streamed) counts() (open, opened, begun, refused int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.begun {
		begun += n
	}
	return len(w.streams), w.opened, begun, w.refused
}

// sessionsOf makes Sessions of one client, closed in the end.
func sessionsOf(t *testing.T, client *clientv3.Client, n int) (sessions []*etcdlock.Session) {
	t.Helper()
	for range n {
		s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
		sessions = append(sessions, s)
	}
	return sessions
}

// A live watch keeps its stream open, and etcd refuses each new one once the token of the
// stream has expired. Hand-overs go on by events all the same, and keys linger, whether
// that watch is the user's or one of the library's, for a view or for one key.
func TestAStreamWhoseTokenHasExpiredHoldsUpNoWatch(t *testing.T) {
	const life = time.Minute
	for _, behind := range []int{1, 12} {
		for _, whose := range []string{"the user's", "a view's", "a long line's",
			"a view's of an old etcd"} {
			t.Run(fmt.Sprint("behind ", behind, ", beside ", whose), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					client := etcd.Client("a")
					w := streamsOf(client, life)
					s := sessionsOf(t, client, 1)[0]
					switch whose {
					case "the user's":
						ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(context.Background()))
						t.Cleanup(cancel)
						client.Watch(ctx, "config")
					case "a view's":
						tests.WaitsFor(t, etcd, s, "another", 1)
					case "a view's of an old etcd":
						w.says = rpctypes.ErrGRPCPermissionDenied
						tests.WaitsFor(t, etcd, s, "another", 1)
					default:
						tests.WaitsFor(t, etcd, s, "another", 12)
					}
					for range 3 {
						time.Sleep(2 * life)
						mu, in, keys := tests.WaitsFor(t, etcd, s, "n", behind, etcdlock.WithLinger(time.Hour))
						time.Sleep(time.Second) // for a refusal, and what follows
						synctest.Wait()
						start := time.Now()
						for _, key := range keys {
							require.Empty(t, in)
							etcd.DeleteKey(key)
						}
						require.NoError(t, tests.SoonOr(t, in, "the waiter does not get in"))
						require.Zero(t, time.Since(start), "no event has told")
						if behind == 1 {
							synctest.Wait()
							require.NoError(t, mu.Unlock(context.Background()))
							time.Sleep(30 * time.Second)
							require.Len(t, etcd.Keys("n/"), 1, "the key does not linger")
							require.NoError(t, mu.Lock(context.Background()))
						}
						require.NoError(t, mu.Close(context.Background()))
						require.Empty(t, etcd.Keys("n/"))
					}
					open, opened, _, refused := w.counts()
					require.LessOrEqual(t, open, 2)
					require.LessOrEqual(t, opened, 5)
					require.LessOrEqual(t, refused, 3, "more than one a life")
				})
			})
		}
	}
}

// A noting KV notes the request ids of its transactions.
type noting struct {
	clientv3.KV
	mu  sync.Mutex
	ids map[string]bool
}

func (k *noting) Txn(ctx context.Context) clientv3.Txn {
	md, _ := metadata.FromOutgoingContext(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range md.Get("request-id") {
		k.ids[id] = true
	}
	return k.KV.Txn(ctx)
}

// Each call has a context with an id of its own in its outgoing metadata. Its requests carry it.
// All watches have the library's metadata alone, and so one stream: those of few, of many, of
// permits, of keys that are held, and of WatchHolder.
func TestTheMetadataOfACallOpensNoStream(t *testing.T) {
	const waiters = 20
	withID := func(ctx context.Context, id string) context.Context {
		return metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "request-id", id)
	}
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		kv := &noting{KV: client.KV, ids: make(map[string]bool)}
		client.KV = kv
		w := streamsOf(client, time.Hour)
		ctx, end := context.WithCancel(context.Background())
		defer end()
		var all sync.WaitGroup
		tests.Strangers(t, etcd, "few", 2)
		tests.Strangers(t, etcd, "many", 20)
		tests.Strangers(t, etcd, "permits", 20)
		for i, s := range sessionsOf(t, client, waiters) {
			id := func(what string) context.Context { return withID(ctx, fmt.Sprint(what, i)) }
			waits := func(what string, lock func(context.Context) error) {
				all.Go(func() { require.ErrorIs(t, lock(id(what)), context.Canceled) })
			}
			waits("few", contract.MutexOf(t, s, "few").Lock)
			waits("many", contract.MutexOf(t, s, "many").Lock)
			permits, err := s.Semaphore("permits", 3)
			require.NoError(t, err)
			waits("permits", func(ctx context.Context) error {
				_, err := permits.Acquire(ctx, 1)
				return err
			})
			held := contract.MutexOf(t, s, fmt.Sprint("held", i))
			require.NoError(t, held.Lock(id("held")))
			all.Go(func() {
				for _, err := range etcdlock.WatchHolder(id("holder"), client, "few") {
					require.NoError(t, err)
				}
			})
			synctest.Wait()
		}
		time.Sleep(time.Minute) // by then the held keys are watched
		open, _, begun, _ := w.counts()
		t.Logf("%d watches on %d streams", begun, open)
		require.Equal(t, 1, open)
		require.GreaterOrEqual(t, begun, 3*waiters)
		end()
		all.Wait()
		for _, what := range []string{"few", "many", "permits", "held", "holder"} {
			for i := range waiters {
				require.Contains(t, kv.ids, fmt.Sprint(what, i), "the requests of a call carry its metadata")
			}
		}
	})
}

// A fleet of Sessions on one client has one stream for all, and one more when its token has
// expired and another waiter comes.
func TestTheSessionsOfAClientShareAStream(t *testing.T) {
	const life, fleet = time.Minute, 50
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		w := streamsOf(client, life)
		sessions := sessionsOf(t, client, fleet)
		for round := 1; round <= 3; round++ {
			for i, s := range sessions {
				tests.WaitsFor(t, etcd, s, fmt.Sprint(round, "-", i), 1)
			}
			open, opened, begun, _ := w.counts()
			require.Equal(t, round, open)
			require.Equal(t, round, opened)
			require.LessOrEqual(t, begun, round*fleet+(round-1)*fleet)
			time.Sleep(2 * life)
		}

		other := etcd.Client("a")
		w2 := streamsOf(other, life)
		tests.WaitsFor(t, etcd, sessionsOf(t, other, 1)[0], "x", 1)
		open, _, _, _ := w2.counts()
		require.Equal(t, 1, open, "of another client")
	})
}

// If the user may read and write, but not watch, no other stream helps. The library tries
// few.
func TestWhoMayNotWatchOpensFewStreams(t *testing.T) {
	for _, behind := range []int{1, 12} {
		t.Run(fmt.Sprint("behind ", behind), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				client := etcd.Client("a")
				w := streamsOf(client, time.Hour)
				s := sessionsOf(t, client, 1)[0]
				tests.WaitsFor(t, etcd, s, "seen", 1)
				time.Sleep(time.Second)
				w.becomes(func() { w.never = rpctypes.ErrGRPCPermissionDenied })
				mu, in, keys := tests.WaitsFor(t, etcd, s, "n", behind)
				time.Sleep(10 * time.Minute)
				require.Empty(t, in)
				var named int
				w.becomes(func() { named = len(w.named) })
				require.LessOrEqual(t, named, 12, "more than one a minute")
				for _, key := range keys {
					etcd.DeleteKey(key)
				}
				getsInUnwatched(t, mu, in)
			})
		})
	}
}

// The events of one name never come: each look at its line shows what its watch does not.
// That name watches anew each time. For the other 199 names there is nothing to show, and
// they do not.
func TestOneLateWatchIsMadeAnewAlone(t *testing.T) {
	const names, time2 = 200, 2 * time.Minute
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		w := streamsOf(client, time.Hour)
		w.deaf = func(key string) bool { return key == "n0/" }
		s := sessionsOf(t, client, 1)[0]
		_, _, before := tests.WaitsFor(t, etcd, s, "n0", 8)
		for i := range names - 1 {
			tests.WaitsFor(t, etcd, s, fmt.Sprint("n", i+1), 1)
		}
		_, _, begun, _ := w.counts()
		require.Equal(t, names, begun)
		for _, key := range before[:7] { // of those before the waiter, of which one stays
			time.Sleep(time2 / 7)
			etcd.DeleteKey(key)
		}
		time.Sleep(time2)
		_, opened, begun, _ := w.counts()
		var late int
		w.becomes(func() { late = w.begun["n0/"] })
		t.Logf("%d watches in %v, %d of them of the name whose events are late", begun, time2, late)
		require.Equal(t, names-1, begun-late)
		require.Greater(t, late, 4)
		require.Equal(t, 1, opened, "the stream lives")
	})
}

// The stream itself is dead, as when a member hangs. The first watch that notices makes all
// watch anew, on another stream, each once. While each stream is dead few are opened.
func TestAllWatchAnewWhenTheirStreamIsDead(t *testing.T) {
	const names = 50
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		w := streamsOf(client, time.Hour)
		s := sessionsOf(t, client, 1)[0]
		ins := make([]<-chan error, names)
		keys := make([][]string, names)
		for i := range names {
			_, ins[i], keys[i] = tests.WaitsFor(t, etcd, s, fmt.Sprint("n", i), 2)
		}
		w.die()
		etcd.DeleteKey(keys[0][0])
		time.Sleep(4 * twoRechecks)
		open, opened, begun, _ := w.counts()
		t.Logf("%d watches, %d streams, %d open", begun, opened, open)
		require.Equal(t, 1, open)
		require.Equal(t, 2, opened)
		require.LessOrEqual(t, begun, 2*names+5,
			"each once, but the first one, which tries for some seconds")
		start := time.Now()
		for i := range names {
			for _, key := range keys[i] {
				etcd.DeleteKey(key)
			}
			require.NoError(t, tests.SoonOr(t, ins[i], "the waiter does not get in"))
		}
		require.Zero(t, time.Since(start), "no event has told")

		_, in, line := tests.WaitsFor(t, etcd, s, "x", 1)
		w.becomes(func() { w.stillborn = true })
		w.die()
		tests.Strangers(t, etcd, "x", 1)
		var streams int
		w.becomes(func() { streams -= len(w.named) })
		time.Sleep(10 * time.Minute)
		w.becomes(func() { streams += len(w.named) })
		t.Logf("%d streams in 10 minutes in which each is dead", streams)
		require.LessOrEqual(t, streams, 14, "one a minute, and some at first")
		etcd.DeleteKey(line[0])
		require.Empty(t, in, "somebody else is first")
	})
}

// The stream is that of all Sessions of the client: when one of them notices that it is dead, all
// of them watch anew.
func TestAllSessionsWatchAnewWhenTheirStreamIsDead(t *testing.T) {
	const sessions = 20
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client := etcd.Client("a")
		w := streamsOf(client, time.Hour)
		all := sessionsOf(t, client, sessions)
		ins := make([]<-chan error, sessions)
		keys := make([][]string, sessions)
		for i, s := range all {
			_, ins[i], keys[i] = tests.WaitsFor(t, etcd, s, fmt.Sprint("n", i), 2)
		}
		w.die()
		etcd.DeleteKey(keys[0][0]) // the Session of which shows that it was not told
		time.Sleep(4 * twoRechecks)
		open, opened, begun, _ := w.counts()
		t.Logf("%d watches, %d streams, %d open", begun, opened, open)
		require.Equal(t, 1, open)
		require.Equal(t, 2, opened)
		require.LessOrEqual(t, begun, 2*sessions+5)
		start := time.Now()
		for i := range all {
			for _, key := range keys[i] {
				etcd.DeleteKey(key)
			}
			require.NoError(t, tests.SoonOr(t, ins[i], "the waiter does not get in"))
		}
		require.Zero(t, time.Since(start), "no event has told")
	})
}

// A watch began while etcd was slow, and is never there: its member is dead. It is given up
// by the time that answers take now, not by the time that they took then.
func TestAWatchThatWasBegunWhileEtcdWasSlowIsGivenUpSoon(t *testing.T) {
	const slow = 4 * time.Second
	for _, company := range []int{1, 20} { // waiters by a view, and by a watch of one key
		t.Run(fmt.Sprintf("%d before it", company), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				keys, _ := tests.Strangers(t, etcd, "x", company)
				b := tests.SessionOf(t, etcd, "b")
				dead := make(chan struct{})
				once := sync.OnceFunc(func() { close(dead) })
				etcd.Intercept(func(c fake.Call) fake.Effect {
					if c.Method == fake.Watch {
						once()
						return fake.Effect{Drop: true}
					}
					return fake.Effect{DelayReply: slow}
				})
				in := make(chan error, 1)
				mu := contract.MutexOf(t, b, "x")
				go func() { in <- mu.Lock(context.Background()) }()
				<-dead
				etcd.Intercept(nil)
				for range 3 {
					require.NoError(t, contract.MutexOf(t, b, "y").Do(context.Background(),
						func(context.Context) error {
							return nil
						}))
				}
				for _, key := range keys {
					etcd.DeleteKey(key)
				}
				start := time.Now()
				require.NoError(t, <-in)
				t.Logf("held after %v", time.Since(start))
				require.LessOrEqual(t, time.Since(start), 3*time.Second)
			})
		})
	}
}
