//go:build timed

package keepalive

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A member hangs, and the renewals of all leases of a client are under way there. Each is sent
// again, and waits for a stream. Then the member answers. The mutex of all is held for about as
// long for each renewal, however many there are.
func TestARenewalTakesNoLongerBesideMany(t *testing.T) {
	each := func(leases int) time.Duration {
		now := time.Now()
		k := &streams{counted: now, periods: map[time.Duration]int{time.Hour: leases}}
		hangs := &stream{number: 1, more: make(chan struct{}, 1), proven: true,
			begun: now, leases: make(map[*Sender]bool)}
		k.open = []*stream{hangs}
		renewals := make([]*wait, leases)
		for i := range renewals {
			by := &Sender{id: clientv3.LeaseID(i + 1), period: time.Hour}
			w := &wait{by: by, answer: make(chan answer, 1)}
			hangs.carry(w, now)
			again := *w
			again.answer, again.Until = make(chan answer, 1), now.Add(time.Duration(i)*time.Second)
			renewals[i] = &again
		}
		started := time.Now()
		for _, w := range renewals {
			k.put(w)
			k.admit(now)
		}
		require.Len(t, k.waits, leases)
		for range renewals {
			k.answered(hangs, &pb.LeaseKeepAliveResponse{ID: int64(hangs.underWay[0].by.id), TTL: 60})
			k.admit(now)
		}
		require.Empty(t, k.waits)
		return time.Since(started) / time.Duration(leases)
	}
	few, many := time.Hour, time.Hour
	for range 3 { // the least, because other work on the machine only adds
		few = min(few, each(500))
		many = min(many, each(4000))
	}
	t.Logf("%v beside 500, and %v beside 4,000", few, many)
	require.Less(t, many, 8*few)
}
