package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Contender is one place in the line for a lock: a holder, or a waiter. Of contenders of other
// programs (etcd's own concurrency.Mutex, etcdctl lock) Owner, Host, PID and Since are zero.
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
	// Until is until when the lock stays taken though its hold is over (see [WithMinHold]), by the
	// clock of the process that has unlocked it. It is zero for a hold that goes on, and for a waiter.
	Until time.Time
	Mode  Mode // how it holds the lock, or will hold it
	// Holds reports whether it held the lock at that time: several readers may, and several permits.
	Holds bool
	Info  string // see WithInfo, and Mutex.SetInfo
	// Self reports whether a Session of this process has put Key, or is about to, and it has not
	// outlasted its hold.
	Self bool
}

// LogValue is c as attributes: what is known of it.
func (c Contender) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("name", c.Name), slog.String("owner", c.label())}
	if c.Key != "" {
		attrs = append(attrs, slog.String("mode", string(c.Mode)), slog.Bool("holds", c.Holds),
			slog.Int64("token", c.Token), slog.String("key", c.Key))
	}
	if !c.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", c.Until))
	}
	if c.Info != "" {
		attrs = append(attrs, slog.String("info", c.Info))
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

// label names c for people: by its owner's label, and by its process if the label does not.
func (c Contender) label() string {
	process := fmt.Sprintf("%s:%d", c.Host, c.PID)
	switch {
	case c.Owner != "" && (c.Host == "" || c.Owner == process):
		return c.Owner
	case c.Owner != "":
		return fmt.Sprintf("%s (%s)", c.Owner, process)
	case c.Key != "":
		return fmt.Sprintf("%q", c.Key)
	default: // a long line with keys ahead of it that are no contenders
		return "somebody"
	}
}

// Break deletes exactly the key of c, whichever program made it, so that the next waiter in line
// gets in. It returns nil if the key is gone, now or already. It compares the create revision, so
// it never touches a newer key, not even one of the same name.
//
// The broken holder learns it within milliseconds, or about a second later if it has just begun to
// hold: until then two may believe that they hold the lock, and only the fencing token protects.
// Its Unlock returns ErrLost. After an error the key may or may not be there: call Break again.
func Break(ctx context.Context, kv clientv3.KV, c Contender) error {
	if err := checkContender(ctx, kv, "break", c); err != nil {
		return err
	}
	_, err := kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(c.Key), "=", c.Token)).
		Then(clientv3.OpDelete(c.Key)).
		Commit()
	if err != nil {
		return failed("break", c.Name, err)
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
			op, excerpt(c.Key, 2*maxNameLen), c.Token)
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

// holderOf is the first contender ahead of a place in the line for the lock name. Only its Name is
// set if the first one is not known.
func holderOf(name string, ahead line.Ahead) Contender {
	first := ahead.Holder()
	if first.Rev == 0 {
		return Contender{Name: name}
	}
	return contenderOf(name, first, true)
}

// contenderOf is e, which stands in line for the lock name, as a Contender.
func contenderOf(name string, e line.Entry, holds bool) Contender {
	v := e.Value()
	return Contender{
		Name: name, Key: e.Key, Owner: v.Owner, Host: v.Host, PID: v.PID,
		Token: e.Rev, Lease: clientv3.LeaseID(e.Lease), Since: v.Since, Until: v.Until,
		Mode: modeOf(e.Kind()), Holds: holds, Info: v.Info, Self: queue.IsOwn(e),
	}
}
