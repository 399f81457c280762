// Bench measures what locks cost: this library beside etcd's own concurrency.Mutex, beside
// the least that etcd can be asked for, and beside the locks that people choose instead.
//
//	go run .                               all cases, on etcd alone
//	go run . -peers                        also on Redis, ZooKeeper and PostgreSQL,
//	                                       Debian's redis-server, zookeeper, postgresql
//	go run . -case crowd -setup 1-disk     some cases, on some setups
//	go run . -rounds 3 -slice 300ms        shorter
//	go run . -case '^(fleet|taken)' -setup 1-tmpfs -rounds 3
//	                                       the table of what a fleet costs, where each
//	                                       process has a Session of its own
//	go run . -peers -case '^(readers|mix|several|permits|lead)'
//	                                       what is not a mutex: readers and writers,
//	                                       several names at once, semaphores, leaders
//
//	go run . -render -out results          the page of the runs there, without a measurement
//
// It starts every server itself, on the loopback interface, and ends them all. It reports
// its progress, and writes into a directory: all figures to the JSON file of the run, and
// from all such files there a page, README.md, and a chart, benchmarks.svg.
//
// The published runs are in results, each with its command. To measure one anew, add
// -out results and the name of its file, such as -name mutex.
//
// Each round measures every alternative in turn. Each figure is compared with that of
// concurrency.Mutex in the same round: a machine that slows down slows down both. If a case
// has holders, it checks that no two of them were in at once.
//
// To add an alternative, add a line in alternatives.go; to add a case, one in cases.go.
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
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

// roleEnv makes this program something other than the benchmark.
const roleEnv = "ETCDLOCK_BENCH_ROLE"

// Exit statuses, as a shell expects them.
const (
	exitGood        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	playRole()

	// If the reader of the output goes away (bench | head), this program must not end on
	// the spot: it has servers to stop.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// playRole plays the role for which another process of this program has started this one,
// and then ends the process. If a person has started it, it returns.
func playRole() {
	switch role := os.Getenv(roleEnv); role {
	case "":
	case roleEtcd:
		os.Unsetenv(roleEnv) // etcd warns of variables that it does not know
		etcdmain.Main(append([]string{"etcd"}, os.Args[1:]...))
		os.Exit(exitGood)
	case aLock.role, aTerm.role:
		fmt.Fprintln(os.Stderr, "holder:", beHolder(role, os.Args[1:], os.Stdin, os.Stdout))
		os.Exit(exitFailed)
	default:
		fmt.Fprintln(os.Stderr, "bench: no such role:", role)
		os.Exit(exitUsage)
	}
}

// config is what the flags say, checked.
type config struct {
	peers  bool
	cases  *regexp.Regexp
	setups *regexp.Regexp
	only   *regexp.Regexp
	rounds int
	slice  time.Duration
	trip   time.Duration
	disk   string
	tmpfs  string
	out    string
	name   string
	render bool

	command string // the command that makes the same report
}

// newFlagSet declares the flags. Their values go into c and patterns.
func newFlagSet(c *config, patterns *[3]string) *flag.FlagSet {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints the error, once
	fs.BoolVar(&c.peers, "peers", false, "compare with Redis, ZooKeeper and PostgreSQL too")
	fs.StringVar(&patterns[0], "case", "",
		"`regexp` of the cases to run: "+strings.Join(caseNames(), ", "))
	fs.StringVar(&patterns[1], "setup", "", "`regexp` of the setups to run: "+
		strings.Join(setupNames(), ", "))
	fs.StringVar(&patterns[2], "only", "", "`regexp` of the alternatives to compare with "+baseline)
	fs.IntVar(&c.rounds, "rounds", 5, "rounds of each case; the longest cases have at most 3")
	fs.DurationVar(&c.slice, "slice", time.Second, "how long an alternative is measured in a round")
	fs.DurationVar(&c.trip, "trip", 0, "how far etcd is: each answer comes that much later")
	fs.StringVar(&c.disk, "disk", "/var/tmp", "`directory` on a disk, for the servers' data")
	fs.StringVar(&c.tmpfs, "tmpfs", "/dev/shm", "`directory` on a tmpfs, for the servers' data")
	fs.StringVar(&c.out, "out", ".", "`directory` of the records of runs, their page and their chart")
	fs.StringVar(&c.name, "name", "run", "`name` of the run, and of its file in that directory")
	fs.BoolVar(&c.render, "render", false,
		"only write the page and the chart, from the records that there are")
	return fs
}

func printUsage(w io.Writer) {
	fmt.Fprint(w, "Measures locks against each other.\n\nUsage: go run . [flags]\n\n")
	fs := newFlagSet(new(config), new([3]string))
	fs.SetOutput(w)
	fs.PrintDefaults()
}

func parseFlags(args []string) (config, error) {
	var c config
	var patterns [3]string
	fs := newFlagSet(&c, &patterns)
	if err := fs.Parse(args); err != nil {
		return config{}, err
	}
	if fs.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	for i, p := range []struct {
		flag string
		to   **regexp.Regexp
	}{{"case", &c.cases}, {"setup", &c.setups}, {"only", &c.only}} {
		re, err := regexp.Compile(patterns[i])
		if err != nil {
			return config{}, fmt.Errorf("-%s: %w", p.flag, err)
		}
		*p.to = re
	}
	c.command = "go run ."
	fs.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "disk", "tmpfs", "out", "name": // of this machine
		case "peers":
			c.command += " -peers"
		default:
			c.command += fmt.Sprintf(" -%s '%s'", f.Name, f.Value)
		}
	})
	switch {
	case !anyMatch(c.cases, caseNames()):
		return config{}, fmt.Errorf("-case %s: there are %s", c.cases, strings.Join(caseNames(), ", "))
	case !anyMatch(c.setups, setupNames()):
		return config{}, fmt.Errorf("-setup %s: there are %s", c.setups, strings.Join(setupNames(), ", "))
	case c.rounds < 1 || c.rounds > 100:
		return config{}, fmt.Errorf("-rounds %d: must be from 1 to 100", c.rounds)
	case !plainName.MatchString(c.name):
		return config{}, fmt.Errorf("-name %q: must be of a-z, 0-9 and -", c.name)
	case c.trip < 0 || c.trip > time.Second:
		return config{}, fmt.Errorf("-trip %v: must be from 0 to 1s", c.trip)
	case c.trip > 0 && c.peers:
		return config{}, errors.New("-trip: the peers have none")
	case c.slice < 50*time.Millisecond || c.slice > time.Minute:
		return config{}, fmt.Errorf("-slice %v: must be from 50ms to 1m", c.slice)
	}
	return c, nil
}

var plainName = regexp.MustCompile(`^[a-z0-9-]+$`)

func anyMatch(re *regexp.Regexp, names []string) bool {
	return slices.ContainsFunc(names, re.MatchString)
}

// run is the whole program, and returns its exit status. When ctx ends, run ends early, but
// in good order and with a report of what was measured until then.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parseFlags(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		printUsage(stdout)
		return exitGood
	case err != nil:
		fmt.Fprintf(stderr, "bench: %v\nRun it with -h for the flags.\n", err)
		return exitUsage
	}

	if cfg.render {
		if err := render(cfg.out); err != nil {
			fmt.Fprintf(stderr, "bench: %v\n", err)
			return exitFailed
		}
		return exitGood
	}
	r := &runner{cfg: cfg, progress: stdout, report: report{command: cfg.command}}
	if err := r.all(ctx); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		if ctx.Err() != nil {
			return exitInterrupted
		}
		return exitFailed
	}
	if broken := r.report.broken(library); len(broken) > 0 {
		fmt.Fprintf(stderr, "bench: exclusion was broken: %s\n", strings.Join(broken, ", "))
		return exitFailed
	}
	return exitGood
}

// write writes the report as it stands.
func (r *runner) write() error {
	text, err := r.report.record(r.cfg.name).json()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.cfg.out, r.cfg.name+".json"), text, 0o666); err != nil {
		return err
	}
	return render(r.cfg.out)
}
