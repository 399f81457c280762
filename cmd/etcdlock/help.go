package main

import (
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

func helpCommand() *command {
	return &command{
		name:  "help",
		usage: "[COMMAND]",
		short: "show how to use a command",
		flags: func(*flag.FlagSet) func(*app, call) error {
			return func(a *app, c call) error {
				if err := c.atMost(1); err != nil {
					return err
				}
				if len(c.names) == 0 {
					return a.help(nil)
				}
				verb := find(c.names[0])
				if verb == nil {
					return misused("no command %q; there are %s", c.names[0], strings.Join(names(), ", "))
				}
				return a.help(verb)
			}
		},
	}
}

// help writes the help of a command, or of the program.
func (a *app) help(c *command) error {
	if c == nil {
		writeHelp(a.stdout)
	} else {
		c.writeHelp(a.stdout)
	}
	return nil
}

func writeHelp(w io.Writer) {
	fmt.Fprint(w, "Locks kept in etcd, for shells and people.\n\n"+
		"Usage: etcdlock [flags] COMMAND ...\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-11s %s\n", c.name, c.short)
	}
	fmt.Fprint(w, "\nFlags, before or after the command. Each is also read from the environment, as\n"+
		"etcdctl does: --endpoints from ETCDCTL_ENDPOINTS, and so on. The flag wins.\n")
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	new(connection).flags(fs)
	writeFlags(w, fs)
	fmt.Fprint(w, "\nSee etcdlock help COMMAND for the rest.\n")
}

func (c *command) writeHelp(w io.Writer) {
	fmt.Fprintf(w, "Usage: etcdlock %s %s\n\n%s.\n", c.name, c.usage, sentence(c.short))
	if c.text != "" {
		fmt.Fprintf(w, "%s\n", strings.TrimSuffix(c.text, "\n"))
	}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	c.flags(fs)
	some := false
	fs.VisitAll(func(*flag.Flag) { some = true })
	if some {
		fmt.Fprint(w, "\nFlags, besides those of etcdlock help:\n")
		writeFlags(w, fs)
	}
}

func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// writeFlags lists flags as people write them: one dash before a letter, two before a word. If a
// flag has a value, its usage begins with the name of the value.
func writeFlags(w io.Writer, fs *flag.FlagSet) {
	fs.VisitAll(func(f *flag.Flag) {
		value, text := valueAndText(f)
		left := strings.TrimSpace(dashed(f) + " " + value)
		if def := f.DefValue; def != "" && def != "false" && def != "0" && def != "0s" {
			if d, err := time.ParseDuration(def); err == nil {
				def = short(d)
			}
			text += " (default " + def + ")"
		}
		text = strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 32))
		fmt.Fprintf(w, "  %-29s %s\n", left, text)
	})
}

// valueAndText splits a flag's usage. value is "" for a flag without one.
func valueAndText(f *flag.Flag) (value, text string) {
	value, text = flag.UnquoteUsage(f)
	return value, strings.TrimPrefix(text, value+" ")
}

func dashed(f *flag.Flag) string {
	if len(f.Name) == 1 {
		return "-" + f.Name
	}
	return "--" + f.Name
}

// short is d without trailing zeros: 1m, not 1m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
