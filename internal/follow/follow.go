// Package follow follows the holders of a lock. It reads who holds, learns by one watch that this
// has changed, and rechecks now and then, because an event may be lost. It writes nothing.
package follow

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/recheck"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// fewNewer is how many keys a recheck of a free name reads at most.
	fewNewer = 16

	// answerGrace is how long a request may wait for its answer after the end of Run's context.
	answerGrace = 50 * time.Millisecond
)

// A Follower follows the first holder of a lock, and what it tells; or all holders, and how they
// depart. It goes on through lost watches, compactions, members that are cut off, and an etcd that
// is away or was set back. One goroutine has it.
//
// Invariant: what See is told was so in a linearizable read, and each read was sent after the read
// before it had been answered. So nothing is reordered.
//
// Do not tell what an event says, or a member that may be behind. (TestWatchHolderNeverGoesBack.)
//
// Invariant: after a read nothing happens to a holder unnoticed: a watch begins right behind it,
// and the keys are compared again now and then, because an event may be lost.
type Follower struct {
	// Set once, then only read.
	Conn *etcd.Conn
	Name string // of the lock

	// See is told what a read has shown, and again after a recheck that has shown the same. It says
	// how long to rest once a holder has gone, before the next read, and whether Run goes on. It may
	// note in the Snapshot what it has done to a key since.
	See func(*Snapshot) (rest time.Duration, goesOn bool)

	// All makes it follow all that hold, for a wait that stands in line. Such a wait needs departures
	// only: no contender that comes later can hold before it.
	All    bool
	TTL    time.Duration   // of leases: the longer, the rarer the rechecks get
	News   <-chan struct{} // asks GoesOn; nil if nothing does
	GoesOn func() bool     // reports whether Run goes on, before each read, too; nil if it always does

	// Failed is told of errors that retrying may fix. Run ends with the error that it returns. It may
	// be nil.
	Failed func(error) error

	rest   time.Duration   // as See has said last
	broken attempt.Backoff // of watches
}

// Run follows the holders until See or GoesOn reports false, or ctx ends: then it returns nil. An
// error is one that retrying does not fix.
func (f *Follower) Run(ctx context.Context) error {
	asking, cancel := answered(ctx)
	defer cancel()
	for f.goesOn(ctx) {
		seen, err := f.look(asking)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case !f.sees(&seen):
			return nil
		}
		if goesOn, err := f.wait(ctx, asking, &seen); !goesOn {
			return err
		}
	}
	return nil
}

// sees tells See of a Snapshot, and reports whether Run goes on.
func (f *Follower) sees(seen *Snapshot) (goesOn bool) {
	f.rest, goesOn = f.See(seen)
	return goesOn
}

// failed tells Failed of an error, if there is one, and returns that with which Run ends.
func (f *Follower) failed(err error) error {
	if err == nil || f.Failed == nil {
		return nil
	}
	return f.Failed(err)
}

// goesOn reports whether Run goes on.
func (f *Follower) goesOn(ctx context.Context) bool {
	return ctx.Err() == nil && (f.GoesOn == nil || f.GoesOn())
}

// answered is ctx for requests: it ends a little later, so that the answer to one that is under way
// may come. Otherwise each would leave a warning in clientv3's log. (TestFollowingIsNoWarning.)
func answered(ctx context.Context) (context.Context, context.CancelFunc) {
	asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(answerGrace, cancel) })
	return asking, func() { stop(); cancel() }
}

// look reads the oldest keys, until they show the first in line, or all that hold. It retries until
// it is answered.
func (f *Follower) look(ctx context.Context) (Snapshot, error) {
	for n := int64(fewOldest); ; {
		oldest := clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)
		read, err := f.Conn.ReadBy(ctx, etcd.Range(line.Prefix(f.Name),
			clientv3.WithPrefix(), clientv3.WithLimit(n), oldest), attempt.Backoff{}, f.Failed)
		if err != nil {
			return Snapshot{}, err
		}
		seen := f.snapshot(read)
		if seen.tells(n) {
			return seen, nil
		}
		if n *= n; len(seen.Line) > 0 {
			n = min(n, mostOldest)
		}
	}
}

// A heard is why a wait of a Follower is over.
type heard uint8

const (
	ended   heard = iota // the watch has
	departs              // a holder has gone, or one may have come
	differs              // a recheck has shown what no event tells
	over                 // Run is
)

// wait returns when the line is to be read again: a holder has gone or, if there is none, a
// contender may have come; or the watch has failed, after a pause. It returns false if Run is over,
// with the error of Run. asking is ctx for its requests.
func (f *Follower) wait(ctx, asking context.Context, seen *Snapshot) (goesOn bool, err error) {
	var why heard
	key, opts := seen.watched()
	relied := time.Now()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	broke := f.Conn.Follow(watching, &f.broken, etcd.Following{
		Created: func() bool { f.broken.Reset(); return true },
		Events: func(events []*clientv3.Event) {
			if seen.changedBy(events) {
				why = departs
				stop()
			}
		},
		Tick: func() (time.Duration, bool) {
			why, err = f.recheck(asking, seen)
			return f.recheckAfter(relied, seen), why == ended
		},
		First: f.recheckAfter(relied, seen),
		News:  f.News,
		Asked: func() bool {
			if !f.goesOn(ctx) {
				why = over
			}
			return why == ended
		},
	}, key, opts...)
	switch {
	case why == over || ctx.Err() != nil:
		return false, err
	case why == departs:
		f.pause(ctx)
	case why == ended:
		if err := f.failed(broke); err != nil {
			return false, err
		}
		_ = f.broken.Wait(ctx, f.Conn.Caller) // the caller asks ctx itself
	}
	return true, nil
}

// recheck tells See again what was seen, if that stands. Otherwise it returns why the wait is over,
// with an error of Run.
func (f *Follower) recheck(asking context.Context, seen *Snapshot) (heard, error) {
	stands, err := f.stands(asking, seen)
	switch {
	case err != nil:
		return over, err
	case !stands:
		return differs, nil
	case !f.sees(seen):
		return over, nil
	}
	return ended, nil
}

// pause rests before the next read, as long as Run goes on.
func (f *Follower) pause(ctx context.Context) {
	if f.rest == 0 {
		return
	}
	over := time.NewTimer(attempt.Jitter(f.rest))
	defer over.Stop()
	for f.goesOn(ctx) {
		select {
		case <-ctx.Done():
		case <-f.News:
		case <-over.C:
			return
		}
	}
}

// recheckAfter is how long to wait for the next recheck, if the watch has been relied on since a
// time.
func (f *Follower) recheckAfter(relied time.Time, seen *Snapshot) time.Duration {
	from, to := recheck.Least/3*2, recheck.Least/3*4
	if f.All {
		from, to = recheck.Period(time.Since(relied), f.TTL, seen.Keys)
	}
	return f.Conn.OnBeat(from, to)
}

// stands reports whether nothing has changed since, as one more request shows. It also reports true
// if no answer comes: then the watch has to tell. It waits no longer than until the next request is
// due, since the events of a member that is back may be there already.
//
// While there is no holder it reads a few of the keys that are newer than seen. If none of these
// may stand in line, seen is as of now. An error is what Failed returns.
//
// Do not compare that there are none: beside nested names in use there always are some.
// (TestWatchHolderOfAFreeNameReadsNoNestedNames.)
func (f *Follower) stands(ctx context.Context, seen *Snapshot) (bool, error) {
	var free bool
	var ask []*pb.RequestOp
	known, compares := seen.unchanged()
	switch {
	case f.All && !compares:
		return false, nil
	case f.All:
		ask = []*pb.RequestOp{ticket.CountBelow(f.Name)}
	case !compares:
		free = true
		ask = []*pb.RequestOp{ticket.Range(&pb.RangeRequest{
			Key: []byte(line.Prefix(f.Name)), RangeEnd: []byte(line.Whole(f.Name).To), KeysOnly: true,
			Limit: fewNewer, MinModRevision: seen.Revision + 1,
		})}
	}
	bounded, cancel := context.WithTimeout(ctx, f.Conn.Seldom(recheck.Least))
	defer cancel()
	read, err := f.Conn.Attempt(bounded, etcd.Meeting(known, ask...))
	if err != nil { // if it stays so look says it
		return !attempt.Refused(err) && !f.Conn.Closed(), f.failed(err)
	}
	if !read.Holds || seen.epoch != f.Conn.Epoch() ||
		free && !line.NoneBut("", f.Name, read.Ranges[0]) {
		return false, nil
	}
	seen.Revision = max(seen.Revision, read.Header.GetRevision())
	if f.All {
		seen.Keys = int(read.Ranges[0].GetCount())
	}
	return true, nil
}
