// Package cron_test runs adapters/cron in processes that are killed, and with asynq.
package cron_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	etcdlockcron "github.com/etcdlock/etcdlock/adapters/cron"
	"github.com/etcdlock/etcdlock/internal/adapters"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// machineEnv makes this binary a machine: the endpoint of etcd.
const machineEnv = "ETCDLOCK_CRON_ETCD"

const (
	every = 5 * time.Second // from slot to slot
	least = 4 * time.Second
	kill  = 2 // runs of a process before the one in which it is killed
)

func TestMain(m *testing.M) {
	if endpoint := os.Getenv(machineEnv); endpoint != "" {
		contract.Must(beMachine(endpoint, os.Args[1]))
		return
	}
	os.Exit(m.Run())
}

// A clock has a slot each five seconds, as a machine sees them whose clock is behind.
type clock struct{ behind time.Duration }

func (c clock) Next(t time.Time) time.Time {
	return t.Add(-c.behind).Truncate(every).Add(every + c.behind)
}

// beMachine runs one job until the process is killed. It says the slot when a run begins, and when
// it ends. A run takes a millisecond, and that in which the process is killed longer.
func beMachine(endpoint, behind string) error {
	late, err := time.ParseDuration(behind)
	if err != nil {
		return err
	}
	client := contract.ExampleClient([]string{endpoint})
	session, err := etcdlock.NewSession(client, etcdlock.WithTTL(least))
	if err != nil {
		return err
	}
	once, err := etcdlockcron.OncePerSlot(session, "cron/", least)
	if err != nil {
		return err
	}
	c := cron.New(cron.WithChain(once))
	run := 0
	c.Schedule(clock{late}, etcdlockcron.Named("report", func(context.Context) {
		slot := time.Now().Add(-late).Unix() / int64(every/time.Second)
		fmt.Println("begins", slot)
		takes := time.Millisecond
		if run++; run > kill {
			takes = time.Second
		}
		time.Sleep(takes)
		fmt.Println("ends", slot)
	}))
	c.Start()
	select {} // until it is killed
}

// Two processes have the same job, and the clocks of the two differ. Each slot runs once at most.
// The process that runs them is killed within a job, and the other one runs those that come when
// the lease of the dead one is over.
func TestAMachineIsKilledWithinItsJob(t *testing.T) {
	for _, behind := range []string{"20ms", "2s"} {
		t.Run(behind, func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.Start(t, 1)
			endpoint := etcd.Client(t).Endpoints()[0]
			said := make(chan [2]string)
			machines := []*adapters.Process{
				adapters.Start(t, machineEnv+"="+endpoint, "0s"),
				adapters.Start(t, machineEnv+"="+endpoint, behind),
			}
			for _, m := range machines {
				go func() { // ends with the process
					for line := range m.Said {
						select {
						case said <- [2]string{fmt.Sprint(m.Process.Pid), line}:
						case <-t.Context().Done():
						}
					}
				}()
			}
			begun := make(map[string]bool) // by slot
			runs := make(map[string]int)   // of a process
			dead := ""
			for after := 0; after < 2; {
				var by, line string
				select {
				case s := <-said:
					by, line = s[0], s[1]
				case <-contract.Patient(t).Done():
					t.Fatal("no job runs")
				}
				slot, begins := strings.CutPrefix(line, "begins ")
				if !begins {
					if dead != "" && by != dead {
						after++
					}
					continue
				}
				require.False(t, begun[slot], "slot %s runs a second time", slot)
				begun[slot] = true
				if runs[by]++; runs[by] > kill && dead == "" {
					dead = by
					for _, m := range machines {
						if fmt.Sprint(m.Process.Pid) == by {
							require.NoError(t, m.Process.Kill())
						}
					}
				}
			}
		})
	}
}

// enqueue enqueues a report each second on the machine that leads, until ctx ends.
func enqueue(
	ctx context.Context, mu *etcdlock.Mutex, redis asynq.RedisConnOpt, opts *asynq.SchedulerOpts,
) error {
	return etcdlockcron.Lead(ctx, mu, func() (etcdlockcron.Scheduler, error) {
		s := asynq.NewScheduler(redis, opts)
		_, err := s.Register("@every 1s", asynq.NewTask("report", nil))
		return s, err
	})
}

// Two schedulers of asynq have one task. The leader enqueues it, and then the other one does.
func TestASchedulerOfAsynqRunsOnTheLeader(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	redis := asynq.RedisClientOpt{Addr: miniredis.RunT(t).Addr()}
	enqueued := make(chan string)
	lead := func(name string) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		mu := contract.NewMutex(t, etcd.Client(t), "leader/scheduler")
		over := contract.Async(func() error {
			return enqueue(ctx, mu, redis, &asynq.SchedulerOpts{
				LogLevel: asynq.FatalLevel,
				PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
					if err != nil {
						t.Error(err)
					}
					select {
					case enqueued <- name:
					case <-ctx.Done():
					}
				},
			})
		})
		return func() {
			cancel()
			require.ErrorIs(t, <-over, context.Canceled)
		}
	}
	stopA := lead("a")
	require.Equal(t, "a", <-enqueued)
	stopB := lead("b")
	for range 3 {
		require.Equal(t, "a", <-enqueued)
	}
	stopA()
	require.Equal(t, "b", <-enqueued)
	stopB()
}
