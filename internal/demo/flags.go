package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

// config is what the flags say, checked.
type config struct {
	workers, requests, stock int
	ttl                      time.Duration
	noLock, crash, orders    bool
}

// newFlagSet declares the flags. Their values go into c.
func newFlagSet(c *config) *flag.FlagSet {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints the error, once
	fs.IntVar(&c.workers, "workers", 4, "worker processes")
	fs.IntVar(&c.requests, "requests", 500, "purchase requests")
	fs.IntVar(&c.stock, "stock", 300, "items to sell")
	fs.DurationVar(&c.ttl, "ttl", 0,
		"how long a crashed holder blocks the others\n(default 5s, with -crash 2s)")
	fs.BoolVar(&c.noLock, "no-lock", false, "leave the lock out and see what happens")
	fs.BoolVar(&c.crash, "crash", false, "kill a worker while it holds the lock")
	fs.BoolVar(&c.orders, "orders", false,
		"sell baskets of 1 to 4 articles, each entirely or not at all")
	return fs
}

func printUsage(w io.Writer) {
	fmt.Fprint(w, `A flash sale: worker processes sell items whose number stands in a plain
file, and only a lock in etcd keeps them apart.

Usage: go run ./internal/demo [flags]

`)
	fs := newFlagSet(new(config))
	fs.SetOutput(w)
	fs.PrintDefaults()
}

func parseFlags(args []string) (config, error) {
	var c config
	fs := newFlagSet(&c)
	if err := fs.Parse(args); err != nil {
		return config{}, err
	}
	if fs.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	ttlGiven := false
	fs.Visit(func(f *flag.Flag) { ttlGiven = ttlGiven || f.Name == "ttl" })
	if !ttlGiven {
		c.ttl = 5 * time.Second
		if c.crash {
			c.ttl = 2 * time.Second
		}
	}

	for _, bound := range []struct {
		name       string
		value, max int
	}{
		{"workers", c.workers, 64},
		{"requests", c.requests, 10_000},
		{"stock", c.stock, 1_000_000},
	} {
		if bound.value < 1 || bound.value > bound.max {
			return config{}, fmt.Errorf("-%s %d: must be from 1 to %d", bound.name, bound.value, bound.max)
		}
	}
	switch {
	case c.ttl < time.Second || c.ttl > time.Minute:
		return config{}, fmt.Errorf("-ttl %v: must be from 1s to 1m", c.ttl)
	case c.crash && c.workers < 2:
		return config{}, fmt.Errorf("-crash with -workers %d: somebody has to be left", c.workers)
	case c.crash && c.orders:
		return config{}, errors.New("-orders with -crash: the crash is of a sale with one stock")
	case c.crash && c.noLock:
		return config{}, errors.New("-no-lock with -crash: there is no lock to hold")
	case ttlGiven && c.noLock:
		return config{}, fmt.Errorf("-no-lock with -ttl %v: there is no lock to end", c.ttl)
	}
	return c, nil
}

// articles is how many articles the shop has.
func (c config) articles() int {
	if c.orders {
		return orderArticles
	}
	return 1
}

// itemsEach is the stock of each article. In all it is about what -stock says.
func (c config) itemsEach() int { return (c.stock + c.articles() - 1) / c.articles() }

// timeLimit bounds the whole run. A sale on the slowest disks that people use for etcd
// needs some 50 ms per request; after twice that something stands still.
func (c config) timeLimit() time.Duration {
	return time.Minute + c.ttl + time.Duration(c.requests)*100*time.Millisecond
}
