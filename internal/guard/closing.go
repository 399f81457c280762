package guard

import "context"

// A Closing counts the calls of Close that have not returned. They wait for work that goes on until
// the last of them has no time left. The Session's mutex guards it.
type Closing struct{ calls int }

// UnderWayLocked reports whether a call has joined c and not left.
func (c *Closing) UnderWayLocked() bool { return c.calls > 0 }

// JoinLocked counts a call until it leaves.
func (c *Closing) JoinLocked() { c.calls++ }

// LeaveLocked counts it no more.
func (c *Closing) LeaveLocked() { c.calls-- }

// Await waits, in a call that has joined c, until over is closed: the work is done. If ctx ends
// before, the call leaves, unless it is the last one: that has to end the work, and stays. A call
// that joins later waits for it, too.
func (c *Closing) Await(ctx context.Context, m *Mutex, over <-chan struct{}) (done, last bool) {
	select {
	case <-over:
		return true, false
	case <-ctx.Done():
	}
	m.Lock()
	defer m.Unlock()
	if c.calls == 1 {
		return false, true
	}
	c.calls--
	return false, false
}
