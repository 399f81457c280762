package hold

import (
	"context"
	"sync"

	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// acquireAll is one call that locks all the names, which differ. It returns the hold of the first.
func acquireAll(
	ctx context.Context, s *Session, names []string, w Request,
) (*Hold, context.Context, error) {
	cfg := *s.cfg
	cfg.Handoff, cfg.Linger, cfg.MinHold = 0, 0, 0
	if ctx.Err() != nil {
		return nil, nil, new(Lock).Init(s, names[0], &cfg).refuseEnded(ctx)
	}
	c := &call{Request: w, s: s, cfg: &cfg, together: true}
	for _, name := range names {
		m := new(Lock).Init(s, name, &cfg)
		nested, after := m.nestsIn(ctx)
		if nested != nil {
			return nil, nil, errs.Failed("lock", name, errs.Deadlock)
		}
		c.after = after
		c.claims = append(c.claims, newClaim(new(wait), c, m))
	}
	c.first = c.claims[0]
	h, ctx, err := c.lock(ctx)
	if err == nil {
		for _, o := range c.claims {
			o.wait = nil
		}
	}
	return h, ctx, err
}

// waitForAll waits until no contender is ahead of any place of c: all are first at the same time.
// Then it waits until the lock delay is over.
func waitForAll(ctx context.Context, c *call) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var waits, all sync.WaitGroup // all: the places that are not yet first in their lines
	first := make(chan struct{})
	all.Add(len(c.claims))
	for _, o := range c.claims {
		waits.Go(func() {
			err := o.Wait(ctx, &o.place.Place, o.tellQueued)
			all.Done()
			if err == nil {
				err = o.StayFirst(ctx, &o.place.Place, first)
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	over, stop := c.s.keys.DelayContext(c.delayLocked)
	defer stop()
	switch {
	case over.Err() != nil || ctx.Err() != nil:
	case c.Try:
		cancel(queue.ErrTaken)
	default:
		select {
		case <-over.Done():
		case <-ctx.Done():
		}
	}
	close(first)
	waits.Wait()
	return context.Cause(ctx) // it may be why one of the waits has failed
}

// enteringAll begins to put the keys of c, a LockAll.
func enteringAll(c *call) ticket.Put {
	tickets := make([]*ticket.Ticket, len(c.claims))
	for i, o := range c.claims {
		tickets[i] = &o.place.Ticket
	}
	return ticket.EnterAll(tickets, c.Try, c.cfg.Hooks.Queued != nil)
}

// endTogetherLocked has the holds of c, a LockAll, which have just begun, end together, and with
// them their recalls.
func endTogetherLocked(c *call) {
	all := &together{make([]*Hold, len(c.claims))}
	for i, o := range c.claims {
		all.holds[i] = o.hold
		specialOf(o.hold).together, specialOf(o.hold).recall = all, c.first.hold.recall
	}
}
