package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/internal/quote"
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

func (c *connection) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&c.endpoints, "endpoints", "127.0.0.1:2379", "`addresses`, separated by commas")
	f.StringVar(&c.user, "user", "", "etcd user, `name[:password]`")
	f.StringVar(&c.password, "password", "", "password of the user; ETCDCTL_PASSWORD hides it from ps")
	f.StringVar(&c.cacert, "cacert", "", "`file` with the CA that signed etcd's certificates")
	f.StringVar(&c.cert, "cert", "", "`file` with the client certificate")
	f.StringVar(&c.key, "key", "", "`file` with the key of the client certificate")
	f.BoolVar(&c.skipVerify, "insecure-skip-tls-verify", false, "accept any server certificate")
	f.BoolVar(&c.plain, "insecure-transport", true, "no TLS unless certificates or https:// ask")
	f.DurationVar(&c.dialTimeout, "dial-timeout", 2*time.Second, "bound on a login")
	f.DurationVar(&c.commandTimeout, "command-timeout", 5*time.Second,
		"how long to wait for etcd's answer; not for run")
	f.DurationVar(&c.pingEvery, "keepalive-time", 2*time.Second,
		"ping after this much silence, 10s at least")
	f.DurationVar(&c.pingTimeout, "keepalive-timeout", 6*time.Second,
		"close a connection that fails it this long")
	for _, name := range []string{"cacert", "cert", "key"} {
		_ = root.RegisterFlagCompletionFunc(name,
			cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)) // files
	}
}

// environment sets the flags that were not given from the variables that etcdctl reads.
func (c *connection) environment(flags *pflag.FlagSet, getenv func(string) string) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		name := variable(f)
		if value := getenv(name); value != "" && !f.Changed && err == nil {
			if failure := f.Value.Set(value); failure != nil {
				err = misused("%s: %q: %w", name, value, failure)
			}
		}
	})
	return err
}

// variables are the flags that were given, as variables: no password is an argument of a process
// that this one starts.
func variables(flags *pflag.FlagSet) (all []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			all = append(all, variable(f)+"="+f.Value.String())
		}
	})
	return all
}

// variable is the environment variable from which etcdctl reads a flag.
func variable(f *pflag.Flag) string {
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
	if slices.ContainsFunc(cfg.Endpoints, quote.HasUser) { // (which the error must not show)
		return cfg, misused("--endpoints: a user or a password in an address: --user and " +
			"ETCDCTL_PASSWORD are for these")
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
	cfg.MaxCallRecvMsgSize = board.MostBytes
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
	text := plainly(err)
	if errors.Is(err, context.DeadlineExceeded) {
		text = fmt.Sprintf("etcd did not answer in %v (etcdlock doctor may know why)", c.commandTimeout)
	}
	return fmt.Errorf("%s: %s", c.endpoints, text)
}

// plainly is the text of err without what Go says of the end of a context, and without what gRPC
// says before the system's own error. The caller says how long it waited.
func plainly(err error) string {
	text := strings.TrimPrefix(err.Error(), "etcdlock: ")
	for cut := true; cut; {
		text, cut = strings.CutSuffix(text, ": "+context.DeadlineExceeded.Error())
	}
	if before, rest, found := strings.Cut(text, "rpc error: "); found {
		if _, why, dials := strings.Cut(rest, "Error while dialing: "); dials {
			text = before + strings.TrimSuffix(why, `"`)
		}
	}
	return text
}
