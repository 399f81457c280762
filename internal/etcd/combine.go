package etcd

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// mostParts is how many transactions are combined at most. etcd allows 128 operations by
	// default: the parts, and the operations of the largest part.
	mostParts = 64

	// manyParts is how many parts need not wait for the only answer that is due. Beyond them a part
	// costs etcd as much as before, and while etcd works on one half the client works on the other.
	manyParts = mostParts / 2

	// longestWait is how long a transaction waits for others to be answered. A near etcd answers
	// sooner, so the transactions of a busy client go together. A far one takes much longer: there
	// many are under way at once, and waiting for an answer would cost half a trip.
	longestWait = 2 * time.Millisecond

	// fewUnderWay is how many transactions may be under way before others wait to be combined. One is
	// enough for an etcd that answers soon: all that comes meanwhile goes as one, for which etcd and
	// the client wake up once. For the answer of a far etcd the others would wait too long.
	fewUnderWay = 2

	// mostPatience is how long the next transaction waits at most for the callers that were just
	// answered. (internal/bench/results/gathering.tsv has what other values of these do.)
	mostPatience = longestWait / 4

	// mostYields is how many times a goroutine lets others run before a timer waits for those callers
	// in its place. (Do not start the timer at once. It would be started and stopped for each
	// transaction, and wake a thread of an idle process each time.)
	mostYields = 20
)

// A combiner sends the transactions of a client's Sessions. While few are under way it sends each
// at once, as it is. What comes meanwhile waits for the answer to one of these, though not for
// long, and then goes as the parts of one transaction: one request, one revision, one write to
// etcd's log. So a transaction has as many parts as come in the time of an answer, and each waits
// for a part of that time.
//
// After an answer the combiner gathers: the next transaction waits for the callers that were just
// answered, as far as the last answers say that they come back at once (pace).
// (Do not let it leave with those that wait already. The others come back microseconds later and
// wait for a whole trip, so that transactions of one part and of seven take turns.
// TestCallersThatComeBackGoTogether.)
//
// Invariant: while the combiner gathers, a goroutine looks which callers have come, or late is due.
// So no part waits long for a caller that does not come back.
// (TestACombinerThatGathersWaitsForNobodyForLong.)
// (Do not have a goroutine wait for them, which would be left when a synctest bubble ends.)
//
// Invariant: the parts are of different locks, or put no key. They get one revision, and revisions
// are the order of a line.
// (Do not combine two of one lock that put: each would take the other for a later one.
// TestNoTwoPartsAreOfOneLock.)
//
// Invariant: a part is judged as if it had been sent alone. etcd makes all comparisons before it
// writes anything, so no part sees another. Without an answer all parts are in doubt. If the answer
// is an error each part is sent again alone, and only the guilty one fails.
// (TestOnlyTheGuiltyPartFails.)
//
// (Do not do so only with what etcd has refused for good. Where it has no space, the releases would
// wait for the puts that they meet. TestWithoutSpaceAReleaseFailsWithNoPut.)
//
// Invariant: a combined transaction has a context of its own, which ends once no caller waits for
// its answer.
// (Do not send it in a caller's context: its deadline would end all parts.
// TestAPartThatLeavesTakesNobodyAlong.)
//
// The looks of a client at long lines have a combiner of their own, and so has what meets: see
// Newest and Meeting. TestExploration goes all ways of a few callers.
//
// (Do not keep the client in it. What the Sessions of a client share lives as long as the client,
// which would then live for ever. TestAClientIsForgottenWithItsSessions.)
type combiner struct {
	// Set once.
	send   func(*combined, *callContext) error // several parts as one
	many   int                                 // manyParts
	yields int                                 // mostYields

	mu      sync.Locker // a mutex, but in the exploration
	most    int         // how many parts etcd takes, as far as is known; 1 if it takes no parts
	told    bool        // a listener was told that it takes none
	under   int         // how many transactions are under way
	waiting *combined   // what comes next, nil if nothing waits
	late    *time.Timer // sends it, if no answer does
	pace    pace
	gathers int  // for how many parts what comes next waits, 0 if not for a number
	carries bool // a goroutine looks whether they have come, and carries them
}

// combiners has a combiner for each client with a Session.
var combiners attempt.Shared[combiner]

// hasToken reports whether a client has a token in place of a user, as it may since clientv3 3.7.
func hasToken(client *clientv3.Client) bool {
	token := reflect.ValueOf(client).Elem().FieldByName("Token")
	return token.IsValid() && token.String() != ""
}

// combinerOf returns the combiner of a client. It combines nothing for a client with a user: etcd
// has let nested transactions past its permissions, and would refuse all for one.
func combinerOf(client *clientv3.Client) *combiner {
	return attempt.SharedBy(&combiners, client, func() *combiner {
		b := newCombiner(pace{few: fewUnderWay}, (*combined).transact)
		if client.Username != "" || hasToken(client) {
			b.most = 1
		}
		return b
	})
}

func newCombiner(p pace, send func(*combined, *callContext) error) *combiner {
	b := &combiner{
		send: send, many: manyParts, yields: mostYields, mu: &sync.Mutex{}, most: mostParts, pace: p,
	}
	b.late = time.AfterFunc(time.Hour, b.sendLate) // not before b.late is set, however slow that is
	b.late.Stop()
	return b
}

// A combined is a transaction of several parts. It waits, is under way, and is sent: until then its
// parts may leave.
type combined struct {
	ctx  context.Context
	end  context.CancelFunc
	done chan struct{} // closed once the parts are answered, or are to be sent alone

	// Guarded by combiner.mu until it is sent.
	parts  []*part
	weight int // of all
	sent   bool

	// Set before done is closed.
	refused bool // each part is to be sent alone
	copies  bool // it may have been sent more than once, or be carried out though it was refused

	// Guarded by combiner.mu.
	waits  int  // how many parts are waited for, or are yet to be sent alone
	guilty bool // it was not refused for having parts: a part was refused alone, too, or not sent
}

// A part is a transaction that is combined with others.
type part struct {
	conn *Conn
	r    Request
	of   *combined

	// Set before of.done is closed.
	sent  sending
	read  Reading
	err   error
	alone bool // the answer does not tell it: it is to be sent alone
}

// ask sends a Request of a Conn once, as Conn.Ask does.
func (b *combiner) ask(ctx context.Context, c *Conn, r Request) (Reading, error) {
	p, counts := b.join(ctx, c, r)
	if p == nil {
		if counts {
			defer b.landed(1, time.Now())
		}
		return c.Ask(ctx, r)
	}
	select {
	case <-p.of.done:
	case <-ctx.Done():
		b.leave(p)
		return Reading{}, ctx.Err()
	}
	switch {
	case p.alone:
		return c.Ask(ctx, r)
	case !p.of.refused:
		return c.judge(p.read, p.err, p.sent)
	}
	read, err := c.Ask(ctx, r)
	read.copies = read.copies || p.of.copies
	b.sentAlone(p, err)
	return read, err
}

// join makes r a part of what is sent next. It returns nil if r is to be sent at once, and whether
// that counts as under way.
func (b *combiner) join(ctx context.Context, c *Conn, r Request) (p *part, counts bool) {
	_, marked := metadata.FromOutgoingContext(ctx) // which is about this request alone
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pace.comes(time.Now())
	next := b.waiting
	switch {
	case b.most == 1 || r.Name == "" && !r.meets || marked:
		return nil, false
	case next == nil && b.gathers == 0 && b.under < b.pace.few && !r.meets:
		b.under++
		return nil, true
	case next == nil:
		next = &combined{done: make(chan struct{})}
		next.ctx, next.end = context.WithCancel(context.Background())
		b.waiting = next
		if b.gathers == 0 {
			b.late.Reset(b.pace.wait())
		}
	case slices.ContainsFunc(next.parts, func(p *part) bool {
		return p.r.Name == r.Name && (p.r.puts() || r.puts())
	}):
		return nil, false
	}
	p = &part{conn: c, r: r, of: next}
	next.parts = append(next.parts, p)
	next.waits++
	n := len(next.parts)
	if next.weight += r.weight(); r.meets && next.weight > mostMet/4*3 {
		n = b.most // the next one might not go with them
	}
	goes := n >= b.many && b.under < 2 && !b.pace.serial
	if goes || n >= b.most || b.gathers > 0 && n >= b.gathers && !b.carries {
		b.sendLocked()
	}
	return p, false
}

// leave ends the wait of a part's caller. If the part was not sent yet, it never is.
//
// (Do not send it all the same. Its key would be put after the transaction that removes it.
// TestAPartThatLeavesInTimeIsNotSent.)
func (b *combiner) leave(p *part) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := p.of
	of.waits--
	of.guilty = true
	if !of.sent {
		of.parts = slices.DeleteFunc(of.parts, func(o *part) bool { return o == p })
	}
	if of.waits > 0 {
		return
	}
	of.end()
	if of == b.waiting {
		b.waiting = nil
		if b.gathers == 0 {
			b.late.Stop()
		}
	}
}

// next counts a transaction as over, and as answered if that was not noted before: it has n parts,
// and was sent at sent. It returns what waits, if that is to be sent now, and whether the caller
// has to call gather.
func (b *combiner) next(n int, sent time.Time) (of *combined, gathers bool) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.under--
	if n > 0 {
		b.pace.lands(n, now.Sub(sent), now)
	}
	if b.gathers > 0 || b.under >= b.pace.few {
		return nil, false
	}
	waiting := 0
	if b.waiting != nil {
		waiting = len(b.waiting.parts)
	}
	all := min(waiting+max(b.pace.expected-b.pace.back, 0), b.most)
	switch {
	case all > max(waiting, 1):
		b.gathers = all
		return nil, true
	case waiting > 0:
		return b.takeLocked(), false
	}
	return nil, false
}

// landed is next, and what follows it in another goroutine.
func (b *combiner) landed(n int, sent time.Time) {
	if of, gathers := b.next(n, sent); of != nil {
		go b.carry(of)
	} else if gathers {
		b.gather(0)
	}
}

// gather has the processor run other goroutines, at most that many times, and returns what waits
// once that is as much as the combiner gathers. A caller that comes back has little to do, so a few
// times are enough as a rule. Otherwise the last caller sends what waits, or late does.
func (b *combiner) gather(yields int) *combined {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.carries = yields > 0
	for range yields {
		b.mu.Unlock()
		runtime.Gosched()
		b.mu.Lock()
		if b.gathers == 0 { // sent meanwhile
			break
		}
		if b.waiting != nil && len(b.waiting.parts) >= b.gathers {
			b.carries = false
			return b.takeLocked()
		}
	}
	b.carries = false
	if b.gathers > 0 {
		b.late.Reset(b.pace.patience)
	}
	return nil
}

// sendLate sends what waits, though no answer has come, or not all that were expected.
func (b *combiner) sendLate() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting != nil || b.gathers > 0 { // neither sent meanwhile, nor before late is set
		b.sendLocked()
	}
}

// sendLocked has what waits sent, which may be nothing.
func (b *combiner) sendLocked() {
	if of := b.takeLocked(); of != nil {
		go b.carry(of)
	}
}

// takeLocked returns what waits, which is under way from now on.
func (b *combiner) takeLocked() *combined {
	of := b.waiting
	if of != nil {
		b.under++
	}
	b.waiting, b.gathers = nil, 0
	b.late.Stop()
	return of
}

// carry sends a combined transaction, and then what waits, until nothing does. (A goroutine for
// each would have its stack grow each time.)
//
// The Fall of the user's code is the answer to each part, and what waits is sent all the same.
func (b *combiner) carry(of *combined) {
	defer func() {
		if of == nil {
			return
		}
		b.landed(0, time.Now()) // the user's code has ended this goroutine
	}()
	for gathers := false; of != nil; {
		sent := time.Now()
		guard.Catch(func() { b.carryOne(of) }, func(fall *guard.Fall) {
			b.answered(len(of.parts), sent)
			of.over(fall)
		})
		if of, gathers = b.next(0, sent); gathers {
			of = b.gather(b.yields)
		}
	}
}

// answered notes that a transaction of n parts, sent at sent, is answered.
//
// (Do not do so once its callers know the answer. Those that come back at once would count as late,
// and the next transactions would not wait for them. TestCallersThatComeBackGoTogether.)
func (b *combiner) answered(n int, sent time.Time) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pace.lands(n, now.Sub(sent), now)
}

// over notes that a transaction was answered, or the Fall of the user's code in it.
func (of *combined) over(fall *guard.Fall) {
	if fall != nil {
		of.parts[0].conn.listener.Fell(fall)
		for _, p := range of.parts {
			p.err = fall
		}
	}
	close(of.done)
	of.end()
}

// carryOne sends a combined transaction, and notes what etcd has answered to its parts.
func (b *combiner) carryOne(of *combined) {
	b.mu.Lock()
	of.sent = true
	b.mu.Unlock()
	call := &callContext{Context: of.ctx}
	for _, p := range of.parts {
		p.sent = p.conn.sending()
	}
	switch len(of.parts) {
	case 0: // all have left
		return
	case 1:
		p := of.parts[0]
		p.r.own = true // carry catches a Fall
		p.read, p.err = p.conn.send(call, p.r)
		p.read.copies = call.asked.Load()
		return
	}
	err := b.send(of, call)
	of.copies = call.asked.Load() || err != nil && !attempt.NotApplied(err)
	if of.refused = err != nil && attempt.IsAnswer(err); of.refused {
		b.refuse(of, err)
	}
	for _, p := range of.parts {
		p.err, p.read.copies = err, of.copies
	}
}

// errOther says that an answer is not that to the request.
var errOther = errors.New("etcd has answered another transaction")

// transact sends transactions as one, and reads the answer for each part.
func (of *combined) transact(call *callContext) error {
	ops := make([]*pb.RequestOp, len(of.parts))
	for i, p := range of.parts {
		ops[i] = p.r.Nested()
	}
	resp, err := of.parts[0].conn.commit(call, &pb.TxnRequest{Success: ops})
	switch {
	case err != nil:
		return err
	case len(resp.Responses) != len(ops):
		return errOther
	}
	var whole Reading
	whole.add(resp.Responses)
	for i, p := range of.parts {
		answer := resp.Responses[i].GetResponseTxn()
		p.read = Reading{Header: resp.Header, Holds: answer.GetSucceeded(),
			empty: len(answer.GetResponses()) == 0}
		p.read.add(answer.GetResponses())
		p.read.wrote = whole.wrote
	}
	return nil
}

// readAll sends what reads as one, without transactions in it. If what is compared does not hold,
// the Reading has no ranges.
func (of *combined) readAll(
	call *callContext, compares []*pb.Compare, ranges []*pb.RequestOp,
) (Reading, error) {
	all := Request{Txn: ticket.Txn{If: compares, Then: ranges}, own: true} // carry catches a Fall
	read, err := of.parts[0].conn.send(call, all)
	if err == nil && read.Holds && len(read.Ranges) != len(ranges) {
		err = errOther
	}
	return read, err
}

// refuse notes that etcd has refused a combined transaction.
func (b *combiner) refuse(of *combined, err error) {
	many := attempt.Is(err, rpctypes.ErrTooManyOps) || attempt.Is(err, rpctypes.ErrRequestTooLarge)
	b.mu.Lock()
	defer b.mu.Unlock()
	of.guilty = of.guilty || many || !attempt.Settles(err) // later etcd may take as many
	if many {
		b.most = min(b.most, max(len(of.parts)/2, 1))
	}
}

// sentAlone notes what has become of a part that was sent alone, because etcd has refused all. If
// it takes each part alone, it takes no parts.
func (b *combiner) sentAlone(p *part, err error) {
	b.mu.Lock()
	of := p.of
	of.waits--
	of.guilty = of.guilty || err != nil
	if of.waits == 0 && !of.guilty {
		b.most = 1
	}
	off := b.most == 1 && !b.told
	b.told = b.told || off
	b.mu.Unlock()
	if off {
		p.conn.listener.Uncombined(p.err)
	}
}

// A pace says how many transactions of a combiner may be under way, and for how many callers the
// next one waits. It is pure: it has no clock and no mutex of its own.
//
// Invariant: what waits, waits for no more callers than have come back after the last few answers,
// and for at most half of what the last answer took. So a caller with nothing to do but the next
// request meets the others, and one that works while it holds delays no other.
// (TestAPaceExpectsTheCallersThatComeBack.)
type pace struct {
	serial   bool          // few stays 1, and what waits may: it costs etcd much, or has time
	few      int           // how many transactions may be under way before others wait
	took     time.Duration // the last answer
	patience time.Duration // for how long the callers that it answered are expected
	until    time.Time     // the end of that time
	out      int           // how many callers it answered
	expected int           // how many of them come back at once, by those before
	back     int           // how many have come since

	answered, came float64 // the sums of out and back, in which an answer counts half of the next one
}

// lands notes that at now n callers are answered, by a request that took took.
func (p *pace) lands(n int, took time.Duration, now time.Time) {
	p.answered, p.came = p.answered/2+float64(p.out), p.came/2+float64(p.back)
	p.out, p.back, p.took = n, 0, took
	p.few = 1
	if took >= longestWait && !p.serial {
		p.few = fewUnderWay
	}
	p.patience = min(took/2, mostPatience)
	p.until = now.Add(p.patience)
	p.expected = int(float64(n)*p.came/max(p.answered, 1) + 0.5)
}

// wait is how long what comes waits at most for others to be answered.
func (p *pace) wait() time.Duration {
	if p.serial {
		return max(longestWait, min(p.took/2, longestShare))
	}
	return longestWait
}

// comes notes that a caller has come at now.
func (p *pace) comes(now time.Time) {
	if p.back < p.out && now.Before(p.until) {
		p.back++
	}
}
