package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A connection is how to reach etcd: the flags and the environment of etcdctl.
type connection struct {
	endpoints         string
	user, password    string
	cacert, cert, key string // files
	skipVerify        bool
	plain             bool // unless the endpoint says https, or there are certificates

	dialTimeout, commandTimeout time.Duration
	pingEvery, pingTimeout      time.Duration
}

func (c *connection) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.endpoints, "endpoints", "127.0.0.1:2379",
		"`ADDRESSES` etcd's addresses, separated by commas")
	fs.StringVar(&c.user, "user", "", "`NAME[:PASSWORD]` etcd user")
	fs.StringVar(&c.password, "password", "",
		"`PASSWORD` password of the user; ETCDCTL_PASSWORD hides it from ps")
	fs.StringVar(&c.cacert, "cacert", "", "`FILE` certificate of the CA that signed etcd's certificates")
	fs.StringVar(&c.cert, "cert", "", "`FILE` client certificate")
	fs.StringVar(&c.key, "key", "", "`FILE` key of the client certificate")
	fs.BoolVar(&c.skipVerify, "insecure-skip-tls-verify", false, "accept any server certificate")
	fs.BoolVar(&c.plain, "insecure-transport", true,
		"no TLS unless a certificate or https:// asks for it")
	fs.DurationVar(&c.dialTimeout, "dial-timeout", 2*time.Second, "`DURATION` bound on a login")
	fs.DurationVar(&c.commandTimeout, "command-timeout", 5*time.Second,
		"`DURATION` how long to wait for etcd's answer; not for run")
	fs.DurationVar(&c.pingEvery, "keepalive-time", 2*time.Second,
		"`DURATION` test a connection after this much silence")
	fs.DurationVar(&c.pingTimeout, "keepalive-timeout", 6*time.Second,
		"`DURATION` close a connection that fails the test for this long")
}

// environment sets etcd's flags that were not given from the variables that etcdctl reads.
func (c *connection) environment(fs *flag.FlagSet, getenv func(string) string) (err error) {
	given := make(map[string]bool)
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	own := flag.NewFlagSet("", flag.ContinueOnError)
	new(connection).flags(own)
	own.VisitAll(func(f *flag.Flag) {
		name := variable(f)
		if value := getenv(name); value != "" && !given[f.Name] && err == nil {
			if failure := fs.Set(f.Name, value); failure != nil {
				err = fmt.Errorf("%s: %q: %w", name, value, failure)
			}
		}
	})
	return err
}

// variable is the environment variable from which etcdctl reads a flag.
func variable(f *flag.Flag) string {
	return "ETCDCTL_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// config returns the configuration for clients of the cluster.
func (c *connection) config() (cfg clientv3.Config, err error) {
	cfg = clientv3.Config{
		Endpoints:            strings.Split(c.endpoints, ","),
		DialTimeout:          c.dialTimeout,
		DialKeepAliveTime:    c.pingEvery,
		DialKeepAliveTimeout: c.pingTimeout,
		// A silent logger, the one that clientv3 uses for a client without a logger. The module
		// does not require its package.
		Logger: clientv3.NewCtxClient(context.Background()).GetLogger(),
	}
	for name, d := range map[string]time.Duration{
		"dial-timeout": c.dialTimeout, "command-timeout": c.commandTimeout,
		"keepalive-time": c.pingEvery, "keepalive-timeout": c.pingTimeout,
	} {
		if d <= 0 {
			return cfg, misused("--%s %v: not positive", name, d)
		}
	}
	if c.user != "" {
		user, password, with := strings.Cut(c.user, ":")
		if !with {
			password = c.password
		}
		if password == "" {
			return cfg, misused("--user %s: no password; set ETCDCTL_PASSWORD", user)
		}
		cfg.Username, cfg.Password = user, password
	}
	cfg.TLS, err = c.tls()
	return cfg, err
}

func (c *connection) tls() (*tls.Config, error) {
	if (c.cert == "") != (c.key == "") {
		return nil, misused("--cert and --key: only both together")
	}
	if c.plain && !c.skipVerify && c.cacert+c.cert == "" {
		return nil, nil // https:// then uses the system's CAs
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.skipVerify}
	if c.cacert != "" {
		pem, err := os.ReadFile(c.cacert)
		if err != nil {
			return nil, misused("--cacert: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, misused("--cacert %s: no certificate in it", c.cacert)
		}
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, misused("--cert %s, --key %s: %w", c.cert, c.key, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// open makes a client and logs in if there is a user.
func (c *connection) open() (*clientv3.Client, error) {
	cfg, err := c.config()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, ends(exitFailed, c.noAnswer(err))
	}
	return client, nil
}

// bounded returns the context of one request to etcd.
func (c *connection) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), c.commandTimeout)
}

// noAnswer is the error of a request to etcd, with the addresses that were asked.
func (c *connection) noAnswer(err error) error {
	within := ""
	if errors.Is(err, context.DeadlineExceeded) {
		within = fmt.Sprintf("no answer within %v (etcdlock doctor may know why): ", c.commandTimeout)
	}
	return fmt.Errorf("%s: %s%s", c.endpoints, within, strings.TrimPrefix(err.Error(), "etcdlock: "))
}
