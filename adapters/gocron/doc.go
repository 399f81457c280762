// Package etcdlockgocron makes the jobs of gocron v2 run on one of several schedulers, by locks of
// etcdlock: a gocron.Locker, and a gocron.Elector.
//
//	splay := min(period/5, 5*time.Second) // period: the time between two slots
//	locker, err := etcdlockgocron.NewLocker(session, "cron/", splay)
//	if err != nil {
//		return nil, err
//	}
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	if err != nil {
//		return nil, err
//	}
//	_, err = scheduler.NewJob(slots, gocron.NewTask(func(ctx context.Context) error {
//		return report(locker.Context(ctx, "report")) // this context ends if the lock is lost
//	}), gocron.WithName("report"))
//
// # Which of the two
//
// A [Locker] spreads the jobs: each slot of a job runs on the scheduler that is there first, once,
// also if the job is shorter than the clocks differ. If that scheduler dies the next slot runs on
// another one. An [Elector] runs all jobs on the scheduler that leads. It does not know what was
// run: near a change of leaders a slot may run twice, or not at all.
//
// Neither aligns the slots. A gocron.CronJob has the same slots everywhere; a gocron.DurationJob
// counts from the start of its scheduler unless it has gocron.WithStartAt.
//
// # A loss
//
// gocron has no way to tell a job that its lock is lost. [Locker.Context], and
// [etcdlock.Mutex.Context] for an Elector, give a job a context that ends then, before another
// scheduler gets the lock. gocron also drops the errors of Unlock: [etcdlock.WithLogger] and
// [etcdlock.WithTrace] tell of a loss.
package etcdlockgocron
