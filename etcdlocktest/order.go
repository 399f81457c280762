package etcdlocktest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// LockOrder returns a Trace that learns in which order locks are taken. Give it to the Sessions and
// Mutexes of the code under test, by [etcdlock.WithTrace]. If a lock is asked for while another is
// held, and elsewhere the two are taken the other way round, then two goroutines or processes may
// wait for each other for ever. The end of the test fails with both places, whether they have
// waited or not, and so for any cycle of locks. [Etcd.Close] returns it as an error.
//
// The locks that a call holds are those that its goroutine has locked, and that from which its
// context comes (Do, Context). A try does not wait, so no order follows from it. Session.LockAll
// has none among its names. Where a key outlasts its hold (WithHandoff, WithLinger, WithMinHold) a
// call of another Session right after the Unlock may count as one within the hold.
func (e *Etcd) LockOrder() *etcdlock.Trace {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.order == nil {
		e.order = &order{
			server: e.server, held: make(map[string][]taken), names: make(map[int64][]string),
			before: make(map[string]map[string]string),
		}
	}
	return e.order.trace()
}

// An order is what is known of the order in which locks are taken.
type order struct {
	server *fake.Server
	calls  sync.WaitGroup // names that were asked for, until they are held or given up

	mu     sync.Mutex
	held   map[string][]taken           // by goroutine
	names  map[int64][]string           // of the holds with a token
	within []nested                     // calls with the context of a hold
	before map[string]map[string]string // where a lock was asked for with another one held
}

// A call is one that locks.
type call struct {
	goroutine, place string
	rev              int64 // etcd's when the call began
	outer            int64 // the token of the hold from which its context comes, or 0
	try              bool
}

// A taken is a hold of a goroutine.
type taken struct {
	name  string
	token int64
	by    *call
}

// A nested is a name that a call has asked for.
type nested struct {
	name string
	by   *call
}

type callKey struct{}

func (o *order) trace() *etcdlock.Trace {
	return &etcdlock.Trace{
		Start: func(ctx context.Context, e etcdlock.StartEvent) context.Context {
			o.calls.Add(max(1, len(e.Names)))
			c := &call{goroutine: goroutine(), place: caller(), rev: o.server.Rev(), try: e.Try}
			c.outer, _ = etcdlock.TokenFrom(ctx)
			return context.WithValue(ctx, callKey{}, c)
		},
		Queued: func(ctx context.Context, e etcdlock.QueuedEvent) { o.asks(ctx, e.Name) },
		GaveUp: func(context.Context, etcdlock.GaveUpEvent) { o.calls.Done() },
		Acquired: func(ctx context.Context, e etcdlock.AcquiredEvent) {
			o.asks(ctx, e.Name)
			o.takes(ctx, e.Name, e.Token)
			o.calls.Done()
		},
		Released: func(ctx context.Context, e etcdlock.ReleasedEvent) { o.leaves(ctx, e.Name, e.Token) },
		Lost:     func(ctx context.Context, e etcdlock.LostEvent) { o.leaves(ctx, e.Name, e.Token) },
	}
}

// asks notes that a call asks for a lock.
//
// The events of a Session come in their order, those of two Sessions in any. So a lock counts as
// held only if its key stood when the call began.
func (o *order) asks(ctx context.Context, name string) {
	c := ctx.Value(callKey{}).(*call)
	if c.try {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.outer != 0 {
		o.within = append(o.within, nested{name, c})
	}
	for _, h := range o.held[c.goroutine] {
		if h.by != c && o.server.Stands(h.name, h.token, c.rev) {
			o.notesLocked(h.name, name, c.place)
		}
	}
}

func (o *order) takes(ctx context.Context, name string, token int64) {
	c := ctx.Value(callKey{}).(*call)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held[c.goroutine] = append(o.held[c.goroutine], taken{name, token, c})
	o.names[token] = append(o.names[token], name)
}

func (o *order) leaves(ctx context.Context, name string, token int64) {
	c := ctx.Value(callKey{}).(*call)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held[c.goroutine] = slices.DeleteFunc(o.held[c.goroutine], func(h taken) bool {
		return h == taken{name, token, c}
	})
}

func (o *order) notesLocked(first, then, place string) {
	if first == then {
		return
	}
	if o.before[first] == nil {
		o.before[first] = make(map[string]string)
	}
	if o.before[first][then] == "" {
		o.before[first][then] = place
	}
}

// cycles returns an error for each cycle of locks. Before, it waits a second at most for calls
// that are on their way.
func (o *order) cycles() (all []error) {
	over := make(chan struct{})
	go func() { // ends with the calls
		o.calls.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(time.Second):
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.within {
		for _, outer := range o.names[n.by.outer] {
			o.notesLocked(outer, n.name, n.by.place)
		}
	}
	told := make(map[string]bool)
	for _, first := range slices.Sorted(maps.Keys(o.before)) {
		cycle := o.backLocked(first)
		if cycle == nil || told[cycle[0]] {
			continue
		}
		var steps []string
		for i, name := range cycle {
			told[name] = true
			then := cycle[(i+1)%len(cycle)]
			steps = append(steps, fmt.Sprintf("%q before %q (%s)", name, then, o.before[name][then]))
		}
		all = append(all, fmt.Errorf("etcdlocktest: locks are taken in different orders, so that their "+
			"holders may wait for each other for ever: %s", strings.Join(steps, ", and ")))
	}
	return all
}

// backLocked returns the shortest way from a lock back to it, nil if there is none.
func (o *order) backLocked(first string) []string {
	seen := make(map[string]bool)
	for ways := [][]string{{first}}; len(ways) > 0; ways = ways[1:] {
		way := ways[0]
		for _, then := range slices.Sorted(maps.Keys(o.before[way[len(way)-1]])) {
			if then == first {
				return way
			}
			if !seen[then] {
				seen[then] = true
				ways = append(ways, append(slices.Clone(way), then))
			}
		}
	}
	return nil
}

// goroutine returns the number of the goroutine that calls it.
func goroutine() string {
	text := make([]byte, 64)
	text = text[:runtime.Stack(text, false)] // goroutine 7 [running]:
	return string(bytes.Fields(text)[1])
}

// caller returns the place at which the code under test has called the library: the first file that
// is none of the library's. (A function that is inlined has the name of another one.)
func caller() string {
	_, self, _, _ := runtime.Caller(0)
	root := path.Dir(path.Dir(self))
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		f, more := frames.Next()
		own := path.Dir(f.File) == root || path.Dir(f.File) == path.Dir(self) ||
			strings.HasPrefix(f.File, root+"/internal/")
		if !own || strings.HasSuffix(f.File, "_test.go") || !more {
			return fmt.Sprintf("%s:%d", path.Base(f.File), f.Line)
		}
	}
}
