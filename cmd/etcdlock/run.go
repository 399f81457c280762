package main

import (
	"flag"
	"time"
)

func runCommand() *command {
	return &command{
		name:  "run",
		usage: "[flags] NAME -- COMMAND [ARG...]",
		short: "run a command while holding a lock",
		text: `
It waits for the lock NAME, without -n and -w for ever, runs the command in a process group
of its own, and releases the lock once all of that has ended. The command finds in its
environment ETCDLOCK_NAME, ETCDLOCK_KEY and ETCDLOCK_TOKEN, a number that grows with each
hold of the name: a resource that refuses lower ones is safe from what comes late.

If the lease cannot be renewed the command gets TERM, and KILL after --kill-after: it has
ended before another can hold. If the place was taken away (etcdlock break, a revoked lease)
another may hold already: KILL then comes after a second at most. TERM, INT, HUP, QUIT, USR1
and USR2 are passed on to the group, once. What the command leaves in the background when it
ends gets TERM, and KILL after --kill-after, before the lock is released; on Linux that is all
that it has started, elsewhere its process group. On Linux the command gets KILL if run
itself is killed. On Windows there is no run.

Exit status: that of the command, 128+n if signal n ended it; else, with a line on stderr,
75 taken by another (-n, -w); 76 the lock was lost; 64 usage; 125 no answer from etcd, or
run itself failed; 126 the command cannot be run; 127 it is not there; 128+n signal n came
during the wait.`,
		argv: true,
		flags: func(fs *flag.FlagSet) func(*app, call) error {
			r := new(running)
			fs.BoolVar(&r.now, "n", false, "do not wait, but exit with 75, if the lock is taken")
			fs.DurationVar(&r.wait, "w", 0, "`DURATION` to wait at most")
			fs.DurationVar(&r.ttl, "ttl", 15*time.Second,
				"`DURATION` for which the lock outlives a run that dies;\n"+
					"at least 3 x (kill-after + 1s)")
			fs.DurationVar(&r.killAfter, "kill-after", 3*time.Second, "`DURATION` from TERM to KILL")
			fs.DurationVar(&r.atLeast, "at-least", 0,
				"`DURATION` to hold the lock at least; a signal ends it")
			fs.IntVar(&r.conflict, "conflict-exit-code", exitTaken, "`STATUS` in place of 75")
			return func(a *app, c call) error {
				if err := r.check(c); err != nil {
					return err
				}
				return r.run(a, c)
			}
		},
	}
}

// running is the command with its flags.
type running struct {
	now                           bool
	wait, ttl, killAfter, atLeast time.Duration
	conflict                      int
}

func (r *running) check(c call) error {
	switch {
	case len(c.names) == 0:
		return misused(`run needs the name of a lock before "--"`)
	case len(c.names) > 1:
		return misused(`unexpected argument %q before "--"`, c.names[1])
	case r.now && r.wait != 0:
		return misused("-n and -w: only one of them")
	case r.wait < 0:
		return misused("-w %v: not positive", r.wait)
	case r.killAfter < 0:
		return misused("--kill-after %v: negative", r.killAfter)
	case r.atLeast < 0:
		return misused("--at-least %v: negative", r.atLeast)
	case r.conflict < 0 || r.conflict > 255:
		return misused("--conflict-exit-code %d: not from 0 to 255", r.conflict)
	case r.ttl < r.leastTTL():
		return misused("--ttl %v: less than %v, which --kill-after %v needs",
			r.ttl, r.leastTTL(), r.killAfter)
	}
	return nil
}

// slack is the time from the last KILL to the end of the lease: for the kernel to end processes,
// and for clocks that run at different rates.
const slack = time.Second

// margin is how long before the end of the lease the hold ends.
func (r *running) margin() time.Duration { return r.killAfter + slack }

// leastTTL is the shortest TTL that leaves two thirds of itself for renewals.
func (r *running) leastTTL() time.Duration { return 3 * r.margin() }

// granted is the error of a lease that is shorter than was asked for.
func (r *running) granted(ttl time.Duration) error {
	if ttl >= r.leastTTL() {
		return nil
	}
	return misused("etcd grants a TTL of %v, less than %v, which --kill-after %v needs",
		ttl, r.leastTTL(), r.killAfter)
}

// killAt is when the command is killed that was told to end at a time, for the reason given.
// trusted is until when the hold could be trusted.
//
// Invariant: where the lease was not renewed, KILL is sent before another can hold: kill-after
// after the end of the trust, which is a margin before that of the lease, and not after the
// moment at which the end was noticed. (Do not count from now. TestKillAtCountsFromTheEndOfTrust.)
func (r *running) killAt(now, trusted time.Time, expired bool) time.Time {
	if expired {
		return trusted.Add(r.killAfter)
	}
	return now.Add(min(r.killAfter, time.Second)) // another may hold already
}
