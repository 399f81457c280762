package queue

import (
	"context"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A change puts another info into the values of keys that are held, all on one lease. It leaves
// everything else in them as it is: a recall, above all.
type change struct {
	// Set once, then only read.
	account *Account
	places  []*Place
	info    string
	check   func() error // as in SetInfo

	read []line.Entry // the keys as they were last read
}

// SetInfo changes the info of the keys of a hold: of all of them, or of none. They are held while
// check returns nil; otherwise SetInfo returns its error. (It is called with Session.mu held, and
// ends the hold if that is over.) After any other error the info may be changed or not. ctx ends
// with the hold at the latest.
//
// It reads the keys, and then puts what it has read with another info. The same value is not put
// again.
func SetInfo(ctx context.Context, places []*Place, info string, check func() error) error {
	a := places[0].Account
	c := &change{account: a, places: places, info: info, check: check}
	err := a.keys.etcd.ReadKeys(ctx, keysOf(places), a.keys.etcd.ReadInCall, func(part etcd.Part) {
		c.read = append(c.read, part.Entries...)
	})
	if err != nil {
		return err
	}
	var retry attempt.Backoff
	for {
		values, err := c.next()
		if err != nil || values == nil {
			return err
		}
		done := a.keys.etcd.Commit(ctx, &retry, c.txn(values))
		answer := done.Answer
		switch {
		case done.Err == nil && answer.Succeeded:
			c.done(values, answer.Revision)
			return nil
		case done.Err == nil:
			for i, p := range places {
				c.read[i], _ = line.Find(answer.Read[i].GetKvs(), p.Ticket.Key)
			}
		case attempt.Refused(done.Err) || a.keys.etcd.Closed() || attempt.Fallen(done.Err) != nil:
			return done.Err
		default:
			if retry.Wait(ctx, a.keys.etcd.Caller) != nil {
				return done.Err
			}
		}
	}
}

// next judges the keys as they were read, and returns the values to put over them: none if all have
// the info.
//
// Invariant: in the critical section in which the hold is whole the places learn that their values
// may not be those that were put. So none of them is handed on, or lingers, and is then changed.
func (c *change) next() (values []string, err error) {
	k := c.account.keys
	known := true
	for i, p := range c.places {
		if !p.Ticket.Is(c.read[i]) { // the lease may be the reason
			known = c.account.Lease.IsKnown()
			break
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := c.check(); err != nil {
		return nil, err // its own release may have deleted them
	}
	for i, p := range c.places {
		seen := p.observedLocked(ticket.Observation{Entry: c.read[i], LeaseGone: !known})
		if seen.IsLoss() {
			return nil, c.check()
		}
	}
	puts := false
	values = make([]string, len(c.places))
	for i, e := range c.read {
		puts = puts || e.Value().Info != c.info
		if values[i], err = e.Informed(c.info); err != nil {
			return nil, err
		}
	}
	if !puts {
		return nil, nil
	}
	for i, p := range c.places {
		e := c.read[i]
		p.changed = &e
	}
	return values, nil
}

// txn puts values over the keys if they are as they were read, and otherwise reads them.
func (c *change) txn(values []string) (t ticket.Txn) {
	for i, e := range c.read {
		one := ticket.Edit(e, values[i])
		t.If, t.Then, t.Else = append(t.If, one.If...), append(t.Then, one.Then...),
			append(t.Else, one.Else...)
	}
	return t
}

// done notes that values were put at a revision.
func (c *change) done(values []string, at int64) {
	k := c.account.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, p := range c.places {
		if e := c.read[i].With(values[i], at); p.changed.Mod < at {
			p.changed = &e
		}
	}
}
