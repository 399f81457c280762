package hold_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/hold"
	"github.com/etcdlock/etcdlock/internal/race"
)

// A group is some Sessions of a fleet that are alike.
type group struct {
	sessions int
	ttl      time.Duration
}

// A fleet is the Sessions of one client, each of which holds a lock.
type fleet struct {
	etcd    *fake.Server
	healthy float64 // renewals in a minute while etcd is well
	holds   []context.Context
}

// inFleet runs f beside a fleet whose renewals are due at any time.
func inFleet(t *testing.T, several bool, groups []group, f func(t *testing.T, a *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &fleet{etcd: fake.NewServer()}
		a.etcd.ForgetCalls()
		client := a.etcd.Client("a")
		r := rand.New(rand.NewPCG(1, 1))
		var sessions []*etcdlock.Session
		var locks []*etcdlock.Mutex
		var begin sync.WaitGroup
		for _, g := range groups {
			a.healthy += float64(g.sessions) * float64(time.Minute) / float64(g.ttl/3)
			for range g.sessions {
				s, err := etcdlock.NewSession(client, etcdlock.WithTTL(g.ttl))
				require.NoError(t, err)
				hold.SessionOf(s).Conn().Several = func() bool { return several }
				mu, err := s.Mutex(fmt.Sprint(len(locks)))
				require.NoError(t, err)
				sessions, locks = append(sessions, s), append(locks, mu)
				pause := time.Duration(r.Int64N(int64(g.ttl / 3)))
				begin.Go(func() {
					time.Sleep(pause)
					require.NoError(t, mu.Lock(context.Background()))
				})
			}
		}
		begin.Wait()
		for _, mu := range locks {
			a.holds = append(a.holds, mu.Context(context.Background()))
		}
		defer func() {
			a.etcd.Intercept(nil)
			for _, s := range sessions {
				require.NoError(t, s.Close(context.Background()))
			}
		}()
		f(t, a)
	})
}

// renewals counts those that are sent in a time.
func (a *fleet) renewals(d time.Duration) int {
	before := a.etcd.Counts()[fake.KeepAlive]
	time.Sleep(d)
	return a.etcd.Counts()[fake.KeepAlive] - before
}

// lost is how many holds were lost.
func (a *fleet) lost() (n int) {
	for _, hold := range a.holds {
		if hold.Err() != nil {
			n++
		}
	}
	return n
}

// renewalsFail makes a share of the renewals fail at once, and of the reads that ask what a renewal
// is worth.
func renewalsFail(share float64) func(fake.Call) fake.Effect {
	failing := fails(1, share, transients)
	return func(c fake.Call) fake.Effect {
		if c.Method == fake.KeepAlive || c.Method == fake.Range {
			return failing(c)
		}
		return fake.Effect{}
	}
}

// The Sessions of a client hold since any time. Their renewals go out at few times in a period, and
// none is lost.
func TestTheRenewalsOfAClientsSessionsGoOutTogether(t *testing.T) {
	const ttl = 15 * time.Second
	inFleet(t, false, []group{{100, ttl}}, func(t *testing.T, a *fleet) {
		time.Sleep(ttl)
		var mu sync.Mutex
		times := make(map[time.Time]int)
		a.etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.KeepAlive {
				mu.Lock()
				defer mu.Unlock()
				times[time.Now()]++
			}
			return fake.Effect{}
		})
		require.Equal(t, 4*3*100, a.renewals(4*ttl))
		mu.Lock()
		defer mu.Unlock()
		require.LessOrEqual(t, len(times), 4*3*8+1)
		require.Zero(t, a.lost())
	})
}

// Renewals fail at once, some or all. Over a minute the Sessions of a client send at most six times
// the renewals of a healthy etcd: those that go out together fail together. While two of three fail
// they lose no hold.
func TestRenewalsThatFailAtOnceHaveABudget(t *testing.T) {
	rows := []struct {
		groups  []group
		several bool
	}{
		{[]group{{100, 2 * time.Second}}, true},
		{[]group{{50, 3 * time.Second}, {50, 15 * time.Second}, {100, 3 * time.Minute}}, true},
		{[]group{{200, 15 * time.Second}}, false},
		{[]group{{1000, 15 * time.Second}}, true},
		{[]group{{200, 3 * time.Minute}}, true},
	}
	for _, row := range rows[:race.Watched(race.Fewer(len(rows), 2), 1)] {
		for _, share := range []float64{2. / 3, 9. / 10, 1} {
			inFleet(t, row.several, row.groups, func(t *testing.T, a *fleet) {
				a.etcd.Intercept(renewalsFail(share))
				times := float64(a.renewals(time.Minute)) / a.healthy
				t.Logf("%v, %.0f %% fail: %.1f times the renewals, %d lost", row, 100*share, times, a.lost())
				require.LessOrEqual(t, times, 6.)
				if share < .7 {
					require.Zero(t, a.lost())
				}
			})
		}
	}
}

// Two of three requests of all kinds fail at once, for minutes. However many Sessions share the
// budget of a client, and whatever their TTLs, none loses its hold.
func TestNoSessionOfAClientLosesItsHoldWhileTwoOfThreeFail(t *testing.T) {
	for _, groups := range [][]group{
		{{1, 15 * time.Second}},
		{{10, 15 * time.Second}},
		{{200, 15 * time.Second}},
		{{10, 2 * time.Second}},
		{{5, 2 * time.Second}, {20, 15 * time.Second}, {20, time.Minute}, {1, time.Hour}},
	} {
		for _, several := range []bool{false, true} {
			inFleet(t, several, groups, func(t *testing.T, a *fleet) {
				a.etcd.Intercept(fails(1, 2./3, transients))
				time.Sleep(time.Duration(race.Fewer(10, 1)) * time.Minute)
				require.Zero(t, a.lost(), "%v, several endpoints: %t", groups, several)
			})
		}
	}
}

// A renewal has failed, and may come late. So the next one is worth something only once a read has
// shown that it has not. Reads fail for 20 s, and all further renewals do. The one read that is
// answered then is enough.
func TestAReadGoesOnForAsLongAsItMayHelp(t *testing.T) {
	inFleet(t, false, []group{{1, time.Minute}}, func(t *testing.T, a *fleet) {
		var sent atomic.Int32
		var readable atomic.Bool
		a.etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			switch c.Method {
			case fake.KeepAlive:
				if n := sent.Add(1); n == 1 {
					e.After = transients[0] // another one follows at once
				} else if n > 3 {
					e.Before = transients[0]
				}
			case fake.Range:
				if !readable.Load() {
					e.Before = transients[0]
				}
			case fake.Txn: // an audit, which would prove as much
				e.Before = transients[0]
			}
			return e
		})
		time.Sleep(time.Minute)
		require.Greater(t, sent.Load(), int32(3))
		readable.Store(true)
		time.Sleep(15 * time.Second) // 55 s after the second renewal
		require.Zero(t, a.lost())
	})
}

// The reads that tell what renewals are worth fail for as long as they can. Two renewals ask at a
// time, however many wait.
func TestRenewalsThatAreWorthNothingYetShareReads(t *testing.T) {
	inFleet(t, true, []group{{1, time.Minute}}, func(t *testing.T, a *fleet) {
		var sent atomic.Int32
		a.etcd.Intercept(func(c fake.Call) (e fake.Effect) {
			switch c.Method {
			case fake.KeepAlive:
				if sent.Add(1) == 1 {
					e.After = transients[0]
				}
			case fake.Range:
				e.Before = transients[0]
			}
			return e
		})
		time.Sleep(22 * time.Second)
		reads := a.etcd.Counts()[fake.Range]
		renewals := a.renewals(40 * time.Second) // the first half of which is without a read
		require.LessOrEqual(t, a.etcd.Counts()[fake.Range]-reads, 115)
		require.LessOrEqual(t, renewals, 8)
	})
}

// All renewals fail for a minute. When etcd is back, all leases are renewed soon, with few renewals
// more than there are leases.
func TestAllLeasesAreRenewedSoonWhenEtcdIsBack(t *testing.T) {
	const sessions = 200
	for _, several := range []bool{false, true} {
		inFleet(t, several, []group{{sessions, 3 * time.Minute}}, func(t *testing.T, a *fleet) {
			a.etcd.Intercept(renewalsFail(1))
			time.Sleep(time.Minute) // in which each was due
			a.etcd.Intercept(nil)
			sent := a.renewals(3 * time.Second)
			require.GreaterOrEqual(t, sent, sessions)
			require.LessOrEqual(t, sent, 2*sessions)
			time.Sleep(3 * time.Minute)
			require.Zero(t, a.lost())
		})
	}
}
