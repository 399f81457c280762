package contract_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A room is where tests run beside each other. Tests of another room wait outside until it
// is empty. So the computing of one test keeps no other test from renewing its lease in
// time.
type room int

const (
	// waiting is for tests that wait for time to pass. They keep leases of a few seconds,
	// or lose one in time, or bound what comes soon. All of them together compute little.
	waiting room = iota

	// computing is for the others. Their leases have the default TTL or more, or may be
	// lost.
	computing
)

// A house is what the rooms share.
type house struct {
	mu     sync.Mutex
	left   *sync.Cond
	lanes  [2]int // how many tests may be in each room at once
	inside [2]int // how many are. Invariant: one of them is 0
}

var tests = newHouse()

func newHouse() *house {
	h := &house{lanes: [2]int{waiting: 4, computing: 6}}
	h.left = sync.NewCond(&h.mu)
	return h
}

// enter makes t parallel with the tests of its room. A test that counts the goroutines or
// allocations of the process, or its requests to the last one, enters no room, and runs
// alone.
func (r room) enter(t *testing.T) {
	t.Helper()
	t.Parallel()
	outside := time.Now()
	tests.enters(r)
	t.Cleanup(func() { tests.leaves(r) })
	t.Logf("%v outside of its room", time.Since(outside).Round(time.Millisecond))
}

func (h *house) enters(r room) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.inside[1-r] > 0 || h.inside[r] == h.lanes[r] {
		h.left.Wait()
	}
	h.inside[r]++
}

func (h *house) leaves(r room) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inside[r]--
	h.left.Broadcast()
}

func TestOnlyOneRoomIsInUse(t *testing.T) {
	h := newHouse()
	var inside [2]atomic.Int64
	var all sync.WaitGroup
	for i := range 400 {
		r := room(i % 2)
		all.Go(func() {
			h.enters(r)
			defer h.leaves(r)
			if n := inside[r].Add(1); n > int64(h.lanes[r]) {
				t.Errorf("%d are in room %d", n, r)
			}
			for range 10 {
				runtime.Gosched()
				if n := inside[1-r].Load(); n > 0 {
					t.Errorf("room %d is in use, and %d are in the other one", r, n)
				}
			}
			inside[r].Add(-1)
		})
	}
	all.Wait()
}
