package etcdlock

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

// manyWatched is how many keys a permit watches one by one. Where it waits for the end of more, it
// watches all permits.
const manyWatched = 16

// waitBehindSome waits until the line ahead of p, a permit, may have become one that lets it in,
// and has read that line then. ahead is the line as p has found it. (Do not read it once more: a
// view may have cleared it meanwhile. TestAPermitWaitsForThoseThatItHasFound.)
//
// It knows some keys of which one at least goes before it may hold: line.Ahead.Awaited. Where these
// are few and the line is long it watches each of them; otherwise, all permits. Either way it
// watches its own key, too. A watch begins from now, and once all are there it reads the line. So
// no deletion is missed: the read shows a deletion before the watches, and a later one comes as an
// event.
//
// Where it knows all that are before it, it counts the events itself, and reads the line once, at
// the end. In a long line it does that when it is among the first. So what a hand-over costs grows
// with the limit, and not with the line.
//
// It does not enter by the events alone: they come by several watches, in any order.
func (p *place) waitBehindSome(
	ctx context.Context, c *claim, ahead line.Ahead, broken *attempt.Backoff,
) error {
	w := p.watchSome(ctx, ahead, *broken)
	defer w.end()
	return p.waitBy(ctx, c, source{
		notices: w.notices, count: max(1, len(w.keys)),
		begun: looks, due: looks, first: p.firstRecheck(), news: looks, covers: w.covers,
		departed: func(keys []string) bool { return p.departed(w, keys) },
	}, broken)
}

// departed notes that keys were deleted after p was put. It reports whether p may hold now, or does
// not know which other keys it waits for.
//
// Invariant: it does not count on the end of a key that no watch tells of. (What is watched key by
// key says nothing of the other keys, and the watch of permits nothing of the rest: they may have
// gone unseen. TestAPermitBehindOthersGetsInWithTheLastOfThem.)
func (p *place) departed(w *permitWatch, keys []string) (looks bool) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	gone := func(e line.Entry) bool { return slices.Contains(keys, e.Key) }
	if gone(p.ticket.Entry()) || p.staleLocked() {
		return true
	}
	if !p.ahead.Whole {
		return slices.ContainsFunc(p.ahead.Awaited(), gone)
	}
	p.ahead = p.ahead.Without(gone)
	return !w.covers(p.ahead)
}

// A permitWatch is the watches by which a permit waits.
type permitWatch struct {
	notices chan notice
	end     context.CancelFunc
	keys    []string // that are watched one by one; none if all permits are
}

// covers reports whether one of the watches tells when a place with ahead before it may hold.
func (w *permitWatch) covers(ahead line.Ahead) bool {
	if ahead.Clear() || ahead.Unread() {
		return false
	}
	return !slices.ContainsFunc(ahead.Awaited(), func(e line.Entry) bool {
		return !slices.Contains(w.keys, e.Key) && (len(w.keys) > 0 || e.Kind() != line.Permit)
	})
}

// watchSome begins to watch the keys for which p waits, and its own: one by one if they are few, it
// does not know all that are before it, and watches have begun as they should.
//
// Invariant: after watches that have failed it begins one, and not one for each key. (An etcd that
// is slow would get many times as much to do. TestTheWatchesOfAPermitBeginAtASlowEtcd.)
func (p *place) watchSome(ctx context.Context, ahead line.Ahead, broken attempt.Backoff) *permitWatch {
	awaited := ahead.Awaited()
	w := &permitWatch{notices: make(chan notice)}
	ctx, w.end = context.WithCancel(ctx)
	failed := broken != attempt.Backoff{}
	if awaited[0].Kind() == line.Permit && (ahead.Whole || failed || len(awaited) > manyWatched) {
		permits := line.Permits(p.ticket.Name)
		p.s.tasks.Go(func() { p.follow(ctx, w.notices, broken, permits.From, clientv3.WithRange(permits.To)) })
		return w
	}
	for _, e := range append(slices.Clone(awaited), p.ticket.Entry()) {
		w.keys = append(w.keys, e.Key)
		p.s.tasks.Go(func() { p.follow(ctx, w.notices, broken, e.Key) })
	}
	return w
}

// follow tells what a watch of deletions reports, until the watch ends, or ctx, which the waiter
// ends.
func (p *place) follow(
	ctx context.Context, told chan<- notice, broken attempt.Backoff, key string, opts ...clientv3.OpOption,
) {
	before := broken
	watch := p.s.etcd.Watch(ctx, &broken, key, append(opts, clientv3.WithFilterPut())...)
	defer watch.Stop()
	late := broken != before
	for {
		select {
		case answer, open := <-watch.Answers:
			n := p.noticeOf(watch.Notice(answer, open))
			if n.kind == etcd.Events && n.at == 0 {
				continue
			}
			n.late = late
			select {
			case told <- n:
			case <-ctx.Done():
				return
			}
			if n.kind == etcd.Ended {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
