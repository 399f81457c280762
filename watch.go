package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/ask"
	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/follow"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/hold"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/quote"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A Contender is one place in the line for a lock: a holder, or a waiter. Goroutines of a Session
// share one, but for permits. Of contenders of other programs (etcd's own concurrency.Mutex,
// etcdctl lock) Owner, Host, PID and Since are zero.
type Contender struct {
	Name  string // of the lock
	Key   string // in etcd
	Owner string // label, see WithOwner
	Host  string // host name of the machine or container of the process
	PID   int    // of the process, on its host
	// Token is the create revision of Key: the place in line, and the fencing token of a holder.
	Token int64
	// Lease is the lease of Key, which goes with it.
	Lease clientv3.LeaseID
	Since time.Time // when it queued, by its own clock
	// Until says how long the lock stays taken after its hold (see [WithMinHold]), by the clock of the
	// process that unlocked it. It is zero while the hold goes on, and for a waiter.
	Until time.Time
	Mode  Mode // how it holds the lock, or will hold it
	// Holds reports whether it held the lock at that time.
	Holds bool
	Info  string // see WithInfo, and Mutex.SetInfo
	// Self reports whether Key is of a Session of this process, and has not outlasted its hold.
	Self bool
}

// LogValue is c as attributes: what is known of it.
func (c Contender) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("name", quote.Text(c.Name)), slog.String("owner", c.label())}
	if c.Key != "" {
		attrs = append(attrs, slog.String("mode", string(c.Mode)), slog.Bool("holds", c.Holds),
			slog.Int64("token", c.Token), slog.String("key", quote.Text(c.Key)))
	}
	if !c.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", c.Until))
	}
	if c.Info != "" {
		attrs = append(attrs, slog.String("info", quote.Text(c.Info)))
	}
	return slog.GroupValue(attrs...)
}

// A Mode is how a contender holds a lock, or will hold it.
type Mode string

const (
	ModeExclusive Mode = "exclusive" // alone: a [Mutex], or the writer of an [RWMutex]
	ModeRead      Mode = "read"      // beside other readers; see [RWMutex]
	ModePermit    Mode = "permit"    // beside other permits, up to a limit; see [Semaphore]
)

// modeOf is the Mode of a kind.
func modeOf(k line.Kind) Mode { return Mode(k.String()) }

// label names c for people.
func (c Contender) label() string {
	switch owner := quote.Owner(c.Owner, c.Host, c.PID); {
	case owner != "":
		return owner
	case c.Key != "":
		return quote.Excerpt(c.Key, 2*maxNameLen)
	default: // a long line with keys ahead of it that are no contenders
		return "somebody"
	}
}

// WatchHolder yields the holder of the lock name now, and then the holder after each change. While
// there is no holder it yields the zero Contender.
//
//	for holder, err := range etcdlock.WatchHolder(ctx, client, name) {
//		if err != nil {
//			return err // the loop is over
//		}
//		follow(holder)
//	}
//
// A range over one value compiles, and drops the error: the loop then ends as if ctx had.
//
// Of several holders (readers, or permits) it yields the first in line. A holder that changes its
// Info is yielded again, and so is one whose hold is over while the name stays taken
// (Contender.Until). A [Recall] is no change. Changes that follow each other closely may be
// skipped, but never reordered, and the last one always comes: within milliseconds, about two
// seconds later if an event was lost, or once etcd answers. What it yields was true a moment ago:
// only the holder itself can be certain.
//
// It goes on through lost watches, compactions, members cut off, and an etcd that is away
// or was restored. It ends with ctx, without an error; when the loop breaks; or after one error,
// with the zero Contender, that retrying does not fix: a bad argument, a refusal, a closed client.
// Then it leaves nothing running. One exception: if etcd does not answer a watch that has just
// begun, the client may keep that stream open until its next watch. The sequence may be used any
// number of times, also at once.
//
// It writes nothing. At rest it costs a watch, and each 1.5 s a transaction that returns next to
// nothing, shared with others of the client; a change costs a read of a few keys.
func WatchHolder(
	ctx context.Context, client *clientv3.Client, name string,
) iter.Seq2[Contender, error] {
	return func(yield func(Contender, error) bool) {
		s, err := sessionToWatch(ctx, client, name)
		if err != nil {
			yield(Contender{}, err)
			return
		}
		defer func() {
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), hold.CloseGrace)
			defer cancel()
			_ = s.Close(bounded) // it has no lease: there is nothing that it could leave
		}()
		followHolder(ctx, s, name, yield)
	}
}

// sessionToWatch is a Session that never has a lease: for its reads, its watches and what it knows
// about the history of etcd.
func sessionToWatch(
	ctx context.Context, client *clientv3.Client, name string,
) (*hold.Session, error) {
	if err := checkContext(ctx, "watch the holder of", name); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	return openSession(client, forSession, nil)
}

// followHolder yields the holder of a name, and the holder after each change.
func followHolder(
	ctx context.Context, s *hold.Session, name string, yield func(Contender, error) bool,
) {
	var last *follow.Snapshot
	f := follow.Follower{Conn: s.Conn(), Name: name, Failed: attempt.Fallen}
	f.See = func(seen *follow.Snapshot) (rest time.Duration, goesOn bool) {
		before := last
		last = seen
		return 0, before != nil && seen.Is(before) || yield(firstOf(name, seen), nil)
	}
	if err := f.Run(ctx); err != nil {
		guard.Rethrow(err)
		yield(Contender{}, failed("watch the holder of", name, err))
	}
}

// firstOf is the first in line as a Contender, the zero Contender if there is none.
func firstOf(name string, seen *follow.Snapshot) Contender {
	first := seen.First()
	if first.Rev == 0 {
		return Contender{}
	}
	return contenderOf(hold.ContenderOf(name, first, true))
}

// Contenders returns all holders and waiters of the lock name, in the order of the line. The first
// one holds, and so do others whose Holds is true: readers, or permits. It is one linearizable
// read, and works with any KV that sees the same keys as the lock's client.
func Contenders(ctx context.Context, kv clientv3.KV, name string) ([]Contender, error) {
	if err := checkAdmin(ctx, kv, "contenders of", name); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	resp, err := kv.Get(ctx, line.Prefix(name), clientv3.WithPrefix())
	if err != nil {
		return nil, failed("contenders of", name, foreign(err))
	}
	l := line.Of(name, resp.Kvs)
	holding := len(l.Holding())
	contenders := make([]Contender, len(l))
	for i, e := range l {
		contenders[i] = contenderOf(hold.ContenderOf(name, e, i < holding))
	}
	return contenders, nil
}

// Holders returns all holders of every lock whose name begins with prefix, sorted by name, and by
// token where several hold. prefix is a plain string, and may be empty for all. It is one
// linearizable read of all these keys.
func Holders(ctx context.Context, kv clientv3.KV, prefix string) ([]Contender, error) {
	if err := checkAdmin(ctx, kv, "holders below", prefix); err != nil {
		return nil, err
	}
	resp, err := kv.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, failed("holders below", prefix, foreign(err))
	}
	var holders []Contender
	lines := line.ByName(resp.Kvs)
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		if !strings.HasPrefix(name, prefix) {
			continue // prefix ends in the last part of a key
		}
		for _, e := range lines[name].Holding() {
			holders = append(holders, contenderOf(hold.ContenderOf(name, e, true)))
		}
	}
	return holders, nil
}

// Break deletes exactly the key of c, whichever program made it, so that the next waiter in line
// gets in. It returns nil if the key is gone, now or already. It compares the create revision, so
// it never touches a newer key, not even one of the same name.
//
// The broken holder learns it within milliseconds, about a second later if it has just begun to
// hold, or with the next renewal if its Session has more than 100 names: until then two may believe
// that they hold the lock, and only the fencing token protects. Its Unlock returns [ErrLost], or
// [ErrUnconfirmed] if an answer to it is lost. After an error the key may or may not be there: call
// Break again.
func Break(ctx context.Context, kv clientv3.KV, c Contender) error {
	if err := checkContender(ctx, kv, "break", c); err != nil {
		return err
	}
	_, err := kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(c.Key), "=", c.Token)).
		Then(clientv3.OpDelete(c.Key)).
		Commit()
	if err != nil {
		return failed("break", c.Name, foreign(err))
	}
	return nil
}

// checkContender returns an error if call op was given what it cannot use, or c is no contender.
func checkContender(ctx context.Context, kv clientv3.KV, op string, c Contender) error {
	if err := checkAdmin(ctx, kv, op, c.Name); err != nil {
		return err
	}
	if c.Key == "" || c.Token <= 0 {
		return fmt.Errorf("etcdlock: %s: not a contender: key %s, token %d",
			op, quote.Excerpt(c.Key, 2*maxNameLen), c.Token)
	}
	return nil
}

func checkAdmin(ctx context.Context, kv clientv3.KV, op, name string) error {
	client, isClient := kv.(*clientv3.Client)
	if kv == nil || isClient && (client == nil || client.KV == nil) {
		return failed(op, name, errors.New("nil KV"))
	}
	return checkContext(ctx, op, name)
}

// A RecallRequest asks a holder to give the lock back; see [Recall].
type RecallRequest struct {
	// By and Reason tell people where the request is from, and why it is made. Each is valid UTF-8 of
	// at most 256 bytes.
	By, Reason string
	// Grace is how long the hold may go on after it has noticed the request: whole milliseconds,
	// rounded up, but no longer than the holder's [WithRecall] says. 0 ends it at once. Any other
	// value below a millisecond is an error.
	Grace time.Duration
}

// line is r as it is stored, or an error if r cannot be made. (Do not leave the grace as it is: the
// same request would be found to have a shorter grace than the stored one, and be written again.
// TestManyWaitsAskAHolderOnce.)
func (r RecallRequest) line(id string) (line.Recall, error) {
	grace := r.Grace
	if grace > 0 {
		if err := checkMeant(grace, time.Millisecond); err != nil {
			return line.Recall{}, fmt.Errorf("the grace %v: %w", grace, err)
		}
	}
	if more := grace % time.Millisecond; more > 0 && grace < math.MaxInt64-time.Millisecond {
		grace += time.Millisecond - more
	}
	request := line.Recall{ID: id, By: r.By, Reason: r.Reason, Grace: grace}
	return request, request.Check()
}

// Recall asks the holder c to give the lock back. Unlike [Break] it takes nothing away: the key of
// c stays until c itself unlocks, or loses the hold, so no two hold because of a recall.
//
// It returns nil if the request is written, if an earlier request has as short a grace, and if c is
// gone, now or already. It returns [ErrNotRecallable] if c does not listen (it has no [WithRecall],
// or is of another program). Then, and if an argument is wrong, nothing is written. After another
// error the request may or may not be written: call Recall again. It never touches a newer key.
//
// A holder notices it within milliseconds, about a second later if it began to hold with no waiter
// behind it. If its Session has more than 100 names, it takes up to a renewal period and the time
// to read their keys. A waiter notices it as its hold begins. [RecallFrom] tells it, and after the
// grace its context ends with a [*RecalledError]. A holder that does not unlock keeps the lock as
// long as its lease is renewed. All names of a [Session.LockAll] are recalled together, and so are
// the readers that share a key: those that listen, if the first of them does. Recall each other
// holder on its own. It costs a read and a transaction.
func Recall(ctx context.Context, kv clientv3.KV, c Contender, r RecallRequest) error {
	if err := checkContender(ctx, kv, "recall", c); err != nil {
		return err
	}
	request, err := r.line(uuid.NewString())
	if err != nil {
		return failed("recall", c.Name, err)
	}
	resp, err := kv.Get(ctx, c.Key)
	if err != nil {
		return failed("recall", c.Name, foreign(err))
	}
	e, _ := line.Find(resp.Kvs, c.Key)
	commit := func(t ticket.Txn) (int64, []*mvccpb.KeyValue, error) {
		resp, err := etcd.CommitBy(ctx, kv, t.Sent())
		switch {
		case err != nil:
			return 0, nil, foreign(err)
		case resp.Succeeded:
			return resp.Header.GetRevision(), nil, nil
		}
		return 0, resp.Responses[0].GetResponseRange().GetKvs(), nil
	}
	_, listens, err := ask.Recall(c.Token, e, request, commit)
	if !listens {
		err = ErrNotRecallable
	}
	if err != nil {
		return failed("recall", c.Name, err)
	}
	return nil
}
