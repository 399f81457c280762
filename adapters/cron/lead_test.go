package etcdlockcron_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	etcdlockcron "github.com/etcdlock/etcdlock/adapters/cron"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// A scheduler starts once, as that of asynq, and counts those that run.
type scheduler struct {
	running *atomic.Int64
	started bool
	stops   time.Duration // how long Shutdown takes
	err     error
}

func (s *scheduler) Start() error {
	if s.started {
		return errors.New("started before")
	}
	s.started = true
	if s.err == nil {
		s.running.Add(1)
	}
	return s.err
}

func (s *scheduler) Shutdown() {
	time.Sleep(s.stops)
	s.running.Add(-1)
}

// One scheduler runs at a time, through a loss and at the end of its process.
//
//	a leads ── a is cut off ── b leads ── a is healed ── b ends, and takes a minute ── a leads
func TestOneSchedulerRunsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		client := etcd.Client()
		lead := func(mu *etcdlock.Mutex, running *atomic.Int64, stops time.Duration) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			over := contract.Async(func() error {
				return etcdlockcron.Lead(ctx, mu, func() (etcdlockcron.Scheduler, error) {
					return &scheduler{running: running, stops: stops}, nil
				})
			})
			return func() {
				cancel()
				require.ErrorIs(t, <-over, context.Canceled)
			}
		}
		var a, b atomic.Int64
		stopA := lead(contract.NewMutex(t, client, "leader/cron"), &a, 0)
		synctest.Wait()
		stopB := lead(contract.NewMutex(t, etcd.Client(), "leader/cron"), &b, time.Minute)
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, a.Load())
		require.Zero(t, b.Load())

		heal := etcd.Cut(client)
		for b.Load() == 0 {
			time.Sleep(time.Millisecond)
			require.LessOrEqual(t, a.Load()+b.Load(), int64(1))
		}
		heal()
		time.Sleep(time.Hour)
		require.Zero(t, a.Load())
		done := contract.Async(func() error { stopB(); return nil })
		time.Sleep(59 * time.Second)
		require.EqualValues(t, 1, b.Load())
		require.Zero(t, a.Load(), "b shuts down")
		require.NoError(t, <-done)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, a.Load())
		stopA()
		require.Zero(t, a.Load())
	})
}

// What cannot start ends the lead, with the error.
func TestASchedulerThatDoesNotStartEndsTheLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mu := contract.NewMutex(t, etcdlocktest.New(t).Client(), "leader/cron")
		broken := errors.New("no redis")
		for _, err := range []error{
			etcdlockcron.Lead(t.Context(), mu, func() (etcdlockcron.Scheduler, error) {
				return nil, broken
			}),
			etcdlockcron.Lead(t.Context(), mu, func() (etcdlockcron.Scheduler, error) {
				return &scheduler{err: broken}, nil
			}),
		} {
			require.ErrorIs(t, err, broken)
		}
		require.False(t, mu.Status().Held)
		none := func() (etcdlockcron.Scheduler, error) { return nil, nil }
		require.EqualError(t, etcdlockcron.Lead(t.Context(), nil, none), "etcdlockcron: nil Mutex")
		require.EqualError(t, etcdlockcron.Lead(t.Context(), mu, nil), "etcdlockcron: nil newScheduler")
	})
}
