package etcdlocktest

import (
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Cut cuts c off until heal is called. A request that c sends meanwhile is lost if its ctx ends,
// and otherwise arrives after heal. Answers and events come after heal, in order. Leases run out.
// Cuts of the same client add up; a second call of heal does nothing.
func (e *Etcd) Cut(c *clientv3.Client) (heal func()) {
	e.t.Helper()
	process := e.process(c)
	e.server.Hold(process)
	return sync.OnceFunc(func() { e.server.Release(process) })
}

// Delay makes each round trip, event and renewal of c take d from now on; 0 ends the delay. A
// request whose ctx ends meanwhile is carried out all the same, because it is already on its way.
// Events keep their order.
func (e *Etcd) Delay(c *clientv3.Client, d time.Duration) {
	e.t.Helper()
	e.server.Delay(e.process(c), d)
}

// LoseAnswers loses the answers to the next n requests or renewals of c: they are carried out and
// answered with codes.Unavailable, which says nothing about the outcome. Requests to begin a watch
// do not count. A call replaces an earlier one; an n of 0 ends it.
func (e *Etcd) LoseAnswers(c *clientv3.Client, n int) {
	e.t.Helper()
	e.server.LoseAnswers(e.process(c), n)
}

// Freeze stops the etcd until thaw is called. It answers nothing and sends no event. Leases that
// run out meanwhile end at the thaw, before the requests that have arrived since are carried out,
// given up or not. Freezes add up; a second call of thaw does nothing.
func (e *Etcd) Freeze() (thaw func()) {
	e.server.Freeze()
	return sync.OnceFunc(e.server.Thaw)
}

// SetBack wipes the etcd in no time: it then has revision 1, another cluster ID, no keys and no
// leases. As with clientv3, open watches are silent until etcd has passed the revision that they
// had reached.
func (e *Etcd) SetBack() {
	e.server.Restore(0, e.nextCluster())
}

// Snapshot takes a snapshot. Each call of restore goes back to its revision, keys and leases in no
// time. The leases begin their TTL again, and the cluster ID is another one. Watches are as with
// SetBack.
func (e *Etcd) Snapshot() (restore func()) {
	back := e.server.Save()
	return func() { back(e.nextCluster()) }
}

// nextCluster is the ID of another cluster.
func (e *Etcd) nextCluster() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cluster++
	return e.cluster
}
