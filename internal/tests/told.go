package tests

import (
	"fmt"
	"sync"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// A Told keeps what hooks report, in order.
type Told struct {
	mu    sync.Mutex
	lines []string
}

// Add notes a line.
func (o *Told) Add(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, fmt.Sprintf(format, args...))
}

// Take returns what hooks have reported since the last Take.
func (o *Told) Take() []string {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := o.lines
	o.lines = nil
	return lines
}

// Trace has the hooks that report to o.
func (o *Told) Trace() *etcdlock.Trace {
	return &etcdlock.Trace{
		Queued: func(_ string, ahead int, holder etcdlock.Contender) {
			o.Add("queued behind %d, %s", ahead, holder.Owner)
		},
		GaveUp: func(_ string, waited time.Duration, ahead int, err error) {
			o.Add("gave up after %v behind %d: %s", waited, ahead, err)
		},
		Acquired: func(_ string, _ int64, waited time.Duration, ahead int) {
			o.Add("acquired after %v behind %d", waited, ahead)
		},
		Released:       func(_ string, _ int64, held time.Duration) { o.Add("released after %v", held) },
		Lost:           func(_ string, _ int64, held time.Duration, reason error) { o.Add("lost after %v: %v", held, reason) },
		LeaseReplaced:  func(clientv3.LeaseID, error) { o.Add("replaced") },
		CleanupPending: func(string) { o.Add("pending") },
		CleanupDone:    func(string) { o.Add("done") },
	}
}
