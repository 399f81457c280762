package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/etcdlock/etcdlock/internal/child"
)

const (
	// readyWithin is how long a server may take until it serves. A JVM on a busy machine
	// takes some seconds.
	readyWithin = 30 * time.Second

	// stopWithin is how long it may take to stop before it is killed.
	stopWithin = 5 * time.Second
)

// A process is a server that this program started. It ends with this program, however that
// ends.
type process struct {
	name   string
	cmd    *exec.Cmd
	output *tail
	exited chan struct{} // closed when it has ended
}

// startProcess starts cmd. The signal death is sent to it should this program die.
func startProcess(name string, cmd *exec.Cmd, death syscall.Signal) (*process, error) {
	p := &process{name: name, cmd: cmd, output: &tail{}, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	cmd.WaitDelay = time.Second // for children of its own that keep these open
	inOwnGroup(cmd)
	if err := child.Start(cmd, death); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { // ends with the process
		_ = cmd.Wait() // the error says only how it was stopped
		close(p.exited)
	}()
	return p, nil
}

// ready waits until probe succeeds.
func (p *process) ready(ctx context.Context, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		attempt, done := context.WithTimeout(ctx, time.Second)
		err := probe(attempt)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s has ended; it said:\n%s", p.name, p.output)
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve (%w); it said:\n%s", p.name, err, p.output)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends the process and waits for that.
func (p *process) stop(with os.Signal) {
	_ = p.cmd.Process.Signal(with) // fails if it has ended
	select {
	case <-p.exited:
	case <-time.After(stopWithin):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// A tail is the end of what a process writes.
type tail struct {
	mu  sync.Mutex
	end []byte
}

func (t *tail) Write(b []byte) (int, error) {
	const enough = 4096
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	if over := len(t.end) - enough; over > 0 {
		t.end = append(t.end[:0], t.end[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}

// freePort returns an address on the loopback interface on which nobody listens, whole and
// in parts.
func freePort() (addr, host, port string, err error) {
	addrs, err := child.FreePorts(1)
	if err != nil {
		return "", "", "", err
	}
	host, port, err = net.SplitHostPort(addrs[0])
	return addrs[0], host, port, err
}

// find returns the first of the programs that exists, or says what to install.
func find(debianPackage string, programs ...string) (string, error) {
	for _, program := range programs {
		if path, err := exec.LookPath(program); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is missing: apt-get install %s", programs[len(programs)-1],
		debianPackage)
}
