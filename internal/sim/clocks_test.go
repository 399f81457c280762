package sim

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/record"
)

const (
	clockTTL   = 10 * time.Second
	clockRuns  = 20
	clockFirst = 9 * time.Second // when the holder is cut off, at the earliest
)

// A holder is cut off, and etcd gives the lock to the next one as soon as its clock says
// that the lease has expired. One bubble has one clock, so a lease that lives 8 % less
// stands for a client's clock that is 8 % slow. The holder must have stopped before the
// next one holds. The time between is the margin, less the difference of the clocks.
func TestClocksThatDifferByEightPercentLetNobodyOverlap(t *testing.T) {
	for _, rate := range []float64{0.92, 1, 1.08} {
		t.Run(fmt.Sprintf("leases live %v of their time", rate), func(t *testing.T) {
			least := time.Duration(math.MaxInt64)
			for run := range uint64(clockRuns) {
				require.NoError(t, inBubble(t, run, func(t *testing.T) {
					least = min(least, handedOverByExpiry(t, run, rate))
				}))
			}
			// The renewal was sent some milliseconds before etcd counted from it.
			want := time.Duration((rate - 7.0/8) * float64(clockTTL))
			require.InDelta(t, want, least, float64(10*time.Millisecond))
			t.Logf("least margin %v", least)
			record.Save(t, record.Result{
				Row: "S29", Case: fmt.Sprintf("cut off, leases live %v of their time", rate), Side: record.Ours,
				Fault: "client clock 8 % fast or slow (simulation, expiry to the instant); the holder is cut off", Must: "no overlap",
				N: clockRuns, Figures: fmt.Sprintf("least margin %v at a TTL of %v",
					least.Round(time.Millisecond), clockTTL),
				Command: "go test ./internal/sim -run TestClocks", Etcd: "3.7.3 client, simulated server",
			})
		})
	}
}

// handedOverByExpiry returns the time from the moment when one holder knew of its loss to
// the moment when the next one held.
func handedOverByExpiry(t *testing.T, seed uint64, rate float64) time.Duration {
	w := newClocks(seed, clockTTL, rate)
	defer w.stop(t)
	one, two := w.mutex(t, "one"), w.mutex(t, "two")
	require.NoError(t, one.Lock(t.Context()))
	hold := one.Context(context.Background())
	knew := make(chan time.Time, 1)
	defer context.AfterFunc(hold, func() { knew <- time.Now() })()
	got := make(chan time.Time, 1)
	go func() {
		if two.Lock(context.Background()) == nil {
			got <- time.Now()
		}
		close(got)
	}()
	// Anywhere between two renewals.
	time.Sleep(clockFirst + time.Duration(generator(seed, "phase").Int64N(int64(clockTTL))))
	for _, member := range []string{"m0", "m1", "m2"} {
		w.net.Lose("one", member)
		w.net.Lose(member, "one")
	}
	acquired, ok := <-got
	require.True(t, ok, "the next one did not get in")
	require.Error(t, hold.Err(), "both believe to hold the lock")
	require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLost)
	return acquired.Sub(<-knew)
}

// Clocks that agree, or differ by 8 %, lose no hold by themselves.
func TestClocksThatDifferByEightPercentLoseNothing(t *testing.T) {
	for _, rate := range []float64{0.92, 1, 1.08} {
		t.Run(fmt.Sprintf("leases live %v of their time", rate), func(t *testing.T) {
			for run := range uint64(clockRuns) {
				require.NoError(t, inBubble(t, run, func(t *testing.T) {
					w := newClocks(run, clockTTL, rate)
					defer w.stop(t)
					mu := w.mutex(t, "one")
					require.NoError(t, mu.Lock(t.Context()))
					hold := mu.Context(context.Background())
					time.Sleep(10 * clockTTL)
					require.NoError(t, hold.Err())
					require.NoError(t, mu.Unlock(context.Background()))
				}))
			}
			record.Save(t, record.Result{
				Row: "S29", Case: fmt.Sprintf("held for 10 TTLs, leases live %v of their time", rate),
				Side:  record.Ours,
				Fault: "client clock 8 % fast or slow (simulation, expiry to the instant); nothing else",
				Must:  "nothing is lost",
				N:     clockRuns, Command: "go test ./internal/sim -run TestClocks",
				Etcd: "3.7.3 client, simulated server",
			})
		})
	}
}

// clocks is a cluster whose leases expire to the instant, and its clients.
type clocks struct {
	ttl      time.Duration
	net      *Net
	cluster  *Cluster
	clients  []*clientv3.Client
	sessions []*etcdlock.Session
}

func newClocks(seed uint64, ttl time.Duration, rate float64) *clocks {
	w := &clocks{ttl: ttl, net: NewNet(seed)}
	w.cluster = NewCluster(seed, w.net, members)
	w.cluster.ExpireInTime()
	w.cluster.Rate("one", rate)
	return w
}

// mutex returns a Mutex of a process of its own.
func (w *clocks) mutex(t *testing.T, process string) *etcdlock.Mutex {
	client := dial(t, w.net, process, members)
	s, err := etcdlock.NewSession(client, etcdlock.WithTTL(w.ttl))
	require.NoError(t, err)
	mu, err := s.Mutex("n")
	require.NoError(t, err)
	w.clients, w.sessions = append(w.clients, client), append(w.sessions, s)
	return mu
}

func (w *clocks) stop(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for i, s := range w.sessions {
		_ = s.Close(ended) // a process that is cut off cannot say so
		_ = w.clients[i].Close()
	}
	w.net.Close()
	w.cluster.Stop()
}

// dial returns a client of a process.
func dial(t *testing.T, n *Net, process string, members int) *clientv3.Client {
	var endpoints []string
	for i := range members {
		endpoints = append(endpoints, fmt.Sprint("http://m", i))
	}
	client, err := n.Client(process, endpoints)
	require.NoError(t, err)
	return client
}
