package tests

import (
	"context"
	"fmt"
	"sync"
	"testing/synctest"

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

// Write notes a record of a logger, which may report at any time.
func (o *Told) Write(record []byte) (int, error) {
	o.Add("%s", record)
	return len(record), nil
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
		Queued: func(_ context.Context, e etcdlock.QueuedEvent) {
			o.Add("queued behind %d, %s", e.Ahead, e.Holder.Owner)
		},
		Waiting: func(_ context.Context, e etcdlock.WaitingEvent) {
			o.Add("waits since %v behind %d, %s", e.Waited, e.Ahead, e.Holder.Owner)
		},
		GaveUp: func(_ context.Context, e etcdlock.GaveUpEvent) {
			o.Add("gave up after %v behind %d: %s", e.Waited, e.Ahead, e.Err)
		},
		Acquired: func(_ context.Context, e etcdlock.AcquiredEvent) {
			o.Add("acquired after %v behind %d", e.Waited, e.Ahead)
		},
		Released: func(_ context.Context, e etcdlock.ReleasedEvent) {
			o.Add("released after %v", e.Held)
		},
		Lost: func(_ context.Context, e etcdlock.LostEvent) {
			o.Add("lost after %v: %v", e.Held, e.Reason)
		},
		LeaseReplaced:  func(_ context.Context, _ etcdlock.LeaseReplacedEvent) { o.Add("replaced") },
		CleanupPending: func(_ context.Context, _ etcdlock.CleanupPendingEvent) { o.Add("pending") },
		CleanupDone:    func(_ context.Context, _ etcdlock.CleanupDoneEvent) { o.Add("done") },
	}
}
