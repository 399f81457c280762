package etcdlockgocron_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	etcdlockgocron "github.com/etcdlock/etcdlock/adapters/gocron"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

const (
	interval = 200 * time.Millisecond // between two slots of a job
	splay    = 20 * time.Millisecond
	slots    = 8
	job      = time.Millisecond // how long a job takes
)

func newLocker(t *testing.T, s *etcdlock.Session) *etcdlockgocron.Locker {
	t.Helper()
	l, err := etcdlockgocron.NewLocker(s, "cron/", splay)
	require.NoError(t, err)
	return l
}

// A machine is a scheduler of one job, "report", and counts the runs of each slot.
type machine struct {
	gocron.Scheduler

	mu      sync.Mutex
	ran     [slots]int
	refused []error // by the Locker
}

// start starts a scheduler whose clock is behind by some time. It runs the job in each slot.
func start(
	t *testing.T, behind time.Duration, option gocron.SchedulerOption, task func(ctx context.Context),
) *machine {
	t.Helper()
	scheduler, err := gocron.NewScheduler(option)
	require.NoError(t, err)
	m := &machine{Scheduler: scheduler}
	first := time.Now().Add(interval)
	_, err = scheduler.NewJob(gocron.DurationJob(interval),
		gocron.NewTask(func(ctx context.Context) {
			slot := time.Since(first.Add(behind)).Round(interval) / interval
			m.mu.Lock()
			m.ran[slot]++
			m.mu.Unlock()
			task(ctx)
		}),
		gocron.WithName("report"),
		gocron.WithStartAt(gocron.WithStartDateTime(first.Add(behind))),
		gocron.WithStopAt(gocron.WithStopDateTime(first.Add(behind+slots*interval-interval/2))),
		gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.refused = append(m.refused, err)
		})),
	)
	require.NoError(t, err)
	scheduler.Start()
	t.Cleanup(func() { require.NoError(t, scheduler.Shutdown()) })
	return m
}

// works is a job that takes its time.
func works(context.Context) { time.Sleep(job) }

// runs are the runs of each slot on all machines. It waits until all slots are over.
func runs(machines ...*machine) (all [slots]int) {
	time.Sleep((slots + 1) * interval)
	for _, m := range machines {
		m.mu.Lock()
		for slot, n := range m.ran {
			all[slot] += n
		}
		m.mu.Unlock()
	}
	return all
}

var once = [slots]int{1, 1, 1, 1, 1, 1, 1, 1}

// The second scheduler begins each slot when its job is long over on the first one.
func TestEachSlotRunsOnceThoughASchedulerIsBehind(t *testing.T) {
	for _, tc := range []struct {
		name    string
		session func(t *testing.T, etcd *etcdlocktest.Etcd) (a, b *etcdlock.Session)
	}{
		{"two processes", func(t *testing.T, etcd *etcdlocktest.Etcd) (a, b *etcdlock.Session) {
			return contract.NewSession(t, etcd.Client()), contract.NewSession(t, etcd.Client())
		}},
		{"two processes, and the requests of the second are slow", func(t *testing.T,
			etcd *etcdlocktest.Etcd) (a, b *etcdlock.Session) {
			client := etcd.Client()
			etcd.Delay(client, splay/3)
			return contract.NewSession(t, etcd.Client()), contract.NewSession(t, client)
		}},
		{"one process, one Session", func(t *testing.T,
			etcd *etcdlocktest.Etcd) (a, b *etcdlock.Session) {
			s := contract.NewSession(t, etcd.Client())
			return s, s
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := tc.session(t, etcdlocktest.New(t))
				first := start(t, 0, gocron.WithDistributedLocker(newLocker(t, a)), works)
				second := start(t, splay, gocron.WithDistributedLocker(newLocker(t, b)), works)
				require.Equal(t, once, runs(first, second))
				require.Equal(t, once, first.ran)
				require.Len(t, second.refused, slots)
				for _, err := range second.refused {
					require.ErrorIs(t, err, etcdlock.ErrLocked)
				}
			})
		})
	}
}

// A job runs, whatever its name. (gocron.WithName refuses "" alone, and a job without a name has
// that of its function, such as "example.com/shop/cron.report".)
func TestAJobRunsWhateverItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		a := newLocker(t, contract.NewSession(t, etcd.Client()))
		b := newLocker(t, contract.NewSession(t, etcd.Client()))
		names := []string{
			"nightly/", "nightly", "nightly%2F", "/", "a\x00b", "\xff", "ü", "example.com/shop/cron.report",
		}
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(a))
		require.NoError(t, err)
		ran := make(chan string, len(names))
		for _, name := range names {
			_, err := scheduler.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
				gocron.NewTask(func(ctx context.Context) {
					<-time.After(time.Second)
					if ctx = a.Context(ctx, name); ctx.Err() == nil {
						ran <- name
					}
				}),
				gocron.WithName(name),
				gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
					t.Errorf("%q: %v", name, err)
				})))
			require.NoError(t, err)
		}
		scheduler.Start()
		time.Sleep(time.Second / 2)
		for _, name := range names {
			_, err := b.Lock(t.Context(), name)
			require.ErrorIs(t, err, etcdlock.ErrLocked, "%q", name)
		}
		time.Sleep(time.Second)
		require.NoError(t, scheduler.Shutdown())
		require.Len(t, ran, len(names))
	})
}

// One Locker serves two schedulers.
func TestSchedulersMayShareALocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := newLocker(t, contract.NewSession(t, etcdlocktest.New(t).Client()))
		first := start(t, 0, gocron.WithDistributedLocker(locker), works)
		second := start(t, splay, gocron.WithDistributedLocker(locker), works)
		require.Equal(t, once, runs(first, second))
	})
}

// A request that etcd gets late could find that the name is free again: by then the slot has run.
func TestALockThatTakesTooLongDoesNotRunItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		slow := etcd.Client()
		first := start(t, 0,
			gocron.WithDistributedLocker(newLocker(t, contract.NewSession(t, etcd.Client()))), works)
		second := start(t, 0, gocron.WithDistributedLocker(newLocker(t, contract.NewSession(t, slow))),
			works)
		etcd.Delay(slow, 3*splay)
		require.Equal(t, once, runs(first, second))
		require.Len(t, second.refused, slots)
		for _, err := range second.refused {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "the splay of the Locker, 20ms, is over")
		}
	})
}

// While etcd is away no job runs, and no scheduler hangs. Afterwards jobs run again.
func TestJobsRunAgainAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		m := start(t, 0,
			gocron.WithDistributedLocker(newLocker(t, contract.NewSession(t, etcd.Client()))), works)
		time.Sleep(interval * 3 / 2) // after slot 0
		thaw := etcd.Freeze()
		time.Sleep(3 * interval)
		thaw()
		require.Equal(t, [slots]int{1, 0, 0, 0, 1, 1, 1, 1}, runs(m))
		require.Len(t, m.refused, 3)
	})
}

// A scheduler dies within its job. The other one runs the slots that come after its lease.
func TestAnotherSchedulerRunsTheSlotsAfterADeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		dies := etcd.Client()
		session, err := etcdlock.NewSession(dies, etcdlock.WithTTL(time.Second))
		require.NoError(t, err)
		_, err = newLocker(t, session).Lock(t.Context(), "report")
		require.NoError(t, err)
		require.ErrorIs(t, dies.Close(), context.Canceled)
		time.Sleep(interval / 2)
		m := start(t, 0,
			gocron.WithDistributedLocker(newLocker(t, contract.NewSession(t, etcd.Client()))), works)
		require.Equal(t, [slots]int{0, 0, 0, 0, 1, 1, 1, 1}, runs(m))
	})
}

// The job hears of the loss before another scheduler gets the lock.
func TestAJobHearsThatItsLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		client := etcd.Client()
		locker := newLocker(t, contract.NewSession(t, client, etcdlock.WithTTL(time.Second)))
		var token int64
		lost := make(chan error, slots)
		start(t, 0, gocron.WithDistributedLocker(locker), func(ctx context.Context) {
			ctx = locker.Context(ctx, "report")
			token, _ = etcdlock.TokenFrom(ctx)
			<-ctx.Done()
			lost <- context.Cause(ctx)
		})
		time.Sleep(interval * 3 / 2) // within the job
		heal := etcd.Cut(client)
		other, err := contract.NewSession(t, etcd.Client()).Lock(t.Context(), "cron/report")
		require.NoError(t, err)
		require.Len(t, lost, 1)
		require.ErrorIs(t, <-lost, etcdlock.ErrLost)
		require.Positive(t, token)
		require.Greater(t, other.Token(), token)
		heal()
		require.NoError(t, other.Unlock(t.Context()))
	})
}

func TestTheContextOfAJobThatDoesNotRunHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := newLocker(t, contract.NewSession(t, etcdlocktest.New(t).Client()))
		ended := func(ctx context.Context) {
			require.Error(t, ctx.Err())
			require.ErrorIs(t, context.Cause(ctx), etcdlock.ErrNotHeld)
		}
		ended(locker.Context(t.Context(), "report"))
		lock, err := locker.Lock(t.Context(), "report")
		require.NoError(t, err)
		require.NoError(t, locker.Context(t.Context(), "report").Err())
		ended(locker.Context(t.Context(), "backup"))
		require.NoError(t, lock.Unlock(t.Context()))
		ended(locker.Context(t.Context(), "report"))
		require.ErrorIs(t, lock.Unlock(t.Context()), etcdlock.ErrNotHeld)
	})
}

// The scheduler is shut down within a job: its context has ended when gocron unlocks.
func TestUnlockReleasesThoughTheContextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		ctx, cancel := context.WithCancel(t.Context())
		lock, err := newLocker(t, contract.NewSession(t, etcd.Client())).Lock(ctx, "report")
		require.NoError(t, err)
		time.Sleep(2 * splay)
		cancel()
		require.NoError(t, lock.Unlock(ctx))
		lock, err = newLocker(t, contract.NewSession(t, etcd.Client())).Lock(t.Context(), "report")
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(t.Context()))
	})
}

func TestWhatARunCosts(t *testing.T) {
	for _, tc := range []struct {
		promise  string
		takes    time.Duration
		requests etcdlocktest.Counts
	}{
		// (A key that is held for a second is watched.)
		{"longer than twice splay", 900 * time.Millisecond, etcdlocktest.Counts{Txn: 2}},
		{"shorter", job, etcdlocktest.Counts{Txn: 2, LeaseGrant: 1, LeaseRevoke: 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			etcd := etcdlocktest.New(t)
			locker := newLocker(t, contract.NewSession(t, etcd.Client()))
			run := func() {
				lock, err := locker.Lock(t.Context(), "report")
				require.NoError(t, err)
				time.Sleep(tc.takes)
				require.NoError(t, lock.Unlock(t.Context()))
				time.Sleep(2 * splay)
			}
			run() // with the grant of the Session's lease
			before := etcd.Counts()
			run()
			after := etcd.Counts()
			require.Equal(t, tc.requests, etcdlocktest.Counts{
				Range: after.Range - before.Range, Txn: after.Txn - before.Txn,
				LeaseGrant:  after.LeaseGrant - before.LeaseGrant,
				LeaseRevoke: after.LeaseRevoke - before.LeaseRevoke, Watch: after.Watch - before.Watch,
			}, tc.promise)
		})
	}
}

func TestWhatALockerCannotUseIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := contract.NewSession(t, etcdlocktest.New(t).Client())
		for _, tc := range []struct {
			name    string
			session *etcdlock.Session
			prefix  string
			splay   time.Duration
			opts    []etcdlock.Option
			says    string
		}{
			{"no session", nil, "cron/", splay, nil, "etcdlockgocron: nil Session"},
			{"a plain number", s, "cron/", 15, nil, "splay 15ns is below 1ms"},
			{"no splay", s, "cron/", 0, nil, "splay 0s"},
			{"a negative splay", s, "cron/", -time.Second, nil, "splay -1s"},
			{"a splay of centuries", s, "cron/", 1 << 62, nil, "splay 1281023h53m38.427387904s"},
			{"a prefix with a NUL", s, "cron\x00/", splay, nil, `"cron\x00/"`},
			{"a nil option", s, "cron/", splay, []etcdlock.Option{nil}, "nil"},
		} {
			l, err := etcdlockgocron.NewLocker(tc.session, tc.prefix, tc.splay, tc.opts...)
			require.ErrorContains(t, err, tc.says, tc.name)
			require.Nil(t, l)
		}
		locker := newLocker(t, s)
		var none context.Context
		lock, err := locker.Lock(none, "report")
		require.ErrorContains(t, err, "nil context")
		require.Nil(t, lock)
		lock, err = locker.Lock(t.Context(), strings.Repeat("/", 1024/3))
		require.ErrorContains(t, err, "1028 bytes, more than 1024", "cron/, and three of each")
		require.Nil(t, lock)
	})
}
