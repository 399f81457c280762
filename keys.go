package etcdlock

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

// maxUnreadable is how many keys that the user may not read one call of readKeys skips.
const maxUnreadable = 10

// readOnce is one attempt.
func (s *Session) readOnce(ctx context.Context, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	return s.txn(ctx, nil, ops, nil)
}

// readInTime is readOnce within the time of one attempt.
func (s *Session) readInTime(ctx context.Context, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.calls.Timeout())
	defer cancel()
	return s.readOnce(ctx, ops)
}

// readUntilAnswered tries until etcd answers or refuses, or ctx ends.
func (s *Session) readUntilAnswered(ctx context.Context, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	return read(ctx, s, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.readOnce(ctx, ops)
	}, func(error) error { return nil })
}

// A reader reads by a transaction.
type reader func(context.Context, []clientv3.Op) (*clientv3.TxnResponse, error)

// readKeys reads keys linearizably, and calls got with what it read of keys[from:], part by
// part. The entry of a key that is not there has no revision.
//
// A part is as large as etcd takes, which the Session remembers. readKeys finds keys that the
// user may not read by halving the part that has them, and skips them: the error then says so,
// and says nothing about the others.
func (s *Session) readKeys(ctx context.Context, keys []string, by reader, got func(from int, read []line.Entry)) error {
	most := s.opsAllowed(manyOps)
	size := most
	var refusal error
	unreadable := 0
	for from := 0; from < len(keys); {
		part := keys[from:min(from+size, len(keys))]
		ops := make([]clientv3.Op, len(part))
		for i, key := range part {
			ops[i] = clientv3.OpGet(key)
		}
		resp, err := by(ctx, ops)
		switch {
		case err == nil:
			read := make([]line.Entry, len(part))
			for i, key := range part {
				read[i], _ = line.Find(resp.Responses[i].GetResponseRange().GetKvs(), key)
			}
			got(from, read)
			from += len(part)
			size = min(2*size, most)
		case len(part) > 1 && attempt.Is(err, rpctypes.ErrTooManyOps):
			most = s.opsAllowed(len(part) / 2)
			size = most
		case len(part) > 1 && attempt.Is(err, rpctypes.ErrPermissionDenied):
			size = len(part) / 2
		case attempt.Is(err, rpctypes.ErrPermissionDenied) && unreadable < maxUnreadable:
			unreadable++
			refusal = err
			s.tellUnreadable(part[0], err)
			from++
		default:
			return err
		}
	}
	return refusal
}

// opsAllowed is how many keys may be read in one transaction, now that most is known to be a bound.
func (s *Session) opsAllowed(most int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if most < s.mostOps {
		if s.mostOps == manyOps { // logged once
			s.log(slog.LevelWarn, "etcd takes few operations in one transaction", "most", most)
		}
		s.mostOps = most
	}
	return s.mostOps
}

// tellUnreadable logs once that the user may not read one of the Session's keys.
func (s *Session) tellUnreadable(key string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.unreadable {
		s.unreadable = true
		s.log(slog.LevelWarn, "a key cannot be looked at", "key", key, "error", err)
	}
}

// deleteEntry deletes the very key that was read.
func (s *Session) deleteEntry(ctx context.Context, e line.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, s.calls.Timeout())
	defer cancel()
	_, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(e.Key), "=", e.Rev)).
		Then(clientv3.OpDelete(e.Key)).
		Commit()
	return err
}

// drawer returns what draws the names of keys of a shape, on l.
func (l *lease) drawer(shape line.Shape) func(name string) string {
	return func(name string) string { return l.draw(name, shape) }
}

// draw returns a new name for a key of a shape for the lock name, on l. Only this Session can have
// drawn it: the second half of the UUID, or the last quarter of a permit's, follows from the rest
// and from a secret. So the keys that late requests of the Session put are known from those of its
// user for certain, and nobody has to remember them.
//
// Invariant: no place has the name that is drawn. (Few of a permit's bits are random: among some
// thousand permits two would have one name. TestPermitsOfASessionHaveAKeyEach.)
func (l *lease) draw(name string, shape line.Shape) (key string) {
	for {
		id, ok := line.Draw(uuid.New(), shape)
		key = line.Key(name, l.sign(id, name))
		if ok && l.places[key] == nil {
			return key
		}
	}
}

// hasDrawn reports whether key comes from draw.
func (l *lease) hasDrawn(key string) bool {
	name, id, ok := line.ParseKey(key)
	return ok && l.sign(id, name) == id
}

// sign returns id with what the lease's Session derives from its first bytes behind these.
func (l *lease) sign(id uuid.UUID, name string) uuid.UUID {
	told := line.Told(id)
	signature := uuid.NewSHA1(l.s.secret, fmt.Appendf(id[:told:told], "%x/%s", int64(l.id), name))
	copy(id[told:], signature[told:]) // with the bits of the variant
	return id
}
