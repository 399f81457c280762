package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock/internal/quote"
	"github.com/spf13/pflag"
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

// An app has the streams that a command uses, and how it reaches etcd.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	etcd           connection
}

// say writes one line to stderr.
func (a *app) say(format string, args ...any) {
	text := strings.TrimPrefix(fmt.Sprintf(format, args...), "etcdlock: ")
	fmt.Fprintf(a.stderr, "etcdlock: %s\n", quote.Line(strings.ReplaceAll(text, "\n", " ")))
}

// run is the whole program, and returns its exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.command()
	root.SetArgs(args)
	err := root.Execute()
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

// The help shows the commands in the order in which they are added.
func init() { cobra.EnableCommandSorting = false }

// command returns the program: all of its commands and flags.
func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "etcdlock",
		Short: "Locks kept in etcd, for shells and people",
		Long: `Locks kept in etcd, for shells and people.

Its own flags, the global flags of each command, may stand before the command or after it. Each
is also read from the environment, as etcdctl does: --endpoints from ETCDCTL_ENDPOINTS, and so
on. The flag wins.`,
		Version:       version(),
		SilenceErrors: true, // run says them
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs, // or else an unknown command would not get to RunE
		RunE: func(root *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misused("a command is needed: %s", names(root))
			}
			return unknown(root, args)
		},
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if err := a.etcd.environment(c.Root().PersistentFlags(), os.Getenv); err != nil {
				return err
			}
			return checkDurations(c.Flags())
		},
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if !c.HasParent() {
			return misused("%w; etcdlock help tells the flags", err)
		}
		return misused("%s: %w; etcdlock help %[1]s tells more", c.Name(), err)
	})
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	a.etcd.flags(root)
	root.AddCommand(a.runCommand(), a.whoCommand(), a.topCommand(), a.uiCommand(),
		a.recallCommand(), a.breakCommand(), a.doctorCommand(), a.benchCommand(), a.versionCommand(),
		manCommand(), watchdogCommand(), a.benchHolderCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	strict(root)
	return root
}

// checkDurations returns an error if a flag has a duration that no program means. 0 is what the
// flag's own command makes of it.
func checkDurations(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		d, notOne := time.ParseDuration(f.Value.String())
		if f.Value.Type() != "duration" || notOne != nil || err != nil {
			return
		}
		if d < 0 {
			err = misused("--%s %v: negative", f.Name, d)
		} else if d > 0 && d < time.Millisecond {
			err = misused("--%s %v: below 1ms", f.Name, d)
		}
	})
	return err
}

// strict makes an argument that cobra's own commands do not know an error.
func strict(root *cobra.Command) {
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				if _, rest, _ := root.Find(args); len(rest) > 0 {
					return unknown(root, args)
				}
				return nil
			}
		case "completion":
			c.Args = cobra.ArbitraryArgs
			c.RunE = func(c *cobra.Command, _ []string) error {
				return misused("completion needs one of %s", names(c))
			}
			for _, shell := range c.Commands() {
				shell.Args = atMost(0)
			}
		}
	}
}

func unknown(root *cobra.Command, args []string) error {
	return misused("no command %q; there are %s", strings.Join(args, " "), names(root))
}

// names lists the commands below c.
func names(c *cobra.Command) string {
	var names []string
	for _, c := range c.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	return strings.Join(names, ", ")
}

// atMost returns an error for more than n arguments.
func atMost(n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > n {
			return misused("unexpected argument %q", args[n])
		}
		return nil
	}
}

// oneName wants the name of a lock, and no other argument.
func oneName(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return misused("%s needs the name of a lock", c.Name())
	}
	if strings.HasSuffix(args[0], "/") {
		return misused("no name ends with \"/\": etcdlock who --prefix %s shows those below it",
			quote.Text(args[0]))
	}
	return atMost(1)(c, args)
}
