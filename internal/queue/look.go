package queue

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// bothIn reports whether the very key before and p's own are both in line now. It is a linearizable
// read of four compares, and retries until it is answered.
//
// length is 0 for the check that follows the beginning of a watch. For a recheck it is how many
// keys there were below the name: they are counted again. A recheck also reads the holder, if that
// is not known, and so does a check in a line that is not vast.
//
// A recheck meets others of the client, and so does a check in a line of many, since the turn is
// not near.
//
// In a long line an etcd that is silent gets one from each waiter at about the same time, so few of
// these are repeated. (TestAFrozenEtcdGetsFewRechecksOfALongLine.)
func (c *Waiter) bothIn(ctx context.Context, p *Place, before line.Entry, length int) (s checked) {
	ahead, _ := p.Predecessors()
	var retry attempt.Backoff
	if length > crowded {
		retry.Policy = attempt.Spare
	}
	ask, asks, tells := askBeside(p, ahead, length)
	stand := ticket.Contend(before, p.Ticket.Entry())
	check := etcd.Still(stand, ask...)
	if length != 0 || ahead.Keys > FewAhead {
		check = etcd.Meeting(stand, ask...)
	}
	read, err := c.readFor(ctx, p, check, retry)
	if err != nil {
		return checked{err: err}
	}
	s.still = read.Holds
	ranges := read.Ranges
	if length != 0 {
		s.length = int(ranges[0].GetCount())
		ranges = ranges[1:]
	}
	var told line.TTLs
	if tells {
		told = line.TTLsBefore(p.Ticket.Name, p.Ticket.Entry(), ranges[len(ranges)-1])
	}
	p.Account.keys.mu.Lock()
	known := *p.Ahead
	if asks {
		known = p.Ticket.WhoHolds(known, ranges[0])
	}
	if tells {
		p.told, known.TTLs = true, told
	}
	p.Ahead = &known
	p.line.meetsLocked(known.TTLs)
	p.Account.keys.mu.Unlock()
	if known.Strays && !ahead.Strays {
		return c.bothIn(ctx, p, before, length) // which reads more keys
	}
	return s
}

// askBeside is what bothIn reads beside the two keys. asks says that it shows the holder, and tells
// that it shows the TTLs of all contenders before p.
func askBeside(p *Place, ahead line.Ahead, length int) (ask []*pb.RequestOp, asks, tells bool) {
	if length != 0 {
		ask = append(ask, ticket.CountBelow(p.Ticket.Name))
	}
	who, asks := p.Ticket.AskWhoHolds(ahead)
	if asks = asks && (length != 0 || ahead.Keys < vast); asks {
		ask = append(ask, who)
	}
	tells = length != 0 && ahead.Untold && !p.told && ahead.Keys <= ticket.MostTold
	if tells {
		ask = append(ask, p.Ticket.AskTTLs())
	}
	return ask, asks, tells
}

// A checked is what bothIn has read.
type checked struct {
	still  bool
	length int // of the line, 0 if that was not asked
	err    error
}

// A check is one call of bothIn in a goroutine of its own. From its begin to its end the claim's
// errors are its own to note. The zero one is over.
type check struct {
	stop   context.CancelFunc
	answer chan checked // closed after it; nil if the check is over
}

// check begins one, of a line of a length as bothIn takes it.
func (c *Waiter) check(ctx context.Context, p *Place, before line.Entry, length int) check {
	ctx, stop := context.WithCancel(ctx)
	answer := make(chan checked, 1)
	p.Account.keys.tasks.Go(func() {
		defer close(answer)
		answer <- c.bothIn(ctx, p, before, length)
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

// look reads what is ahead of p: at the revision at if that is not 0 and the answering member knows
// it, otherwise as of now. It returns ErrAnew if p's own key is not there, or not with its lease.
//
// It reads the nearest few keys. After a deletion, and for a new place in a vast line, it first
// reads them without their values. If none of them is a contender it reads on.
//
// (Do not do so after a check: what has the form of a contender, and is none, is found so again and
// again. TestAStrayThatLooksLikeAContenderBlocksNobodyForLong.)
func (c *Waiter) look(ctx context.Context, p *Place, at int64) error {
	ahead, _ := p.Predecessors()
	keys := at != 0 || ahead.Reading == line.Unread && ahead.Keys >= vast
	for look := p.Ticket.Look(keys); ; {
		read, shown, err := c.readAhead(ctx, p, at, &look)
		if err != nil {
			return err
		}
		ahead, own := look.Judge(read.Ranges...)
		lost := p.observeLook(own)
		if lost {
			return ErrAnew
		}
		if ahead.Reading != line.Unread {
			p.setLine(ahead, read.Epoch, shown)
			return nil
		}
	}
}

// readAhead is one request of a look: for a reader several ranges, otherwise one. shown is the
// revision at which it was answered.
func (c *Waiter) readAhead(
	ctx context.Context, p *Place, at int64, look *ticket.Look,
) (read etcd.Reading, shown int64, err error) {
	request := func(at int64) etcd.Request {
		if p.Ticket.Kind == line.Read {
			return etcd.Ranges(nil, look.Ranges(at)...)
		}
		return etcd.Range(line.Prefix(p.Ticket.Name), look.Range(at)...)
	}
	if at != 0 {
		past := request(at)
		read, err := p.Account.keys.etcd.AttemptPast(ctx, past)
		if err == nil || attempt.Fallen(err) != nil {
			return read, at, err
		}
	}
	all := request(0)
	if most, keys := look.Keys(); keys {
		all = etcd.Newest(p.Ticket.Name, p.Ticket.Rev(), most)
	}
	read, err = c.readFor(ctx, p, all, attempt.Backoff{})
	return read, read.Header.GetRevision(), err
}

// readFor reads for c, which waits at p, until it is answered, and gives up when the lease or the
// key is gone, or the user's code falls.
func (c *Waiter) readFor(
	ctx context.Context, p *Place, r etcd.Request, retry attempt.Backoff,
) (etcd.Reading, error) {
	read, err := p.Account.keys.etcd.ReadBy(ctx, r, retry, func(err error) error {
		c.LastErr = err
		if p.isGone() || p.Account.Lease.IsDead() {
			return ErrAnew
		}
		return attempt.Fallen(err)
	})
	if err == nil {
		c.LastErr = nil
	}
	return read, err
}
