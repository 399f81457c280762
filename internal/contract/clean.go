package contract

import (
	"context"
	"fmt"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// VerifyClean makes t fail unless etcd is clean in the end: no key below the prefix, no
// lease at all, and no goroutine of the library's that t has started. It looks when t ends,
// before everything that was made earlier is closed, and gives the cleaning some time. So
// it comes after the client and before what uses the client.
func VerifyClean(t testing.TB, client *clientv3.Client, prefix string) {
	t.Helper()
	mark := Mark(t)
	t.Cleanup(func() {
		t.Helper()
		var left string
		if !Poll(func() bool {
			left = leftInEtcd(client, prefix)
			for _, stack := range mark.Goroutines() {
				if strings.Contains(stack, "github.com/etcdlock/etcdlock.") {
					left += "\ngoroutine " + stack
				}
			}
			return left == ""
		}) {
			t.Errorf("left behind after %v:%s", Patience, left)
		}
	})
}

// leftInEtcd lists the keys and leases, or the reason why they are not known.
func leftInEtcd(client *clientv3.Client, prefix string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var left strings.Builder
	keys, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Sprintf("\nkeys: %v", err)
	}
	for _, kv := range keys.Kvs {
		fmt.Fprintf(&left, "\nkey %q, lease %x, created at %d: %s", kv.Key, kv.Lease, kv.CreateRevision, kv.Value)
	}
	leases, err := client.Leases(ctx)
	if err != nil {
		return fmt.Sprintf("\nleases: %v", err)
	}
	for _, lease := range leases.Leases {
		fmt.Fprintf(&left, "\nlease %x", lease.ID)
	}
	return left.String()
}

// A Marked test is one whose goroutines can be told from those of tests beside it.
type Marked string

// label is the label of the goroutines of a Marked test, by the runtime's profiler.
const label = "test"

var (
	marksMu sync.Mutex
	marks   = make(map[testing.TB]Marked)
)

// Mark marks the goroutine that calls it, which is that of t, and so all that it and those
// start from now on. (What a timer starts has no mark.)
func Mark(t testing.TB) Marked {
	marksMu.Lock()
	defer marksMu.Unlock()
	mark, marked := marks[t]
	if !marked {
		mark = Marked(strconv.Itoa(len(marks)))
		marks[t] = mark
		labels := pprof.Labels(label, string(mark))
		pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), labels))
	}
	return mark
}

// Goroutines are the stacks of what runs with the mark, but for the caller.
func (mark Marked) Goroutines() (stacks []string) {
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1) // a Builder takes everything
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, fmt.Sprintf("# labels: {%q:%q}", label, mark)) &&
			!strings.Contains(stack, "contract.Marked.Goroutines") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// Patience bounds every wait for something that must come. It is far above what a loaded
// machine needs; only tests of the waits themselves change it.
var Patience = 30 * time.Second

// Poll returns true as soon as ok does, and false when Patience is over.
func Poll(ok func() bool) bool { return Eventually(Patience, ok) }

// Eventually waits for what no channel announces: it returns true as soon as ok does, and false
// when d is over.
func Eventually(d time.Duration, ok func() bool) bool {
	for deadline := time.Now().Add(d); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return ok()
		}
	}
	return true
}
