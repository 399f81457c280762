package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/etcdlock/etcdlock/internal/child"
	"github.com/etcdlock/etcdlock/internal/side"
)

// A possession is what a process has when it is killed.
type possession struct {
	role string // the role that makes this program such a process
	of   func(ctx context.Context, p party, name string) (side.Lock, error)
}

var (
	aLock = possession{"holder", lockOf}
	aTerm = possession{"leader", candidateOf}
)

const heldLine = "held"

func lockOf(ctx context.Context, p party, name string) (side.Lock, error) {
	return p.lock(ctx, name)
}

// beHolder locks, or leads, says so, and goes on until in ends. The arguments are the alternative,
// its system's address and the name of the lock.
func beHolder(role string, args []string, in io.Reader, out io.Writer) error {
	if len(args) != 3 {
		return errors.New("want the alternative, the address and the name")
	}
	what := aLock
	if role == aTerm.role {
		what = aTerm
	}
	for _, a := range alternatives {
		if a.title() != args[0] {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
		defer cancel()
		p, err := a.open(ctx, args[1], crashTTL, &wire{})
		if err != nil {
			return err
		}
		l, err := what.of(ctx, p, args[2])
		if err != nil {
			return err
		}
		if err := l.Lock(ctx); err != nil {
			return err
		}
		fmt.Fprintln(out, heldLine)
		_, err = io.Copy(io.Discard, in)
		return errors.Join(errors.New("nobody killed it"), err)
	}
	return fmt.Errorf("no alternative %q", args[0])
}

// startCrash measures how long a holder blocks a waiter once its process is killed. The
// process is killed when it has just got the lock, and so has all of its TTL before it: the
// worst case.
func startCrash(what possession) func(context.Context, *arena) (*event, error) {
	return func(_ context.Context, a *arena) (*event, error) {
		piece := func(ctx context.Context) (measure, error) { return a.crash(ctx, what) }
		return &event{piece, func() {}}, nil
	}
}

func (a *arena) crash(ctx context.Context, what possession) (m measure, err error) {
	parties, end, err := a.parties(ctx, 1, crashTTL)
	if err != nil {
		return m, err
	}
	defer end()
	name := a.name()
	waiter, err := what.of(ctx, parties[0], name)
	if err != nil {
		return m, err
	}
	kill, err := a.startHolder(ctx, what, name)
	if err != nil {
		return m, err
	}
	defer kill()

	ctx, cancel := context.WithTimeout(ctx, 10*crashTTL)
	defer cancel()
	type result struct {
		at  time.Time
		err error
	}
	locked := make(chan result, 1)
	go func() { // ends with ctx
		err := waiter.Lock(ctx)
		locked <- result{time.Now(), err}
	}()
	const queued = 200 * time.Millisecond
	select {
	case r := <-locked:
		if r.err == nil {
			m.broken = "the waiter was in while the holder lived"
		}
		return m, r.err
	case <-time.After(queued):
	}
	killed := time.Now()
	kill()
	r := <-locked
	if r.err != nil {
		return m, r.err
	}
	m.ops, m.value = 1, r.at.Sub(killed)
	m.samples = []time.Duration{m.value}
	m.ttls = m.value.Seconds() / crashTTL.Seconds()
	return m, waiter.Unlock(ctx)
}

// startHolder starts a process. When it returns, that process holds the lock, or leads.
func (a *arena) startHolder(
	ctx context.Context, what possession, name string,
) (kill func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, a.alternative.title(), a.system.address(), name)
	cmd.Env = append(os.Environ(), roleEnv+"="+what.role)
	said := &tail{}
	cmd.Stderr = said
	if _, err := cmd.StdinPipe(); err != nil { // closed by Wait
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	inOwnGroup(cmd)
	if err := child.Start(cmd, syscall.SIGKILL); err != nil {
		return nil, err
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the second time this returns at once
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != heldLine {
		kill()
		return nil, fmt.Errorf("the holder said %q %q (%w)", line, said, err)
	}
	return kill, nil
}
