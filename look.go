package etcdlock

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// rivals are the contenders ahead of p as of the last read, none for a nil p. They are stale if
// that was in an earlier epoch.
func (p *place) rivals() (ahead line.Ahead, stale bool) {
	if p == nil {
		return line.None, false
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.ahead, p.staleLocked()
}

func (p *place) setLine(ahead line.Ahead, at *etcd.Epoch) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.epoch == at {
		ahead = ahead.Since(p.ahead)
	}
	p.asPut = false
	p.setAheadLocked(ahead, at)
}

// setAheadLocked notes what is ahead of p, by an answer of the epoch told.
func (p *place) setAheadLocked(ahead line.Ahead, told *etcd.Epoch) {
	p.ahead, p.epoch = ahead, told
	p.markLocked()
	for _, e := range ahead.Last {
		p.s.accounts.suspectOrphanLocked(e)
	}
	p.m.meetLocked(ahead)
}

// readOn reads what is ahead of p, if what was read so far does not show it.
func (p *place) readOn(ctx context.Context, c *claim) error {
	if ahead, stale := p.rivals(); stale || ticket.Tells(ahead) {
		return nil
	}
	return p.look(ctx, c, 0)
}

// stands reports whether the very key before and p's own both stand in line now. It is a
// linearizable read of four compares, and retries until it is answered. It also reads the holder,
// if that is not known, and how many keys there are in all, if length is not 0 but how many there
// were before: a recheck. In a long line an etcd that is silent gets one from each waiter at about
// the same time, so few of these are repeated. (TestAFrozenEtcdGetsFewRechecksOfALongLine.)
func (p *place) stands(ctx context.Context, c *claim, before line.Entry, length int) (s standing) {
	ahead, _ := p.rivals()
	retry := attempt.Backoff{Spare: length > crowded}
	ask := []clientv3.Op{p.ticket.AskWhoHolds(ahead)}
	if length != 0 {
		ask = append(ask, countBelow(p.m.name))
	}
	compares := append(ticket.Contends(before), p.ticket.Exists(), p.ticket.OnLease())
	read, err := p.readFor(ctx, c, etcd.Ranges(compares, ask...), retry)
	if err != nil {
		return standing{err: err}
	}
	s.still = read.Holds
	if length != 0 {
		s.length = int(read.Ranges[1].GetCount())
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.ahead = p.ticket.WhoHolds(p.ahead, read.Ranges[0])
	return s
}

// A standing is what stands has read.
type standing struct {
	still  bool
	length int // of the line, 0 if that was not asked
	err    error
}

// countBelow counts the keys below a name.
func countBelow(name string) clientv3.Op {
	return clientv3.OpGet(line.Prefix(name), clientv3.WithPrefix(), clientv3.WithCountOnly())
}

// A check is one call of stands in a goroutine of its own. From its begin to its end the claim's
// errors are its own to note. The zero one is over.
type check struct {
	stop   context.CancelFunc
	answer chan standing // closed after it; nil if the check is over
}

// check begins one, of a line of a length as stands takes it.
func (p *place) check(ctx context.Context, c *claim, before line.Entry, length int) check {
	ctx, stop := context.WithCancel(ctx)
	answer := make(chan standing, 1)
	p.s.tasks.Go(func() {
		defer close(answer)
		answer <- p.stands(ctx, c, before, length)
	})
	return check{stop, answer}
}

func (k *check) finished() bool { return k.answer == nil }

// end ends the check, whether it is answered or not.
func (k *check) end() {
	if k.finished() {
		return
	}
	k.stop()
	for range k.answer { // until it is closed
	}
	*k = check{}
}

// look reads what is ahead of p: at the revision at if that is not 0 and the answering member
// knows it, otherwise as of now. It returns errQueueAnew if p's own key is not there, or not with
// its lease.
//
// It reads the nearest few keys. After a deletion it first reads only whether there are any. If
// none of them is a contender it reads on.
func (p *place) look(ctx context.Context, c *claim, at int64) error {
	for look := p.ticket.Look(at != 0); ; {
		read, err := p.readAhead(ctx, c, at, &look)
		if err != nil {
			return err
		}
		ahead, own := look.Judge(read.Ranges...)
		if p.isLostBy(own) {
			return errQueueAnew
		}
		if ticket.Tells(ahead) {
			p.setLine(ahead, read.Epoch)
			return nil
		}
	}
}

// isLostBy observes p's own key, as a look has read it, and reports whether p is lost. If etcd was
// set back, an earlier key of the Session may be beyond what the look has read, and block the line.
func (p *place) isLostBy(own ticket.Observation) bool {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	lost := p.observedLocked(own).IsLoss()
	if lost {
		p.account.SuspectLocked()
	}
	return lost
}

// readAhead is one request of a look.
func (p *place) readAhead(
	ctx context.Context, c *claim, at int64, look *ticket.Look,
) (etcd.Reading, error) {
	// For one that reads it is several ranges in one request, otherwise it is one.
	query := func(opts ...clientv3.OpOption) etcd.Query {
		if p.ticket.Kind != line.Read {
			return etcd.Range(p.ticket.Prefix(), append(look.Range(), opts...)...)
		}
		return etcd.Ranges(nil, look.Ranges(opts...)...)
	}
	if at != 0 {
		past := query(clientv3.WithRev(at), clientv3.WithSerializable())
		if read, err := p.s.etcd.AttemptPast(ctx, past); err == nil {
			return read, nil
		}
	}
	return p.readFor(ctx, c, query(), attempt.Backoff{})
}

// readFor reads for c, which waits at p, until it is answered, and gives up when the lease or the
// key is gone.
func (p *place) readFor(
	ctx context.Context, c *claim, q etcd.Query, retry attempt.Backoff,
) (etcd.Reading, error) {
	read, err := p.s.etcd.ReadBy(ctx, q, retry, func(err error) error {
		c.lastErr = err
		if p.isGone() || p.lease.IsDead() {
			return errQueueAnew
		}
		return nil
	})
	if err == nil {
		c.lastErr = nil
	}
	return read, err
}
