package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// dialTimeout bounds the first contact with etcd, and each last one.
const dialTimeout = 5 * time.Second

// config is what the flags say, checked.
type config struct {
	workers, requests, stock int
	ttl                      time.Duration
	noLock, crash, recall    bool
	orders                   bool
	cluster                  cluster
}

// cluster is how to reach etcd. Workers get it on their standard input, and never in their
// arguments or environment, because there is a password in it.
type cluster struct {
	Endpoints         []string
	User, Password    string
	CACert, Cert, Key string // files
}

// newFlagSet declares the flags. Their values go into c and endpoints.
func newFlagSet(c *config, endpoints *string) *flag.FlagSet {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints the error, once
	fs.IntVar(&c.workers, "workers", 4, "worker processes")
	fs.IntVar(&c.requests, "requests", 500, "purchase requests")
	fs.IntVar(&c.stock, "stock", 300, "items to sell")
	fs.DurationVar(&c.ttl, "ttl", 0,
		"how long a crashed holder blocks the others\n(default 5s, with -crash 2s)")
	fs.BoolVar(&c.noLock, "no-lock", false, "leave the lock out and see what happens")
	fs.BoolVar(&c.crash, "crash", false, "kill a worker while it holds the lock")
	fs.BoolVar(&c.recall, "recall", false,
		"instead of the sale, move one long work between workers:\neach holder is recalled and hands over")
	fs.BoolVar(&c.orders, "orders", false,
		"sell baskets of 1 to 4 articles, each entirely or not at all")
	fs.StringVar(endpoints, "endpoints", "",
		"comma separated `addresses` of a real cluster to use\ninstead of an etcd of its own")
	fs.StringVar(&c.cluster.User, "user", "", "`name` of an etcd user who may write below "+lockPrefix)
	fs.StringVar(&c.cluster.Password, "password", "", "`secret` of that user")
	fs.StringVar(&c.cluster.CACert, "cacert", "",
		"`file` of the authority that signed the cluster's certificates")
	fs.StringVar(&c.cluster.Cert, "cert", "", "`file` of the client certificate")
	fs.StringVar(&c.cluster.Key, "key", "", "`file` of the client certificate's key")
	return fs
}

func printUsage(w io.Writer) {
	fmt.Fprint(w, `A flash sale: worker processes sell items whose number stands in a plain
file, and only a lock in etcd keeps them apart.

Usage: go run ./internal/demo [flags]

`)
	fs := newFlagSet(new(config), new(string))
	fs.SetOutput(w)
	fs.PrintDefaults()
}

func parseFlags(args []string) (config, error) {
	var c config
	var endpoints string
	fs := newFlagSet(&c, &endpoints)
	if err := fs.Parse(args); err != nil {
		return config{}, err
	}
	if fs.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	given := make(map[string]bool)
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["ttl"] {
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
	if c.ttl < time.Second || c.ttl > time.Minute {
		return config{}, fmt.Errorf("-ttl %v: must be from 1s to 1m", c.ttl)
	}
	if c.crash && c.workers < 2 {
		return config{}, fmt.Errorf("-crash with -workers %d: somebody has to be left", c.workers)
	}
	if c.recall {
		switch {
		case c.noLock:
			return config{}, errors.New("-recall with -no-lock: there is no holder to recall")
		case c.crash:
			return config{}, errors.New("-recall with -crash: who is killed hands nothing over")
		case given["requests"]:
			return config{}, fmt.Errorf("-recall with -requests %d: nothing is sold", c.requests)
		case given["stock"]:
			return config{}, fmt.Errorf("-recall with -stock %d: nothing is sold", c.stock)
		case c.workers < 2:
			return config{}, fmt.Errorf("-recall with -workers %d: somebody has to take over", c.workers)
		}
	}
	if c.orders {
		switch {
		case c.recall:
			return config{}, errors.New("-orders with -recall: one or the other")
		case c.crash:
			return config{}, errors.New("-orders with -crash: the crash is of a sale with one stock")
		}
	}
	if c.noLock {
		switch {
		case c.crash:
			return config{}, errors.New("-no-lock with -crash: there is no lock to hold")
		case given["ttl"]:
			return config{}, fmt.Errorf("-no-lock with -ttl %v: there is no lock to end", c.ttl)
		case given["endpoints"]:
			return config{}, fmt.Errorf("-no-lock with -endpoints %q: no etcd is used", endpoints)
		}
	}
	for _, name := range []string{"user", "password", "cacert", "cert", "key"} {
		value := strconv.Quote(fs.Lookup(name).Value.String())
		switch {
		case given[name] && value == `""`:
			return config{}, fmt.Errorf("-%s %s: must not be empty", name, value)
		case given[name] && !given["endpoints"] && name == "password":
			return config{}, errors.New("-password without -endpoints")
		case given[name] && !given["endpoints"]:
			return config{}, fmt.Errorf("-%s %s without -endpoints", name, value)
		}
	}
	if given["endpoints"] {
		c.cluster.Endpoints = strings.Split(endpoints, ",")
		if err := c.cluster.check(); err != nil {
			return config{}, err
		}
	}
	return c, nil
}

// check finds what can be found without the network, the certificates included.
func (c *cluster) check() error {
	schemes := make(map[string]bool)
	for i, endpoint := range c.Endpoints {
		endpoint = strings.TrimSpace(endpoint)
		c.Endpoints[i] = endpoint
		scheme, address, found := strings.Cut(endpoint, "://")
		if !found {
			scheme, address = "", endpoint
		}
		if found && scheme != "http" && scheme != "https" {
			return fmt.Errorf("-endpoints %q: the scheme must be http or https", endpoint)
		}
		host, port, err := net.SplitHostPort(address)
		number, portErr := strconv.ParseUint(port, 10, 16)
		if err != nil || portErr != nil || host == "" || number == 0 {
			return fmt.Errorf("-endpoints %q: want host:port", endpoint)
		}
		schemes[scheme] = true
	}
	// The client takes its transport from the endpoints: with "http" it would send the
	// password in the clear, whatever certificates it has.
	if len(schemes) > 1 {
		return fmt.Errorf("-endpoints %q: all must have the same scheme", strings.Join(c.Endpoints, ","))
	}
	if schemes["http"] && c.CACert+c.Cert != "" {
		return fmt.Errorf("-endpoints %q: certificates need https", strings.Join(c.Endpoints, ","))
	}

	switch {
	case c.User != "" && c.Password == "":
		return fmt.Errorf("-user %q without -password", c.User)
	case c.User == "" && c.Password != "":
		return errors.New("-password without -user")
	case c.Cert != "" && c.Key == "":
		return fmt.Errorf("-cert %q without -key", c.Cert)
	case c.Cert == "" && c.Key != "":
		return fmt.Errorf("-key %q without -cert", c.Key)
	}
	_, err := c.tlsConfig()
	return err
}

// tlsConfig is nil if the connection should be in the clear.
func (c cluster) tlsConfig() (*tls.Config, error) {
	if c.CACert+c.Cert == "" && !strings.HasPrefix(c.Endpoints[0], "https://") {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CACert != "" {
		pem, err := os.ReadFile(c.CACert)
		if err != nil {
			return nil, fmt.Errorf("-cacert: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("-cacert %q: no certificate in it", c.CACert)
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("-cert %q, -key %q: %w", c.Cert, c.Key, err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// client returns a client. It waits for etcd, up to dialTimeout, only if
// there is a password to check.
func (c cluster) client() (*clientv3.Client, error) {
	conf, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{
		Endpoints:   c.Endpoints,
		DialTimeout: dialTimeout,
		Username:    c.User,
		Password:    c.Password,
		TLS:         conf,
		Logger:      zap.NewNop(),
		// The client notices a member that falls silent, and asks another one.
		DialKeepAliveTime:    5 * time.Second,
		DialKeepAliveTimeout: 2 * time.Second,
	})
}
