//go:build linux || darwin || freebsd

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// commands are the program's own commands.
func commands() []*cobra.Command {
	return slices.DeleteFunc(new(app).command().Commands(), func(c *cobra.Command) bool {
		return slices.Contains([]string{"help", "completion", "version", "man"}, c.Name()) || c.Hidden
	})
}

// The page shows the help of run as it is, but for the flags that reach etcd.
func TestThePageHasTheHelpOfRun(t *testing.T) {
	_, text, _ := runs(t, "", "help", "run")
	own, _, found := strings.Cut(text, "\nGlobal Flags:\n")
	require.True(t, found)
	require.Contains(t, thePage(t), "\n```\n"+own+"```\n")
}

// The page's section of a command names each flag of that command. The section about connecting
// names those that reach etcd. Other flags are none.
func TestThePageNamesEachFlagThatThereIs(t *testing.T) {
	page := thePage(t)
	names := func(section string, flags *pflag.FlagSet) {
		_, text, found := strings.Cut(page, "\n## "+section+"\n")
		require.True(t, found, section)
		text, _, _ = strings.Cut(text, "\n## ")
		flags.VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" {
				require.Regexp(t, "--"+f.Name+`\b`, text, section)
			}
		})
	}
	known := []string{"help"}
	add := func(f *pflag.Flag) { known = append(known, f.Name) }
	for _, c := range commands() {
		names(c.Name(), c.LocalFlags())
		names("Connecting", c.InheritedFlags())
		c.LocalFlags().VisitAll(add)
		c.InheritedFlags().VisitAll(add)
	}
	for _, flag := range regexp.MustCompile(`--([a-z][a-z-]*)`).FindAllStringSubmatch(page, -1) {
		require.Contains(t, known, flag[1])
	}
}

func thePage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/command.md")
	require.NoError(t, err)
	return string(page)
}

// The help of a command names its own flags and those that reach etcd, however the user asks for
// it.
func TestTheHelpOfACommandNamesAllItsFlags(t *testing.T) {
	for _, c := range commands() {
		status, text, stderr := runs(t, "", "help", c.Name())
		require.Equal(t, exitGood, status)
		require.Empty(t, stderr)
		require.Contains(t, text, "\nUsage:\n  etcdlock "+c.Name()+" ")
		for _, flags := range []*pflag.FlagSet{c.LocalFlags(), c.InheritedFlags()} {
			require.True(t, flags.HasAvailableFlags())
			flags.VisitAll(func(f *pflag.Flag) { require.Regexp(t, "\n +(-., )?--"+f.Name+" ", text) })
		}
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, len(line), 101)
		}
		for _, flag := range []string{"-h", "--help"} {
			status, asked, stderr := runs(t, "", c.Name(), flag)
			require.Equal(t, exitGood, status)
			require.Equal(t, text, asked)
			require.Empty(t, stderr)
		}
	}
}

// The version is one line, whichever way the user asks for it. It needs no etcd.
func TestTheVersionIsOneLine(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}, {"-v"}} {
		status, text, stderr := runs(t, "", args...)
		require.Equal(t, exitGood, status)
		require.Regexp(t, `^etcdlock [^\n]+, etcd's client v3\.[^\n]+, go1\.[^\n]+\n$`, text)
		require.Empty(t, stderr)
	}
	status, _, stderr := runs(t, "", "version", "2")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, `"2"`)
}
