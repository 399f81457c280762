//go:build bound

package bound_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/bound/steps"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
)

// ttl is that of all Sessions. A renewal is sent each 8 s.
const ttl = 24 * time.Second

// name is the one that the others want, if they want one name.
const name = "n"

// A world is a Session of the process "a", beside n others.
type world struct {
	*testing.T
	n    int
	etcd *fake.Server
	s    *etcdlock.Session
	all  []*etcdlock.Session // s, and those of other processes
	left sync.WaitGroup      // goroutines of the test

	alien clientv3.LeaseID // of the keys of nested names
	asked int              // how often etcd's history was asked for a key, by hearsNoEvent

	waits context.Context // of the calls of the others
	end   context.CancelFunc

	mu      sync.Mutex           // not held across anything
	ends    []context.CancelFunc // of each call, in the order in which they came
	holds   []other              // of the others in s
	handles []closer             // that they have used

	rows []row
}

// held is a Hold, or a Mutex that is held.
type held interface {
	Unlock(ctx context.Context) error
	Context(parent context.Context) context.Context
	Token() int64
	Key() string
	Status() etcdlock.Status
	SetInfo(ctx context.Context, info string) error
}

// other is the hold of one of the others.
type other struct{ held }

func (o other) unlock() { _ = o.Unlock(context.Background()) }

type closer interface {
	Close(ctx context.Context) error
}

// A row is what was counted of something that happened, by the declarations of the mutexes.
type row struct {
	what   string
	kind   kind
	counts map[string]steps.Counts
}

// inWorld calls f in a world, and ends that.
func inWorld(t *testing.T, n int, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, n: n, etcd: fake.NewServer()}
		w.etcd.ForgetCalls()
		w.waits, w.end = context.WithCancel(context.Background())
		w.s = w.session("a")
		f(w)
		w.end()
		w.etcd.Intercept(nil)
		w.etcd.Delay("a", 0)
		w.etcd.Heal("a")
		for _, s := range w.all {
			_ = s.Close(context.Background())
		}
		w.left.Wait()
		time.Sleep(time.Hour)
	})
}

// session is a Session of a process.
func (w *world) session(process string) *etcdlock.Session {
	s, err := etcdlock.NewSession(w.etcd.Client(process),
		etcdlock.WithTTL(ttl), etcdlock.WithOwner(process))
	require.NoError(w, err)
	w.all = append(w.all, s)
	return s
}

// count counts what follows from f, until all goroutines have come to rest.
func (w *world) count(what string, of kind, f func()) {
	synctest.Wait()
	steps.Reset()
	f()
	synctest.Wait()
	w.rows = append(w.rows, row{what, of, steps.Read()})
}

// each calls f in n goroutines. The first one comes to rest before the others, and the last one
// begins after these.
func (w *world) each(f func(ctx context.Context, i int)) {
	for i := range w.n {
		if i == 1 || i == w.n-1 {
			synctest.Wait()
		}
		w.begin(func(ctx context.Context) { f(ctx, i) })
	}
	synctest.Wait()
}

// inTurn is as each, and each call comes to rest before the next one begins.
func (w *world) inTurn(f func(ctx context.Context)) {
	for range w.n {
		w.begin(f)
		synctest.Wait()
	}
}

// begin calls f in a goroutine, with a context that ends on its own or with all waits.
func (w *world) begin(f func(ctx context.Context)) {
	w.left.Go(func() {
		ctx, end := context.WithCancel(w.waits)
		w.mu.Lock()
		w.ends = append(w.ends, end)
		w.mu.Unlock()
		f(ctx)
	})
}

// came notes what has become of a call of the others.
func (w *world) came(h held, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.holds = append(w.holds, other{h})
		return
	}
	for _, expected := range []error{context.Canceled, etcdlock.ErrClosed, etcdlock.ErrLocked} {
		if errors.Is(err, expected) {
			return
		}
	}
	w.Error(err)
}

// uses notes a handle of the others.
func (w *world) uses(c closer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handles = append(w.handles, c)
}

func (w *world) lock(ctx context.Context, name string, opts ...etcdlock.Option) {
	m, err := w.s.Mutex(name, opts...)
	require.NoError(w, err)
	w.uses(m)
	w.came(m, m.Lock(ctx))
}

func (w *world) rw(opts ...etcdlock.Option) *etcdlock.RWMutex {
	rw, err := w.s.RWMutex(name, opts...)
	require.NoError(w, err)
	w.uses(rw)
	return rw
}

func (w *world) semaphore(limit int) *etcdlock.Semaphore {
	sem, err := w.s.Semaphore(name, limit)
	require.NoError(w, err)
	w.uses(sem)
	return sem
}

// another is another process that holds a name.
func (w *world) another(names ...string) {
	b := w.session("b")
	for _, name := range names {
		_, err := b.Lock(context.Background(), name)
		require.NoError(w, err)
	}
}

// names are n names.
func (w *world) names() []string {
	names := make([]string, w.n)
	for i := range names {
		names[i] = fmt.Sprint("name-", i)
	}
	return names
}

// holdNames holds n names.
func (w *world) holdNames() {
	names := w.names()
	w.each(func(ctx context.Context, i int) { w.lock(ctx, names[i]) })
}

// hearsNoEvent loses whatever watches would tell, and counts the reads of one of the names' keys.
func (w *world) hearsNoEvent() {
	w.etcd.Intercept(func(c fake.Call) fake.Effect {
		if c.Method == fake.Range && len(c.Gets) == 1 && strings.HasPrefix(c.Gets[0], "name-") {
			w.asked++
		}
		return fake.Effect{Drop: c.Method == fake.Event}
	})
}

// losesKeys deletes the keys of all names.
func (w *world) losesKeys() {
	for _, key := range w.etcd.Keys("name-") {
		w.etcd.DeleteKey(key)
	}
}

// nested puts n keys of names that nest in the one that the others want, of no Session.
func (w *world) nested() {
	granted, err := w.etcd.Client("strangers").Grant(context.Background(), 100_000)
	require.NoError(w, err)
	w.alien = granted.ID
	for i := range w.n {
		key := line.Key(fmt.Sprint(name, "/", i), uuid.New())
		require.NoError(w, w.etcd.PutKey(key, granted.ID))
	}
}

// strangers puts n keys of a shape, of no Session.
func (w *world) strangers(shape line.Shape) {
	granted, err := w.etcd.Client("strangers").Grant(context.Background(), 100_000)
	require.NoError(w, err)
	for range w.n {
		id, ok := line.Draw(uuid.New(), shape)
		for !ok {
			id, ok = line.Draw(uuid.New(), shape)
		}
		require.NoError(w, w.etcd.PutKey(line.Key(name, id), granted.ID))
	}
}
