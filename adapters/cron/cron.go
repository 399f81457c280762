// Package etcdlockcron makes the jobs of robfig/cron run on one of several machines in each slot,
// and has a scheduler such as asynq's run on the machine that leads.
//
//	once, err := etcdlockcron.OncePerSlot(session, "cron/", 10*time.Second)
//	if err != nil {
//		return nil, err
//	}
//	c := cron.New(cron.WithChain(once), cron.WithLocation(time.UTC))
//	_, err = c.AddJob("0 * * * *", etcdlockcron.Named("report", report))
//
// # Slots
//
// The machines need the same slots: those of a specification such as "0 * * * *" are. The slots of
// "@every 1h" count from the start of each scheduler. So they need one time zone, best UTC: a local
// 02:30 comes twice when the clocks go back, and not at all when they go forward.
//
// # A loss
//
// The context of a job ends when its lock is lost, before another machine can get it:
// [context.Cause] says why, and [etcdlock.TokenFrom] has the fencing token of the run.
package etcdlockcron

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/etcdlock/etcdlock"
)

// A job has a name, and a context for its work.
type job struct {
	name string
	work func(ctx context.Context)
}

// Named returns a job that [OncePerSlot] runs under the lock of its name. work gets a context that
// ends if the lock is lost. Without OncePerSlot the job runs with a context that does not end.
func Named(name string, work func(ctx context.Context)) cron.Job { return job{name, work} }

// Run runs the job without a lock.
func (j job) Run() { j.work(context.Background()) }

// OncePerSlot returns a JobWrapper for the jobs of [Named]. Of the machines that start a slot of a
// job the first one runs it. Its lock is that of session with the name of the job behind prefix,
// escaped as a part of a URL's path: that of "report" is "cron/report" with the prefix "cron/". It
// does no I/O. The options count for each lock, except [etcdlock.WithMinHold].
//
// least is how long the lock stays taken from its beginning, however short the job is. A slot runs
// once if the machines start it at most half of that apart: by how much their clocks differ, and a
// busy machine is late. A machine that gets no answer from etcd within half of least does not run
// the slot: it would not know whether the slot has run. While etcd is that slow a slot may not run
// at all.
//
// Slots that are nearer to each other than least do not all run, nor do those in which the job of
// an earlier slot still runs, here or elsewhere. 10 s does for a job each minute. If a machine dies
// within a job the lock is free when the lease of its session has expired ([etcdlock.WithTTL]):
// with a TTL of at least least no other machine runs that slot again.
//
// cron.DefaultLogger gets the errors of locks, and losses, but not that another machine runs a
// slot. A run costs one request for its lock and one for the Unlock, or three if it is shorter than
// least.
//
// A nil session, a least below a millisecond, and a prefix or option that no lock can have are
// errors. A job that has no name, or one that no lock can have, does not run: all nameless jobs
// would have one lock. cron.DefaultLogger gets the reason when it is wrapped, and with each slot.
func OncePerSlot(
	session *etcdlock.Session, prefix string, least time.Duration, opts ...etcdlock.Option,
) (cron.JobWrapper, error) {
	if session == nil {
		return nil, errors.New("etcdlockcron: nil Session")
	}
	opts = append(opts[:len(opts):len(opts)], etcdlock.WithMinHold(least))
	if _, err := session.Mutex(prefix+"job", opts...); err != nil {
		return nil, fmt.Errorf("etcdlockcron: OncePerSlot with prefix %q and least %v: %w", prefix,
			least, err)
	}
	return func(of cron.Job) cron.Job {
		j, name, err := named(session, prefix, of)
		if err != nil {
			refuse := func() { cron.DefaultLogger.Error(err, "the job does not run") }
			refuse()
			return cron.FuncJob(refuse)
		}
		return cron.FuncJob(func() { run(session, name, least/2, j, opts) })
	}, nil
}

// named returns a job of Named, and the name of its lock.
func named(session *etcdlock.Session, prefix string, of cron.Job) (j job, lock string, err error) {
	j, ok := of.(job)
	if !ok {
		return j, "", fmt.Errorf("etcdlockcron: a %T has no name: make the job by Named", of)
	}
	if j.name == "" {
		return j, "", errors.New("etcdlockcron: a job with an empty name")
	}
	lock = prefix + url.PathEscape(j.name)
	if _, err := session.Mutex(lock); err != nil {
		return j, "", fmt.Errorf("etcdlockcron: the job %q: %w", j.name, err)
	}
	return j, lock, nil
}

// run runs a slot of a job, unless another machine does, or etcd does not answer within the bound.
func run(
	session *etcdlock.Session, name string, bound time.Duration, j job, opts []etcdlock.Option,
) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	hold, err := session.TryLock(ctx, name, opts...)
	cancel()
	switch {
	case errors.Is(err, etcdlock.ErrLocked), errors.Is(err, etcdlock.ErrClosed):
		return
	case err != nil:
		cron.DefaultLogger.Error(err, "the slot does not run here", "job", j.name)
		return
	}
	defer func() { // also if the job panics
		if err := hold.Unlock(context.Background()); err != nil {
			cron.DefaultLogger.Error(err, "the lock of the slot", "job", j.name)
		}
	}()
	j.work(hold.Context(context.Background()))
}
