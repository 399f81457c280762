package etcdlockgocron_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/etcdlock/etcdlock"
	etcdlockgocron "github.com/etcdlock/etcdlock/adapters/gocron"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// schedule starts a scheduler that runs report in each slot, on one of the machines that call it.
func schedule(
	session *etcdlock.Session, slots gocron.JobDefinition, period time.Duration,
	report func(ctx context.Context) error,
) (gocron.Scheduler, error) {
	splay := min(period/5, 5*time.Second)
	locker, err := etcdlockgocron.NewLocker(session, "cron/", splay)
	if err != nil {
		return nil, err
	}
	scheduler, err := gocron.NewScheduler(
		gocron.WithDistributedLocker(locker), gocron.WithLocation(time.UTC))
	if err != nil {
		return nil, err
	}
	_, err = scheduler.NewJob(slots, gocron.NewTask(func(ctx context.Context) error {
		return report(locker.Context(ctx, "report")) // this context ends if the lock is lost
	}), gocron.WithName("report"))
	scheduler.Start()
	return scheduler, err
}

// onLeader starts a scheduler whose jobs run on the machine that leads.
func onLeader(
	ctx context.Context, mu *etcdlock.Mutex, slots gocron.JobDefinition,
	report func(ctx context.Context) error,
) (gocron.Scheduler, error) {
	elector, err := etcdlockgocron.NewElector(mu)
	if err != nil {
		return nil, err
	}
	go elector.Lead(ctx) // shut the scheduler down before ctx ends
	scheduler, err := gocron.NewScheduler(
		gocron.WithDistributedElector(elector), gocron.WithLocation(time.UTC))
	if err != nil {
		return nil, err
	}
	_, err = scheduler.NewJob(slots, gocron.NewTask(func(ctx context.Context) error {
		return report(mu.Context(ctx)) // this context ends if the lead is lost
	}))
	scheduler.Start()
	return scheduler, err
}

// One of the machines on which the scheduler starts.
func Example() {
	etcd, err := etcdlocktest.Start()
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	session, err := etcdlock.NewSession(etcd.Client())
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(context.Background())

	written := make(chan bool)
	scheduler, err := schedule(session, gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
		time.Minute, func(ctx context.Context) error {
			_, held := etcdlock.TokenFrom(ctx)
			written <- held
			return nil
		})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the report is written under a lock:", <-written)
	if err := scheduler.Shutdown(); err != nil {
		log.Fatal(err)
	}
	// Output: the report is written under a lock: true
}

// All jobs run on the scheduler that leads.
func ExampleElector() {
	etcd, err := etcdlocktest.Start()
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	mu, err := etcdlock.NewMutex(etcd.Client(), "leader/cron")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(context.Background())
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan bool)
	scheduler, err := onLeader(ctx, mu, gocron.DurationJob(10*time.Millisecond),
		func(ctx context.Context) error {
			select {
			case ran <- ctx.Err() == nil:
			case <-ctx.Done():
			}
			return nil
		})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the job runs under the lead:", <-ran)
	scheduler.Shutdown() // before the lead ends
	stop()
	// Output: the job runs under the lead: true
}
