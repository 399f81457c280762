package hold

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A Contender is one place in the line for a lock, as the API tells it: with what its key's value
// says.
type Contender struct {
	Name, Key string
	Token     int64 // the create revision of Key
	Lease     clientv3.LeaseID
	line.Value
	Mode  string // its kind, "" if it is not known
	Holds bool
	Self  bool // a Session of this process has put Key, or is about to
}

// ContenderOf is e, which stands in line for the lock name, as a Contender.
func ContenderOf(name string, e line.Entry, holds bool) Contender {
	return Contender{
		Name: name, Key: e.Key, Token: e.Rev, Lease: clientv3.LeaseID(e.Lease), Value: e.Value(),
		Mode: e.Kind().String(), Holds: holds, Self: queue.IsOwn(e),
	}
}

// A Busy is what is known of the lock that a call did not get.
type Busy struct {
	Name  string
	Ahead int   // contenders that the call has to wait for
	Here  bool  // the first of them is of the call's own Session
	Lost  int64 // the token of a hold lost here that the call waits for, 0 if there is none

	queue.LockDelay // for how long no hold begins, because etcd was set back or may have been

	inEtcd line.Entry // the first of them, as it was last read; no revision if that is not known
	own    Contender  // in its place, if that is of the Session itself
}

// busyBehind is the Busy of a call that is behind the contenders ahead in etcd's line, in which no
// hold begins for a delay.
func busyBehind(name string, ahead line.Ahead, delay queue.LockDelay) *Busy {
	return &Busy{Name: name, Ahead: ahead.Count(), LockDelay: delay, inEtcd: ahead.Holder()}
}

// Holder is the first contender that the call has to wait for. Only its Name is set if it is not
// known.
func (b *Busy) Holder() Contender {
	if b.inEtcd.Rev != 0 {
		return ContenderOf(b.Name, b.inEtcd, true)
	}
	first := b.own
	first.Name = b.Name
	return first
}
