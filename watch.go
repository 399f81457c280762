package etcdlock

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/follow"
	"github.com/etcdlock/etcdlock/internal/line"
)

// WatchHolder yields the holder of the lock name now, and then the holder after each change. While
// there is no holder it yields the zero Contender. It is for programs that follow a leader without
// being candidates: proxies, dashboards.
//
// Of several holders (readers, or permits) it yields the first in line. A holder that changes its
// Info is yielded again, and so is one whose hold is over while the name stays taken
// (Contender.Until). A [Recall] is no change. Changes that follow each other closely may be
// skipped, but never reordered, and the last one always comes: within milliseconds, or about two
// seconds later if an event was lost. What it yields was true a moment ago: only the holder itself
// can be certain.
//
// It goes on through lost watches, compactions, members that are cut off, and an etcd that is away
// or was restored. It ends with ctx, without an error; when the loop breaks; or after one error,
// with the zero Contender, that retrying does not fix: a bad argument, a refusal, a closed client.
// Then it leaves nothing running. One exception: if etcd does not answer a watch that has just
// begun, the client may keep that stream open until its next watch. The sequence may be used any
// number of times, also at once.
//
// It needs a whole client, and not a KV alone: it watches, and it learns from the client's
// connection when etcd is away. It writes nothing. At rest it costs a watch, and each 1.5 s a
// transaction that returns next to nothing; a change costs a read of a few keys.
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
		followHolder(ctx, s, name, yield)
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

// followHolder yields the holder of a name, and the holder after each change.
func followHolder(
	ctx context.Context, s *Session, name string, yield func(Contender, error) bool,
) {
	var last *follow.Snapshot
	f := follow.Follower{Conn: s.etcd, Name: name, See: func(seen *follow.Snapshot) bool {
		before := last
		last = seen
		return before != nil && seen.Is(before) || yield(firstOf(name, seen), nil)
	}}
	if err := f.Run(ctx); err != nil {
		yield(Contender{}, failed("watch the holder of", name, err))
	}
}

// firstOf is the first in line as a Contender, the zero Contender if there is none.
func firstOf(name string, seen *follow.Snapshot) Contender {
	first := seen.First()
	if first.Rev == 0 {
		return Contender{}
	}
	return contenderOf(name, first, true)
}

// Contenders returns all holders and waiters of the lock name, in the order of the line. The first
// one holds, and so do others whose Holds is true: readers, or permits. It is one linearizable
// read, writes nothing, and works with any KV that sees the same keys as the lock's client.
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

// Holders returns all holders of every lock whose name begins with prefix, sorted by name, and by
// token where several hold. prefix is a plain string, and may be empty for all. It is one
// linearizable read of all keys that begin with prefix, and writes nothing.
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
