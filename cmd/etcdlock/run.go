package main

import (
	"errors"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

func (a *app) runCommand() *cobra.Command {
	r := new(running)
	c := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARG...]",
		Short: "run a command while holding a lock",
		Long: `Run a command while holding a lock.

run waits for the lock NAME (for ever without -n and -w), runs the command in a process group
of its own, and releases the lock once all of it has ended. The command's environment has
ETCDLOCK_NAME, ETCDLOCK_KEY and ETCDLOCK_TOKEN. The token is a number that grows with each hold
of the name: a resource that refuses lower ones is safe from late writes. ETCDLOCK_HELD has the
holds of all runs around the command: a run inside of one that has its lock is an error at once,
without --nested. ETCDCTL_PASSWORD and the password in ETCDCTL_USER are taken out of it, without
--keep-secrets.

With -s it holds the lock beside others that have -s, and with -N beside others that have -N, as
long as they are within the limit. A run without these excludes all of them.

If the lease cannot be renewed, the command gets TERM, and KILL after --kill-after, so that it
ends before another can hold. If the place was taken away (etcdlock break, a revoked lease),
another may hold already, and KILL comes at most a second after TERM. run passes TERM, INT, HUP,
QUIT, USR1 and USR2 on to the group, once. Processes that the command leaves behind get TERM,
and KILL after --kill-after, before run releases the lock: on Linux everything that the command
started, elsewhere its process group. On Linux the command gets KILL if run itself is killed.
There is no run on Windows.

A second process of run, its watchdog, knows when the lease ends. If run itself is stopped (kill
-STOP, a debugger) the watchdog sends TERM and KILL in its place, before another can hold.

With --at-least run exits when the command has ended, and the lock stays taken for the rest of
that time, on a lease that ends up to 3s later. If a signal or a recall has ended the command it
is released at once.

With --recall, etcdlock recall may ask for the lock: the command gets TERM at once, and KILL when
the grace is over, and the lock is released once all of it has ended.

Exit status: that of the command, or 128+n if signal n ended it. Otherwise, with a line on
stderr: 75 taken by another (-n, -w); 76 the lock was lost; 77 it was recalled; 64 usage; 125 no
answer from etcd, or run itself failed; 126 the command cannot be run; 127 it is not there; 128+n
signal n came during the wait. A wait without -n and -w says on stderr when etcd does not answer,
and after 10s what it waits for.`,
		Args: nameAndCommand,
		RunE: func(c *cobra.Command, args []string) error {
			if err := r.check(); err != nil {
				return err
			}
			// Without -w the wait has no bound, but -w 0 does not wait, as flock's does not.
			r.now = r.now || r.wait == 0 && c.Flags().Changed("timeout")
			return r.run(a, args[0], args[1:])
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, word string) ([]string,
			cobra.ShellCompDirective) {
			if len(args) == 0 {
				return a.lockNames(c, args, word)
			}
			return nil, cobra.ShellCompDirectiveDefault // the command and its arguments
		},
	}
	f := c.Flags()
	f.BoolVarP(&r.now, "nonblock", "n", false,
		"do not wait; exit with 75 if the lock is taken;\netcd itself may take 5s to answer")
	f.DurationVarP(&r.wait, "timeout", "w", 0, "wait at most this long; 0 is -n")
	f.DurationVar(&r.ttl, "ttl", 15*time.Second,
		"how long the lock outlives a run that dies;\nat least 3 x (kill-after + 1s)")
	f.DurationVar(&r.killAfter, "kill-after", 3*time.Second, "time from TERM to KILL")
	f.DurationVar(&r.atLeast, "at-least", 0,
		"keep the lock taken at least this long, though run\n"+
			"has exited; a signal or a recall ends that (not with -s, -N)")
	f.DurationVar(&r.recall, "recall", 0,
		"let etcdlock recall end the command, with this grace at most")
	f.BoolVarP(&r.shared, "shared", "s", false,
		"share the lock with others that have -s, as readers do")
	f.FuncP("limit", "N",
		"at most this `number` at a time, 1 to 65535; while runs\ndisagree the lowest limit counts",
		func(text string) (err error) {
			if r.limit, err = strconv.Atoi(text); err != nil || r.limit < 1 || r.limit > 65535 {
				return errors.New("not from 1 to 65535")
			}
			return nil
		})
	f.StringVar(&r.owner, "owner", "", "the holder's name for others (default host and pid)")
	f.StringVar(&r.info, "info", "", "what else to tell them: an address, a version")
	f.BoolVar(&r.nested, "nested", false,
		"run the command without the lock if a run around this\none has it; otherwise that is an error")
	f.BoolVar(&r.keepSecrets, "keep-secrets", false, "leave the command the password of etcd")
	f.IntVar(&r.conflict, "conflict-exit-code", exitTaken, "exit `status` instead of 75")
	return c
}

// nameAndCommand wants the name of a lock before "--" and a command after it.
func nameAndCommand(c *cobra.Command, args []string) error {
	switch dash := c.ArgsLenAtDash(); {
	case dash < 0 || dash == len(args):
		return misused(`run: "--" and a command are needed; etcdlock help run tells more`)
	case dash == 0:
		return misused(`run needs the name of a lock before "--"`)
	case dash > 1:
		return misused(`unexpected argument %q before "--"`, args[1])
	}
	return nil
}

// running is the run command with its flags.
type running struct {
	now                           bool
	wait, ttl, killAfter, atLeast time.Duration
	recall                        time.Duration // 0: it does not listen
	owner, info                   string
	conflict                      int
	shared                        bool
	limit                         int // 0 without -N
	nested, keepSecrets           bool
}

func (r *running) check() error {
	switch {
	case r.now && r.wait != 0:
		return misused("-n and -w: only one of them")
	case r.atLeast > 0 && (r.shared || r.limit != 0):
		return misused("--at-least and -s or -N: only one of them")
	case r.shared && r.limit != 0:
		return misused("-s and -N: only one of them")
	case !fits(r.owner):
		return misused("--owner: not UTF-8 of at most %d bytes", maxLabel)
	case !fits(r.info):
		return misused("--info: not UTF-8 of at most %d bytes", maxLabel)
	case r.conflict < 0 || r.conflict > 255:
		return misused("--conflict-exit-code %d: not from 0 to 255", r.conflict)
	case r.ttl < r.leastTTL():
		return misused("--ttl %v: less than %v, which --kill-after %v needs",
			r.ttl, r.leastTTL(), r.killAfter)
	}
	return nil
}

// maxLabel is how long --owner and --info may be, in bytes.
const maxLabel = 1024

func fits(label string) bool { return len(label) <= maxLabel && utf8.ValidString(label) }

// slack is the time from the last KILL to the end of the lease. It allows for the kernel to end
// processes and for clocks that run at different rates.
const slack = time.Second

// margin is how long before the end of the lease the hold ends.
func (r *running) margin() time.Duration { return r.killAfter + slack }

// leastTTL is the shortest TTL that leaves two thirds of itself for renewals.
func (r *running) leastTTL() time.Duration { return 3 * r.margin() }

// granted returns an error if the granted TTL is too short for --kill-after.
func (r *running) granted(ttl time.Duration) error {
	if ttl >= r.leastTTL() {
		return nil
	}
	return misused("etcd grants a TTL of %v, less than %v, which --kill-after %v needs",
		ttl, r.leastTTL(), r.killAfter)
}

// killAt is when to send KILL to a command that got TERM at now. trusted is when the trust in
// the hold ended; expired reports whether it ended because the lease was not renewed.
//
// Invariant: where the lease was not renewed, KILL is sent before another can hold. It is sent
// kill-after after the end of the trust, which is a margin before the end of the lease, and not
// kill-after after the loss was noticed. (Do not count from now.
// TestKillAtCountsFromTheEndOfTrust.)
func (r *running) killAt(now, trusted time.Time, expired bool) time.Time {
	if expired {
		return trusted.Add(r.killAfter)
	}
	return now.Add(min(r.killAfter, time.Second)) // another may hold already
}
