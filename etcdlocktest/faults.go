package etcdlocktest

import (
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Cut cuts c off until heal is called. What c sends meanwhile is lost if its ctx ends, and
// arrives after heal if not. Answers and events come after it, in order. Leases run out. Cuts of
// the same client add up; a second call of heal does nothing.
func (e *Etcd) Cut(c *clientv3.Client) (heal func()) {
	e.t.Helper()
	process := e.process(c)
	e.server.Hold(process)
	return sync.OnceFunc(func() { e.server.Release(process) })
}

// Delay has each round trip of c take d, and each event and renewal, from now on; 0 ends that. A
// request whose ctx ends in that time is carried out all the same, as one is that is on its way.
// Events keep their order.
func (e *Etcd) Delay(c *clientv3.Client, d time.Duration) {
	e.t.Helper()
	e.server.Delay(e.process(c), d)
}

// LoseAnswers loses the answers to the next n requests or renewals of c: they are carried out and
// answered with codes.Unavailable, which tells nothing. A request for a watch is none of these.
// It takes the place of an earlier call; an n of 0 ends it.
func (e *Etcd) LoseAnswers(c *clientv3.Client, n int) {
	e.t.Helper()
	e.server.LoseAnswers(e.process(c), n)
}

// Freeze stops the etcd until thaw is called. Nothing is answered and no event sent. Leases run
// out meanwhile and are ended at the thaw, before the requests are carried out that have come
// since, given up or not. Freezes add up; a second call of thaw does nothing.
func (e *Etcd) Freeze() (thaw func()) {
	e.server.Freeze()
	return sync.OnceFunc(e.server.Thaw)
}

// SetBack wipes the etcd, in no time: it has revision 1, another cluster id, no keys and no
// leases. The watches that are open say nothing until etcd has passed the revision that they had
// reached, as clientv3's do.
func (e *Etcd) SetBack() {
	e.server.Restore(0, e.nextCluster())
}

// Snapshot takes a snapshot. restore goes back to it, in no time, as often as it is called: to its
// revision, keys and leases, which begin their TTL anew, and with another cluster id. Watches are
// as with SetBack.
func (e *Etcd) Snapshot() (restore func()) {
	back := e.server.Save()
	return func() { back(e.nextCluster()) }
}

// nextCluster is the id of another cluster.
func (e *Etcd) nextCluster() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cluster++
	return e.cluster
}
