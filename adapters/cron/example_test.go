package etcdlockcron_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/etcdlock/etcdlock"
	etcdlockcron "github.com/etcdlock/etcdlock/adapters/cron"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// schedule has report run each hour, on one of the machines that call it.
func schedule(
	session *etcdlock.Session, report func(ctx context.Context),
) (*cron.Cron, error) {
	once, err := etcdlockcron.OncePerSlot(session, "cron/", 10*time.Second)
	if err != nil {
		return nil, err
	}
	c := cron.New(cron.WithChain(once), cron.WithLocation(time.UTC))
	_, err = c.AddJob("0 * * * *", etcdlockcron.Named("report", report))
	return c, err
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
	c, err := schedule(session, func(ctx context.Context) {
		_, held := etcdlock.TokenFrom(ctx)
		fmt.Println("the report is written under a lock:", held)
	})
	if err != nil {
		log.Fatal(err)
	}
	c.Start()
	defer c.Stop()
	c.Entries()[0].WrappedJob.Run() // without waiting for the hour
	// Output: the report is written under a lock: true
}

// A scheduler of asynq runs on the machine that leads.
func ExampleLead() {
	etcd, err := etcdlocktest.Start()
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	session, err := etcdlock.NewSession(etcd.Client())
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer session.Close(context.Background())
	mu, err := session.Mutex("leader/scheduler")
	if err != nil {
		log.Fatal(err)
	}
	// With its tasks: asynq.NewScheduler(redis, nil), and Register.
	newScheduler := func() (etcdlockcron.Scheduler, error) { return printer{stop}, nil }
	err = etcdlockcron.Lead(ctx, mu, newScheduler)
	fmt.Println("canceled:", errors.Is(err, context.Canceled))
	// Output:
	// it starts
	// it shuts down
	// canceled: true
}

// A printer stands for an *asynq.Scheduler.
type printer struct{ stop func() }

func (p printer) Start() error {
	fmt.Println("it starts")
	p.stop()
	return nil
}

func (printer) Shutdown() { fmt.Println("it shuts down") }
