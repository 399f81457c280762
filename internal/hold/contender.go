package hold

import (
	"time"

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

// holderOf is the first contender ahead of a place in the line for the lock name. Only its Name is
// set if the first one is not known.
func holderOf(name string, ahead line.Ahead) Contender {
	first := ahead.Holder()
	if first.Rev == 0 {
		return Contender{Name: name}
	}
	return ContenderOf(name, first, true)
}

// A Busy is what is known of the lock that a call did not get.
type Busy struct {
	Name   string
	Ahead  int           // contenders that the call has to wait for
	Holder Contender     // the first of them, as it was last read
	Lost   int64         // the token of a hold lost here that the call waits for, 0 if there is none
	Delay  time.Duration // for how long no hold begins, because etcd was set back
}

// busyBehind is the Busy of a call that is behind the contenders ahead in etcd's line, in which no
// hold begins for a delay.
func busyBehind(name string, ahead line.Ahead, delay time.Duration) *Busy {
	return &Busy{Name: name, Holder: holderOf(name, ahead), Ahead: ahead.Count(), Delay: delay}
}
