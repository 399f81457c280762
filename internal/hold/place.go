package hold

import (
	"context"
	"log/slog"
	"time"

	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/list"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A place is a place in etcd's line, with the claim or the holds that have it: it is their
// queue.Owner.
type place struct {
	queue.Place

	// Set once, then only read.
	m     *Lock
	local *localLine
	after int64 // as in call

	// Guarded by Session.mu.
	hold     *Hold            // the last one to begin, nil while waiting
	holds    list.List[*Hold] // that have not ended
	ending   list.List[*Hold] // that are whole no more, while their contexts may go on
	settling bool             // holds follow what has happened to the key or the lease
	handed   int32            // how often in a row the key was handed off
}

// kept is the value of p's key where that stays from now on though its hold has ended here, until
// a time: with the info that SetInfo has set, if it was called.
func (p *place) kept(until time.Time) string {
	p.m.s.mu.Lock()
	defer p.m.s.mu.Unlock()
	v := p.m.cfg.value()
	if info, changed := p.ChangedLocked(); changed {
		v.Info = info
	}
	text, _ := line.NewText(v, line.Exclusive) // as in SetTexts
	return text.Kept(p.Since, until)
}

// tellsOf reports whether the value of p's key is true of a hold of c: the label, the info, and
// whether it may be recalled. It is not once SetInfo was called. (Do not have c hold at p
// otherwise: a recall would be refused though the hold listens, or written though the hold does
// not. TestAKeyIsSharedOnlyByHoldsOfWhichItsValueIsTrue.)
func (p *place) tellsOf(c *claim) bool {
	_, changed := p.ChangedLocked()
	return !changed && p.m.cfg.Texts[p.Ticket.Kind] == c.m.cfg.Texts[c.Kind]
}

// suits reports whether c may have p, which its Session leaves to it: p's key shows the shape that
// c asks for, and its value is true of c. (A read may hold at a key with the value of another read:
// so it is in a cohort.) It never suits one of several names; see call.
//
// Nor does it suit a call within another hold than p's key tells, but for a read at a key that is
// held. (Do not hand it on: a deadlock would be told that is none.
// TestAPlaceIsNotHandedToACallWithinAnotherHold.)
func (p *place) suits(c *claim) bool {
	within := p.after == 0 || p.after == c.call.after || c.reads() && p.Ticket.State() == ticket.Held
	return !c.call.together && c.Shape == p.Ticket.Shape && within && (c.reads() || p.tellsOf(c))
}

// waitsLocked reports whether p waits for other contenders: they are known to be ahead of it, or
// may hold since before etcd was set back. Then it stays first in its line, until a hold begins.
func (p *place) waitsLocked() bool {
	switch st := p.Ticket.State(); {
	case p.GivenUpLocked():
		return false
	case st == ticket.Held:
		return p.hold == nil
	case st != ticket.InLine || p.StaleLocked():
		return false
	default:
		return len(p.Ahead.Last) > 0 || p.local.DelayLocked(time.Now(), p.Ticket.Kind).Lasts > 0
	}
}

// contender is p as other contenders see it.
func (p *place) contender() Contender {
	c := p.m.contender()
	c.Key, c.Token, c.Lease, c.Since = p.Ticket.Key, p.Ticket.Rev(), p.Account.Lease.ID, p.Since
	c.Mode, c.Holds = p.Ticket.Kind.String(), p.hold != nil
	if info, changed := p.ChangedLocked(); changed {
		c.Info = info
	}
	return c
}

// RecalledLocked recalls the holds at p (queue.Owner).
func (p *place) RecalledLocked() {
	p.noticeLocked(p.holds.Len())
}

// noticeLocked has so many of the holds at p notice its recall: a piece of them now, and the rest
// soon. Those that have go behind the others. (No hold begins at a recalled place beside others.)
func (p *place) noticeLocked(left int) {
	now := time.Now()
	for range min(left, guard.Few) {
		h, some := p.holds.First()
		if !some {
			return
		}
		p.holds.Add(&h.atPlace, h)
		h.recall.noticeLocked(h, *p.Recall, now)
	}
	if left -= guard.Few; left > 0 {
		p.m.s.tasks.Go(func() {
			p.m.s.mu.Lock()
			defer p.m.s.mu.Unlock()
			p.noticeLocked(left)
		})
	}
}

// MeetsLocked (queue.Owner) warns once for each limit other than its own that a
// Semaphore meets in line.
func (p *place) MeetsLocked(unlike line.Line) {
	m := p.m
	for _, e := range unlike {
		other := e.Shape().Limit
		if _, met := m.limits[other]; met {
			continue
		}
		if m.limits == nil {
			m.limits = make(map[uint16]struct{})
		}
		m.limits[other] = struct{}{}
		m.log(slog.LevelWarn, "a permit counts on another limit",
			"name", m.name, "limit", p.Ticket.Limit, "other", other, "key", e.Key)
	}
}

// Removing tells the user that p's key is about to be removed (queue.Owner).
func (p *place) Removing() {
	e := Cleanup{p.Ticket.Key}
	report(&p.m.s.hooks, p.m.cfg.Hooks.CleanupPending, context.Background(), e)
}

// Removed tells the user that p's key has gone (queue.Owner).
func (p *place) Removed() {
	e := Cleanup{p.Ticket.Key}
	report(&p.m.s.hooks, p.m.cfg.Hooks.CleanupDone, context.Background(), e)
}

// Stays tells the user that p's key is not removed yet, and why (queue.Owner).
func (p *place) Stays(why error) {
	p.m.s.warnOf(p.m.cfg, p.Ticket.Key, why, "key not removed yet", "key", p.Ticket.Key, "error", why)
}
