package outages

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// An etcd that takes longer for each answer than an attempt waits at first is slow, and not
// dead: the attempts wait longer, and every call gets its answer.
func TestASlowEtcdKeepsNobodyOut(t *testing.T) {
	for name, slow := range map[string]fake.Effect{
		"slow requests": {Delay: 4 * time.Second},
		"slow answers":  {DelayReply: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				a := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n")
				b := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
				etcd.Intercept(func(fake.Call) fake.Effect { return slow })
				tests.LockWithin(t, a, time.Minute)
				waiting := make(chan error, 1)
				go func() { waiting <- b.Lock(context.Background()) }()
				time.Sleep(time.Minute)
				require.NoError(t, a.Unlock(context.Background()))
				start := time.Now()
				require.NoError(t, <-waiting)
				require.Less(t, time.Since(start), 30*time.Second)
				require.NoError(t, b.Unlock(context.Background()))
			})
		})
	}
}

// An etcd that is frozen does not answer. The library reports that after the first attempt
// without an answer, then each 10 s for as long as a call waits, and again when it happens
// again.
func TestAFrozenEtcdIsToldEach10s(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		told := contract.NewReports()
		s := tests.SessionOf(t, etcd, "a", told.Options()...)
		mu, other := contract.MutexOf(t, s, "n"), contract.MutexOf(t, s, "other")
		tests.LockWithin(t, mu, time.Second)
		require.NoError(t, mu.Unlock(context.Background()))
		for range 2 {
			before := len(told.Lines())
			etcd.Freeze()
			ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
			failed := make(chan error, 40)
			for i := range cap(failed) {
				go func() { failed <- []*etcdlock.Mutex{mu, other}[i%2].Lock(ctx) }()
			}
			for range cap(failed) {
				err := <-failed
				require.ErrorIs(t, err, etcdlock.ErrUnavailable)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, "no answer from etcd: context deadline exceeded")
			}
			cancel()
			require.Len(t, told.Lines()[before:], 3, "after 2, 12 and 22 s")
			_, since := told.Hooks()
			require.Equal(t, []time.Duration{2 * time.Second, 12 * time.Second, 22 * time.Second},
				since[before:])
			time.Sleep(time.Minute)
			require.Len(t, told.Lines()[before:], 3, "nobody waits")
			etcd.Thaw()
			time.Sleep(time.Minute)
			tests.LockWithin(t, mu, time.Second)
			require.NoError(t, mu.Unlock(context.Background()))
		}
	})
}

// While etcd answers there is nothing to report: neither one request that gets lost, nor a
// wait for another contender.
func TestAnEtcdThatAnswersIsNotCalledUnavailable(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		told := contract.NewReports()
		s := tests.SessionOf(t, etcd, "a", told.Options()...)
		holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "holder"), "n")
		tests.LockWithin(t, holder, time.Second)
		waiting := contract.MutexOf(t, s, "n")
		var all sync.WaitGroup
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		for range 2 { // in etcd's line, and in the local one
			all.Go(func() {
				err := waiting.Lock(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, etcdlock.ErrLocked)
				require.NotErrorIs(t, err, etcdlock.ErrUnavailable)
			})
		}
		busy := contract.MutexOf(t, s, "busy")
		etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Process == "a" && c.Method == fake.Txn && c.N%20 == 7}
		})
		for range 100 {
			tests.LockWithin(t, busy, time.Minute)
			require.NoError(t, busy.Unlock(context.Background()))
			time.Sleep(time.Second)
		}
		all.Wait()
		require.NoError(t, holder.Unlock(context.Background()))
		for _, line := range told.Lines() {
			require.Contains(t, line, "silent=2s", "at most the first attempt of the one that waits alone")
		}
	})
}

// Where etcd is silent all leases of a client are late, for one reason. A log warns of one of them,
// and says how many lines of others it has left out; these are there at the level of debugging.
func TestAClientWarnsOfOneLeaseForAll(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const sessions = 50
		client := etcd.Client("a")
		var log lines
		logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		var own lines
		for i := range sessions + 1 {
			with := logger
			if i == sessions {
				with = slog.New(slog.NewTextHandler(&own, nil))
			}
			s, err := etcdlock.NewSession(client, etcdlock.WithLogger(with))
			require.NoError(t, err)
			t.Cleanup(func() { _ = s.Close(context.Background()) })
			_, err = s.Lock(t.Context(), fmt.Sprint("n", i))
			require.NoError(t, err)
		}
		time.Sleep(time.Minute)
		etcd.Freeze()
		time.Sleep(7700 * time.Millisecond) // each lease is at risk, none is lost
		etcd.Thaw()
		time.Sleep(time.Minute)
		synctest.Wait()
		const atRisk = `msg="etcdlock: lease at risk"`
		of := regexp.MustCompile("lease=([0-9a-f]+)")
		leases := func(level string) map[string]int {
			n := make(map[string]int)
			for _, line := range log.with("level=" + level + " " + atRisk) {
				n[of.FindStringSubmatch(line)[1]]++
			}
			return n
		}
		require.Len(t, leases("WARN"), 1)
		require.NotEmpty(t, leases("DEBUG"))
		require.LessOrEqual(t, len(log.with("level=WARN")), 8, "%v", log.with("level=WARN"))
		require.NotEmpty(t, own.with("level=WARN "+atRisk), "another log knows nothing of that")

		etcd.Freeze()
		time.Sleep(7700 * time.Millisecond)
		etcd.Thaw()
		time.Sleep(time.Minute)
		require.LessOrEqual(t, len(leases("WARN")), 2)
		require.NotEmpty(t, log.with(" also="))
	})
}

// lines are the lines of a log.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(line))
	return len(line), nil
}

// with are the lines that contain a text.
func (l *lines) with(text string) (some []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			some = append(some, line)
		}
	}
	return some
}
