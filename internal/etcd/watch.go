package etcd

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// A Watch is one watch. Its owner receives from Answers, and gives each answer to Notice.
type Watch struct {
	Answers clientv3.WatchChan
	Epoch   *Epoch // in which it was begun

	c       *Conn
	on      int64 // the name of its stream
	created bool  // etcd has answered
	unlink  func() bool
	uncount func()
	end     context.CancelFunc
}

// A Notice is what an answer of a Watch says.
type Notice struct {
	Kind   NoticeKind
	Events []*clientv3.Event
	Err    error // why the watch has ended, nil if etcd has not said so
}

// A NoticeKind is a kind of Notice.
type NoticeKind uint8

const (
	// Created is the first one. What happened before is to be read. It has events only if the
	// Watcher is a user's own, and does not say when a watch is there.
	Created NoticeKind = iota

	// Events is each later one, until the watch has ended.
	Events

	// Ended is the last one: no leader, compacted, cut off, refused, or of another cluster. Where
	// the next watch begins on another stream for it, that is arranged.
	Ended
)

// Notice judges an answer. open is false if there is none, and none will come.
//
// An answer of another cluster than the present epoch's begins no new epoch: after the client was
// moved, an open stream still leads to the old cluster. A later read shows which of the two counts,
// and the next watch is on another stream.
func (w *Watch) Notice(answer clientv3.WatchResponse, open bool) Notice {
	err := answer.Err()
	switch {
	case !open || err != nil:
		w.c.stream.fails(w.on, err)
		return Notice{Kind: Ended, Err: err}
	case w.c.Epoch().isElsewhere(answer.Header):
		w.c.stream.moved()
		return Notice{Kind: Ended}
	}
	w.c.stream.tells(w.on)
	kind := Events
	if !w.created {
		w.created, kind = true, Created
	}
	return Notice{Kind: kind, Events: answer.Events}
}

// Stop ends the watch.
func (w *Watch) Stop() {
	if w.unlink != nil {
		w.unlink()
	}
	if w.end != nil {
		w.end()
	}
	w.uncount()
}

// An opening is a watch that begins.
type opening struct {
	remains func() time.Duration // of its time: less once etcd has become faster
	end     context.CancelFunc   // of the watch

	mu    sync.Mutex
	state openingState
}

type openingState uint8

const (
	opens     openingState = iota
	isOpen                 // etcd has answered
	isGivenUp              // it takes too long: no waiter reads the line before the watch is there
	isLeft                 // the caller's ctx has ended; the goroutine that opens the watch ends it
)

// opened notes that etcd has answered, or that the watch was ended.
func (o *opening) opened() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != opens {
		o.end()
		return
	}
	o.state = isOpen
}

// late ends the watch once it takes too long. Until then it looks again now and then.
func (o *opening) late() {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch remains := o.remains(); {
	case o.state == isOpen:
		return
	case remains > 0:
		time.AfterFunc(min(remains, attempt.ReadTimeout), o.late)
		return
	case o.state == opens:
		o.state = isGivenUp
	}
	o.end()
}

// left notes that ctx of the caller has ended. It reports whether that was before anything else.
func (o *opening) left() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == opens {
		o.state = isLeft
	}
	return o.state == isLeft
}

// Watch begins a watch from now. It returns when etcd has answered, or with closed Answers if ctx
// ends before. If that takes too long, Answers are closed, too, and by broken the
// next watch may take longer.
//
// Invariant: clientv3's watch is not ended before etcd has answered, unless it takes too long. So
// it begins in a goroutine of its own, which goes on if ctx ends.
//
// Do not end it with ctx: clientv3 ends a stream with the last watch that etcd has answered, and
// another one leaves the stream open. (TestNoStreamOfWatchesStaysOpen)
func (c *Conn) Watch(
	ctx context.Context, broken *attempt.Backoff, key string, opts ...clientv3.OpOption,
) (w Watch) {
	watching, on := c.stream.context(context.WithoutCancel(ctx))
	watching, end := context.WithCancel(watching)
	w = Watch{Answers: none, Epoch: c.Epoch(), c: c, on: on, end: end, uncount: c.stream.begins(c)}
	if ctx.Err() != nil {
		return w
	}
	started, before := time.Now(), *broken
	o := &opening{end: end, remains: func() time.Duration {
		return c.WatchTimeout(before) - time.Since(started)
	}}
	o.late()
	begun := make(chan clientv3.WatchChan, 1)
	c.tasks.Go(func() {
		defer context.AfterFunc(c.ctx, end)()
		watch := c.client.Watch(watching, key, append(opts, clientv3.WithCreatedNotify())...)
		o.opened()
		begun <- watch
	})
	select {
	case w.Answers = <-begun:
	case <-ctx.Done():
		if o.left() {
			w.end = nil // its goroutine ends it
			return w
		}
		w.Answers = <-begun
	}
	if o.state == isGivenUp { // opened was the last to change it
		broken.Unanswered()
		// The other watches on it hear nothing either, whichever Sessions of the client have them.
		// (clientv3 begins one watch at a time on a stream, so many at once take long. Then the
		// stream is not silent.)
		for _, other := range c.stream.isSilent(on, started) {
			if other != c {
				other.tasks.Go(other.listener.StreamSilent)
			} else {
				c.listener.StreamSilent()
			}
		}
	}
	w.unlink = context.AfterFunc(ctx, end)
	return w
}

// none are the Answers of a Watch that was not begun.
var none = func() clientv3.WatchChan {
	closed := make(chan clientv3.WatchResponse)
	close(closed)
	return closed
}()
