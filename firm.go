package etcdlock

import (
	"context"
	"errors"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// That a lease was renewed is the word of a member that leads, or believes that it leads. A
// leader that is cut off from the others goes on renewing until it steps down, which may be
// an election timeout after the others have elected another one. That one grants each lease
// its whole TTL anew, and an election timeout more, so that the word of the old one still
// holds, except if a renewal that was sent before has reached the new one meanwhile: the
// lease then expires a TTL after that. A client with several endpoints has such renewals,
// which wait at a follower for the end of the election. (Seen on etcd 3.7: a lease with a TTL
// of 2 s was gone 1.96 s after a renewal was sent that etcd confirmed.)
//
// Invariant: an answered renewal counts from when the oldest was sent that a newer leader
// may have carried out, and from its own sending once a linearizable answer to a request
// that was sent later shows that there was no newer leader.
// (TestTheWordOfADeposedLeaderIsNotTrusted.)

const (
	// prompt is within which time an answer tells all: its header was written when it came,
	// and what waits for an election, or for another member, waits for no less.
	prompt = 50 * time.Millisecond

	// requestTimeout is how long etcd works on a renewal, beside two election timeouts.
	requestTimeout = 5 * time.Second
)

// errDeposed says that a renewal may be the word of a leader that is none any more.
var errDeposed = errors.New("renewed by a member that does not lead any more, it seems")

// A try is one renewal of a lease that was sent and may matter for what others are worth.
type try struct {
	era    *era
	sent   time.Time
	ended  time.Time // when its answer came; zero if there is none yet, or none came
	member uint64    // that has answered
	term   uint64    // the newest that member knew of when the request came
	ttl    time.Duration
	open   bool // it was answered, and does not count from sent yet
}

// sendsLocked notes that a renewal is sent. What etcd has given up by now is forgotten: its
// least TTL is one and a half election timeouts.
func (l *lease) sendsLocked(at time.Time) *try {
	longest := requestTimeout + l.ttl/3*4
	l.forgetLocked(func(t *try) bool { return at.Sub(t.sent) > longest })
	t := &try{era: l.s.era.Load(), sent: at}
	l.tries = append(l.tries, t)
	l.s.doubts.Add(1)
	return t
}

// forgetLocked forgets tries.
func (l *lease) forgetLocked(which func(*try) bool) {
	before := len(l.tries)
	l.tries = slices.DeleteFunc(l.tries, which)
	l.s.doubts.Add(int64(len(l.tries) - before))
}

// answered notes that etcd has answered t, and extends the trust by what that is worth. It
// reports whether it is worth asking whether that is more.
func (l *lease) answered(t *try, resp *clientv3.LeaseKeepAliveResponse) (ask bool) {
	h := resp.ResponseHeader
	known := t.era.term.Load()
	l.s.heard(h, t.era, 0) // it may be of a member that is behind
	l.s.mu.Lock()
	defer l.s.unlock()
	t.ended, t.member, t.term = time.Now(), h.GetMemberId(), h.GetRaftTerm()
	t.ttl = time.Duration(resp.TTL) * time.Second
	from := t.sent
	for _, o := range l.tries {
		// A member that has passed on a renewal to a leader passes on none to an older one.
		harmless := !o.ended.IsZero() && o.member == t.member
		if o.sent.Before(from) && !harmless {
			from = o.sent
		}
	}
	if t.era == l.s.era.Load() && t.term < known {
		t.open, ask = true, true
	} else {
		missing := t.sent.Sub(from)
		t.open, ask = missing > 0, missing > l.plan.late()
		l.renewedLocked(from, t.ttl)
	}
	if !t.open && t.ended.Sub(t.sent) <= prompt {
		l.forgetLocked(func(o *try) bool { return o == t })
	}
	return ask
}

// confirm finds out what an answered renewal is worth, by a linearizable read, if that matters:
// nobody relies on a lease that has no key. Where no answer comes the next renewal may do better.
func (l *lease) confirm(ctx context.Context, t *try) error {
	s := l.s
	ctx, cancel := context.WithTimeout(ctx, s.calls.Timeout())
	defer cancel()
	s.mu.Lock()
	key := ""
	for _, p := range l.places {
		if p.rev != 0 && !p.gone {
			key = p.key
			break
		}
	}
	s.unlock()
	if key == "" {
		return nil
	}
	_, err := s.get(ctx, key, clientv3.WithCountOnly())
	s.mu.Lock()
	defer s.unlock()
	switch {
	case err == nil && t.open:
		return errDeposed
	case l.plan.atRisk(time.Until(l.trustedUntil)):
		return err
	default:
		return nil
	}
}

// weigh applies a linearizable answer to a request sent at an instant: of all that was answered
// before, nothing was carried out by a leader of a newer term than that of the answer, and the
// word of a leader of an older one is worth nothing.
func (s *Session) weigh(sent asking, term uint64) {
	if s.doubts.Load() == 0 {
		return // the usual case needs no lock
	}
	s.mu.Lock()
	defer s.unlock()
	for l := range s.leases {
		l.forgetLocked(func(t *try) bool {
			if t.ended.IsZero() || t.ended.After(sent.at) {
				return false
			}
			if t.open && t.era == sent.era && t.era == s.era.Load() && t.term >= term {
				t.open = false
				l.renewedLocked(t.sent, t.ttl)
			}
			return true
		})
	}
}
