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

// watches tell a waiter behind many that the line ahead of it may have changed. It has a watch of
// the key before it; a permit has one of all permits, or some of single keys.
type watches struct {
	watched []string // keys, one by one; none if all permits are
	unbegun int      // how many watches have not begun

	// A permit's watches have each a goroutine, which sends what it is told.
	notices <-chan notice

	// The waiter judges the answers of a watch of the key before itself: that watch may outlast the
	// wait.
	answers clientv3.WatchChan
	last    *predecessor
	before  line.Entry // that key; no revision of a permit
	known   bool       // nothing can have happened to before unseen
}

// A notice is what a watch of deletions reports.
type notice struct {
	kind etcd.NoticeKind
	keys []string // that were deleted
	at   int64    // the revision of the last of these
	late bool     // the watch has not begun in time
	fell error    // the Fall of the user's code, as the watch began
}

// noticeOf is what n says to p's waiter.
func noticeOf(p *Place, n etcd.Notice) notice {
	told := notice{kind: n.Kind, fell: attempt.Fallen(n.Err)}
	for _, event := range n.Events {
		at := event.Kv.ModRevision
		if event.Type == clientv3.EventTypeDelete && p.counts(at) {
			told.keys = append(told.keys, string(event.Kv.Key))
			told.at = max(told.at, at)
		}
	}
	return told
}

// judge is what an answer to the watch of the key before says to p's waiter.
func (w *watches) judge(p *Place, answer clientv3.WatchResponse, open bool) notice {
	told := noticeOf(p, w.last.Notice(answer, open))
	w.last.gone = w.last.gone || told.at != 0
	return told
}

// shows is what shows whether an event was missed. A permit reads the line: its watches tell of
// keys in any order.
func (w *watches) shows() outcome {
	if w.before.Rev == 0 {
		return readLine
	}
	return checkPredecessor
}

// covers reports whether one of the watches tells when a place with ahead before it may hold.
func (w *watches) covers(ahead line.Ahead) bool {
	return len(ahead.Last) > 0 && !slices.ContainsFunc(ahead.Awaited(), func(e line.Entry) bool {
		return !slices.Contains(w.watched, e.Key) && (len(w.watched) > 0 || e.Kind() != line.Permit)
	})
}

// departed notes that keys were deleted after p was put. It reports whether the line is to be read:
// p may hold now, or does not know which other keys it waits for.
//
// Invariant: it does not count on the end of a key that no watch tells of. (What is watched key by
// key says nothing of the other keys, and the watch of permits nothing of the rest: they may have
// gone unseen. TestAPermitBehindOthersGetsInWithTheLastOfThem.)
//
// Do not go by what is left of a reading that has not All: a permit waits for the others, too.
func (w *watches) departed(p *Place, keys []string) (looks bool) {
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
		if p.departs(ahead, rest) {
			return !w.covers(rest)
		}
	}
}

// watchSome begins to watch the keys for which p waits, and its own: one by one if they are few, it
// does not know all that are before it, and watches have begun as they should.
//
// Invariant: after watches that have failed it begins one, and not one for each key. (An etcd that
// is slow would get many times as much to do. TestTheWatchesOfAPermitBeginAtASlowEtcd.)
func watchSome(
	ctx context.Context, p *Place, ahead line.Ahead, broken attempt.Backoff,
) (w watches, end context.CancelFunc) {
	awaited, notices := ahead.Awaited(), make(chan notice)
	ctx, end = context.WithCancel(ctx)
	all := ahead.Reading == line.All || len(awaited) > manyWatched || broken != attempt.Backoff{}
	if all && awaited[0].Kind() == line.Permit {
		permits := line.Permits(p.Ticket.Name)
		p.Account.keys.tasks.Go(func() {
			tellDeletions(ctx, p, notices, broken, permits.From, clientv3.WithRange(permits.To))
		})
		return watches{notices: notices, unbegun: 1}, end
	}
	for _, e := range append(slices.Clone(awaited), p.Ticket.Entry()) {
		w.watched = append(w.watched, e.Key)
		p.Account.keys.tasks.Go(func() { tellDeletions(ctx, p, notices, broken, e.Key) })
	}
	w.notices, w.unbegun = notices, len(w.watched)
	return w, end
}

// tellDeletions sends what a watch of deletions reports, until the watch ends, or ctx, which p's
// waiter ends.
func tellDeletions(
	ctx context.Context, p *Place, notices chan<- notice,
	broken attempt.Backoff, key string, opts ...clientv3.OpOption,
) {
	before := broken
	tell := func(n etcd.Notice) {
		told := noticeOf(p, n)
		if n.Kind == etcd.Events && told.at == 0 {
			return
		}
		told.late = broken != before
		select {
		case notices <- told:
		case <-ctx.Done():
		}
	}
	err := p.Account.keys.etcd.Follow(ctx, &broken, etcd.Following{
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
