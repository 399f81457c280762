//go:build timed && (linux || darwin || freebsd)

package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// What a run does in time: before a lease ends, within a grace, or after a wait.

// etcdctl lock lets its command go on after a loss. consul lock leaves children behind, and
// ends them late. Here the command and its daemon are both deaf, and both have ended before
// the next one begins.
//
//	last renewal   + TTL - 2.5 s: TERM   + TTL - 1 s: KILL   + TTL: the other begins
func TestALossEndsAllOfTheCommandBeforeAnotherHolds(t *testing.T) {
	const ttl, margin = 11 * time.Second, 3500 * time.Millisecond // by default it would be 1.4 s
	fast := []string{"--ttl", "11s", "--kill-after", "2500ms"}
	e := newEtcd(t)
	wire := newWire(t, e.addr)
	command, daemon, next := file(t, "command"), file(t, "daemon"), file(t, "next")
	behind := *e
	behind.addr = wire.addr()
	loser := behind.run(t, fast, "job", command, "deaf", "daemon="+daemon)
	first(t, command, "beat")
	e.run(t, fast, "job", next)
	e.line(t, "job", 2)
	e.renews(t, e.line(t, "job", 2)[0].Lease)
	cut := time.Now()
	wire.Cut()

	loser.exits(exitLost).says("not renewed in time")
	isGone(t, number(t, command, "pid"))
	isGone(t, number(t, daemon, "pid"))
	began := first(t, next, "start")
	for _, worker := range []string{command, daemon} {
		end := last(t, worker, "beat")
		require.True(t, end.Before(began), "%s lived %v too long", worker, end.Sub(began))
		told := first(t, worker, "signal=15")
		require.True(t, end.After(told), "there was no time between TERM and KILL")
		require.Greater(t, told.Sub(cut), time.Second, "it was ended although the lease was whole")
		require.Less(t, told.Sub(cut), ttl-margin+1100*time.Millisecond, "the margin is not kept")
	}
	require.Less(t, began.Sub(cut), ttl+patience/2)
}

// A place that is taken away may already be another's. So a deaf command has one second,
// and not kill-after.
func TestABreakEndsTheCommandWithinASecond(t *testing.T) {
	e := newEtcd(t)
	command := file(t, "command")
	loser := e.run(t, []string{"--kill-after", "4s"}, "job", command, "deaf")
	first(t, command, "beat")
	token := e.line(t, "job", 1)[0].Token
	status, _, _ := runs(t, "", "--endpoints", e.addr, "break", "job", "--token", fmt.Sprint(token))
	require.Equal(t, exitGood, status)
	loser.exits(exitLost).says("its key was deleted")
	grace := last(t, command, "beat").Sub(last(t, command, "signal=15"))
	require.Greater(t, grace, 200*time.Millisecond)
	require.Less(t, grace, 3*time.Second)
	isGone(t, number(t, command, "pid"))
}

// An etcd that does not answer delays a run that does not wait by at most 5 s.
func TestAnEtcdThatIsSilentEndsARunThatDoesNotWait(t *testing.T) {
	e := newEtcd(t)
	wire := newWire(t, e.addr)
	wire.Cut()
	for _, addr := range []string{wire.addr(), nobody} {
		t.Run(addr, func(t *testing.T) {
			started := time.Now()
			starts(t, []string{"run", "--endpoints", addr, "-n", "job", "--", "true"}).
				exits(exitFailed).says("etcd did not answer in 4.5s")
			require.Less(t, time.Since(started), 10*time.Second)
		})
	}
}

// A run that waits for ever says why.
func TestALongWaitSaysWhatItIsFor(t *testing.T) {
	e := newEtcd(t)
	mu := e.holds(t, "job", etcdlock.WithOwner("api-7:1234"))
	run := starts(t, e.args(nil, "job", file(t, "command"), "deaf", "signals=1"), env(sayWhyEnv+"=3s"))
	eventually(t, func() bool {
		return strings.Contains(run.stderr.String(), "\n")
	}, "it says nothing")
	run.says(`run has waited 3s for lock "job": held by api-7:1234 (`)
	run.says(`; 1 before it in line`)
	require.NoError(t, mu.Unlock(context.Background()))

	away := &etcd{addr: nobody}
	run = starts(t, away.args(nil, "job", file(t, "command")), env(sayWhyEnv+"=1h"))
	eventually(t, func() bool {
		return strings.Contains(run.stderr.String(), "\n")
	}, "it says nothing")
	run.says(`lock "job": waits for etcd: `)
	run.says("connection refused")
}

// What a command leaves behind, deaf and in a session of its own, ends before the release.
func TestWhatStaysInTheBackgroundEndsBeforeTheRelease(t *testing.T) {
	e := newEtcd(t)
	daemon, next := file(t, "daemon"), file(t, "next")
	run := e.run(t, []string{"--kill-after", "1s"}, "job", file(t, "command"), "daemon="+daemon,
		"leave")
	first(t, daemon, "signal=15")
	waits := e.run(t, nil, "job", next)
	run.exits(exitGood)
	require.Empty(t, run.stderr.String())
	isGone(t, number(t, daemon, "pid"))
	require.True(t, last(t, daemon, "beat").Before(first(t, next, "start")),
		"it works beside the next")
	require.Greater(t, last(t, daemon, "beat").Sub(first(t, daemon, "signal=15")),
		200*time.Millisecond)
	require.NoError(t, waits.Process.Signal(syscall.SIGTERM))
	waits.exits(143)
}

// The lock stays taken though the command was quick and the run has exited, since the clocks of
// machines differ. A signal that ends the command ends that, too.
func TestTheLockIsTakenAtLeast(t *testing.T) {
	e := newEtcd(t)
	started := time.Now()
	starts(t, []string{"run", "--endpoints", e.addr, "--at-least", "2s", "job", "--", "sh", "-c",
		"exit 3"}).exits(3)
	kept := e.line(t, "job", 1)[0]
	require.WithinRange(t, kept.Until, started.Add(2*time.Second), time.Now().Add(2*time.Second))
	_, stdout, _ := runs(t, "", "who", "job", "--endpoints", e.addr)
	require.Regexp(t, `job +kept [0-2]s`, stdout)
	starts(t, []string{"run", "--endpoints", e.addr, "-n", "job", "--", "true"}).exits(exitTaken)
	starts(t, []string{"run", "--endpoints", e.addr, "job", "--", "true"}).exits(exitGood)
	require.GreaterOrEqual(t, time.Since(started), 2*time.Second)

	command := file(t, "command")
	run := e.run(t, []string{"--at-least", "1h"}, "job", command, "deaf", "signals=1")
	first(t, command, "beat")
	require.NoError(t, run.Process.Signal(syscall.SIGHUP))
	run.exits(7)
	e.line(t, "job", 0)

	command = file(t, "another")
	run = e.run(t, []string{"--at-least", "1h"}, "job", command)
	first(t, command, "beat")
	e.server.DeleteKey(e.line(t, "job", 1)[0].Key)
	run.exits(exitLost).says("its key was deleted")
}

// A deaf command has at most the run's own --recall, and so has what it leaves behind. The
// lock is released once all of it has ended, and not at the end of the grace.
func TestARecallKillsWhatIsDeafBeforeTheRelease(t *testing.T) {
	e := newEtcd(t)
	command, daemon, next := file(t, "command"), file(t, "daemon"), file(t, "next")
	run := e.run(t, []string{"--recall", "5s", "--ttl", "1m", "--kill-after", "15s"},
		"job", command, "deaf", "daemon="+daemon)
	first(t, command, "beat")
	waits := e.run(t, nil, "job", next)
	e.line(t, "job", 2)
	asked := time.Now()
	status, _, stderr := runs(t, "", "recall", "job", "--endpoints", e.addr, "--grace", "1h")
	require.Equal(t, exitGood, status, stderr)
	run.exits(exitRecalled).says("recalled")
	require.GreaterOrEqual(t, time.Since(asked), 5*time.Second)
	began := first(t, next, "start")
	for _, worker := range []string{command, daemon} {
		end := last(t, worker, "beat")
		require.True(t, end.Before(began), "it works beside the next")
		// Not since its TERM: a worker may note that late, on a machine that has much else to do.
		require.Greater(t, end.Sub(asked), 2*time.Second, "it had the second of a command that is broken")
		require.Less(t, end.Sub(first(t, worker, "signal=15")), 15*time.Second, "it had kill-after, too")
	}
	isGone(t, number(t, command, "pid"))
	isGone(t, number(t, daemon, "pid"))
	require.NoError(t, waits.Process.Kill())
}

// A holder that listens, but does not unlock, is still there when the wait is over. recall
// deletes it if the user wants that.
func TestARecallThatIsNotHeeded(t *testing.T) {
	for _, breaks := range []bool{false, true} {
		t.Run(fmt.Sprint("break ", breaks), func(t *testing.T) {
			e := newEtcd(t)
			mu := e.holds(t, "job", etcdlock.WithRecall(time.Hour))
			key := mu.Key()
			args := []string{"recall", "job", "--endpoints", e.addr, "--grace", "0s", "--wait"}
			if breaks {
				args = append(args, "--break")
			}
			hold := mu.Context(context.Background())
			status, stdout, stderr := runs(t, "", args...)
			require.ErrorIs(t, context.Cause(hold), etcdlock.ErrRecalled)
			if !breaks {
				require.Equal(t, exitBad, status)
				require.Contains(t, stderr, "still there: "+key)
				require.NoError(t, mu.Unlock(context.Background()))
				return
			}
			require.Equal(t, exitGood, status, stderr)
			require.Equal(t, "asked "+key+"\ndeleted "+key+"\n", stdout)
			require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
		})
	}
}

// A run that waited for as long as it may says who holds.
func TestAWaitThatIsOver(t *testing.T) {
	e := newEtcd(t)
	e.holds(t, "taken")
	starts(t, []string{"run", "--endpoints", e.addr, "-w", "4s", "taken", "--", "true"}).
		exits(exitTaken).says("; waited for 4s")
}

// renews waits until a lease is renewed.
func (e *etcd) renews(t *testing.T, lease clientv3.LeaseID) {
	t.Helper()
	before := int64(-1)
	eventually(t, func() bool {
		resp, err := e.client.TimeToLive(context.Background(), lease)
		require.NoError(t, err)
		more := before >= 0 && resp.TTL > before
		before = resp.TTL
		return more
	}, "%x is not renewed", int64(lease))
}

// A wire is a TCP connection to some address. It can become a black hole.
type wire struct {
	net.Listener
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{Listener: l}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				from.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, from, server)
			w.mu.Unlock()
			running.Go(func() { w.carry(from, server) })
			running.Go(func() { w.carry(server, from) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.mu.Lock()
		for _, conn := range w.conns {
			conn.Close()
		}
		w.mu.Unlock()
		running.Wait()
	})
	return w
}

// Cut makes the bytes in both directions fall into a black hole, for good.
func (w *wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
}

func (w *wire) carry(from, to net.Conn) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		w.mu.Lock()
		cut := w.cut
		w.mu.Unlock()
		if err != nil {
			if !cut {
				to.Close()
			}
			return
		}
		if cut {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (w *wire) addr() string { return w.Addr().String() }
