package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// ProgressInterval is how often a watch that asks for progress reports it, if it has
// delivered nothing else meanwhile. The figure is etcd's.
const ProgressInterval = 10 * time.Minute

// A watcher replaces clientv3's, which has one channel for all clients of a program. A
// bubble of testing/synctest stands still while a goroutine in it waits on such a channel.
type watcher struct{ *port }

// A watch delivers the events in order, and none twice.
//
// Invariant: all below from has been delivered, or was not asked for.
type watch struct {
	on             *port
	stream         string // watches of one stream report their progress together
	key, end       []byte
	noPut, noDelet bool
	withPrev       bool
	created        bool          // whether to report its creation
	progress       bool          // whether to report progress by itself
	more           chan struct{} // tells pump that queue is not empty

	// Guarded by Server.mu.
	from     int64
	queue    []delivery
	begun    bool // or its caller has gone: it does not begin any more
	quiet    bool // nothing was delivered since the last check of it
	reporter *time.Timer
}

// A delivery is a response on its way.
type delivery struct {
	clientv3.WatchResponse
	sent time.Time
}

// Watch watches a key or a range. Like clientv3's it returns once etcd has answered, or ctx
// has ended.
func (w *watcher) Watch(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...) // which takes them, too
	asks := optionsIn(op)
	made := &watch{
		on: w.port, stream: streamOf(ctx), key: op.KeyBytes(), end: op.RangeBytes(), from: op.Rev(),
		noPut: asks.IsFilterPut(), noDelet: asks.IsFilterDelete(), withPrev: asks.IsPrevKV(),
		created: asks.IsCreatedNotify(), progress: asks.IsProgressNotify(),
		more: make(chan struct{}, 1),
	}
	if len(made.key) == 0 {
		made.key = []byte{0} // the smallest one
	}
	ch := make(chan clientv3.WatchResponse)
	_, err := send(ctx, w.port, Call{Method: Watch}, func() (*watch, error) {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		w.s.beginLocked(made)
		return made, nil
	})
	if err != nil {
		made.stop()
		if err == errClosing || ctx.Err() != nil {
			close(ch)
			return ch
		}
		made.fail()
	}
	go made.pump(ctx, ch) // ends with ctx, with the client, or with the watch
	return ch
}

// streamOf returns the name of a context's stream. Like clientv3 it goes by the metadata.
func streamOf(ctx context.Context) string {
	md, _ := metadata.FromOutgoingContext(ctx)
	return fmt.Sprint(map[string][]string(md))
}

// beginLocked begins a watch, with past events if it asks for them. A request that arrives after
// its caller has gone, or once more, begins none: nothing would end it.
func (s *Server) beginLocked(w *watch) {
	if w.begun {
		return
	}
	w.begun = true
	now := s.store.Rev()
	if w.from < 0 {
		w.addLocked(Cancelled(s.header(), "etcdserver: mvcc: required revision has been compacted"))
		return
	}
	s.watches[w] = struct{}{}
	if w.created {
		w.addLocked(Answered(s.header(), clientv3.WatchResponse{Created: true}))
	}
	compacted := s.store.Now().Compacted()
	switch {
	case w.from == 0:
		w.from = now + 1
	case w.from < compacted:
		delete(s.watches, w)
		w.addLocked(Answered(s.header(), clientv3.WatchResponse{
			Canceled: true, CompactRevision: compacted,
		}))
		return
	case w.from <= now:
		w.deliverLocked(s.store.Events(w.from, now))
	}
	if w.progress {
		w.reporter = time.AfterFunc(ProgressInterval, w.tellProgress)
	}
}

// notifyLocked delivers to the watches what one entry has changed since a revision.
func (s *Server) notifyLocked(before int64) {
	changes := s.store.Events(before+1, s.store.Rev())
	if len(changes) == 0 {
		return
	}
	for w := range s.watches {
		w.deliverLocked(changes)
	}
}

// deliverLocked delivers what w asks for.
func (w *watch) deliverLocked(changes []*mvccpb.Event) {
	s := w.on.s
	var events []*clientv3.Event
	for _, event := range changes {
		isPut := event.Type == clientv3.EventTypePut
		if event.Kv.ModRevision < w.from || isPut && w.noPut || !isPut && w.noDelet ||
			!Within(event.Kv.Key, w.key, w.end) {
			continue
		}
		told := &clientv3.Event{Type: event.Type, Kv: clone(event.Kv)}
		if w.withPrev {
			told.PrevKv = clone(s.store.Before(event))
		}
		events = append(events, told)
	}
	if len(events) > 0 {
		w.quiet = false
		w.addLocked(Answered(s.header(), clientv3.WatchResponse{Events: events}))
	}
}

func (w *watch) addLocked(resp clientv3.WatchResponse) {
	w.queue = append(w.queue, delivery{resp, time.Now()})
	select {
	case w.more <- struct{}{}:
	default: // pump knows already
	}
}

func (w *watch) next() (d delivery, found bool) {
	w.on.s.mu.Lock()
	defer w.on.s.mu.Unlock()
	if len(w.queue) == 0 {
		return d, false
	}
	d = w.queue[0]
	w.queue = w.queue[1:]
	return d, true
}

func (w *watch) stop() {
	w.on.s.mu.Lock()
	defer w.on.s.mu.Unlock()
	delete(w.on.s.watches, w)
	w.begun = true
	if w.reporter != nil {
		w.reporter.Stop()
	}
}

// fail makes the watch end with an error.
func (w *watch) fail() {
	w.on.s.mu.Lock()
	defer w.on.s.mu.Unlock()
	w.queue = nil
	w.addLocked(clientv3.WatchResponse{Canceled: true})
}

// pump delivers the queue.
func (w *watch) pump(ctx context.Context, ch chan<- clientv3.WatchResponse) {
	defer close(ch)
	defer w.stop()
	for w.on.wait(ctx, w.more) == nil {
		for {
			d, found := w.next()
			if !found {
				break
			}
			if !w.travel(ctx, d) {
				return
			}
			select {
			case ch <- d.WatchResponse:
			case <-ctx.Done():
				return
			case <-w.on.closed:
				return
			}
			if d.Canceled {
				return
			}
		}
	}
}

// travel takes a response through the network. A watch whose event was dropped delivers
// nothing any more until ctx ends, because TCP loses nothing in between.
func (w *watch) travel(ctx context.Context, d delivery) (arrived bool) {
	s := w.on.s
	if len(d.Events) > 0 {
		c := Call{Process: w.on.process, Method: Event}
		for _, event := range d.Events {
			if event.Type == clientv3.EventTypeDelete {
				c.Deletes = append(c.Deletes, string(event.Kv.Key))
			}
		}
		effect := s.arrive(c)
		if effect.Drop {
			_ = w.on.wait(ctx, nil)
			return false
		}
		if effect.Delay > 0 && w.on.wait(ctx, after(effect.Delay)) != nil {
			return false
		}
	}
	// The wait in Watch was a round trip of its own.
	if left := w.on.latency() - time.Since(d.sent); left > 0 && !d.Created {
		if w.on.wait(ctx, after(left)) != nil {
			return false
		}
	}
	s.mu.Lock()
	healed := s.cut[w.on.process]
	s.mu.Unlock()
	if healed != nil && w.on.wait(ctx, healed) != nil {
		return false
	}
	return w.on.passes(ctx) == nil
}

// tellProgress reports progress unasked, if nothing else was delivered for a while.
func (w *watch) tellProgress() {
	s := w.on.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, lives := s.watches[w]; !lives {
		return
	}
	if w.quiet && w.syncedLocked() && s.frozen == 0 {
		w.addLocked(Answered(s.header(), clientv3.WatchResponse{}))
	}
	w.quiet = true
	w.reporter.Reset(ProgressInterval)
}

// syncedLocked reports whether w has delivered all events so far.
func (w *watch) syncedLocked() bool { return w.from <= w.on.s.store.Rev()+1 }

// RequestProgress makes all watches of ctx's stream report their progress. It does not wait
// for that.
func (w *watcher) RequestProgress(ctx context.Context) error {
	select {
	case <-w.closed:
		return errors.New("no stream found for context")
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	stream := streamOf(ctx)
	w.s.UnlessFrozen(func() {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		var of []*watch
		for other := range w.s.watches {
			if other.on == w.port && other.stream == stream {
				of = append(of, other)
			}
		}
		if slices.ContainsFunc(of, func(other *watch) bool { return !other.syncedLocked() }) {
			return // etcd says nothing then
		}
		for _, other := range of {
			other.addLocked(Answered(w.s.header(), clientv3.WatchResponse{}))
		}
	})
	return nil
}

// Close does nothing: the watches end with the client.
func (w *watcher) Close() error { return nil }
