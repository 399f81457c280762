// Package etcd is all that a Session sends to etcd and watches there, and what it knows of etcd's
// history: an answer comes with the epoch to which it belongs.
package etcd

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/etcd/keepalive"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A Listener is told what the answers to a Session's requests say of all of etcd. It is told
// without the Session's mutex, but for SetBackLocked.
type Listener interface {
	// SetBackLocked says that an epoch has ended, and another has begun.
	SetBackLocked(ended, present *Epoch)

	// StreamSilent says that the stream of the watches is silent, as a Session of the client has
	// noticed. All watches are to be begun anew.
	StreamSilent()

	// TermFell says that a linearizable answer has a lower Raft term than one before: etcd may have
	// been set back.
	TermFell(from, to uint64)

	// Unavailable says that etcd does not answer, and for how long.
	Unavailable(reason error, silent time.Duration)

	// Limited says once that etcd takes few operations in one transaction.
	Limited(most int)

	// Uncombined says once that etcd takes no transactions in one, and why.
	Uncombined(err error)

	// Unreadable says once that the user may not read a key.
	Unreadable(key string, err error)

	// Fell says that the user's code has fallen in a request.
	Fell(fall *guard.Fall)
}

// A Conn is the connection of a Session with etcd.
type Conn struct {
	*attempt.Caller

	// Proved is told that etcd's leader, of a term, has answered a request that was
	// sent at a time, in an epoch. It is set before the first request.
	Proved func(sent time.Time, of *Epoch, term uint64)

	// Set once, then only read.
	client   *clientv3.Client
	direct   direct   // in place of its KV
	leases   granter  // for what clientv3.Lease cannot ask; nil if there is none
	history  *history // the client's
	listener Listener
	ctx      context.Context // of all goroutines
	tasks    *guard.Group
	stream   *stream      // of watches
	combiner *combiner    // the client's
	meeting  *meeting     // the client's
	lookout  *lookout     // the client's
	mu       *guard.Mutex // the Session's

	present atomic.Pointer[Epoch] // changed under mu

	// What etcd has refused.
	mostKeys   atomic.Int64 // how many it lets one transaction read, as far as is known
	unreadable sync.Once    // the listener was told of a key that the user may not read
}

const (
	// manyKeys is how many keys are read in one transaction: etcd allows 128 operations by
	// default.
	manyKeys = 100

	// maxUnreadable is how many keys that the user may not read one call of ReadKeys skips.
	maxUnreadable = 10
)

// New returns the Conn of a Session, which has a mutex, and goroutines that end with ctx. The ttl
// of its leases says how long an attempt may wait.
func New(
	ctx context.Context, client *clientv3.Client, ttl time.Duration,
	mu *guard.Mutex, tasks *guard.Group, listener Listener,
) *Conn {
	c := &Conn{
		Proved:   func(time.Time, *Epoch, uint64) {},
		Caller:   attempt.NewCaller(ctx, client, ttl, tasks.Go, listener.Unavailable),
		client:   client,
		direct:   directOf(client),
		leases:   granterOf(client),
		history:  historyOf(client),
		listener: listener,
		ctx:      ctx,
		tasks:    tasks,
		stream:   streamOf(client),
		combiner: combinerOf(client),
		meeting:  meetingOf(client),
		lookout:  lookoutOf(client),
		mu:       mu,
	}
	c.present.Store(c.history.epoch())
	c.mostKeys.Store(manyKeys)
	return c
}

// Epoch is the present epoch: that of the requests that are sent now.
func (c *Conn) Epoch() *Epoch { return c.present.Load() }

// IsPresent reports whether an epoch is the present one: no Session of the client has noticed that
// it has ended.
func (c *Conn) IsPresent(e *Epoch) bool {
	return c.Epoch() == e && c.history.present.Load() == e.era
}

// LookOut has alarm called when CatchUp has something to do, or the wall clock runs ahead of the
// monotonic one, until stop is called. alarm does not wait.
func (c *Conn) LookOut(alarm func()) (stop func()) { return c.lookout.add(alarm) }

// CatchUp ends the present epoch if another Session of the client has noticed that it has ended.
// Otherwise a Session that asks for nothing learns of it with its next renewal, when another
// Session of the same process may hold already.
func (c *Conn) CatchUp() {
	if e := c.Epoch(); !c.IsPresent(e) {
		c.setBack(e)
	}
}

// heard judges the header of an answer to a sending. One that shows that etcd was set back begins a
// new epoch: see era. So does any answer if another Session of the client has had such an answer.
func (c *Conn) heard(h *pb.ResponseHeader, sent sending) {
	if c.isSetBack(h, sent) {
		c.setBack(sent.epoch)
	}
}

// isSetBack is heard, but for the end of the epoch: it reports whether that has to follow.
func (c *Conn) isSetBack(h *pb.ResponseHeader, sent sending) bool {
	e := sent.epoch
	if c.Epoch() != e {
		return false // it says nothing about the present one
	}
	revision := h.GetRevision()
	if !e.isOf(h.GetClusterId()) || revision < sent.revision || e.outgrows(revision, time.Now()) {
		c.history.begin(e.era, h)
	}
	if c.history.present.Load() != e.era {
		return true
	}
	raise(&e.revision, revision)
	e.hears(revision, sent.at)
	raise(&e.term, h.GetRaftTerm())
	return false
}

// setBack ends an epoch, unless another answer has ended it.
//
// Invariant: the present epoch changes with the Session's mutex held, and the listener begins the
// lock delay in the same critical section. What it has from the epoch that has ended (views, names
// of keys, keys that linger) it gives up later: each use of it asks for the present epoch. (Do not
// swap the epoch first and tell then. A place that is put between the two counts as one of the
// present epoch, and its hold begins without the delay.)
func (c *Conn) setBack(ended *Epoch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if present := c.history.epoch(); c.present.CompareAndSwap(ended, present) {
		c.stream.moved()
		c.listener.SetBackLocked(ended, present)
	}
}

// Ask asks once. The answer is linearizable.
//
// Do not let a write pass at a revision that was known: after a restore it may be that of another
// write of before. (TestAWriteAtARevisionThatWasKnownShowsASetBack.)
func (c *Conn) Ask(ctx context.Context, r Request) (Reading, error) {
	call, sent := &callContext{Context: ctx}, c.sending()
	read, err := c.send(call, r)
	read.copies = call.asked.Load()
	return c.judge(read, err, sent)
}

// sending is the sending of a request now, whose answer is linearizable.
//
// Do not go by what this Session knows: if it has heard little, an etcd that was set back looks to
// it like the one from before, and it holds beside another Session of its client.
// (TestASetBackShowsInWhatAnotherSessionHasHeard.)
func (c *Conn) sending() sending {
	epoch := c.Epoch()
	return sending{time.Now(), epoch, epoch.reached.Load(), epoch.term.Load(), epoch.led.Load()}
}

// sendingToAny is the sending of a request now that any member may answer, though it is behind.
func (c *Conn) sendingToAny() sending { return sending{at: time.Now(), epoch: c.Epoch()} }

// judge judges the linearizable answer to a sending, or its error. Its term was the newest when it
// was sent: a higher known term was from a candidate that was not elected, or from before a
// restore.
func (c *Conn) judge(read Reading, err error, sent sending) (Reading, error) {
	read.Epoch, read.sent = sent.epoch, sent.at
	if err != nil {
		return read, err
	}
	if read.wrote {
		sent.revision++
	}
	c.heard(read.Header, sent)
	term := read.Header.GetRaftTerm()
	if sent.epoch.leads(term, sent.led) {
		c.listener.TermFell(sent.led, term)
	}
	if term < sent.term {
		sent.epoch.term.CompareAndSwap(sent.term, term)
	}
	c.Proved(sent.at, sent.epoch, term)
	return read, nil
}

// apart calls f, which runs the user's code, by guard.Apart. The listener is told of its Fall: the
// error may reach no call.
func apart[R any](c *Conn, f func() (R, error)) (R, error) {
	r, err := guard.Apart(f)
	if fall := guard.FallIn(err); fall != nil {
		c.listener.Fell(fall)
	}
	return r, err
}

// sendApart sends a Request once, in a goroutine of its own.
func (c *Conn) sendApart(ctx context.Context, r Request) (Reading, error) {
	r.own = true
	return apart(c, func() (Reading, error) { return c.send(ctx, r) })
}

// send sends a Request once.
func (c *Conn) send(ctx context.Context, r Request) (Reading, error) {
	if !r.own {
		return c.sendApart(ctx, r)
	}
	if r.key != "" {
		resp, err := c.client.Get(ctx, r.key, r.opts...)
		all := (*pb.RangeResponse)(resp)
		return Reading{Header: all.GetHeader(), Ranges: []*pb.RangeResponse{all}}, err
	}
	resp, err := c.commit(ctx, &pb.TxnRequest{Compare: r.If, Success: r.Then, Failure: r.Else})
	if err != nil {
		return Reading{}, err
	}
	read := Reading{Header: resp.Header, Holds: resp.Succeeded, empty: len(resp.Responses) == 0}
	read.add(resp.Responses)
	return read, nil
}

// commit sends a transaction once.
func (c *Conn) commit(ctx context.Context, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	if c.client.KV != c.direct.kv {
		return CommitBy(ctx, c.client.KV, t)
	}
	resp, err := c.direct.by.Txn(ctx, t, c.direct.opts...)
	return resp, clientv3.ContextError(ctx, err)
}

// add adds the answers to the operations of a transaction, and to those of one nested in it.
func (r *Reading) add(answers []*pb.ResponseOp) {
	for _, a := range answers {
		if a.GetResponseRange() != nil {
			r.Ranges = append(r.Ranges, a.GetResponseRange())
		}
		r.wrote = r.wrote || a.GetResponsePut() != nil || a.GetResponseDeleteRange().GetDeleted() > 0
		r.add(a.GetResponseTxn().GetResponses())
	}
}

// AskInTime returns Ask within the time of one attempt; see inTime.
func (c *Conn) AskInTime(twice bool) func(context.Context, Request) (Reading, error) {
	return func(ctx context.Context, r Request) (Reading, error) {
		return inTime(ctx, c, twice, func(ctx context.Context) (Reading, error) {
			return c.asks(r)(ctx, twice)
		})
	}
}

// inTime calls f, which sends one request, within the time of one attempt. If twice is set it calls
// f twice at once, as far as the client's credit of repeats goes: a dead endpoint of several gets
// one of the two. It is set where requests before had no answer. Where all answers are slow another
// request is of no use.
//
// (Do not send one again and again. Requests that follow each other may be in step with the
// endpoints, so that it is the same one of them that the dead endpoint gets each time.
// TestAStrayIsSweptBesideADeadEndpoint.)
func inTime[R any](
	ctx context.Context, c *Conn, twice bool, f func(context.Context) (R, error),
) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if !twice || !c.Several() || !c.Soon() {
		return f(ctx)
	}
	retry := attempt.Backoff{Policy: attempt.Urgent}
	retry.Double()
	ask := func(ctx context.Context, _ bool) (R, error) { return f(ctx) }
	r, _, err := attempt.Do(ctx, c.Caller, &retry, c.Timeout, ask, nil)
	return r, err
}

// Attempt is one attempt to read.
func (c *Conn) Attempt(ctx context.Context, r Request) (Reading, error) {
	read, _, err := attempt.Do(ctx, c.Caller, &attempt.Backoff{}, attempt.ReadTimeout, c.asks(r), nil)
	return read, err
}

// asks is Ask of r as an attempt calls it.
func (c *Conn) asks(r Request) func(context.Context, bool) (Reading, error) {
	if r.newest != (newest{}) {
		looks := looksOf(c.client)
		return func(ctx context.Context, _ bool) (Reading, error) { return looks.ask(ctx, c, r) }
	}
	return func(ctx context.Context, again bool) (Reading, error) {
		if r.meets && !again {
			return c.meeting.ask(ctx, c, r)
		}
		return c.Ask(ctx, r)
	}
}

// OnBeat is how long it is until one of the client's beats, drawn at random among those between
// from and to from now: the requests that are due at a beat meet. The longer that time is, the
// longer is a beat, so that few requests meet, too. While etcd is slow all of it is later (Seldom).
//
// Each client has beats of its own. (Do not count them from a time that processes share, as that of
// a start of all: their requests would reach etcd at once. TestTheBeatsOfClientsAreApart.)
func (c *Conn) OnBeat(from, to time.Duration) time.Duration {
	slow := c.Seldom(from)
	from, to = slow, slow+to-from
	since := time.Since(c.meeting.began)
	return onBeat(since, from, to, from+rand.N(to-from+1))
}

// AttemptPast is Attempt of an r that is of the past, and may be answered by any member. The state
// at a revision does not change, so no quorum is needed. The member may not have reached it yet, or
// have compacted it away.
func (c *Conn) AttemptPast(ctx context.Context, r Request) (Reading, error) {
	retry := attempt.Backoff{Policy: attempt.Urgent}
	ask := func(ctx context.Context, _ bool) (read Reading, err error) {
		sent := c.sendingToAny()
		if read, err = c.send(ctx, r); err == nil {
			c.heard(read.Header, sent)
		}
		read.Epoch = sent.epoch
		return read, err
	}
	read, _, err := attempt.Do(ctx, c.Caller, &retry, attempt.ReadTimeout, ask, nil)
	return read, err
}

// ReadInCall is Read of a user's call, which ends if the user's code falls.
func (c *Conn) ReadInCall(ctx context.Context, r Request) (Reading, error) {
	return c.ReadBy(ctx, r, attempt.Backoff{}, attempt.Fallen)
}

// Read asks until it is answered, etcd refuses, or ctx ends.
func (c *Conn) Read(ctx context.Context, r Request) (Reading, error) {
	return c.ReadBy(ctx, r, attempt.Backoff{}, nil)
}

// ReadBy is Read with attempts as retry says. It tells failed, which may be nil, of any other
// error, and ends with the error that failed returns. The answer to a transaction that writes is
// that to any of its copies.
func (c *Conn) ReadBy(
	ctx context.Context, r Request, retry attempt.Backoff, failed func(error) error,
) (Reading, error) {
	ask := c.asks(r)
	for {
		answer, _, err := attempt.Do(ctx, c.Caller, &retry, attempt.ReadTimeout, ask, nil)
		switch {
		case err == nil:
			return answer, nil
		case ctx.Err() != nil:
			return answer, attempt.Cause(ctx)
		case attempt.Refused(err):
			return answer, err
		case c.Closed():
			return answer, attempt.ErrClientClosed
		}
		if failed != nil {
			if err := failed(err); err != nil {
				return answer, err
			}
		}
		retry.Double() // another member may know more
		if err := retry.Wait(ctx, c.Caller); err != nil {
			return answer, err
		}
	}
}

// A Part is what was read of some keys, from one on. The entry of a key that is not there has no
// revision.
type Part struct {
	From    int
	Entries []line.Entry
	Epoch   *Epoch
}

// ReadKeys reads keys linearizably, by ask, and calls got part by part. A part is as large as etcd
// takes, which c remembers. ReadKeys finds keys that the user may not read by halving the part that
// has them, and skips them: the error then says so, and nothing about the readable ones.
func (c *Conn) ReadKeys(
	ctx context.Context, keys []string, ask func(context.Context, Request) (Reading, error),
	got func(Part),
) error {
	size := int(c.mostKeys.Load())
	var refusal error
	unreadable := 0
	for from := 0; from < len(keys); {
		part := keys[from:min(from+size, len(keys))]
		ops := make([]*pb.RequestOp, len(part))
		for i, key := range part {
			ops[i] = ticket.Get(key)
		}
		answer, err := ask(ctx, Ranges(nil, ops...))
		switch {
		case err == nil:
			read := make([]line.Entry, len(part))
			for i, key := range part {
				read[i], _ = line.Find(answer.Ranges[i].GetKvs(), key)
			}
			got(Part{from, read, answer.Epoch})
			from += len(part)
			size = min(2*size, int(c.mostKeys.Load()))
		case len(part) > 1 && attempt.Is(err, rpctypes.ErrTooManyOps):
			size = len(part) / 2
			// If another read has stored less, etcd refuses once more.
			if before := c.mostKeys.Swap(int64(size)); before == manyKeys {
				c.listener.Limited(size)
			}
		case len(part) > 1 && attempt.Is(err, rpctypes.ErrPermissionDenied):
			size = len(part) / 2
		case attempt.Is(err, rpctypes.ErrPermissionDenied) && unreadable < maxUnreadable:
			unreadable++
			refusal = err
			c.unreadable.Do(func() { c.listener.Unreadable(part[0], err) })
			from++
		default:
			return err
		}
	}
	return refusal
}

// Left returns the keys that may be there. It asks for a part of keys at a time whether all are
// gone, which costs etcd and the client a fraction of what it costs to read them, and keeps the
// parts of which etcd does not say so.
func (c *Conn) Left(ctx context.Context, keys []string) (left []string) {
	for len(keys) > 0 {
		part := keys[:min(len(keys), int(c.mostKeys.Load()))]
		keys = keys[len(part):]
		count := ticket.Count(part[0]) // makes it linearizable
		gone, err := c.Read(ctx, Ranges(ticket.Absent(part), count))
		if err != nil || !gone.Holds {
			left = append(left, part...)
		}
	}
	return left
}

// Commit is one of a call's attempts at a transaction that writes. It may be sent several
// times: each transaction here may be carried out any number of times. If there is no Else, a
// repeat has Again in its place, which shows whether the first one was carried out.
func (c *Conn) Commit(ctx context.Context, retry *attempt.Backoff, t ticket.Txn) Outcome {
	epoch, began, own := c.Epoch(), time.Now(), retry.Own
	ask := func(ctx context.Context, again bool) (Reading, error) {
		r := Request{Txn: t, own: own && !again}
		if !again {
			return c.combiner.ask(ctx, c, r)
		}
		if t.Else == nil {
			r.Else = []*pb.RequestOp{t.Again()}
		}
		return c.Ask(ctx, r)
	}
	var final func(Reading) bool
	if t.HearOut {
		final = func(r Reading) bool { return r.Holds }
	}
	read, several, err := attempt.Do(ctx, c.Caller, retry, c.Timeout, ask, final)
	prompt := err == nil && time.Since(began) <= c.Timeout
	answer := ticket.Answer{Copies: read.copies || several, Succeeded: read.Holds,
		Empty: read.empty, Read: read.Ranges, Revision: read.Header.GetRevision()}
	if err != nil {
		answer.Outcome = ticket.Unknown
		if attempt.NotApplied(err) {
			answer.Outcome = ticket.NotApplied
		}
	}
	return Outcome{Epoch: epoch, Sent: read.sent, Prompt: prompt, Answer: answer, Err: err}
}

// Remove has a transaction that deletes carried out. It makes attempts until etcd has answered or
// refused one, ctx ends, the client is closed, or needless is closed, and tells failed of errors.
//
// All removals of a client have one pace and one window, that of their Policy, and go together as
// combine.go has it. So what they send does not grow with the number of keys while all fail at
// once. (Do not leave that to the pauses here: those of ten thousand calls are a storm.
// TestACrowdOfWaitsThatGiveUpIsNoStorm.) A pause here is for a removal that alone fails.
func (c *Conn) Remove(
	ctx context.Context, needless <-chan struct{}, txn func() ticket.Txn, failed func(error),
) Outcome {
	retry := attempt.Backoff{Policy: attempt.Removal, Needless: needless, Most: attempt.RemovalPause}
	for {
		done := c.Commit(ctx, &retry, txn())
		if isClosed(needless) {
			return done
		}
		if done.Err != nil && ctx.Err() == nil {
			failed(done.Err)
		}
		if done.Err == nil || c.isOver(ctx, done.Err) {
			return done
		}
		_ = retry.Wait(ctx, c.Caller) // the next attempt sees the end of ctx
		if isClosed(needless) {
			return done
		}
	}
}

// isClosed reports whether a channel, which may be nil, is closed.
func isClosed(over <-chan struct{}) bool {
	select {
	case <-over:
		return true
	default:
		return false
	}
}

// isOver reports whether no attempt follows one that has failed with err.
func (c *Conn) isOver(ctx context.Context, err error) bool {
	return attempt.Refused(err) || ctx.Err() != nil || c.Closed()
}

// A Grant is a lease that etcd has granted.
type Grant struct {
	ID   clientv3.LeaseID
	TTL  time.Duration
	Sent time.Time
}

// Grant is one of a call's attempts to get a lease. Of several answers the first counts. The other
// leases have no keys, and expire.
func (c *Conn) Grant(
	ctx context.Context, retry *attempt.Backoff, ttl time.Duration,
) (Grant, error) {
	grant := func(ctx context.Context, _ bool) (Grant, error) { return c.grant(ctx, ttl) }
	g, _, err := attempt.Do(ctx, c.Caller, retry, c.Timeout, grant, nil)
	return g, err
}

// grant asks once for a lease.
func (c *Conn) grant(ctx context.Context, ttl time.Duration) (Grant, error) {
	sent := c.sendingToAny()
	resp, err := apart(c, func() (*clientv3.LeaseGrantResponse, error) {
		return c.client.Grant(ctx, int64(ttl/time.Second))
	})
	if err != nil {
		return Grant{}, err
	}
	c.heard(resp.ResponseHeader, sent)
	return Grant{resp.ID, time.Duration(resp.TTL) * time.Second, sent.at}, nil
}

// Adopt is one of a call's attempts to renew a lease that the caller has: then it is as if etcd had
// granted that.
func (c *Conn) Adopt(
	ctx context.Context, retry *attempt.Backoff, id clientv3.LeaseID,
) (Grant, error) {
	renewals := c.Renewals(id, c.Timeout)
	defer func() { renewals.Close()(ctx) }()
	renew := func(ctx context.Context, _ bool) (Grant, error) {
		sent := c.sendingToAny()
		resp, err := renewals.Renew(ctx, keepalive.Renewal{
			Where: c.Where(sent.epoch), Until: sent.at.Add(c.Timeout), Patience: c.Timeout,
		})
		if err != nil {
			return Grant{}, err
		}
		c.heard(resp.Header, sent)
		return Grant{id, time.Duration(resp.TTL) * time.Second, sent.at}, nil
	}
	g, _, err := attempt.Do(ctx, c.Caller, retry, c.Timeout, renew, nil)
	return g, err
}

// Revoke is one of a call's attempts to give a lease back. A lease that etcd does not know has been
// given back.
func (c *Conn) Revoke(ctx context.Context, retry *attempt.Backoff, id clientv3.LeaseID) error {
	revoke := func(ctx context.Context, _ bool) (*clientv3.LeaseRevokeResponse, error) {
		return apart(c, func() (*clientv3.LeaseRevokeResponse, error) {
			return c.client.Revoke(ctx, id)
		})
	}
	_, _, err := attempt.Do(ctx, c.Caller, retry, c.Timeout, revoke, nil)
	if attempt.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// A Lifetime is what one member knows of a lease.
type Lifetime struct {
	Known  bool // there is such a lease
	Behind bool // the member knows less of etcd than was known when it was asked
	Keys   [][]byte
}

// Lifetime asks once what a member knows of a lease. The answer is neither linearizable nor
// versioned.
func (c *Conn) Lifetime(
	ctx context.Context, id clientv3.LeaseID, opts ...clientv3.LeaseOption,
) (Lifetime, error) {
	sent := c.sendingToAny()
	revision := sent.epoch.Revision()
	resp, err := apart(c, func() (*clientv3.LeaseTimeToLiveResponse, error) {
		return c.client.TimeToLive(ctx, id, opts...)
	})
	if err != nil {
		return Lifetime{}, err
	}
	c.heard(resp.ResponseHeader, sent)
	return Lifetime{
		Known:  resp.TTL >= 0, // -1 is the answer for a lease that does not exist
		Behind: resp.GetRevision() < revision,
		Keys:   resp.Keys,
	}, nil
}

// KeysInTime is Lifetime with the keys on the lease, within the time of one attempt; see inTime.
func (c *Conn) KeysInTime(
	ctx context.Context, id clientv3.LeaseID, twice bool,
) (Lifetime, error) {
	return inTime(ctx, c, twice, func(ctx context.Context) (Lifetime, error) {
		return c.Lifetime(ctx, id, clientv3.WithAttachedKeys())
	})
}

// Renewals sends the renewals of a lease, once in each period.
func (c *Conn) Renewals(id clientv3.LeaseID, period time.Duration) *keepalive.Sender {
	return keepalive.NewSender(c.client, id, period)
}

// Where is where the requests of an epoch go: a client may be moved to another cluster.
func (c *Conn) Where(epoch *Epoch) keepalive.Where {
	return keepalive.Where{Endpoints: strings.Join(c.Endpoints(), " "), Since: epoch.Noticed}
}

// Renewed judges the answer to a renewal, which was sent at a time and may be answered by a member
// that is behind. It returns the term that was known before, 0 if the epoch in which the renewal
// was sent has ended, or ends now: the caller then calls setBack, which waits for the Session's
// mutex and does nothing otherwise.
func (c *Conn) Renewed(
	resp *pb.LeaseKeepAliveResponse, at time.Time, sent *Epoch,
) (known uint64, setBack func()) {
	known = sent.term.Load()
	if c.isSetBack(resp.Header, sending{at: at, epoch: sent}) {
		return 0, func() { c.setBack(sent) }
	}
	if c.Epoch() != sent {
		known = 0
	}
	return known, func() {}
}

// Trusts counts a lease of a TTL among those of the client that are trusted, until over is called.
func (c *Conn) Trusts(ttl time.Duration) (over func()) { return c.history.trusts(ttl) }

// WasThere reports whether a key of the Session was there at the revision at which it was put, as
// etcd tells before ctx ends. (It does not if it has compacted that revision.)
//
// While etcd's history is one, the key was there. If it was not, the revision is of another
// history: etcd was set back to before it, with a raised revision perhaps. Then a new epoch begins.
func (c *Conn) WasThere(ctx context.Context, key string, put int64) bool {
	epoch := c.Epoch()
	final := func(err error) error {
		if attempt.Is(err, rpctypes.ErrCompacted) || attempt.Is(err, rpctypes.ErrFutureRev) {
			return err
		}
		return nil
	}
	read, err := c.ReadBy(ctx, Range(key, clientv3.WithRev(put)), attempt.Backoff{}, final)
	if attempt.Is(err, rpctypes.ErrFutureRev) {
		_, _ = c.Read(ctx, Range(key)) // its answer has a revision that is lower
	}
	if err != nil || read.Epoch != epoch {
		return false
	}
	e, _ := line.Find(read.Ranges[0].GetKvs(), key)
	if e.Rev != put {
		c.history.begin(epoch.era, read.Header)
		c.setBack(epoch)
	}
	return e.Rev == put
}

// Endpoints are the endpoints of the client, none if it was not made with clientv3.New.
func (c *Conn) Endpoints() []string {
	if c.client.ActiveConnection() == nil {
		return nil
	}
	return c.client.Endpoints()
}

// FollowConnection has a goroutine of the Session's call lost when the client has lost its
// connection, and found when it has another, until end is called. It returns at once. A call may
// come while an earlier one is under way.
func (c *Conn) FollowConnection(lost, found func()) (end func()) {
	conn := c.client.ActiveConnection()
	if conn == nil {
		return func() {} // not made with clientv3.New
	}
	n := attempt.SharedBy(&connections, conn, func() *connection {
		return &connection{followers: make(map[*follower]struct{})}
	})
	f := &follower{c.tasks, lost, found}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.followers[f] = struct{}{}; len(n.followers) == 1 {
		var following context.Context
		following, n.end = context.WithCancel(context.Background())
		state := conn.GetState() // what changes from now on is told
		go func() { n.follow(following, conn, state) }()
	}
	return func() { n.forget(f) }
}

// An Epoch is a part of etcd's history, as a Session has seen it: one cluster whose
// revision does not go back.
//
// etcd's revisions grow, and what was committed stays. The library builds on that: create revisions
// tell holds apart, and newer events bring a view of a line up to date. Neither is true any more
// when etcd is restored from a snapshot or wiped, or when the client is moved to another cluster.
// clientv3 hides the reconnect.
//
// Invariant: nothing that was learned in one epoch counts in another. An answer belongs to
// the epoch in which its request was sent, and a place from an earlier epoch is read before
// anything is concluded from it. (Do not compare revisions of two epochs: after
// a restore the same number is another write. TestNoTwoHoldAfterEtcdWasSetBack.)
type Epoch struct {
	*era
	revision atomic.Int64  // the highest one known to the Session
	term     atomic.Uint64 // of Raft, the newest one known
}

// Cluster is the id of the epoch's cluster, 0 until an answer has told it.
func (e *Epoch) Cluster() uint64 { return e.cluster.Load() }

// Revision is the highest revision known.
func (e *Epoch) Revision() int64 { return e.revision.Load() }

// Reached is the highest revision that any Session of the client knows.
func (e *Epoch) Reached() int64 { return e.reached.Load() }

// Reach notes that etcd has reached a revision in e, which no answer has told.
func (e *Epoch) Reach(revision int64) {
	raise(&e.revision, revision)
	raise(&e.reached, revision)
}

// isOf reports whether a cluster is e's. The first one seen becomes e's.
func (e *Epoch) isOf(cluster uint64) bool {
	return cluster == 0 || e.cluster.CompareAndSwap(0, cluster) || e.cluster.Load() == cluster
}

// isElsewhere reports whether a header is from another cluster than e's, as far as both are known.
func (e *Epoch) isElsewhere(h *pb.ResponseHeader) bool {
	cluster, known := h.GetClusterId(), e.cluster.Load()
	return cluster != 0 && known != 0 && cluster != known
}

// A sending is the sending of a request, and what was known then. Nothing is known that the answer
// of a member that is behind would deny.
type sending struct {
	at       time.Time
	epoch    *Epoch
	revision int64
	term     uint64 // the newest one of any answer
	led      uint64 // that of the last linearizable answer
}

// A number is one of atomic's that can be raised.
type number[T int64 | uint64] interface {
	Load() T
	CompareAndSwap(old, new T) bool
}

// raise makes n at least v.
func raise[T int64 | uint64](n number[T], v T) {
	for known := n.Load(); v > known; known = n.Load() {
		if n.CompareAndSwap(known, v) {
			return
		}
	}
}
