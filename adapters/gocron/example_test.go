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

// schedule starts a scheduler that runs report when a job is due, on one of the machines that call
// it.
func schedule(
	session *etcdlock.Session, due gocron.JobDefinition, report func(ctx context.Context) error,
) (gocron.Scheduler, error) {
	locker, err := etcdlockgocron.NewLocker(session, "cron/", 5*time.Second)
	if err != nil {
		return nil, err
	}
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		return nil, err
	}
	_, err = scheduler.NewJob(due, gocron.NewTask(func(ctx context.Context) error {
		return report(locker.Context(ctx, "report")) // this context ends if the lock is lost
	}), gocron.WithName("report"))
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
		func(ctx context.Context) error {
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
	mu, err := etcdlock.New(etcd.Client(), "leader/cron")
	if err != nil {
		log.Fatal(err)
	}
	defer mu.Close(context.Background())
	elector, err := etcdlockgocron.NewElector(mu)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go elector.Lead(ctx)

	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	ran := make(chan bool)
	_, err = scheduler.NewJob(gocron.DurationJob(10*time.Millisecond),
		gocron.NewTask(func(ctx context.Context) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			select {
			case ran <- mu.Context(ctx).Err() == nil: // this context ends if the lead is lost
			case <-ctx.Done():
			}
		}))
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	fmt.Println("the job runs under the lead:", <-ran)
	scheduler.Shutdown() // before the lead ends
	stop()
	// Output: the job runs under the lead: true
}
