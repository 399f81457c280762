package etcd

import (
	"cmp"
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// A Watch is one watch. Its owner receives from Answers, and gives each answer to Notice: as Follow
// does, unless the watch may outlast its owner.
type Watch struct {
	Answers clientv3.WatchChan
	Epoch   *Epoch // in which it was begun

	c       *Conn
	on      int64 // the name of its stream
	created bool  // etcd has answered
	fell    error // the Fall of the user's code, as the watch began
	unlink  func() bool
	uncount func()
	end     context.CancelFunc
}

// A Notice is what an answer of a Watch says.
type Notice struct {
	Kind   NoticeKind
	Events []*clientv3.Event
	Err    error // why the watch has ended, nil if neither etcd nor a Fall has said so
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
	err := cmp.Or(answer.Err(), w.fell)
	header := headerIn(&answer.Header)
	if open && w.c.Epoch() == w.Epoch && w.outgrown(answer) {
		w.c.history.begin(w.Epoch.era, header)
		w.c.setBack(w.Epoch)
	}
	switch {
	case !open || err != nil:
		w.c.stream.fails(w.on, err)
		return Notice{Kind: Ended, Err: err}
	case w.c.Epoch().isElsewhere(header):
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

// headerIn is the header in an answer of a watch: a value before clientv3 3.7, a pointer since.
func headerIn[H any](field *H) *pb.ResponseHeader {
	switch h := any(field).(type) {
	case *pb.ResponseHeader:
		return h
	case **pb.ResponseHeader:
		return *h
	}
	return nil
}

// outgrown reports whether an answer shows a revision that etcd cannot have reached by writing: of
// its own, of an event, or of a compaction (a restore with --mark-compacted compacts all revisions
// of before). (Do not let a view reach such a revision: the answers that follow would look as they
// should. TestARaisedRevisionIsNoticedByAWatch.)
func (w *Watch) outgrown(answer clientv3.WatchResponse) bool {
	highest := max(answer.Header.GetRevision(), answer.CompactRevision)
	for _, event := range answer.Events {
		highest = max(highest, event.Kv.ModRevision)
	}
	return !w.Epoch.isElsewhere(headerIn(&answer.Header)) && w.Epoch.outgrows(highest, time.Now())
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

// Watch begins a watch from now. It returns when etcd has answered, or with closed Answers if ctx
// ends before. If that takes too long, Answers are closed, too, and by broken the
// next watch may take longer.
//
// Invariant: clientv3's watch is not ended before etcd has answered, unless it takes too long. So
// it begins in a goroutine of its own, which goes on if ctx ends.
//
// Do not end it with ctx: clientv3 ends a stream with the last watch that etcd has answered, and
// another one leaves the stream open. (TestNoStreamOfWatchesStaysOpen.)
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
	remains := func() time.Duration { // etcd may have become faster since
		return c.WatchTimeout(before) - time.Since(started)
	}
	begun := make(chan begin) // without a buffer: both sides know whether it was received
	c.tasks.Go(func() {
		defer context.AfterFunc(c.ctx, end)()
		select {
		case begun <- c.begin(watching, key, opts):
		case <-ctx.Done():
			end()
		}
	})
	late, open := w.opens(ctx, begun, remains)
	if !open {
		return w
	}
	if late {
		broken.Unanswered()
		c.tellSilent(on, started)
	} else if w.fell == nil {
		c.Light(time.Since(started))
	}
	w.unlink = context.AfterFunc(ctx, end)
	return w
}

// opens waits until the watch has begun, and ends it once no time remains. It reports false if ctx
// ends before: the goroutine that begins the watch ends it then, once etcd has answered.
func (w *Watch) opens(
	ctx context.Context, begun <-chan begin, remains func() time.Duration,
) (late, open bool) {
	look := time.NewTimer(min(remains(), attempt.ReadTimeout))
	defer look.Stop()
	for {
		select {
		case b := <-begun:
			w.Answers, w.fell = b.answers, b.fell
			return late, true
		case <-ctx.Done():
			time.AfterFunc(remains(), w.end)
			w.end = nil
			return late, false
		case <-look.C:
			if late = remains() <= 0; late {
				w.end() // no waiter reads the line before the watch is there
			} else {
				look.Reset(min(remains(), attempt.ReadTimeout))
			}
		}
	}
}

// begin has clientv3 begin a watch. It returns when etcd has answered, or ctx has ended.
func (c *Conn) begin(ctx context.Context, key string, opts []clientv3.OpOption) begin {
	watch, err := apart(c, func() (clientv3.WatchChan, error) {
		return c.client.Watch(ctx, key, append(opts, clientv3.WithCreatedNotify())...), nil
	})
	if err != nil {
		watch = none
	}
	return begin{watch, err}
}

// tellSilent tells that a watch has not begun in time. If it has kept its stream waiting since it
// was started, the other watches on that hear nothing either, whichever Sessions of the client have
// them. (clientv3 begins one watch at a time on a stream, so many at once take long. Then the
// stream is not silent.)
func (c *Conn) tellSilent(on int64, started time.Time) {
	for _, other := range c.stream.isSilent(on, started) {
		if other != c {
			other.tasks.Go(other.listener.StreamSilent)
		} else {
			c.listener.StreamSilent()
		}
	}
}

// A Following is what one goroutine does with a watch.
type Following struct {
	// Created is called once the watch is there, and reports whether it goes on. What happened before
	// is to be read.
	Created func() (goesOn bool)

	// Events is given what the watch tells.
	Events func([]*clientv3.Event)

	// Tick is called First after the beginning, and then next after the call before. It may be nil.
	Tick  func() (next time.Duration, goesOn bool)
	First time.Duration

	// News are other reasons to go on or not, which Asked reports. They end it if that is nil.
	News  <-chan struct{}
	Asked func() (goesOn bool)
}

// Follow begins a watch from now, and does with it what f says, until f does not go on, or the
// watch or ctx has ended. It returns why the watch has ended, nil if neither etcd nor a Fall has
// said so.
func (c *Conn) Follow(
	ctx context.Context, broken *attempt.Backoff, f Following,
	key string, opts ...clientv3.OpOption,
) error {
	watch := c.Watch(ctx, broken, key, opts...)
	defer watch.Stop()
	tick := time.NewTimer(f.First)
	defer tick.Stop()
	if f.Tick == nil {
		tick.Stop()
	}
	for goesOn := true; goesOn && ctx.Err() == nil; {
		select {
		case answer, open := <-watch.Answers:
			n := watch.Notice(answer, open)
			switch n.Kind {
			case Ended:
				return n.Err
			case Created:
				goesOn = f.Created()
			}
			if n.Kind == Events || len(n.Events) > 0 {
				f.Events(n.Events)
			}
		case <-tick.C:
			var next time.Duration
			next, goesOn = f.Tick()
			tick.Reset(next)
		case <-f.News:
			goesOn = f.Asked != nil && f.Asked()
		case <-ctx.Done():
			goesOn = false
		}
	}
	return nil
}

// A begin is how a watch has begun: with a Fall there are no answers.
type begin struct {
	answers clientv3.WatchChan
	fell    error
}

// none are the Answers of a Watch that was not begun.
var none = func() clientv3.WatchChan {
	closed := make(chan clientv3.WatchResponse)
	close(closed)
	return closed
}()
