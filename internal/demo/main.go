// Demo is the flash sale that explains distributed locks.
//
//	go run ./internal/demo            300 items, 500 requests, one lock
//	go run ./internal/demo -no-lock   the same without the lock
//	go run ./internal/demo -crash     a worker is killed while it holds the lock
//	go run ./internal/demo -orders    baskets of several articles, all or nothing
//	go run ./internal/demo -recall    no sale: one long work moves between workers
//
// The stock is a number in a plain file. Worker processes read it, take the
// payment, and write it back, and nothing but the lock keeps them apart. The
// parent hands out the requests and judges the sale by two witnesses that the
// lock has no part in: the journal of sales and the stock file.
//
// It starts an etcd of its own unless -endpoints names a cluster.
package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
		cfg:      cfg,
		dir:      dir,
		shop:     shopIn(dir),
		answers:  make(map[int]record),
		events:   make(chan event),
		progress: newProgress(stdout),
	}
	stock := cfg.stock
	if cfg.recall {
		stock = 0 // the file says how many steps are done
	}
	if err := s.shop.open(stock); err != nil {
		return nil, err
	}

	if cfg.orders {
		if err := s.shop.openArticles(cfg.itemsEach()); err != nil {
			return nil, err
		}
	}

	where := "Nothing keeps the processes apart: there is no lock."
	if !cfg.noLock {
		whose := "etcd"
		if cfg.cluster.Endpoints == nil {
			whose = "an etcd of this run's own"
			etcd, err := embedded.Start(ctx, embedded.Config(filepath.Join(dir, "etcd")))
			if err != nil {
				return nil, fmt.Errorf("starting etcd: %w", err)
			}
			defer etcd.Close()
			s.cfg.cluster.Endpoints = []string{etcd.Clients[0].Addr().String()}
		}
		// Unique to the run, so that two of them on one cluster are two sales.
		s.lock = "etcdlock-demo/" + strings.ToLower(rand.Text()[:12])
		where = fmt.Sprintf("Lock %q, TTL %v,\nin %s at %s.",
			s.lock, cfg.ttl, whose, strings.Join(s.cfg.cluster.Endpoints, ",\n  "))

		s.client, err = connect(ctx, s.cfg.cluster)
		if err != nil {
			return nil, err
		}
		defer s.client.Close()
		// It runs after the workers have ended, and on every way out.
		defer s.sweep()
	}

	if cfg.recall {
		r := &relay{sale: s}
		fmt.Fprintf(stdout, "Relay: one work, %d worker processes, %d recalls.\n%s\n"+
			"Each step takes %v. The holder is asked to hand over, and comes to the\n"+
			"end of its step; the next one goes on where it stopped.\n\n",
			cfg.workers, recalls, where, payment)
		if err := r.run(ctx); err != nil {
			return nil, err
		}
		return r.report(stdout)
	}
	if cfg.orders {
		fmt.Fprintf(stdout,
			"Orders: %d articles, %d items of each, %d orders, %d worker processes.\n%s\n"+
				"An order reads the stock of 1 to %d articles, takes %v for the payment\n"+
				"and writes all of them back.\n\n",
			articles, cfg.itemsEach(), cfg.requests, cfg.workers, where, basketMax, payment)
		if err := s.run(ctx); err != nil {
			return nil, err
		}
		return s.reportOrders(stdout)
	}
	fmt.Fprintf(stdout, "Flash sale: %d items, %d requests, %d worker processes.\n",
		cfg.stock, cfg.requests, cfg.workers)
	fmt.Fprintln(stdout, where)
	fmt.Fprintf(stdout, "Each sale reads the stock from a plain file, takes %v for the payment\n"+
		"and writes the stock back.\n\n", payment)

	if err := s.run(ctx); err != nil {
		return nil, err
	}
	return s.report(stdout)
}

// connect makes a client and proves within a bounded time that etcd answers,
// so that a wrong address is an error here and not a sale that stands still.
func connect(ctx context.Context, c cluster) (*clientv3.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	client, err := dial(ctx, c)
	if err == nil {
		if _, err = client.Get(ctx, lockPrefix); err == nil {
			return client, nil
		}
		client.Close()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v", dialTimeout)
	}
	return nil, fmt.Errorf("cannot use etcd at %s: %w", strings.Join(c.Endpoints, ", "), err)
}

// dial returns a client that has at least one endpoint that accepts connections. The client
// itself would try until the time is up, and then not say why.
func dial(ctx context.Context, c cluster) (*clientv3.Client, error) {
	conf, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: dialTimeout / time.Duration(len(c.Endpoints))}
	dialOne := dialer.DialContext
	if conf != nil {
		dialOne = (&tls.Dialer{NetDialer: dialer, Config: conf}).DialContext
	}
	var failures []error
	for _, endpoint := range c.Endpoints {
		address := endpoint[strings.LastIndex(endpoint, "/")+1:]
		conn, err := dialOne(ctx, "tcp", address)
		if err == nil {
			conn.Close()
			return c.client()
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

// sweep removes what may still be queued for the lock. Workers that ended by themselves
// leave nothing. A worker that had to be killed leaves its key for up to a TTL. No worker
// is alive here and the name is this run's own, so the keys belong to nobody else. If sweep
// fails, they end with their leases.
func (s *sale) sweep() (removed int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	resp, err := s.client.Delete(ctx, s.lock+"/", clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	return resp.Deleted, nil
}

// timeLimit bounds the whole run. A sale on the slowest disks that people use for etcd
// needs some 50 ms per request; after twice that something stands still.
func (c config) timeLimit() time.Duration {
	return time.Minute + c.ttl + time.Duration(c.requests)*100*time.Millisecond
}
