package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Exit statuses. run also passes on those of its command.
const (
	exitGood     = 0
	exitBad      = 1   // a wrong token, or findings
	exitUsage    = 64  // EX_USAGE of sysexits.h
	exitTaken    = 75  // EX_TEMPFAIL
	exitLost     = 76  // EX_PROTOCOL
	exitRecalled = 77  // EX_NOPERM
	exitFailed   = 125 // as env(1) has it, and the next two
	exitNotRun   = 126
	exitNotFound = 127
	exitSignal   = 128 // and the signal's number
)

// An ending is how the program ends. err goes to stderr, in one line.
type ending struct {
	status int
	err    error // nil if there is nothing to say
}

func (e *ending) Error() string { return fmt.Sprint(e.err) }
func (e *ending) Unwrap() error { return e.err }

func ends(status int, err error) error { return &ending{status, err} }

func misused(format string, args ...any) error {
	return ends(exitUsage, fmt.Errorf(format, args...))
}

// An app has the streams that a command uses.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// say writes one line to stderr.
func (a *app) say(format string, args ...any) {
	text := strings.TrimPrefix(fmt.Sprintf(format, args...), "etcdlock: ")
	fmt.Fprintf(a.stderr, "etcdlock: %s\n", strings.ReplaceAll(text, "\n", " "))
}

// call is one call of a command.
type call struct {
	etcd  *connection
	names []string // its arguments
	argv  []string // after "--"
}

// A command is a verb of the program.
type command struct {
	name  string
	usage string // of its arguments
	short string // one line
	text  string // the rest of its help
	argv  bool   // whether "--" and a command follow
	offer string // what the shell offers for arguments: words, or nothing

	// flags adds the command's flags and returns the function that runs the command.
	flags func(fs *flag.FlagSet) func(*app, call) error
}

// commands returns all commands. They are made on each call, because some of them list all.
func commands() []*command {
	return []*command{
		runCommand(), whoCommand(), recallCommand(), breakCommand(), doctorCommand(),
		completionCommand(), versionCommand(), helpCommand(),
	}
}

func find(name string) *command {
	all := commands()
	if i := slices.IndexFunc(all, func(c *command) bool { return c.name == name }); i >= 0 {
		return all[i]
	}
	return nil
}

// run is the whole program, and returns its exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin, stdout, stderr}
	err := a.run(args)
	if err == nil {
		return exitGood
	}
	e, ok := errors.AsType[*ending](err)
	if !ok {
		e = &ending{exitFailed, err}
	}
	if e.err != nil {
		a.say("%v", e.err)
	}
	return e.status
}

func (a *app) run(args []string) error {
	// One set of flags, to which the command's are added: etcd's flags may come before or after
	// the command.
	fs := flag.NewFlagSet("etcdlock", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	c := call{etcd: new(connection)}
	c.etcd.flags(fs)
	version := fs.Bool("version", false, "")
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return a.help(nil)
	case err != nil:
		return misused("%w; etcdlock help tells the flags", err)
	case *version:
		return a.version()
	case fs.NArg() == 0:
		return misused("a command is needed: %s", strings.Join(names(), ", "))
	}
	verb := find(fs.Arg(0))
	if verb == nil {
		return misused("no command %q; there are %s", fs.Arg(0), strings.Join(names(), ", "))
	}
	do := verb.flags(fs)
	err := c.parse(fs, fs.Args()[1:], verb.argv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return a.help(verb)
	case err != nil:
		return misused("%s: %w; etcdlock help %s tells more", verb.name, err, verb.name)
	}
	if err := c.etcd.environment(fs, os.Getenv); err != nil {
		return misused("%w", err)
	}
	return do(a, c)
}

// parse takes flags and arguments in any order. What follows "--" is no flag.
func (c *call) parse(fs *flag.FlagSet, args []string, argv bool) error {
	for len(args) > 0 {
		if err := fs.Parse(args); err != nil {
			return err
		}
		read, rest := args[:len(args)-fs.NArg()], fs.Args()
		if len(read) > 0 && read[len(read)-1] == "--" {
			if argv {
				c.argv = rest
			} else {
				c.names = append(c.names, rest...)
			}
			break
		}
		if len(rest) == 0 {
			break
		}
		c.names = append(c.names, rest[0])
		args = rest[1:]
	}
	if argv && len(c.argv) == 0 {
		return errors.New(`"--" and a command are needed`)
	}
	return nil
}

// atMost returns an error if there are more than n arguments.
func (c *call) atMost(n int) error {
	if len(c.names) > n {
		return misused("unexpected argument %q", c.names[n])
	}
	return nil
}

func names() (names []string) {
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return names
}
