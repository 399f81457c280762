//go:build linux || darwin || freebsd

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// A belief is that a process holds the lock, from a time to a time by bootTime.
type belief struct {
	from, to time.Duration
	lost     bool
}

// A verdict is what beliefs of all processes come to.
type verdict struct {
	holds, lost, twice int
	longest            time.Duration // without a holder
}

// judgeBeliefs says how often two believed at a time. A belief that began before another has ended
// counts once.
func judgeBeliefs(all []belief) (v verdict) {
	slices.SortFunc(all, func(a, b belief) int { return int(a.from - b.from) })
	var until time.Duration
	for i, b := range all {
		v.holds++
		if b.lost {
			v.lost++
		}
		if i > 0 && b.from <= until {
			v.twice++
		} else if i > 0 {
			v.longest = max(v.longest, b.from-until)
		}
		until = max(until, b.to)
	}
	return v
}

// judge has holders in several processes take turns, and judges what they believed.
func (b *bench) judge(a *app) error {
	self, err := ownBinary()
	if err != nil {
		return err
	}
	client, err := a.etcd.open()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, b.long)
	defer cancel()
	a.say("%d processes take turns for %v: restart members of etcd meanwhile", b.processes, b.long)

	var mu sync.Mutex
	var all []belief
	var holders sync.WaitGroup
	var failures []error
	for range b.processes {
		cmd := exec.Command(self, "bench-holder", "--prefix", b.prefix, "--ttl", b.ttl.String())
		cmd.Args[0] = os.Args[0]
		cmd.Env, cmd.Stderr = append(os.Environ(), b.variables...), a.stderr
		end, err := cmd.StdinPipe() // its end ends the holder
		if err != nil {
			return err
		}
		told, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		holders.Go(func() {
			lines := bufio.NewScanner(told)
			for lines.Scan() {
				var b belief
				if _, err := fmt.Sscan(lines.Text(), &b.from, &b.to, &b.lost); err == nil {
					mu.Lock()
					all = append(all, b)
					mu.Unlock()
				}
			}
			if err := cmd.Wait(); err != nil {
				mu.Lock()
				failures = append(failures, err)
				mu.Unlock()
			}
		})
		context.AfterFunc(ctx, func() { end.Close() })
	}
	holders.Wait()
	if len(failures) > 0 {
		return ends(exitFailed, fmt.Errorf("a holder failed: %w", errors.Join(failures...)))
	}
	return judged(a, judgeBeliefs(all))
}

// judged says the verdict.
func judged(a *app, v verdict) error {
	fmt.Fprintf(a.stdout,
		"%d holds, %d lost, %v at most without a holder: two held at a time %d times\n",
		v.holds, v.lost, v.longest.Round(time.Millisecond), v.twice)
	if v.twice > 0 {
		return ends(exitBad, nil)
	}
	return nil
}

// benchHolderCommand is one of these processes. The help does not list it.
func (a *app) benchHolderCommand() *cobra.Command {
	var prefix string
	var ttl time.Duration
	c := &cobra.Command{
		Use: "bench-holder", Short: "a holder of bench --judge", Hidden: true, Args: atMost(0),
		RunE: func(*cobra.Command, []string) error {
			signal.Ignore(os.Interrupt) // ^C ends bench, which ends this
			client, err := a.etcd.open()
			if err != nil {
				return err
			}
			defer client.Close()
			return a.believes(client, prefix+"judged", ttl)
		},
	}
	c.Flags().StringVar(&prefix, "prefix", "", "")
	c.Flags().DurationVar(&ttl, "ttl", 0, "")
	return c
}

// believes takes a lock again and again until stdin ends, and writes a line about each hold: from
// when to when it believed, and whether it was lost.
func (a *app) believes(client *clientv3.Client, name string, ttl time.Duration) error {
	const holdsFor, look = 50 * time.Millisecond, time.Millisecond
	s, err := etcdlock.NewSession(client, etcdlock.WithTTL(ttl))
	if err != nil {
		return misused("%w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // ends with stdin, at the latest with the process
		_, _ = io.Copy(io.Discard, a.stdin)
		stop()
	}()
	for ctx.Err() == nil {
		h, err := s.Lock(ctx, name)
		if ctx.Err() != nil && err != nil {
			break
		}
		if err != nil {
			return err // etcd refuses
		}
		held := h.Context(context.Background())
		b := belief{from: bootTime()}
		b.to = b.from
		for now := b.from; held.Err() == nil; now = bootTime() {
			// (The clock is read before the look: what was true then is true of that time.)
			if b.to = now; now-b.from > holdsFor {
				break
			}
			time.Sleep(look)
		}
		b.lost = errors.Is(h.Unlock(context.Background()), etcdlock.ErrLost)
		fmt.Fprintln(a.stdout, int64(b.from), int64(b.to), b.lost)
	}
	end, cancel := context.WithTimeout(context.Background(), ttl)
	defer cancel()
	_ = s.Close(end) // what it could not give back expires
	return nil
}
