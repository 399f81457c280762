package tests

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// CountByProcess counts requests by process and method.
func CountByProcess(calls []fake.Call) map[string]int {
	counts := make(map[string]int)
	for _, c := range calls {
		if c.Method != fake.Event {
			counts[c.Process+" "+c.Method]++
		}
	}
	return counts
}

// CallsOf returns the calls of a process.
func CallsOf(process string, calls []fake.Call) (of []fake.Call) {
	for _, c := range calls {
		if c.Process == process && c.Method != fake.Event {
			of = append(of, c)
		}
	}
	return of
}

// KeysIn is how many keys an answer has.
func KeysIn(reply any) (n int) {
	switch reply := reply.(type) {
	case *pb.RangeResponse:
		return len(reply.Kvs)
	case *pb.TxnResponse:
		for _, r := range reply.Responses {
			n += len(r.GetResponseRange().GetKvs())
		}
	}
	return n
}

// AsksNothing requires that etcd is asked for nothing, for so long.
func AsksNothing(t *testing.T, etcd *fake.Server, d time.Duration) {
	t.Helper()
	before := len(etcd.Calls(""))
	time.Sleep(d)
	require.Empty(t, etcd.Calls("")[before:])
}

// CallsSince counts what etcd was asked, by method, and how many revisions that made.
func CallsSince(etcd *fake.Server) func() (calls string, revisions int64) {
	synctest.Wait()
	n, rev := len(etcd.Calls("")), etcd.Rev()
	return func() (string, int64) {
		synctest.Wait()
		counts := make(map[string]int)
		for _, c := range etcd.Calls("")[n:] {
			counts[c.Method]++
		}
		var text []string
		for _, m := range []string{fake.Txn, fake.Range, fake.Watch, fake.Grant, fake.Revoke,
			fake.TimeToLive} {
			if counts[m] > 0 {
				text = append(text, fmt.Sprintf("%s %d", m, counts[m]))
			}
		}
		return strings.Join(text, ", "), etcd.Rev() - rev
	}
}

// Costs requires what has happened since told was made, by CallsSince.
func Costs(t *testing.T, told func() (string, int64), calls string, revisions int64) {
	t.Helper()
	c, r := told()
	require.Equal(t, calls, c)
	require.Equal(t, revisions, r)
}
