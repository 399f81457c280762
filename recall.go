package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A RecallRequest asks a holder to give the lock back; see [Recall].
type RecallRequest struct {
	// By and Reason tell people where the request is from, and why it is made. Each is valid UTF-8
	// of at most 256 bytes.
	By, Reason string
	// Grace is how long the hold may go on after it has noticed the request: whole milliseconds,
	// rounded up, but no longer than the holder's [WithRecall] says. 0 ends it at once, and less than
	// 0 is an error.
	Grace time.Duration
}

// line is r as it is stored. (Do not leave the grace as it is: the same request would be found to
// have a shorter grace than the stored one, and be written again. TestManyWaitsAskAHolderOnce.)
func (r RecallRequest) line(id string) line.Recall {
	grace := r.Grace
	if more := grace % time.Millisecond; more > 0 && grace < math.MaxInt64-time.Millisecond {
		grace += time.Millisecond - more
	}
	return line.Recall{ID: id, By: r.By, Reason: r.Reason, Grace: grace}
}

// Recall asks the holder c to give the lock back. Unlike [Break] it takes nothing away: the key of
// c stays until c itself unlocks, so no two hold at any time.
//
// It returns nil if the request is written, if an earlier one with no longer a grace is there, and
// if c is gone, now or already. It returns [ErrNotRecallable] if c does not listen (it has no
// [WithRecall], or is of another program). Then, and if an argument is wrong, nothing is written.
// After another error the request may or may not be written: call Recall again. It never touches a
// newer key, not even one of the same name.
//
// A holder notices it within milliseconds, or about a second later if it began to hold with nobody
// waiting, and a waiter as its hold begins. [RecallFrom] tells it, and after the grace its context
// ends with a [*RecalledError]. A holder that does not unlock keeps the lock as long as its lease
// is renewed. Readers that share a key are recalled together, and so are all names of a
// [Session.LockAll]; recall each of several other holders. It costs a read and a transaction.
func Recall(ctx context.Context, kv clientv3.KV, c Contender, r RecallRequest) error {
	request := r.line(uuid.NewString())
	if err := checkContender(ctx, kv, "recall", c); err != nil {
		return err
	}
	if err := request.Check(); err != nil {
		return failed("recall", c.Name, err)
	}
	resp, err := kv.Get(ctx, c.Key)
	if err != nil {
		return failed("recall", c.Name, err)
	}
	e, _ := line.Find(resp.Kvs, c.Key)
	_, err = writeRecall(c.Token, e, request, func(t ticket.Txn) (int64, []*mvccpb.KeyValue, error) {
		resp, err := kv.Txn(ctx).If(t.If...).Then(t.Then...).Else(t.Else...).Commit()
		switch {
		case err != nil:
			return 0, nil, err
		case resp.Succeeded:
			return resp.Header.GetRevision(), nil, nil
		}
		return 0, resp.Responses[0].GetResponseRange().GetKvs(), nil
	})
	if err != nil {
		return failed("recall", c.Name, err)
	}
	return nil
}

// writeRecall writes request into the value of the key of the contender with a token, by e, which
// was read of it, unless the contender is gone or has a request with no longer a grace. It returns
// the key as it is then, as far as is known. commit sends a transaction, and returns the revision
// at which it has put something, or what its Else has read.
func writeRecall(
	token int64, e line.Entry, request line.Recall,
	commit func(ticket.Txn) (put int64, read []*mvccpb.KeyValue, err error),
) (line.Entry, error) {
	for {
		if e.Rev != token {
			return e, nil
		}
		if e.Lease == 0 || !e.Value().Recallable {
			return e, ErrNotRecallable
		}
		if earlier, ok := e.Recall(); ok && earlier.Grace <= request.Grace { // or it is this very one
			return e, nil
		}
		value, err := e.Recalled(request)
		if err != nil {
			return e, err
		}
		put, read, err := commit(ticket.Edit(e, value))
		switch {
		case err != nil:
			return e, err
		case put != 0:
			return e.With(value, put), nil
		}
		e, _ = line.Find(read, e.Key)
	}
}

// WithRecall makes holds listen to [Recall]: [RecallFrom] tells that they are asked to end, and
// they end after the grace that the request allows, but at most this long after they have noticed.
// By default they cannot be recalled.
//
// It costs a watch and a read if contenders are behind a hold as it begins, and otherwise nothing
// unless the Session holds more than 100 names: then the keys that listen are read once per renewal
// period, a hundred in a request. A recalled key is not handed on and does not linger, and no
// reader joins it.
func WithRecall(most time.Duration) Option {
	return option("WithRecall", 0, func(c *config) error {
		c.recall = most
		return positive("WithRecall", most)
	})
}

var (
	// ErrRecalled says that a hold has ended because it was recalled and its grace is over. It comes
	// as a [*RecalledError], the cause of the hold's context. The key is still there: no other
	// contender gets in before Unlock, which says nil if the hold was whole. Stop the work, and
	// unlock.
	ErrRecalled = errors.New("etcdlock: recalled")

	// ErrNotRecallable says that a contender does not listen to [Recall]: it was made without
	// [WithRecall], or by another program. Nothing was written. Ask its owner, or see [Break].
	ErrNotRecallable = errors.New("etcdlock: does not listen to a recall")
)

// A RecalledError is the cause of a hold's context after a [Recall] and its grace.
// errors.Is(err, ErrRecalled) is true for it.
type RecalledError struct {
	Name       string // of the lock
	Token      int64  // of the hold
	By, Reason string // of the request
}

func (e *RecalledError) Error() string {
	text := fmt.Sprintf("etcdlock: lock %q recalled (token %d)", e.Name, e.Token)
	if e.By != "" {
		text += " by " + e.By
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Unwrap makes errors.Is(e, ErrRecalled) true.
func (e *RecalledError) Unwrap() error { return ErrRecalled }

// LogValue is e as attributes, with its text as "error".
func (e *RecalledError) LogValue() slog.Value {
	return slog.GroupValue(slog.String("error", e.Error()),
		slog.String("name", e.Name), slog.Int64("token", e.Token),
		slog.String("by", e.By), slog.String("reason", e.Reason))
}

// recallState is what a hold that listens has of a recall. That of one that does not is nil.
//
// Invariant: a recalled hold ends by itself. Its contexts end when the grace is over, at the
// latest, and its key goes with its own Unlock, or with its lease. So the next contender gets in
// after the contexts have ended. (Do not remove the key at the end of the grace: a holder that
// works on until it checks its context would do so beside the next one.
// TestTheKeyOfARecalledHoldGoesWithItsUnlock, TestSimulationOfTheFamily.)
type recallState struct {
	told chan struct{} // closed by the first request

	// Guarded by Session.mu.
	ends  time.Time      // of the grace, by the monotonic clock; zero before a request
	end   *RecalledError // what ends the contexts then
	timer *time.Timer
}

// noticeLocked begins the grace of h, which has noticed a request now, if it listens: c is its
// recall. One that ends later than that of an earlier request changes nothing.
func (c *recallState) noticeLocked(h *hold, r line.Recall, now time.Time) {
	m, most := h.m, h.m.cfg.recall
	ends := now.Add(min(r.Grace, most))
	if c == nil || h.checkLocked(now) != nil || c.end != nil && !ends.Before(c.ends) {
		return
	}
	if c.end == nil {
		close(c.told)
	}
	c.stopLocked()
	name, token := h.place.Ticket.Name, h.place.Ticket.Rev()
	c.end = &RecalledError{Name: name, Token: token, By: r.By, Reason: r.Reason}
	c.ends = ends
	h.life.Cap(ends, c.end)
	c.timer = time.AfterFunc(ends.Sub(now), h.check)
	request := RecallRequest{By: r.By, Reason: r.Reason, Grace: r.Grace}
	report(&m.s.hooks, m.cfg.trace.Recalled, h.claim.caller, RecalledEvent{name, token, request})
	m.log(slog.LevelWarn, "lock recalled", "name", name, "token", token, "by", r.By,
		"reason", r.Reason, "grace", min(r.Grace, most))
	h.checkLocked(now) // it may have none
}

// stopLocked stops the timer.
func (c *recallState) stopLocked() {
	if c.timer != nil {
		c.timer.Stop()
	}
}
