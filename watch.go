package etcdlock

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/recheck"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// fewOldest is how many keys are read to find the holder: the first is the holder's, unless there
// are keys of another kind below the name.
const fewOldest = 3

// WatchHolder yields the holder of the lock name now, and then the holder after each change. It is
// for programs that follow a leader without being candidates: proxies, dashboards. While there is
// no holder it yields the zero Contender. Of several holders (readers, or permits) it yields the
// first in line. [WithInfo] is how a holder tells its address. A holder that changes its Info, by
// [Mutex.SetInfo] or [Hold.SetInfo], is yielded again, and so is one whose hold is over while the
// name stays taken (Contender.Until).
//
// Changes that follow each other closely may be skipped, but they are never reordered, and the
// last one always comes: within milliseconds, or about two seconds later if an event was lost.
// Nothing is yielded twice in a row, and a [Recall] is no change. What it yields was true a moment
// ago: only the holder itself, by its context or its token, can be certain.
//
// It goes on through lost watches, compactions, members that are cut off, and an etcd that is away
// or was restored. It ends with ctx, without an error; when the loop breaks; or after it has
// yielded one error, with the zero Contender, that retrying does not fix: a bad argument, a
// refusal, a closed client. Nothing is left running then, unless a watch has just begun and etcd
// does not answer within 50 ms: then the client may keep a stream open until its next watch. The
// sequence may be used any number of times, also at once, and each use begins with the holder at
// that time.
//
// It writes nothing and needs no lease. At rest it costs a watch, and each 1.5 s a transaction
// that returns next to nothing: a thousand uses send some 670 of these a second. A change costs
// each use a read of a few keys and a watch, however long the line is.
func WatchHolder(
	ctx context.Context, client *clientv3.Client, name string,
) iter.Seq2[Contender, error] {
	return func(yield func(Contender, error) bool) {
		s, err := sessionToWatch(ctx, client, name)
		if err != nil {
			yield(Contender{}, err)
			return
		}
		defer func() {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
			defer cancel()
			_ = s.Close(bounded) // it has no lease: there is nothing that it could leave
		}()
		(&holderWatch{s: s, name: name}).run(ctx, yield)
	}
}

// sessionToWatch is a Session that never has a lease: for its reads, its watches and what it knows
// about the history of etcd.
func sessionToWatch(ctx context.Context, client *clientv3.Client, name string) (*Session, error) {
	if err := checkContext(ctx, "watch the holder of", name); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	return NewSession(client)
}

// A holderWatch is one use of the sequence. One goroutine has it: that of the loop.
//
// Invariant: the holder that is yielded was the first in line in a linearizable read, and each read
// was sent after the read before it had been answered. So nothing is reordered. (Do not yield what
// an event or a member that may be behind says. TestWatchHolderNeverGoesBack.)
//
// Invariant: after a read nothing happens to its holder unnoticed: a watch begins right behind it,
// and the key is read again each 1.5 s, because an event may be lost.
type holderWatch struct {
	// Set once, then only read.
	s    *Session
	name string

	broken attempt.Backoff // of watches
}

// A snapshot is what a read has shown.
type snapshot struct {
	e        line.Entry // the first in line, without a revision if there is none
	revision int64      // at which that was so
	epoch    *etcd.Epoch
}

func (w *holderWatch) run(ctx context.Context, yield func(Contender, error) bool) {
	asking, cancel := answered(ctx)
	defer cancel()
	var last snapshot
	for began := false; ctx.Err() == nil; began = true {
		seen, err := w.look(asking)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			yield(Contender{}, failed("watch the holder of", w.name, err))
			return
		}
		if !began || !seen.is(last) {
			if !yield(w.contender(seen.e), nil) {
				return
			}
		}
		last = seen
		w.wait(ctx, asking, seen)
	}
}

// answered is ctx for requests: it ends a little later, so that the answer to one that is under way
// may come. Otherwise each would leave a warning in clientv3's log. (TestFollowingIsNoWarning.)
func answered(ctx context.Context) (context.Context, context.CancelFunc) {
	asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(closeGrace, cancel) })
	return asking, func() { stop(); cancel() }
}

// is reports whether a and b show the same hold, of which they tell the same, or none.
func (a snapshot) is(b snapshot) bool {
	return a.e.Key == b.e.Key && a.e.Rev == b.e.Rev && a.e.Value() == b.e.Value()
}

// contender is e as a Contender, the zero Contender if there is no holder.
func (w *holderWatch) contender(e line.Entry) Contender {
	if e.Rev == 0 {
		return Contender{}
	}
	return contenderOf(w.name, e, true)
}

// look reads the first in line. It retries until it is answered.
func (w *holderWatch) look(ctx context.Context) (snapshot, error) {
	for n := int64(fewOldest); ; n *= n {
		oldest := clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)
		read, err := w.s.etcd.Read(ctx, etcd.Range(line.Prefix(w.name),
			clientv3.WithPrefix(), clientv3.WithLimit(n), oldest))
		if err != nil {
			return snapshot{}, err
		}
		seen := snapshot{revision: read.Header.GetRevision(), epoch: read.Epoch}
		if l := line.Of(w.name, read.Ranges[0].Kvs); len(l) > 0 {
			seen.e = l[0]
			return seen, nil
		}
		if !read.Ranges[0].More {
			return seen, nil
		}
	}
}

// wait returns when the line is to be read again: the holder has gone or, if there is none, a
// contender may have come; or the watch has failed, after a pause. asking is ctx for its requests.
func (w *holderWatch) wait(ctx, asking context.Context, seen snapshot) {
	key, opts := seen.e.Key, []clientv3.OpOption{clientv3.WithRev(seen.revision + 1)}
	if key == "" {
		key, opts = line.Prefix(w.name), append(opts, clientv3.WithPrefix())
	}
	watch := w.s.etcd.Watch(ctx, &w.broken, key, opts...)
	defer watch.Stop()
	again := time.NewTimer(attempt.Jitter(recheck.Least))
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case answer, open := <-watch.Answers:
			n := watch.Notice(answer, open)
			switch {
			case n.Kind == etcd.Ended:
				_ = w.broken.Wait(ctx, w.s.etcd.Caller) // the caller asks ctx itself
				return
			case w.changes(&seen, n.Events):
				return
			}
			w.broken.Reset()
		case <-again.C:
			if !w.stands(asking, &seen) {
				return
			}
			again.Reset(attempt.Jitter(w.s.etcd.Seldom(recheck.Least)))
		}
	}
}

// changes reports whether events say that the holder is another now, or tells something else. A key
// that was put over stays the holder's if it keeps its place: then seen is as of now.
func (w *holderWatch) changes(seen *snapshot, events []*clientv3.Event) bool {
	for _, event := range events {
		now := snapshot{e: line.EntryOf(event.Kv)}
		put := event.Type == clientv3.EventTypePut && now.e.StandsIn(w.name)
		if free := seen.e.Rev == 0; free == put || !free && !now.is(*seen) {
			return true
		}
		if put {
			seen.e = now.e
		}
	}
	return false
}

// stands reports whether nothing has changed since, as one more request shows. It also reports true
// if no answer comes: then the watch has to tell. It waits no longer than until the next request is
// due, since the events of a member that is back may be there already.
//
// While there is no holder it reads a few of the keys that are newer than seen. If none of these
// may stand in line, seen is as of now. (Do not compare that there are none: beside nested names in
// use there always are some. TestWatchHolderOfAFreeNameReadsNoNestedNames.)
func (w *holderWatch) stands(ctx context.Context, seen *snapshot) bool {
	ifs, ask := []clientv3.Cmp(nil), clientv3.OpGet(line.Prefix(w.name), clientv3.WithCountOnly())
	if seen.e.Rev != 0 {
		unchanged := clientv3.Compare(clientv3.ModRevision(seen.e.Key), "=", seen.e.Mod)
		ifs = append(ticket.Contends(seen.e), unchanged)
	} else {
		ask = queue.FewKeys(line.Prefix(w.name), clientv3.WithPrefix(),
			clientv3.WithMinModRev(seen.revision+1))
	}
	bounded, cancel := context.WithTimeout(ctx, w.s.etcd.Seldom(recheck.Least))
	defer cancel()
	read, err := w.s.etcd.Attempt(bounded, etcd.Ranges(ifs, ask))
	if err != nil {
		return !attempt.Refused(err) && !w.s.etcd.Closed() // if it stays so look says it
	}
	if !read.Holds || seen.epoch != w.s.etcd.Epoch() ||
		seen.e.Rev == 0 && !line.NoneBut("", w.name, read.Ranges[0]) {
		return false
	}
	seen.revision = max(seen.revision, read.Header.GetRevision())
	return true
}

// Contenders returns all holders and waiters of the lock name, in the order of the line. The first
// one holds. If it reads, all before the first one that does not read hold. If it is a permit, all
// before the first one that has to wait hold. It is one linearizable read, writes nothing, and may
// be called with any KV that sees the same keys as the lock's client.
func Contenders(ctx context.Context, kv clientv3.KV, name string) ([]Contender, error) {
	if err := checkAdmin(ctx, kv, "contenders of", name); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	resp, err := kv.Get(ctx, line.Prefix(name), clientv3.WithPrefix())
	if err != nil {
		return nil, failed("contenders of", name, err)
	}
	l := line.Of(name, resp.Kvs)
	holding := len(l.Holding())
	contenders := make([]Contender, len(l))
	for i, e := range l {
		contenders[i] = contenderOf(name, e, i < holding)
	}
	return contenders, nil
}

// Holders returns all holders of every lock whose name begins with prefix, which is
// a plain string and may be empty for all, sorted by name, and by token where several hold. It
// is one linearizable read of all keys that begin with prefix, and writes nothing.
func Holders(ctx context.Context, kv clientv3.KV, prefix string) ([]Contender, error) {
	if err := checkAdmin(ctx, kv, "holders below", prefix); err != nil {
		return nil, err
	}
	resp, err := kv.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, failed("holders below", prefix, err)
	}
	var holders []Contender
	lines := line.ByName(resp.Kvs)
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		if !strings.HasPrefix(name, prefix) {
			continue // prefix ends in the last part of a key
		}
		for _, e := range lines[name].Holding() {
			holders = append(holders, contenderOf(name, e, true))
		}
	}
	return holders, nil
}
