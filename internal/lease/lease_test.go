package lease

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/lease/trust"
)

// A none is Tenants without keys, which need their lease all the same.
type none struct{}

func (*none) UseLocked() Use                        { return Use{Users: 1} }
func (*none) MarkLocked()                           {}
func (*none) GiveWayLocked()                        {}
func (*none) EndedLocked()                          {}
func (*none) KeyLocked() string                     { return "" }
func (*none) SuspectLocked()                        {}
func (*none) Audit(context.Context, time.Time) bool { return true }
func (*none) RemoveRest(time.Time) error            { return nil }
func (*none) RevokedLocked(error, time.Time)        {}

func (*none) CareLocked(time.Time, time.Time) (bool, time.Time) { return false, time.Time{} }

// A lease that has ended serves nobody again, and it is gone only once it has ended: then its keys
// are.
func TestALeaseGoesOnlyForward(t *testing.T) {
	states := []state{serving, draining, ended, gone}
	legal := map[state][]state{
		serving:  {draining, ended},
		draining: {ended},
		ended:    {gone},
	}
	for _, from := range states {
		for _, to := range states {
			l, why := &Lease{state: from, tenants: new(none)}, errors.New("a reason")
			become := func() { l.becomesLocked(to, why) }
			if !slices.Contains(legal[from], to) {
				require.Panics(t, become, "%v becomes %v", from, to)
				require.Equal(t, from, l.state)
				continue
			}
			require.NotPanics(t, become, "%v becomes %v", from, to)
			require.Equal(t, to, l.state)
			require.Equal(t, why, l.why)
			require.Equal(t, to >= ended, l.HasEndedLocked())
		}
	}
}

// However long etcd is too slow, a Session waits for no more than four TTLs before it asks
// for a lease again.
func TestALeaseIsAskedForWithinFourTTLsHoweverManyRanOut(t *testing.T) {
	const ttl, longest = 15 * time.Second, 9_000_000_000 * time.Second
	for _, asked := range []time.Duration{ttl, longest} {
		for unanswered := range 200 {
			synctest.Test(t, func(t *testing.T) {
				p, closes := pool(fake.NewServer().Client("a"), asked)
				p.unanswered = unanswered
				ctx, cancel := context.WithTimeout(context.Background(), 4*ttl)
				defer cancel()
				_, err := p.Take(ctx, func() bool { return p.CurrentLocked() != nil })
				if asked == ttl || unanswered < 2 {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, context.DeadlineExceeded) // within some centuries
				}
				closes()
			})
		}
	}
}

// So it does if each of its calls waits only briefly, and none of them for as long as that.
func TestCallsThatWaitBrieflyAskForALeaseAsSoon(t *testing.T) {
	const ttl, call, pause = time.Minute, 3 * time.Second, 7 * time.Second
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			p, closes := pool(fake.NewServer().Client("a"), ttl)
			defer closes()
			p.unanswered = 10
			began, err := time.Now(), errors.New("none yet")
			for err != nil && time.Since(began) < 4*ttl+call+pause {
				ctx, cancel := context.WithTimeout(context.Background(), call)
				_, err = p.Take(ctx, func() bool { return p.CurrentLocked() != nil })
				cancel()
				time.Sleep(pause)
			}
			require.NoError(t, err)
		})
	}
}

// pool returns a Pool that grants leases with a TTL, and what closes it.
func pool(client *clientv3.Client, ttl time.Duration) (p *Pool, closes func()) {
	ctx, cancel := context.WithCancel(context.Background())
	mu := new(guard.Mutex)
	tasks := new(guard.Group)
	p = NewPool(ctx, etcd.New(ctx, client, ttl, mu, tasks, deaf{}), mu, tasks, Config{
		TTL:           ttl,
		Margin:        func(granted time.Duration) time.Duration { return granted / 8 },
		TenantsLocked: func(*Lease) Tenants { return new(none) },
		Error:         func(Reason, error) error { return errors.New("a reason") },
		Hooks: Hooks{
			Granted:       func(clientv3.LeaseID, time.Duration) {},
			Renewed:       func(clientv3.LeaseID, time.Duration) {},
			RenewalFailed: func(*Lease, error, time.Duration) {},
			AtRisk:        func(*Lease, time.Duration) {},
			Replaced:      func(clientv3.LeaseID, error) {},
			Log:           func(slog.Level, string, ...any) {},
		},
	})
	return p, func() {
		mu.Lock()
		p.CloseLocked()
		idle := tasks.Idle()
		mu.Unlock()
		<-idle
		cancel()
	}
}

// A deaf Listener is told of etcd for nothing.
type deaf struct{}

func (deaf) SetBackLocked(_, _ *etcd.Epoch)   {}
func (deaf) Unavailable(error, time.Duration) {}
func (deaf) Limited(int)                      {}
func (deaf) Uncombined(error)                 {}
func (deaf) Unreadable(string, error)         {}
func (deaf) Fell(*guard.Fall)                 {}
func (deaf) StreamSilent()                    {}
func (deaf) TermFell(_, _ uint64)             {}

// The trust is over by the clock, and no timer has run yet, as after a pause of the process. An
// answer that comes then extends nothing, whatever etcd says of the lease.
func TestALateAnswerRevivesNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, closes := pool(fake.NewServer().Client("a"), time.Minute)
		defer closes()
		_, err := p.Take(t.Context(), func() bool { return p.CurrentLocked() != nil })
		require.NoError(t, err)
		p.mu.Lock()
		l := p.current
		p.mu.Unlock()
		now := time.Now()
		p.safety.Lock()
		l.trust = trust.New(now.Add(-time.Hour), time.Minute, p.config.Margin)
		p.safety.Unlock()
		l.trusts(func(of *trust.Trust) {
			of.Answered(now, of.Sends(now, nil), trust.Confirmation{TTL: time.Minute}, 0)
		})
		require.Error(t, l.Over(time.Now()))
	})
}

// The wall clock has run ahead of the monotonic one, since the machine has slept or the clock was
// set forward, and the trust is not over yet. It is over when the first of the clocks says so,
// though no renewal and no look comes until then. (A bubble has no monotonic clock, so this is in
// real time.)
func TestATrustEndsByTheWallClockAfterTheMachineHasSlept(t *testing.T) {
	const soon, later = 200 * time.Millisecond, 30 * time.Minute
	type at = func(wall, monotonic time.Duration) time.Time
	for name, does := range map[string]func(l *Lease, until at){
		"the lookout has seen it": func(l *Lease, until at) {
			l.trustUntil(until(soon, later))
			l.alarmed()
		},
		"a renewal from before is answered": func(l *Lease, until at) {
			l.trusts(func(of *trust.Trust) {
				sent := until(soon, later).Add(-l.plan.Span)
				l.trust = trust.New(sent.Add(-soon/2), l.TTL, l.pool.config.Margin)
				l.trust.Answered(sent, l.trust.Sends(sent, nil), trust.Confirmation{TTL: l.TTL}, 0)
			})
		},
		"the wall clock was set back before the timer ran": func(l *Lease, until at) {
			l.trustUntil(until(later, soon))
			l.expire()
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, _, closes := renewed(t, fake.Effect{Drop: true})
			defer closes()
			began := time.Now()
			does(l, func(wall, monotonic time.Duration) time.Time {
				return fake.MoveMonotonic(began.Add(wall), monotonic-wall)
			})
			select {
			case <-l.Dead():
				require.GreaterOrEqual(t, time.Since(began), soon)
			case <-time.After(10 * time.Second):
				require.Fail(t, "the trust goes on")
			}
		})
	}
}

// The machine has slept for longer than a period of the renewals, but not until the trust is over.
// Then the lease is renewed at once, which may still be in time. After a shorter sleep it is not.
// (In real time, for the same reason.)
func TestALeaseIsRenewedOnceTheMachineHasWoken(t *testing.T) {
	l, etcd, closes := renewed(t, fake.Effect{})
	defer closes()
	wakes := func(remains time.Duration) {
		const monotonic = 50 * time.Minute
		l.trustUntil(fake.MoveMonotonic(time.Now().Add(remains), monotonic-remains))
		l.alarmed()
	}
	wakes(40 * time.Minute)
	seen := func() bool {
		k := &l.keeper
		k.mu.Lock()
		defer k.mu.Unlock()
		return !k.due && !k.caring
	}
	require.Eventually(t, seen, 10*time.Second, time.Millisecond)
	wakes(40 * time.Minute) // by then the keeper has done what the first one asked for
	require.Eventually(t, seen, 10*time.Second, time.Millisecond)
	require.Empty(t, etcd.Calls(fake.KeepAlive))
	for _, remains := range []time.Duration{30 * time.Minute, 10 * time.Minute} {
		wakes(remains)
		renewed := func() bool { return l.remaining(time.Now()) > 50*time.Minute }
		require.Eventually(t, renewed, 10*time.Second, time.Millisecond)
		require.NoError(t, l.Over(time.Now()))
	}
}

// The timer of the renewals has run out, and its call waits for the mutex while an answer puts the
// next renewal off.
func TestARenewalThatWasPutOffIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, etcd, closes := renewed(t, fake.Effect{})
		defer closes()
		l.keeper.renewalDue() // the next one is a period away
		synctest.Wait()
		require.Empty(t, etcd.Calls(fake.KeepAlive))
		time.Sleep(l.plan.Period)
		synctest.Wait()
		require.Len(t, etcd.Calls(fake.KeepAlive), 1)
	})
}

// renewed is a lease with a TTL of an hour, its etcd, and what closes its Pool. effect is what
// becomes of its renewals.
func renewed(t *testing.T, effect fake.Effect) (l *Lease, etcd *fake.Server, closes func()) {
	t.Helper()
	etcd = fake.NewServer()
	etcd.Intercept(func(c fake.Call) fake.Effect {
		if c.Method == fake.KeepAlive {
			return effect
		}
		return fake.Effect{}
	})
	p, closes := pool(etcd.Client("a"), time.Hour)
	_, err := p.Take(t.Context(), func() bool { return p.CurrentLocked() != nil })
	require.NoError(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current, etcd, closes
}

// trustUntil makes the trust in l last until a time, and sets no timer for it.
func (l *Lease) trustUntil(until time.Time) {
	l.pool.safety.Lock()
	defer l.pool.safety.Unlock()
	l.trust = trust.New(until.Add(-l.plan.Span), l.TTL, l.pool.config.Margin)
}
