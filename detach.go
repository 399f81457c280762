package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
)

// Detached is a hold on its way from one process to another: opaque text, which can be stored or
// sent. It has the name, the key and the token of the hold, and no secret: whoever may write the
// lock's keys in etcd may adopt the hold. See [Mutex.Detach] and [Session.Adopt].
type Detached string

// String is d itself.
func (d Detached) String() string { return string(d) }

// detachedOf is the Detached of a key and its token.
func detachedOf(key string, token int64) Detached {
	return Detached(fmt.Sprintf("%d:%s", token, key))
}

// parse returns what detachedOf has put together.
func (d Detached) parse() (name string, of line.Entry, ok bool) {
	token, key, _ := strings.Cut(string(d), ":")
	of.Key = key
	of.Rev, _ = strconv.ParseInt(token, 10, 64)
	name, _, isKey := line.ParseKey(key)
	return name, of, isKey && of.Rev > 0 && checkName(name) == nil && d == detachedOf(key, of.Rev)
}

// Detach ends the hold here without giving the lock back: another process, or this one after a
// restart, goes on with it by [Session.Adopt], and nobody gets in between. It first ends the
// contexts of the hold, with the cause [ErrDetached], and then moves the key to a lease of its own
// that lasts for keep, in whole seconds, rounded up, and is not renewed. (etcd's least is 2 s by
// default. After an election of etcd's leader it counts anew.) If nobody adopts the hold in that
// time the key expires, and the next contender gets in. Others see the time in [Contender.Until].
//
// After nil the hold is over here, as after [Mutex.Unlock], and an Unlock returns [ErrNotHeld]. The
// Detached is all that Adopt needs. The errors are those of Unlock, and after each of them there is
// nothing to adopt: after [ErrUnconfirmed] the key is being removed, and goes with keep, or the TTL,
// at the latest. With a nil ctx, a keep that is not positive, or Locks that nest in the hold,
// Detach returns an error and the hold goes on.
//
// It costs the grant of a lease and a transaction. ctx is as in Unlock. [WithMinHold] does not count
// for a hold that is detached. A comparison from [Mutex.IsOwner] stays true: it is one hold, with one
// key and one token, in two places one after the other.
func (m *Mutex) Detach(ctx context.Context, keep time.Duration) (Detached, error) {
	if m == nil || m.s == nil {
		return "", ErrNotHeld
	}
	if err := checkDetach(ctx, m.name, keep); err != nil {
		return "", err
	}
	s := m.s
	ctx, cancel := s.releaseContext(ctx, m.covers, s.releaseTime())
	defer cancel()
	s.mu.Lock()
	h := m.hold
	switch {
	case h == nil || h.depth == 0:
		s.mu.Unlock()
		return "", failed("detach", m.name, ErrNotHeld)
	case h.depth > 1 || len(h.all) > 1:
		s.mu.Unlock()
		return "", failed("detach", m.name, errNests)
	}
	m.hold, m.depth = nil, 0
	return h.detachLocked(ctx, keep)
}

// Detach is [Mutex.Detach] of a Hold. It is for exclusive holds of one name: for a read, permits,
// or several names it returns an error, and the hold goes on.
func (h *Hold) Detach(ctx context.Context, keep time.Duration) (Detached, error) {
	if h == nil || h.hold == nil {
		return "", ErrNotHeld
	}
	if err := checkDetach(ctx, h.m.name, keep); err != nil {
		return "", err
	}
	s := h.m.s
	ends := func(ended *hold) bool { return ended == h.hold }
	ctx, cancel := s.releaseContext(ctx, ends, s.releaseTime())
	defer cancel()
	s.mu.Lock()
	switch {
	case h.over || h.hold.depth == 0:
		h.over = true
		s.mu.Unlock()
		return "", failed("detach", h.m.name, ErrNotHeld)
	case !h.hold.claim.exclusive() || len(h.hold.all) > 1:
		s.mu.Unlock()
		return "", failed("detach", h.m.name, errors.New("not an exclusive hold of one name"))
	case h.hold.depth > 1:
		s.mu.Unlock()
		return "", failed("detach", h.m.name, errNests)
	}
	h.over = true
	return h.hold.detachLocked(ctx, keep)
}

var errNests = errors.New("a Lock nests in the hold, or the hold in another")

// checkDetach returns an error if an argument of Detach is wrong.
func checkDetach(ctx context.Context, name string, keep time.Duration) error {
	if keep <= 0 || keep > maxTTL {
		return failed("detach", name, fmt.Errorf("keep %v: not positive, or above etcd's limit of %v", keep, maxTTL))
	}
	return checkContext(ctx, "detach", name)
}

// detachLocked detaches h, whose Lock is the only one. It unlocks mu.
func (h *hold) detachLocked(ctx context.Context, keep time.Duration) (Detached, error) {
	h.detached = time.Now().Add(keep)
	if err := h.leaveLocked(ctx, ErrDetached); err != nil {
		return "", err
	}
	return detachedOf(h.place.Ticket.Key, h.place.Ticket.Rev()), nil
}

// Adopt goes on with a hold that another process has detached: it moves the key from the lease on
// which that waits to the Session's. Nobody gets in between, and the hold keeps its key and its
// token. The Hold counts as any other, by the trust in the lease of this Session.
//
// Of several Adopts of one Detached one gets the hold. The others return a [*LostError] that says
// who has it, and so do those that come when its time is over. [ErrUnconfirmed] says that etcd did
// not answer before ctx ended: if this Session has the key it is being removed; call Adopt again to
// learn whether it still waits. After any other error nothing has happened.
//
// It waits for etcd, within ctx, and for no contender. It costs a read, a transaction
// and the revocation of the lease on which the key has waited, and the Session's lease if that has
// none. opts are as for [Session.Lock], without [WithHandoff] and
// [WithLinger], which do not count either if they are the Session's defaults. A call of
// the same Session for the same name waits as in another one: after a loss it does not wait for
// the Unlock of the Hold.
func (s *Session) Adopt(ctx context.Context, d Detached, opts ...Option) (*Hold, error) {
	return adopt(ctx, s.inner(), d, opts)
}

func adopt(ctx context.Context, s *session, d Detached, opts []Option) (*Hold, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	name, of, ok := d.parse()
	if !ok {
		return nil, fmt.Errorf("etcdlock: adopt: not from a Detach: %s", excerpt(string(d), 64))
	}
	if err := checkContext(ctx, "adopt", name); err != nil {
		return nil, err
	}
	cfg, err := configure(*s.cfg, forAdopted, opts)
	if err != nil {
		return nil, err
	}
	cfg.handoff, cfg.linger = 0, 0
	if ctx.Err() != nil {
		return nil, waitFailed(ctx, name, nil, nil, nil)
	}
	n, began := &namedHold{of: lockHandle{s: s, name: name, cfg: &cfg}}, time.Now()
	if cfg.trace.Start != nil {
		ctx = cfg.trace.start(ctx, StartEvent{Name: name, Mode: ModeExclusive, Weight: 1})
	}
	c := request{m: &n.of}.newClaim(ctx, began)
	c.adopts = adoption{name, of}
	h, err := call(c.alone[:]).lock(ctx)
	if err != nil {
		if lost, is := errors.AsType[*LostError](err); is {
			return nil, lost
		}
		if c.unsure {
			err = failed("adopt", name, ErrUnconfirmed, err)
		}
		return nil, err
	}
	c.adopts.giveBack(s)
	n.m, n.hold, n.started = &n.of, h, ctx
	return &n.Hold, nil
}

// An adoption is what Adopt asks for: the key of a hold that was detached.
//
// It has a local line of its own, in which nothing waits: the claims of the name wait in etcd's
// line behind that key, whichever Session they are of, and Adopt does not wait for them.
type adoption struct {
	name string
	line.Entry
}

// errAdoptedHere is the reason of an Adopt that comes second in its Session.
var errAdoptedHere = errors.New("this Session has its key, or is giving it up")

// lineLocked is the local line of the adoption, nil if the Session has the key.
func (o adoption) lineLocked(s *session) *localLine {
	n := lineAtLocked(s, "\x00"+o.Key, o.name) // no name begins so
	if n.queue.Owner() != nil || s.keys.AccountsForLocked(o.Key) {
		return nil
	}
	return n
}

// giveBack gives back the lease on which the key has waited, which has no key now. It would expire
// by itself.
func (o adoption) giveBack(s *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.leases.ClosedLocked() {
		s.tasks.GoLocked(func() {
			_ = s.etcd.Revoke(s.ctx, &attempt.Backoff{}, clientv3.LeaseID(o.Lease))
		})
	}
}

// read reads the key, and returns its mod revision. The error is a LostError if the key does not
// wait to be adopted.
func (o *adoption) read(ctx context.Context, s *session) (mod int64, err error) {
	read, err := s.etcd.Read(ctx, etcd.Range(o.Key))
	if err != nil {
		return 0, err
	}
	kvs := read.Ranges[0].GetKvs()
	e, there := line.Find(kvs, o.Key)
	switch v := e.Value(); {
	case !there || e.Rev != o.Rev:
		return 0, &LostError{o.name, o.Rev, because(ErrKeyDeleted, errors.New("its time is over, or it was adopted and unlocked"))}
	case !v.Detached || e.Lease == 0:
		return 0, &LostError{o.name, o.Rev, fmt.Errorf("it was adopted by %s", excerpt(v.Owner, maxNameLen))}
	}
	o.Lease = e.Lease
	return kvs[0].GetModRevision(), nil
}
