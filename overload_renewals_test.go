package etcdlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// A fleet is the Sessions of one client, each of which holds a lock.
type fleet struct {
	etcd     *fake.Server
	sessions []*Session
	holds    []*Mutex
	lost     []context.Context
}

// A group is some Sessions of a fleet that are alike.
type group struct {
	sessions int
	ttl      time.Duration
}

// period is the time from one renewal of a lease to the next, while etcd is well.
func (g group) period() time.Duration { return g.ttl / 3 }

// inFleet runs f beside a fleet at rest, whose renewals are due at any time.
func inFleet(t *testing.T, several bool, groups []group, f func(t *testing.T, a *fleet)) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		etcd.ForgetCalls()
		client := etcd.Client("a")
		a := &fleet{etcd: etcd}
		r := rand.New(rand.NewPCG(1, 1))
		begins := make(chan func())
		waits := 0
		for _, g := range groups {
			for range g.sessions {
				s, err := NewSession(client, WithTTL(g.ttl))
				require.NoError(t, err)
				s.etcd.Several = func() bool { return several }
				mu, err := s.Mutex(fmt.Sprint(len(a.sessions)))
				require.NoError(t, err)
				a.sessions, a.holds = append(a.sessions, s), append(a.holds, mu)
				waits++
				time.AfterFunc(rand.N(g.period()), func() {
					begins <- func() { require.NoError(t, mu.Lock(context.Background())) }
				})
			}
		}
		_ = r
		for range waits {
			(<-begins)()
		}
		for _, mu := range a.holds {
			a.lost = append(a.lost, mu.Context(context.Background()))
		}
		f(t, a)
		etcd.Intercept(nil)
		for _, s := range a.sessions {
			require.NoError(t, s.Close(context.Background()))
		}
	})
}

// renewals counts what is sent in a time.
func (a *fleet) renewals(d time.Duration) int {
	before := a.etcd.Counts()[fake.KeepAlive]
	time.Sleep(d)
	return a.etcd.Counts()[fake.KeepAlive] - before
}

// gone is how many holds were lost.
func (a *fleet) gone() (n int) {
	for _, hold := range a.lost {
		if hold.Err() != nil {
			n++
		}
	}
	return n
}

// A share of all renewals fails at once.
func TestRenewalsThatFailAtOnceHaveABudget(t *testing.T) {
	for _, several := range []bool{true} {
		for _, g := range []group{
			{200, 15 * time.Second}, {200, 3 * time.Minute}, {200, 2 * time.Second}, {10, 15 * time.Second}, {1, 15 * time.Second},
		} {
			for _, share := range []float64{2. / 3, 3. / 4, 4. / 5, 9. / 10, 1} {
				began := time.Now()
				defer func() { t.Log(time.Since(began)) }()
				inFleet(t, several, []group{g}, func(t *testing.T, a *fleet) {
					time.Sleep(2 * g.period())
					failing := fails(1, share, transients)
					a.etcd.Intercept(func(c fake.Call) fake.Effect {
						if c.Method == fake.KeepAlive || c.Method == fake.Range {
							return failing(c)
						}
						return fake.Effect{}
					})
					first := a.renewals(time.Second)
					sent := first + a.renewals(59*time.Second)
					healthy := float64(g.sessions) * float64(time.Minute) / float64(g.period())
					t.Logf("%v, several %t, %.2f fail: %d in a second, %d renewals in a minute, %.1f times; %d lost",
						g, several, share, first, sent, float64(sent)/healthy, a.gone())
				})
			}
		}
	}
}
