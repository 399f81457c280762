package etcd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/sent"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// What is due at a beat is due neither sooner nor later than it may be without beats, and on
// average when it would be.
func TestABeatIsNoLaterThanItMayBe(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, window := range []time.Duration{
		0, 1, leastBeat, 375 * time.Millisecond, longestBeat, 5 * time.Second, time.Hour,
	} {
		for range 20 {
			from := time.Duration(random.Int64N(int64(time.Minute)))
			var sum float64
			const draws = 2000
			for range draws {
				since := time.Duration(random.Int64N(int64(time.Hour)))
				due := onBeat(since, from, from+window, from+rand.N(window+1))
				require.GreaterOrEqual(t, due, from)
				require.LessOrEqual(t, due, from+window)
				sum += (due - from).Seconds() / draws
				if window >= 4*leastBeat {
					require.Zero(t, (since+due)%leastBeat, "no beat")
				}
			}
			require.InDelta(t, window.Seconds()/2, sum, window.Seconds()*0.05)
		}
	}
}

// The clients of a fleet that begins at once have beats at other times each; the Sessions of a
// client have the same.
func TestTheBeatsOfClientsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 100
		etcd := fake.NewServer()
		dues := make(map[time.Duration]bool)
		for range clients {
			client := etcd.Client("a")
			own := make(map[time.Duration]bool)
			for range 100 {
				c, _ := conn(t, client)
				own[c.OnBeat(time.Second, 2*time.Second)] = true
			}
			require.LessOrEqual(t, len(own), 3)
			maps.Copy(dues, own)
		}
		require.Greater(t, len(dues), clients)
	})
}

// Requests that meet go as one, which only reads and has no transactions in it. Each gets what it
// would get alone; where not all holds, from a request of its own.
func TestWhatMeetsIsNoRaftEntry(t *testing.T) {
	for _, gone := range []int{-1, 3} {
		t.Run(fmt.Sprint("gone ", gone), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 8 // as many may be under way at first
				etcd := fake.NewServer()
				c, _ := conn(t, etcd.Client("a"))
				other, _ := conn(t, c.client)
				lease, err := c.client.Grant(t.Context(), 60)
				require.NoError(t, err)
				var revs []int64
				for i := range n {
					require.NoError(t, etcd.PutKey(fmt.Sprint(line.Prefix("n"), i), lease.ID))
					revs = append(revs, etcd.Rev())
				}
				var requests []Request
				for i := range n {
					key := fmt.Sprint(line.Prefix("n"), i)
					if i == gone {
						key += "gone"
					}
					asks := sent.Txn(nil, []clientv3.Op{clientv3.OpGet(key)}[i%2:], nil).Success
					asks = append(asks, ticket.CountBelow("n"))
					requests = append(requests, Meeting([]ticket.Known{{Key: key, Rev: revs[i]}}, asks...))
				}
				reads, errs := make([]Reading, n), make([]error, n)
				var running sync.WaitGroup
				for i, r := range requests {
					running.Go(func() {
						reads[i], errs[i] = []*Conn{c, other}[i%2].Attempt(t.Context(), r)
					})
				}
				running.Wait()
				calls := etcd.Calls(fake.Txn)
				if gone < 0 {
					require.Len(t, calls, 1)
				} else {
					require.Len(t, calls, 1+n)
				}
				require.Len(t, calls[0].Gets, n/2+1) // all count the same
				for _, call := range calls {
					require.Zero(t, call.Nested)
					require.Empty(t, call.Puts)
				}
				for i, r := range requests {
					require.Equal(t, i != gone, reads[i].Holds)
					require.Len(t, reads[i].Ranges, len(r.Then))
					sameRead(t, c, r, reads[i], errs[i])
				}
			})
		})
	}
}

// What several know or count goes once, and each gets the ranges that it has asked for.
func TestWhatIsEqualMeetsOnce(t *testing.T) {
	all := gathered{knows: make(map[ticket.Known]bool), reads: make(map[span]int)}
	count, get, newer := ticket.CountBelow("n"), ticket.CountBelow("n"), ticket.CountBelow("n")
	get.GetRequestRange().CountOnly = false
	newer.GetRequestRange().MinModRevision = 7
	first, second := ticket.Known{Key: "n/1", Rev: 1, Lease: 1}, ticket.Known{Key: "n/2", Rev: 2, Mod: 3}
	require.Equal(t, []int{0, 1}, all.add(Meeting([]ticket.Known{first, second}, count, get)))
	require.Len(t, all.compares, 5)
	require.Equal(t, []int{1, 0}, all.add(Meeting([]ticket.Known{second, first}, get, count)))
	require.Len(t, all.compares, 5)
	second.Mod = 0
	require.Equal(t, []int{2, 2}, all.add(Meeting([]ticket.Known{first, second}, newer, newer)))
	require.Len(t, all.compares, 7)
	require.Equal(t, ticket.Compare(second), all.compares[5:])
	require.Equal(t, []int{3}, all.add(Meeting(nil, ticket.CountBelow("m"))))
	var one, other ticket.Ticket
	one.Name, other.Name, other.Key = "n", "n", "n/2"
	require.Equal(t, []int{4}, all.add(Meeting([]ticket.Known{first}, one.AskTTLs())))
	require.Equal(t, []int{4}, all.add(Meeting([]ticket.Known{second}, other.AskTTLs())))
	require.Empty(t, all.add(Meeting([]ticket.Known{second})), "it is linearizable already")
	require.Len(t, all.ranges, 5)
}

// More than etcd takes in one transaction goes as several.
func TestWhatMeetsFitsIntoATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		etcd.MaxTxnOps(128)
		etcd.Intercept(func(fake.Call) fake.Effect {
			return fake.Effect{DelayReply: time.Second} // all have come before the first answer
		})
		c, _ := conn(t, etcd.Client("a"))
		var running sync.WaitGroup
		for range 100 {
			running.Go(func() {
				get := ticket.Get("k")
				read, err := c.meeting.ask(t.Context(), c, Meeting(nil, get, get, get, get, get))
				require.NoError(t, err)
				require.Len(t, read.Ranges, 5)
			})
		}
		running.Wait()
		require.Equal(t, 7, len(etcd.Calls(fake.Txn))) // six with 16, of which the next would not fit
	})
}

// The user's code falls in what meets: so do all that have asked. What meets next is sent.
func TestWhatMeetsFallsTogether(t *testing.T) {
	for name, falls := range map[string]func(){
		"panic": func() { panic("boom") }, "Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd := fake.NewServer()
				client := etcd.Client("a")
				var once sync.Once
				client.KV = fallingTxn{client.KV, func() { once.Do(falls) }}
				c, _ := conn(t, client)
				other, _ := conn(t, client)
				errs := make([]error, 4)
				ask := func(i int) {
					_, errs[i] = []*Conn{c, other}[i%2].Attempt(t.Context(), Meeting(nil, ticket.Get("k")))
				}
				var all sync.WaitGroup
				for i := range errs {
					all.Go(func() { ask(i) })
				}
				all.Wait()
				for _, err := range errs {
					require.NotNil(t, guard.FallIn(err))
				}
				ask(0)
				require.NoError(t, errs[0])
			})
		})
	}
}
