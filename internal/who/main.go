// Who tells who holds the locks of an etcd, and who waits for one.
//
//	go run ./internal/who                   the holder of every lock
//	go run ./internal/who -prefix orders/   of those whose name begins so
//	go run ./internal/who orders/42         the whole line for one lock
//	go run ./internal/who -break orders/42  and delete one place in it
//
// It writes nothing, but with -break, and there only after the token of the place
// was typed.
package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// passwordEnv has the password, which is nobody's business in a list of processes.
// It is the variable that etcdctl reads.
const passwordEnv = "ETCDCTL_PASSWORD"

// Exit statuses, as a shell expects them.
const (
	exitGood   = 0
	exitFailed = 1
	exitUsage  = 2
)

// config is what the arguments say.
type config struct {
	endpoints         string
	user              string
	cacert, cert, key string // files
	timeout           time.Duration
	prefix, name      string
	breaks            bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is the whole program, and returns its exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitGood
	case err != nil:
		fmt.Fprintf(stderr, "who: %v\nRun it with -h for the flags.\n", err)
		return exitUsage
	}
	if err := cfg.tell(ctx, stdin, stdout); err != nil {
		fmt.Fprintf(stderr, "who: %v\n", err)
		return exitFailed
	}
	return exitGood
}

func parse(args []string, help io.Writer) (*config, error) {
	c := new(config)
	fs := flag.NewFlagSet("who", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints the error, once
	fs.StringVar(&c.endpoints, "endpoints", "localhost:2379", "comma separated `addresses` of etcd")
	fs.StringVar(&c.user, "user", "", "`name` of an etcd user; the password is read from "+passwordEnv)
	fs.StringVar(&c.cacert, "cacert", "", "`file` of the authority that signed etcd's certificates")
	fs.StringVar(&c.cert, "cert", "", "`file` of the client certificate")
	fs.StringVar(&c.key, "key", "", "`file` of the client certificate's key")
	fs.DurationVar(&c.timeout, "timeout", 5*time.Second, "how long etcd may take for an answer")
	fs.StringVar(&c.prefix, "prefix", "", "only locks whose name begins with `text`")
	fs.BoolVar(&c.breaks, "break", false, "delete a place in the line, after its token was typed")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(help, "Usage: go run ./internal/who [flags] [name]\n\n")
		fs.SetOutput(help)
		fs.PrintDefaults()
		return nil, err
	} else if err != nil {
		return nil, err
	}
	c.name = fs.Arg(0)
	switch {
	case fs.NArg() > 1:
		return nil, fmt.Errorf("unexpected argument %q: flags come before the name", fs.Arg(1))
	case c.breaks && c.name == "":
		return nil, errors.New("-break needs the name of a lock")
	case c.prefix != "" && c.name != "":
		return nil, fmt.Errorf("-prefix %q and the name %q: only one of them", c.prefix, c.name)
	case c.timeout <= 0:
		return nil, fmt.Errorf("-timeout %v: not positive", c.timeout)
	case (c.cert == "") != (c.key == ""):
		return nil, errors.New("-cert and -key: only both together")
	}
	return c, nil
}

// client is a client for the cluster. It does not connect yet.
func (c *config) client() (*clientv3.Client, error) {
	cfg := clientv3.Config{
		Endpoints: strings.Split(c.endpoints, ","),
		// A logger that says nothing, as clientv3 has it for a client without one. The
		// module does not require the package that it is of.
		Logger: clientv3.NewCtxClient(context.Background()).GetLogger(),
	}
	if c.user != "" {
		cfg.Username, cfg.Password = c.user, os.Getenv(passwordEnv)
		cfg.DialTimeout = c.timeout // within which New asks for a token
	}
	if c.cacert+c.cert != "" {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if c.cacert != "" {
		pem, err := os.ReadFile(c.cacert)
		if err != nil {
			return nil, fmt.Errorf("-cacert: %w", err)
		}
		cfg.TLS.RootCAs = x509.NewCertPool()
		if !cfg.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("-cacert %q: no certificate in it", c.cacert)
		}
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("-cert %q, -key %q: %w", c.cert, c.key, err)
		}
		cfg.TLS.Certificates = []tls.Certificate{pair}
	}
	return clientv3.New(cfg)
}

func (c *config) tell(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()

	found, err := c.read(ctx, client)
	if err != nil {
		return err
	}
	c.print(ctx, client, stdout, found)
	if !c.breaks || len(found) == 0 {
		return nil
	}
	fmt.Fprint(stdout, "\nToken of the place to delete (anything else deletes nothing): ")
	answer, err := bufio.NewReader(stdin).ReadString('\n')
	if err != nil && err != io.EOF {
		return err
	}
	token, err := strconv.ParseInt(strings.TrimSpace(answer), 10, 64)
	for _, contender := range found {
		if err == nil && contender.Token == token {
			return c.delete(ctx, client, stdout, contender)
		}
	}
	return fmt.Errorf("no token in this line: %q; nothing was deleted", strings.TrimSpace(answer))
}

// delete deletes the place of a contender, and shows the line that is left.
func (c *config) delete(ctx context.Context, client *clientv3.Client, stdout io.Writer, contender etcdlock.Contender) error {
	bounded, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := etcdlock.Break(bounded, client, contender); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "deleted %s\n\n", plain(contender.Key))
	left, err := c.read(ctx, client)
	if err != nil {
		return err
	}
	c.print(ctx, client, stdout, left)
	return nil
}

// read returns the line for the lock, or the holders of all of them.
func (c *config) read(ctx context.Context, client *clientv3.Client) (found []etcdlock.Contender, err error) {
	bounded, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if c.name != "" {
		found, err = etcdlock.Contenders(bounded, client, c.name)
	} else {
		found, err = etcdlock.Holders(bounded, client, c.prefix)
	}
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer from %s within %v: %w", c.endpoints, c.timeout, err)
	}
	return found, err
}

func (c *config) print(ctx context.Context, client *clientv3.Client, stdout io.Writer, found []etcdlock.Contender) {
	if len(found) == 0 {
		switch {
		case c.name != "":
			fmt.Fprintf(stdout, "nobody holds %q or waits for it\n", c.name)
		default:
			fmt.Fprintf(stdout, "nobody holds a lock whose name begins with %q\n", c.prefix)
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	now := time.Now()
	left := make(map[clientv3.LeaseID]string) // one lease may have many names
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	defer table.Flush()
	fmt.Fprintln(table, "NAME\tPLACE\tTOKEN\tOWNER\tQUEUED\tLEASE\tTTL LEFT")
	for i, contender := range found {
		if left[contender.Lease] == "" {
			left[contender.Lease] = ttlLeft(ctx, client, contender.Lease)
		}
		place, owner, queued := "holds", cmp.Or(plain(contender.Owner), "(another program)"), "-"
		if process := fmt.Sprintf("%s:%d", contender.Host, contender.PID); contender.Host != "" && contender.Owner != process {
			owner += " (" + plain(process) + ")"
		}
		if c.name != "" && i > 0 {
			place = fmt.Sprintf("waits %d", i)
		}
		if !contender.Since.IsZero() {
			queued = now.Sub(contender.Since).Round(time.Second).String() + " ago"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%x\t%s\n",
			plain(contender.Name), place, contender.Token, owner, queued, int64(contender.Lease), left[contender.Lease])
	}
}

// ttlLeft is what is left of a lease's TTL, or why that is not known.
func ttlLeft(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) string {
	resp, err := client.TimeToLive(ctx, lease)
	switch {
	case err != nil:
		return "unknown: " + err.Error()
	case resp.TTL < 0:
		return "gone"
	}
	return fmt.Sprintf("%ds of %ds", resp.TTL, resp.GrantedTTL)
}

// plain is text, quoted if a terminal would take some of it for more than text.
func plain(text string) string {
	if quoted := strconv.Quote(text); quoted != `"`+text+`"` {
		return quoted
	}
	return text
}
