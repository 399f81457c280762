// Package gocron_test runs adapters/gocron on etcd's own server, and in processes.
package gocron_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	etcdlockgocron "github.com/etcdlock/etcdlock/adapters/gocron"
	"github.com/etcdlock/etcdlock/internal/adapters"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// splay is more than a busy machine is late.
const splay = time.Second

func newLocker(t *testing.T, s *etcdlock.Session) *etcdlockgocron.Locker {
	t.Helper()
	l, err := etcdlockgocron.NewLocker(s, "cron/", splay)
	require.NoError(t, err)
	return l
}

// newElector returns an Elector of a process of its own that takes part in the election.
func newElector(
	t *testing.T, client *clientv3.Client, opts ...etcdlock.SessionOption,
) *etcdlockgocron.Elector {
	t.Helper()
	e, err := etcdlockgocron.NewElector(contract.NewMutex(t, client, "leader/cron", opts...))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	over := contract.Async(func() error { return e.Lead(ctx) })
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-over, context.Canceled)
	})
	return e
}

// leads waits until one of them leads, and returns it.
func leads(t *testing.T, electors ...*etcdlockgocron.Elector) (leader *etcdlockgocron.Elector) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, e := range electors {
			if e.IsLeader(t.Context()) == nil {
				leader = e
			}
		}
		return leader != nil
	}, contract.Patience, time.Millisecond)
	return leader
}

// asked counts how often an Elector has refused.
type asked struct {
	gocron.Elector
	refused *atomic.Int64
}

func (a asked) IsLeader(ctx context.Context) error {
	err := a.Elector.IsLeader(ctx)
	if err != nil {
		a.refused.Add(1)
	}
	return err
}

// The cases of gocron's own TestScheduler_WithDistributed, which cannot be imported, with real
// locks: three schedulers have a job that is due once, at the same moment.
func TestTheCasesOfGocronsOwnTest(t *testing.T) {
	const schedulers = 3
	cases := []struct {
		name          string
		runs, refused int64
		scheduler     func(t *testing.T, s *etcdlock.Session, e gocron.Elector) []gocron.SchedulerOption
		job           func(t *testing.T, s *etcdlock.Session) []gocron.JobOption
	}{
		{
			name: "an elector", runs: 1, refused: 2,
			scheduler: func(_ *testing.T, _ *etcdlock.Session, e gocron.Elector) []gocron.SchedulerOption {
				return []gocron.SchedulerOption{gocron.WithDistributedElector(e)}
			},
		},
		{
			name: "a locker", runs: 1, refused: 2,
			scheduler: func(t *testing.T, s *etcdlock.Session, _ gocron.Elector) []gocron.SchedulerOption {
				return []gocron.SchedulerOption{gocron.WithDistributedLocker(newLocker(t, s))}
			},
		},
		{
			name: "a locker of the job", runs: 1, refused: 2,
			job: func(t *testing.T, s *etcdlock.Session) []gocron.JobOption {
				return []gocron.JobOption{gocron.WithDistributedJobLocker(newLocker(t, s))}
			},
		},
		{
			name: "a locker that is disabled for the job", runs: 3, refused: 0,
			scheduler: func(t *testing.T, s *etcdlock.Session, _ gocron.Elector) []gocron.SchedulerOption {
				return []gocron.SchedulerOption{gocron.WithDistributedLocker(newLocker(t, s))}
			},
			job: func(*testing.T, *etcdlock.Session) []gocron.JobOption {
				return []gocron.JobOption{gocron.WithDisabledDistributedJobLocker(true)}
			},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			etcdtest.VerifyNoLeaks(t)
			adapters.InMemoryAndOnEtcd(t, func(t *testing.T, newClient func() *clientv3.Client) {
				contract.VerifyClean(t, newClient(), "")
				var electors []*etcdlockgocron.Elector
				for range schedulers {
					electors = append(electors, newElector(t, newClient()))
				}
				leads(t, electors...)

				var ran, refused atomic.Int64
				for _, e := range electors {
					session := contract.NewSession(t, newClient())
					var opts []gocron.SchedulerOption
					if tc.scheduler != nil {
						opts = tc.scheduler(t, session, asked{e, &refused})
					}
					scheduler, err := gocron.NewScheduler(opts...)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, scheduler.Shutdown()) })
					scheduler.Start()
					jobOpts := []gocron.JobOption{
						gocron.WithStartAt(gocron.WithStartImmediately()),
						gocron.WithLimitedRuns(1),
						gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
							refused.Add(1)
							if _, locked := err.(*etcdlock.LockedError); !locked {
								t.Errorf("refused by %v", err)
							}
						})),
					}
					if tc.job != nil {
						jobOpts = append(jobOpts, tc.job(t, session)...)
					}
					_, err = scheduler.NewJob(gocron.DurationJob(time.Hour), gocron.NewTask(func() {
						time.Sleep(10 * time.Millisecond) // the work
						ran.Add(1)
					}), jobOpts...)
					require.NoError(t, err)
				}
				require.Eventually(t, func() bool { return ran.Load()+refused.Load() == schedulers },
					contract.Patience, time.Millisecond)
				require.Equal(t, tc.runs, ran.Load())
				require.Equal(t, tc.refused, refused.Load())
			})
		})
	}
}

// A job of a millisecond runs once in each slot, though a scheduler is 20 ms behind. Both
// schedulers are of one process, and their locks of one Session.
func TestEachSlotRunsOnceOnOneSession(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	client := etcdtest.Start(t, 1).Client(t)
	contract.VerifyClean(t, client, "")
	session := contract.NewSession(t, client)
	const slots = 3
	begin := time.Now()
	var ran [slots]atomic.Int64
	var refused atomic.Int64
	for _, behind := range []time.Duration{0, 20 * time.Millisecond} {
		var due []time.Time
		for slot := range time.Duration(slots) {
			due = append(due, begin.Add((slot+1)*3*splay+behind))
		}
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(newLocker(t, session)))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, scheduler.Shutdown()) })
		_, err = scheduler.NewJob(
			gocron.OneTimeJob(gocron.OneTimeJobStartDateTimes(due...)),
			gocron.NewTask(func() {
				ran[time.Since(begin)/(3*splay)-1].Add(1)
				time.Sleep(time.Millisecond) // the work
			}),
			gocron.WithName("report"),
			gocron.WithEventListeners(gocron.AfterLockError(func(uuid.UUID, string, error) {
				refused.Add(1)
			})),
		)
		require.NoError(t, err)
		scheduler.Start()
	}
	require.Eventually(t, func() bool {
		return refused.Load() == slots
	}, contract.Patience, time.Millisecond)
	for slot := range ran {
		require.EqualValues(t, 1, ran[slot].Load(), "runs of slot %d", slot)
	}
}

// A leader that is cut off leads no more before another one leads. When the cut is over it may lead
// again.
func TestACutEndsTheLeadBeforeAnotherLeads(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	etcd := etcdtest.Start(t, 1)
	proxy := etcd.Proxy(t, 0)
	a := newElector(t, etcd.Client(t, etcdtest.Via(proxy)), etcdlock.WithTTL(3*time.Second))
	require.Same(t, a, leads(t, a))
	b := newElector(t, etcd.Client(t))
	contract.WaitForLine(t, etcd.Client(t), "leader/cron", 2)

	proxy.BlackHole()
	for b.IsLeader(t.Context()) != nil {
		time.Sleep(time.Millisecond)
	}
	require.ErrorIs(t, a.IsLeader(t.Context()), etcdlock.ErrNotHeld)
	proxy.Heal()
	contract.WaitForLine(t, etcd.Client(t), "leader/cron", 2)
	require.NoError(t, b.IsLeader(t.Context()))
	holder, err := etcdlock.Holders(t.Context(), etcd.Client(t), "leader/cron")
	require.NoError(t, err)
	require.NoError(t, etcdlock.Break(t.Context(), etcd.Client(t), holder[0]))
	require.Same(t, a, leads(t, a))
	require.ErrorIs(t, b.IsLeader(t.Context()), etcdlock.ErrNotHeld)
}
