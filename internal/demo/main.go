// Demo is the flash sale that explains distributed locks.
//
//	go run ./internal/demo            300 items, 500 requests, one lock
//	go run ./internal/demo -no-lock   the same without the lock
//	go run ./internal/demo -crash     a worker is killed while it holds the lock
//	go run ./internal/demo -orders    baskets of several articles, all or nothing
//
// The stock is a number in a plain file. Worker processes read it, take the
// payment, and write it back, and nothing but the lock keeps them apart. The
// parent hands out the requests and judges the sale by two witnesses that the
// lock has no part in: the journal of sales and the stock file.
//
// It starts an etcd of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/etcdlock/etcdlock/internal/proof/embedded"
)

// Exit statuses, as a shell expects them.
const (
	exitGood        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

var errTimeLimit = errors.New("the time limit was reached")

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(workerMain())
	}

	// If the reader of the output goes away (demo | head), the demo must not end on the
	// spot: it has worker processes and a directory to clear away.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is the whole program of the parent and returns its exit status.
// It ends early, but in good order, when ctx does.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parseFlags(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		printUsage(stdout)
		return exitGood
	case err != nil:
		fmt.Fprintf(stderr, "demo: %v\nRun it with -h for the flags.\n", err)
		return exitUsage
	}

	ctx, cancel := context.WithTimeoutCause(ctx, cfg.timeLimit(), errTimeLimit)
	defer cancel()
	faults, err := holdSale(ctx, cfg, stdout)
	switch {
	case err != nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), errTimeLimit):
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return exitFailed
	case len(faults) > 0:
		return exitFailed
	}
	return exitGood
}

// holdSale sets the scene, holds the sale, prints the report and clears
// everything away, in the reverse order of setting it up. It returns what the
// report found wrong; an error means that there was nothing to report on.
func holdSale(ctx context.Context, cfg config, stdout io.Writer) (faults []string, err error) {
	dir, err := os.MkdirTemp("", "etcdlock-demo-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	s := &sale{
		cfg:     cfg,
		shop:    shop{dir: dir, articles: cfg.articles()},
		out:     stdout,
		answers: make(map[int]record),
		events:  make(chan event),
	}
	if err := s.shop.open(cfg.itemsEach()); err != nil {
		return nil, err
	}
	where := "Nothing keeps the processes apart: there is no lock."
	if !cfg.noLock {
		etcd, err := embedded.Start(ctx, embedded.Config(filepath.Join(dir, "etcd")))
		if err != nil {
			return nil, fmt.Errorf("starting etcd: %w", err)
		}
		defer etcd.Close()
		s.endpoint = etcd.Clients[0].Addr().String()
		if s.client, err = connect(s.endpoint); err != nil {
			return nil, err
		}
		defer s.client.Close()
		where = fmt.Sprintf("A lock, TTL %v, in an etcd of this run's own at %s.", cfg.ttl, s.endpoint)
	}

	if cfg.orders {
		fmt.Fprintf(stdout,
			"Orders: %d articles, %d items of each, %d orders, %d worker processes.\n%s\n"+
				"An order reads the stock of 1 to %d articles, takes %v for the payment\n"+
				"and writes all of them back.\n",
			s.shop.articles, cfg.itemsEach(), cfg.requests, cfg.workers, where, basketMax, payment)
	} else {
		fmt.Fprintf(stdout,
			"Flash sale: %d items, %d requests, %d worker processes.\n%s\n"+
				"Each sale reads the stock from a plain file, takes %v for the payment\n"+
				"and writes the stock back.\n",
			cfg.stock, cfg.requests, cfg.workers, where, payment)
	}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	return s.report(ctx)
}
