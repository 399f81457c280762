package contract

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// VerifyClean makes t fail unless etcd is clean in the end: no key below the prefix, no
// lease at all, and no goroutine of the library that t has started. It checks when t ends,
// and gives the cleaning some time. The check runs before anything that was made earlier is
// closed. So call VerifyClean after making the client and before making what uses the
// client.
func VerifyClean(t testing.TB, client *clientv3.Client, prefix string) {
	t.Helper()
	mark := Mark(t)
	t.Cleanup(func() {
		t.Helper()
		var left string
		if !Poll(func() bool {
			left = leftInEtcd(client, prefix)
			for _, stack := range mark.Goroutines() {
				if ofTheLibrary.MatchString(stack) {
					left += "\ngoroutine " + stack
				}
			}
			return left == ""
		}) {
			t.Errorf("left behind after %v:%s", Patience, left)
		}
	})
}

// ofTheLibrary matches the stack of a goroutine that a package of the library has started.
var ofTheLibrary = regexp.MustCompile(
	`github\.com/etcdlock/etcdlock(/internal/(guard|events|lease|queue|etcd)[\w/]*)?\.`)

// leftInEtcd lists the keys and leases that are left, or says why they are not known.
func leftInEtcd(client *clientv3.Client, prefix string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var left strings.Builder
	keys, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Sprintf("\nkeys: %v", err)
	}
	for _, kv := range keys.Kvs {
		fmt.Fprintf(&left, "\nkey %q, lease %x, created at %d: %s", kv.Key, kv.Lease, kv.CreateRevision,
			kv.Value)
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

// A Marked test is one whose goroutines can be told from those of tests that run beside it.
type Marked string

// label is the profiler label that the goroutines of a Marked test carry.
const label = "test"

var (
	marksMu sync.Mutex
	marks   = make(map[testing.TB]Marked)
)

// Mark marks the goroutine that calls it, which is that of t. All goroutines that it starts
// from now on, and those that they start, have the mark too. (What a timer starts has no
// mark.)
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

// Goroutines returns the stacks of the goroutines with the mark, without the caller's.
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
// machine needs. Only tests of the waits themselves change it, and PatienceEnv.
var Patience = patience()

// PatienceEnv is the environment variable with another Patience. A mutant makes a test wait in
// vain, and that need not take as long.
const PatienceEnv = "ETCDLOCK_PATIENCE"

func patience() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(PatienceEnv)); err == nil {
		return d
	}
	return 2 * time.Minute
}

// Poll returns true as soon as ok returns true, and false when Patience is over.
func Poll(ok func() bool) bool { return Eventually(Patience, ok) }

// Eventually waits for what no channel announces. It returns true as soon as ok returns
// true, and false when d is over.
func Eventually(d time.Duration, ok func() bool) bool {
	for deadline := time.Now().Add(d); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return ok()
		}
	}
	return true
}
