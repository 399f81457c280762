package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// maxNames is the most names of a LockAll. Its put has three operations for each, and etcd allows
// 128 in a transaction by default.
const maxNames = 32

// lockAll is Session.LockAll, or TryLockAll.
func lockAll(ctx context.Context, s *session, names []string, how manner) (*Hold, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := checkNames(names); err != nil {
		return nil, err
	}
	if err := checkContext(ctx, "lock", names[0]); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, waitFailed(ctx, names[0], nil, nil, nil)
	}
	cfg := *s.cfg
	cfg.handoff, cfg.linger, cfg.minHold = 0, 0, 0
	all := make([]*claim, len(names))
	for i, name := range names {
		m := &lockHandle{s: s, name: name, cfg: &cfg}
		if m.nestsIn(ctx) != nil {
			return nil, failed("lock", name, ErrDeadlock)
		}
		all[i] = request{m: m, manner: how}.newClaim()
		all[i].together = true
	}
	all[0].all = all
	h, started, err := all[0].lock(ctx)
	if err != nil {
		return nil, err
	}
	return &Hold{m: h.m, hold: h, started: started}, nil
}

// checkNames returns an error if names cannot be the names of a LockAll.
func checkNames(names []string) error {
	switch n := len(names); {
	case n == 0:
		return errors.New("etcdlock: LockAll: no names")
	case n > maxNames:
		return fmt.Errorf("etcdlock: LockAll: %d names, more than %d", n, maxNames)
	}
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if err := checkName(name); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("etcdlock: LockAll: name %s twice", excerpt(name, maxNameLen))
		}
		seen[name] = true
	}
	return nil
}

// waitForAll waits until no contender is ahead of any place of c: all are first at the same time.
// Then it waits until the lock delay is over.
func waitForAll(ctx context.Context, c *claim) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var waits, all sync.WaitGroup // all: the places that are not yet first in their lines
	first := make(chan struct{})
	all.Add(len(c.all))
	for _, o := range c.all {
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
	switch delay := c.delay(); {
	case delay == 0 || ctx.Err() != nil:
	case c.Try:
		cancel(queue.ErrTaken)
	default:
		over := time.NewTimer(delay)
		defer over.Stop()
		select {
		case <-over.C:
		case <-ctx.Done():
		}
	}
	close(first)
	waits.Wait()
	return context.Cause(ctx)
}

// enteringAll begins to put the keys of c, a LockAll.
func enteringAll(c *claim) ticket.Put {
	tickets := make([]*ticket.Ticket, len(c.all))
	for i, o := range c.all {
		tickets[i] = &o.place.Ticket
	}
	return ticket.EnterAll(tickets, c.Try, c.m.cfg.trace.Queued != nil)
}

// endTogetherLocked has the holds of c, a LockAll, which have just begun, end together, and with
// them their recalls.
func endTogetherLocked(c *claim) {
	all := make([]*hold, len(c.all))
	for i, o := range c.all {
		all[i], o.hold.all, o.hold.recall = o.hold, all, c.hold.recall
	}
}
