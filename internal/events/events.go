// Package events runs callbacks in the order of the events.
package events

import "sync"

// MaxPending bounds the callbacks that wait behind a blocked one.
const MaxPending = 16_384

// A Queue runs callbacks one at a time, in order, in a goroutine that exists only while there is
// something to run. So no callback can harm its caller. Nothing waits for that goroutine, because
// it may be blocked in the user's code. The zero Queue is ready for use.
type Queue struct {
	mu      sync.Mutex
	pending []func()
	running bool
}

// Run queues a callback. While MaxPending are waiting, it drops further ones.
func (q *Queue) Run(callback func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending) >= MaxPending {
		return
	}
	q.pending = append(q.pending, callback)
	if !q.running {
		q.running = true
		go q.drain() // ends when nothing is pending
	}
}

func (q *Queue) drain() {
	drained := false
	defer func() {
		if !drained { // a callback has called runtime.Goexit
			go q.drain()
		}
	}()
	for {
		q.mu.Lock()
		if len(q.pending) == 0 {
			q.running = false
			q.mu.Unlock()
			drained = true
			return
		}
		callback := q.pending[0]
		q.pending = q.pending[1:]
		q.mu.Unlock()
		func() {
			defer func() { _ = recover() }() // a panic of the callback stays its own
			callback()
		}()
	}
}
