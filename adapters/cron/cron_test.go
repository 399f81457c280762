package etcdlockcron_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	etcdlockcron "github.com/etcdlock/etcdlock/adapters/cron"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

const (
	interval = 10 * time.Second // between two slots of a job
	least    = 100 * time.Millisecond
	slots    = 8
)

var once = [slots]int{1, 1, 1, 1, 1, 1, 1, 1}

// A clock has the slots of a job as a machine sees them whose clock is behind.
type clock struct{ first time.Time }

func (c clock) Next(t time.Time) time.Time {
	next := c.first
	for !next.After(t) {
		next = next.Add(interval)
	}
	return next
}

// A machine runs one job, and counts the runs of each slot.
type machine struct {
	mu  sync.Mutex
	ran [slots]int
}

// A record is a cron.Logger that keeps errors.
type record struct {
	mu     sync.Mutex
	errors []error
}

func (*record) Info(string, ...any) {}

func (r *record) Error(err error, _ string, _ ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors = append(r.errors, err)
}

func (r *record) all() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.errors)
}

// logged returns what cron.DefaultLogger gets until t ends.
func logged(t *testing.T) *record {
	t.Helper()
	before, r := cron.DefaultLogger, new(record)
	cron.DefaultLogger = r
	t.Cleanup(func() { cron.DefaultLogger = before })
	return r
}

func wrapper(t *testing.T, s *etcdlock.Session, least time.Duration) cron.JobWrapper {
	t.Helper()
	w, err := etcdlockcron.OncePerSlot(s, "cron/", least)
	require.NoError(t, err)
	return w
}

// start starts a machine whose clock is behind.
func start(
	t *testing.T, behind time.Duration, once cron.JobWrapper, work func(ctx context.Context),
) *machine {
	t.Helper()
	m, first := new(machine), time.Now().Add(interval+behind)
	c := cron.New(cron.WithChain(once))
	c.Schedule(clock{first}, etcdlockcron.Named("report", func(ctx context.Context) {
		if slot := int(time.Since(first) / interval); slot < slots {
			m.mu.Lock()
			m.ran[slot]++
			m.mu.Unlock()
			work(ctx)
		}
	}))
	c.Start()
	t.Cleanup(func() { <-c.Stop().Done() })
	return m
}

// works is a job that takes its time.
func works(context.Context) { time.Sleep(time.Millisecond) }

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

// The second machine begins each slot when its job is long over on the first one.
func TestEachSlotOfCronRunsOnceThoughAMachineIsBehind(t *testing.T) {
	for name, tc := range map[string]struct{ behind, least, slow time.Duration }{
		"20 ms":             {20 * time.Millisecond, 40 * time.Millisecond, 0},
		"20 ms, and slow":   {20 * time.Millisecond, 40 * time.Millisecond, 15 * time.Millisecond},
		"200 ms":            {200 * time.Millisecond, time.Second, 0},
		"two seconds":       {2 * time.Second, 4 * time.Second, 0},
		"two seconds, slow": {2 * time.Second, 5 * time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logged(t)
				etcd := etcdlocktest.New(t)
				late := etcd.Client()
				etcd.Delay(late, tc.slow)
				a, b := contract.NewSession(t, etcd.Client()), contract.NewSession(t, late)
				first := start(t, 0, wrapper(t, a, tc.least), works)
				second := start(t, tc.behind, wrapper(t, b, tc.least), works)
				require.Equal(t, once, runs(first, second))
				require.Equal(t, once, first.ran)
			})
		})
	}
}

// The control: with a lock for as long as the job runs both run each slot.
func TestEachSlotOfCronRunsTwiceUnderALockAsShortAsTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		short := func() cron.JobWrapper {
			return wrapper(t, contract.NewSession(t, etcd.Client()), time.Millisecond)
		}
		first, second := start(t, 0, short(), works), start(t, 20*time.Millisecond, short(), works)
		require.Equal(t, [slots]int{2, 2, 2, 2, 2, 2, 2, 2}, runs(first, second))
	})
}

// An answer that comes late may say that the name is free again: by then the slot has run.
// docs/adapters.md and the cookbook say what a local time does where clocks go back and forward.
func TestALocalTimeOfTheNightComesTwiceInAutumnAndNeverInSpring(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	const halfPastTwo = "30 2 * * *"
	comes := func(zone *time.Location, year int, month time.Month, day int) (n int) {
		slots, err := cron.ParseStandard(halfPastTwo)
		require.NoError(t, err)
		from, until := time.Date(year, month, day, 0, 0, 0, 0, zone),
			time.Date(year, month, day+1, 0, 0, 0, 0, zone)
		for next := slots.Next(from); next.Before(until); next = slots.Next(next) {
			n++
		}
		return n
	}
	require.Equal(t, 2, comes(berlin, 2026, time.October, 25))
	require.Equal(t, 0, comes(berlin, 2027, time.March, 28))
	require.Equal(t, 1, comes(time.UTC, 2026, time.October, 25))
	require.Equal(t, 1, comes(time.UTC, 2027, time.March, 28))
}

func TestASlotDoesNotRunWhileEtcdIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := logged(t)
		etcd := etcdlocktest.New(t)
		slow := etcd.Client()
		first := start(t, 0, wrapper(t, contract.NewSession(t, etcd.Client()), least), works)
		second := start(t, 0, wrapper(t, contract.NewSession(t, slow), least), works)
		etcd.Delay(slow, 2*least)
		require.Equal(t, once, runs(first, second))
		require.Equal(t, once, first.ran)
		errs := logs.all()
		require.GreaterOrEqual(t, len(errs), slots)
		for _, err := range errs {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	})
}

// While etcd is away no job runs, and no scheduler hangs. Afterwards jobs run again.
func TestSlotsRunAgainAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := logged(t)
		etcd := etcdlocktest.New(t)
		m := start(t, 0, wrapper(t, contract.NewSession(t, etcd.Client()), least), works)
		time.Sleep(interval * 3 / 2) // after slot 0
		thaw := etcd.Freeze()
		time.Sleep(3 * interval)
		thaw()
		require.Equal(t, [slots]int{1, 0, 0, 0, 1, 1, 1, 1}, runs(m))
		require.Len(t, logs.all(), 3)
	})
}

// A job that takes longer than the interval skips slots, here and elsewhere.
func TestAJobThatStillRunsSkipsSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		long := func(context.Context) { time.Sleep(interval * 3 / 2) }
		first := start(t, 0, wrapper(t, contract.NewSession(t, etcd.Client()), least), long)
		second := start(t, 0, wrapper(t, contract.NewSession(t, etcd.Client()), least), long)
		require.Equal(t, [slots]int{1, 0, 1, 0, 1, 0, 1, 0}, runs(first, second))
	})
}

// A machine dies within its job. The other one runs the slots that come after its lease.
func TestAnotherMachineRunsTheSlotsAfterADeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		dies := etcd.Client()
		session, err := etcdlock.NewSession(dies, etcdlock.WithTTL(15*time.Second))
		require.NoError(t, err)
		_, err = session.Lock(t.Context(), "cron/report")
		require.NoError(t, err)
		require.ErrorIs(t, dies.Close(), context.Canceled)
		m := start(t, 0, wrapper(t, contract.NewSession(t, etcd.Client()), least), works)
		require.Equal(t, [slots]int{0, 1, 1, 1, 1, 1, 1, 1}, runs(m))
	})
}

// The job hears of the loss before another machine gets the lock.
func TestAJobOfCronHearsThatItsLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := logged(t)
		etcd := etcdlocktest.New(t)
		client := etcd.Client()
		var token int64
		lost := make(chan error, slots)
		start(t, 0, wrapper(t, contract.NewSession(t, client, etcdlock.WithTTL(time.Second)), least),
			func(ctx context.Context) {
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
		require.Greater(t, other.Token(), token)
		require.Positive(t, token)
		heal()
		time.Sleep(interval * slots)
		require.NoError(t, other.Unlock(t.Context()))
		require.Len(t, logs.all(), 1, "that another machine runs a slot is none")
		require.ErrorIs(t, logs.all()[0], etcdlock.ErrLost)
	})
}

// A panic of a job goes on to the wrappers around this one, and the next slot runs.
func TestAPanicOfAJobLeavesItsLockFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := contract.NewSession(t, etcdlocktest.New(t).Client())
		runs := 0
		job := cron.NewChain(cron.Recover(cron.DiscardLogger), wrapper(t, s, least)).Then(
			etcdlockcron.Named("report", func(context.Context) {
				runs++
				panic("no paper")
			}))
		for range 2 {
			job.Run()
			time.Sleep(2 * least)
		}
		require.Equal(t, 2, runs)
	})
}

// A name may have any bytes, and without the wrapper a job runs without a lock.
func TestAJobOfCronRunsWhateverItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := contract.NewSession(t, etcdlocktest.New(t).Client())
		for _, name := range []string{"nightly/", "nightly", "nightly%2F", "/", "a\x00b", "\xff", "ü"} {
			held := make(map[bool]bool)
			job := etcdlockcron.Named(name, func(ctx context.Context) {
				_, ok := etcdlock.TokenFrom(ctx)
				held[ok] = true
			})
			job.Run()
			wrapper(t, s, least)(job).Run()
			require.Len(t, held, 2, "%q", name)
		}
	})
}

func TestWhatOncePerSlotCannotUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := contract.NewSession(t, etcdlocktest.New(t).Client())
		for _, tc := range []struct {
			name    string
			session *etcdlock.Session
			prefix  string
			least   time.Duration
			opts    []etcdlock.Option
			says    string
		}{
			{"no session", nil, "cron/", least, nil, "etcdlockcron: nil Session"},
			{"a plain number", s, "cron/", 15, nil, "WithMinHold(15ns): below 1ms"},
			{"no time", s, "cron/", 0, nil, "least 0s"},
			{"a negative time", s, "cron/", -time.Second, nil, "least -1s"},
			{"a prefix with a NUL", s, "cron\x00/", least, nil, `"cron\x00/"`},
			{"a nil option", s, "cron/", least, []etcdlock.Option{nil}, "nil"},
		} {
			w, err := etcdlockcron.OncePerSlot(tc.session, tc.prefix, tc.least, tc.opts...)
			require.ErrorContains(t, err, tc.says, tc.name)
			require.Nil(t, w)
		}
		once, log := wrapper(t, s, least), logged(t)
		fails := func(context.Context) { t.Error("the job runs") }
		long := strings.Repeat("/", 1024/3)
		for says, job := range map[string]cron.Job{
			"a cron.FuncJob has no name": cron.FuncJob(func() { fails(t.Context()) }),
			"empty name":                 etcdlockcron.Named("", fails),
			"the job \"///":              etcdlockcron.Named(long, fails),
		} {
			before := len(log.all())
			once(job).Run()
			errs := log.all()[before:]
			require.Len(t, errs, 2, "as it is wrapped, and with its slot")
			for _, err := range errs {
				require.ErrorContains(t, err, says)
			}
		}
	})
}
