package etcdlock

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// manyOps is how many keys are read in one transaction: etcd allows 128 operations by
	// default.
	manyOps = 100

	// lookGrace is how long an audit may wait for its answer after the lease has ended.
	lookGrace = 500 * time.Millisecond

	// byKeysEvery is how many audits there are per audit of the keys on the lease, if the others
	// read values. soonByKeysEvery is that number while a late copy of a put may have put a key
	// since the last one. Both are even, so no two in a row overlook a recall.
	byKeysEvery     = 4
	soonByKeysEvery = 2

	// causeTime is how long a deleted key's hold waits for etcd to say whether the lease is gone
	// too. If it is, that is the reason of the loss.
	causeTime = 100 * time.Millisecond

	// maxUnreadable is how many keys that the user may not read one audit skips.
	maxUnreadable = 10
)

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
	defer s.unlock()
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
	defer s.unlock()
	if !s.unreadable {
		s.unreadable = true
		s.log(slog.LevelWarn, "a key cannot be looked at", "key", key, "error", err)
	}
}

// lookDue reports whether it is time to audit the lease's keys. The last audit was at last.
//
// Invariant: a hold that lasts is covered by a sure watch, or its lease's keys are audited once
// per renewal period. They are audited as often while the renewals are late. Otherwise audits are
// rare: each is a message, and an idle hold must cost little more than its renewals.
// (TestAnIdleHoldCostsItsRenewalsAndLittleElse.)
func (l *lease) lookDue(last time.Time) bool {
	l.s.mu.Lock()
	defer l.s.unlock()
	now := time.Now()
	period := max(l.plan.Period, min(l.ttl/3, lookEvery))
	since := now.Sub(last)
	switch {
	case l.ended != nil:
		return false
	case l.suspect && since >= lookEvery/2: // else the tick comes soon
		return true
	case !l.doubted.IsZero() && now.Sub(l.doubted) < l.ttl && since >= lookEvery:
		return true
	case !l.doubted.IsZero(), len(l.places) > manyPlaces, l.plan.AtRisk(l.trust.Remaining(now)):
		return since >= period
	default:
		return since >= l.seldomLocked(now, period)*period
	}
}

// look is an audit: it compares the lease's keys in etcd with those that the Session
// accounts for. It reports false if etcd seems not to know the lease.
//
// The answer is neither linearizable nor versioned, so nothing is done because of it
// alone. A missing key is read before its place is given up, and only places that were
// taken before the audit was sent are judged. A key that nobody accounts for, put by a
// late copy of a request, is read and then deleted by its create revision.
//
// Each of its requests has the time of one attempt. (One time for all of them would let no key be
// deleted where etcd answers after half of it. TestAStrayIsSweptWhereAnswersAreSlow.)
//
// ctx ends when the lease is about to be revoked. An audit that is under way then still waits a
// little for its answer, but does nothing with it: a cancelled request would be a warning in
// clientv3's log. (TestClosingIsNoWarning, TestCloseDoesNotWaitLongForALook.)
func (l *lease) look(ctx context.Context, sent time.Time) (known bool) {
	s := l.s
	if s.calls.Disconnected() || s.calls.Closed() {
		return true // clientv3 would try many times a second
	}
	asking, stop := context.WithTimeout(s.ctx, s.calls.Timeout())
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lookGrace, stop) })()
	suspicious, places, byKeys := l.audits()
	era := s.era.Load()
	if known = l.lookAt(ctx, asking, places, era); !byKeys {
		return known
	}
	revision := era.revision.Load()
	resp, err := s.client.TimeToLive(asking, l.id, clientv3.WithAttachedKeys())
	if err != nil || ctx.Err() != nil {
		return true // the renewals show it, or it does not matter any more
	}
	s.heard(resp.ResponseHeader, era, 0)
	// A member that lags behind also reports fewer keys. A read decides.
	suspicious = suspicious || resp.GetRevision() < revision
	known = resp.TTL >= 0 // -1 is the answer for a lease that does not exist
	missing, strays := l.compare(resp.Keys, sent, suspicious)

	// Keys that users attach to the lease are theirs.
	strays = slices.DeleteFunc(strays, func(key string) bool { return !l.hasDrawn(key) })
	// After an error the next audit tries again.
	_ = s.readKeys(ctx, keysOf(missing), s.readInTime, func(from int, read []line.Entry) {
		l.confirmMissing(missing[from:], read, known, era)
	})
	_ = s.readKeys(ctx, strays, s.readInTime, func(_ int, read []line.Entry) { l.sweep(ctx, read) })
	return known
}

// audits decides how to audit: by the keys on the lease, or by the values of its places, which
// alone show a recall. If some listen it is one or the other in turn, so that it costs no more than
// for holds that do not. It is both where holds have no watches, since there are too many names,
// and where a late request may put a key, which only the keys on the lease show.
func (l *lease) audits() (suspicious bool, places []*place, byKeys bool) {
	l.s.mu.Lock()
	defer l.s.unlock()
	suspicious = l.suspect
	l.suspect = false
	both := suspicious || !l.doubted.IsZero() || len(l.places) > manyPlaces
	some := false
	for _, p := range l.places {
		listens := p.listens()
		if s := p.ticket.State(); (s == ticket.InLine || s == ticket.Held) && (listens || !both) {
			places = append(places, p)
			some = some || listens
		}
	}
	if !some {
		return suspicious, nil, true
	}
	l.audited++
	every := uint(byKeysEvery)
	if !l.sweptLocked() {
		every = soonByKeysEvery
	}
	if !both && l.audited%every == 0 {
		return suspicious, nil, true
	}
	return suspicious, places, both
}

// lookAt is the audit of places by their keys and values, if there are any. It reports false if
// etcd seems not to know the lease. Like that of all keys it waits a little for its answer when ctx
// has ended.
func (l *lease) lookAt(ctx, asking context.Context, places []*place, sent *era) (known bool) {
	known = true
	_ = l.s.readKeys(asking, keysOf(places), l.s.readOnce, func(from int, read []line.Entry) {
		if ctx.Err() != nil {
			return
		}
		part := places[from:][:len(read)]
		for i, p := range part {
			if read[i].Rev != p.ticket.Rev() { // the lease may be the reason
				known = known && l.isKnown()
				break
			}
		}
		l.confirmMissing(part, read, known, sent)
	})
	return known
}

// isKnown reports whether etcd knows the lease, as far as it answers at once.
func (l *lease) isKnown() bool {
	s := l.s
	if s.calls.Disconnected() || s.calls.Closed() {
		return true // clientv3 would try many times a second
	}
	ctx, cancel := context.WithTimeout(l.live, causeTime)
	defer cancel()
	resp, err := s.client.TimeToLive(ctx, l.id)
	return err != nil || resp.TTL >= 0
}

// compare compares the keys on l, as an audit sent at sent found them, with those that the
// Session accounts for. The missing ones are to be read, and if the answer is suspicious also
// some of those that are there.
func (l *lease) compare(keys [][]byte, sent time.Time, suspicious bool) (missing []*place, strays []string) {
	l.s.mu.Lock()
	defer l.s.unlock()
	l.swept = sent
	present := make(map[string]bool, len(keys))
	for _, key := range keys {
		present[string(key)] = true
		if p := l.places[string(key)]; p == nil || p.ticket.Lost() {
			strays = append(strays, string(key))
		}
	}
	for key, p := range l.places {
		// Under a doubtful name a late request may have put the key again. After a set-back it
		// may be the key of an earlier hold.
		doubtful := !present[key] || p.ticket.Doubtful() || suspicious && p.hold != nil && len(missing) < manyPlaces
		if p.ticket.Rev() != 0 && !p.ticket.Lost() && p.since.Before(sent) && doubtful {
			missing = append(missing, p)
		}
	}
	return missing, strays
}

// sweptLocked reports whether an audit of the keys on l was sent a TTL after the last put. Copies
// of puts that come later than that are left to the rare audits.
func (l *lease) sweptLocked() bool { return l.swept.Sub(l.placed) >= l.ttl }

// keysOf are the keys of places.
func keysOf(places []*place) []string {
	keys := make([]string, len(places))
	for i, p := range places {
		keys[i] = p.ticket.Key
	}
	return keys
}

// confirmMissing gives up the places whose keys are gone or changed, by what was read of them in
// the era sent. known says whether etcd seems to know the lease: if not, the keys went with it.
func (l *lease) confirmMissing(places []*place, read []line.Entry, known bool, sent *era) {
	l.s.mu.Lock()
	defer l.s.unlock()
	for i, e := range read {
		p := places[i]
		gone := e.Rev != p.ticket.Rev()
		if gone && e.Rev != 0 { // another key of that name is in the way
			l.suspectLocked()
		}
		switch {
		case gone && !known:
			p.ticket.Revoked()
		case gone:
		case e.Lease != int64(l.id):
			p.ticket.PutOver()
		default:
			if p.keep > 0 && sent == l.s.era.Load() {
				p.era = sent // who waits has to read the line, too
			}
			p.toldLocked(e)
			continue
		}
		p.lostLocked()
	}
}

// suspectLocked makes an audit of l's keys due now.
func (l *lease) suspectLocked() {
	l.suspect = true
	l.wakeKeeper()
}

// accountsForLocked reports whether e may be the key of a place. If the place's own key is gone, e
// is an earlier key of that name, which a set-back of etcd has brought back.
func (l *lease) accountsForLocked(e line.Entry) bool {
	p := l.places[e.Key]
	return p != nil && (!p.ticket.Lost() || p.ticket.Rev() == e.Rev)
}

// strayLocked makes an audit of a lease due if e, which stands in a line, is on that lease and no
// place accounts for it: e blocks everybody.
func (s *Session) strayLocked(e line.Entry) {
	for l := range s.leases {
		if e.Lease == int64(l.id) && !l.accountsForLocked(e) {
			l.suspectLocked()
		}
	}
}

// sweep deletes those keys of the lease that no place of the Session accounts for.
func (l *lease) sweep(ctx context.Context, read []line.Entry) {
	s := l.s
	for _, e := range read {
		if e.Lease != int64(l.id) {
			continue
		}
		s.mu.Lock()
		accounted := l.accountsForLocked(e) // its name was taken again since the audit
		if !accounted {
			l.retireLocked(errLeaseDoubtful)
		}
		s.unlock()
		if accounted {
			continue
		}
		err := s.deleteEntry(ctx, e)
		s.log(slog.LevelWarn, "removed a key that a late request had put", "key", e.Key, "revision", e.Rev, "error", err)
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

// followConnection begins all views again when the client has lost its connection, and makes an
// audit of l's keys due when it has another. Whoever restores etcd stops it first. If the
// restored etcd passes its old revision before anybody reads, no answer shows that it was set
// back, and a watch goes on as if it had missed nothing. followConnection ends with l.
func (l *lease) followConnection() {
	s := l.s
	conn := s.client.ActiveConnection()
	if conn == nil {
		return // not made with clientv3.New
	}
	for state := conn.GetState(); conn.WaitForStateChange(l.live, state); {
		was := state
		state = conn.GetState()
		s.mu.Lock()
		if was == connectivity.Ready {
			s.endViewsLocked()
		}
		if state == connectivity.Ready {
			s.suspectLocked()
			for _, p := range l.places {
				p.tellLocked() // whoever waits by a watch of one key rechecks soon
			}
		}
		s.unlock()
	}
}

// verify reads the keys of the holds that began in an earlier era. Waiters read the line by
// themselves. Keys that the user may not read are left to the audits.
func (s *Session) verify() {
	var pause attempt.Backoff
	for {
		sent := s.era.Load()
		for l, places := range s.staleHolds() {
			_ = s.readKeys(s.ctx, keysOf(places), s.readUntilAnswered, func(from int, read []line.Entry) {
				l.confirmMissing(places[from:], read, true, sent)
			})
		}
		if s.verified(sent) || pause.Wait(s.ctx, s.calls) != nil {
			return
		}
	}
}

// verified reports whether verify is over: everything was read in the present era, or the
// Session is closed.
func (s *Session) verified(read *era) bool {
	s.mu.Lock()
	defer s.unlock()
	s.verifying = s.era.Load() != read && !s.closed
	return !s.verifying
}

// staleHolds are the places of holds from an earlier era, by lease.
func (s *Session) staleHolds() map[*lease][]*place {
	s.mu.Lock()
	defer s.unlock()
	stale := make(map[*lease][]*place)
	for l := range s.leases {
		for _, p := range l.places {
			if p.keep > 0 && !p.ticket.Lost() && p.staleLocked() {
				stale[l] = append(stale[l], p)
			}
		}
	}
	return stale
}
