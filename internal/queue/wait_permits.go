package queue

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

// departed notes that keys were deleted after p was put. It reports whether p may hold now, or does
// not know which other keys it waits for.
//
// Invariant: it does not count on the end of a key that no watch tells of. (What is watched key by
// key says nothing of the other keys, and the watch of permits nothing of the rest: they may have
// gone unseen. TestAPermitBehindOthersGetsInWithTheLastOfThem.)
func (w *permitWatch) departed(p *Place, keys []string) (looks bool) {
	gone := func(e line.Entry) bool { return slices.Contains(keys, e.Key) }
	for {
		ahead, stale := p.Predecessors()
		if gone(p.Ticket.Entry()) || stale {
			return true
		}
		if ahead.Reading != line.All {
			return slices.ContainsFunc(ahead.Awaited(), gone)
		}
		rest := ahead.Without(gone) // without the mutex: they may be thousands
		if w.departs(p, ahead, rest) {
			return !w.covers(rest)
		}
	}
}

// departs notes that only rest of ahead still stands before p. It reports false, and does nothing,
// if something else is known by now.
func (w *permitWatch) departs(p *Place, ahead, rest line.Ahead) bool {
	p.keys.mu.Lock()
	defer p.keys.mu.Unlock()
	if !p.Ahead.Is(ahead) {
		return false
	}
	p.Ahead = rest
	return true
}

// A permitWatch has the watches that a permit waits by.
type permitWatch struct {
	notices chan notice
	end     context.CancelFunc
	keys    []string // that are watched one by one; none if all permits are
}

// covers reports whether one of the watches tells when a place with ahead before it may hold.
func (w *permitWatch) covers(ahead line.Ahead) bool {
	return len(ahead.Last) > 0 && !slices.ContainsFunc(ahead.Awaited(), func(e line.Entry) bool {
		return !slices.Contains(w.keys, e.Key) && (len(w.keys) > 0 || e.Kind() != line.Permit)
	})
}

// watchSome begins to watch the keys for which p waits, and its own: one by one if they are few, it
// does not know all that are before it, and watches have begun as they should.
//
// Invariant: after watches that have failed it begins one, and not one for each key. (An etcd that
// is slow would get many times as much to do. TestTheWatchesOfAPermitBeginAtASlowEtcd.)
func watchSome(
	ctx context.Context, p *Place, ahead line.Ahead, broken attempt.Backoff,
) *permitWatch {
	awaited := ahead.Awaited()
	w := &permitWatch{notices: make(chan notice)}
	ctx, w.end = context.WithCancel(ctx)
	all := ahead.Reading == line.All || len(awaited) > manyWatched || broken != attempt.Backoff{}
	if all && awaited[0].Kind() == line.Permit {
		permits := line.Permits(p.Ticket.Name)
		p.keys.tasks.Go(func() { w.follow(ctx, p, broken, permits.From, clientv3.WithRange(permits.To)) })
		return w
	}
	for _, e := range append(slices.Clone(awaited), p.Ticket.Entry()) {
		w.keys = append(w.keys, e.Key)
		p.keys.tasks.Go(func() { w.follow(ctx, p, broken, e.Key) })
	}
	return w
}

// follow tells what a watch of deletions reports, until the watch ends, or ctx, which the waiter
// ends.
func (w *permitWatch) follow(
	ctx context.Context, p *Place, broken attempt.Backoff, key string, opts ...clientv3.OpOption,
) {
	before := broken
	tell := func(n etcd.Notice) {
		told := noticeOf(p, n)
		if n.Kind == etcd.Events && told.at == 0 {
			return
		}
		told.late = broken != before
		select {
		case w.notices <- told:
		case <-ctx.Done():
		}
	}
	err := p.keys.etcd.Follow(ctx, &broken, etcd.Following{
		Created: func() bool {
			tell(etcd.Notice{Kind: etcd.Created})
			return true
		},
		Events: func(events []*clientv3.Event) {
			tell(etcd.Notice{Kind: etcd.Events, Events: events})
		},
	}, key, append(opts, clientv3.WithFilterPut())...)
	tell(etcd.Notice{Kind: etcd.Ended, Err: err})
}
