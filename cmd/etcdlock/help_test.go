//go:build linux || darwin || freebsd

package main

import (
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page shows the help of each command as it is.
func TestThePageHasTheHelpOfEachCommand(t *testing.T) {
	page, err := os.ReadFile("../../docs/command.md")
	require.NoError(t, err)
	_, text, _ := runs(t, "", "help")
	require.Contains(t, string(page), "\n```\n"+text+"```\n")
	for _, c := range commands() {
		_, text, _ := runs(t, "", "help", c.name)
		if slices.Contains([]string{"help", "completion", "version"}, c.name) {
			continue
		}
		require.Contains(t, string(page), "\n```\n"+text+"```\n", "help of %s", c.name)
	}
}

// Each way to ask for help gives the same text, which names every flag.
func TestHelpIsThereHoweverItIsAskedFor(t *testing.T) {
	status, all, stderr := runs(t, "", "help")
	require.Equal(t, exitGood, status)
	require.Empty(t, stderr)
	for _, args := range [][]string{{"-h"}, {"--help"}} {
		status, text, _ := runs(t, "", args...)
		require.Equal(t, exitGood, status)
		require.Equal(t, all, text)
	}
	for _, f := range flagsOf(nil) {
		require.Contains(t, all, "\n  "+dashed(f))
	}
	for _, c := range commands() {
		require.Contains(t, all, "\n  "+c.name+" ")
		_, text, _ := runs(t, "", "help", c.name)
		require.True(t, strings.HasPrefix(text, "Usage: etcdlock "+c.name))
		own := flag.NewFlagSet("", flag.ContinueOnError)
		c.flags(own)
		own.VisitAll(func(f *flag.Flag) { require.Contains(t, text, "\n  "+dashed(f)+" ") })
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, len(line), 101)
		}
		for _, args := range [][]string{{c.name, "-h"}, {c.name, "--help"}} {
			status, asked, stderr := runs(t, "", args...)
			require.Equal(t, exitGood, status)
			require.Equal(t, text, asked)
			require.Empty(t, stderr)
		}
	}
}

// A bash that has read the completion offers commands, their flags, files and, behind "--",
// programs.
func TestBashCompletes(t *testing.T) {
	_, script, _ := runs(t, "", "completion", "bash")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/ca.pem", nil, 0o600))
	offers := func(words ...string) []string {
		t.Helper()
		bash := exec.Command("bash", "-c", script+`
COMP_WORDS=(etcdlock "$@") COMP_CWORD=$#
_etcdlock
printf '%s\n' "${COMPREPLY[@]}"`, "bash")
		bash.Args = append(bash.Args, words...)
		bash.Dir = dir
		out, err := bash.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.Fields(string(out))
	}
	require.Equal(t, []string{"run", "recall"}, offers("r"))
	require.Equal(t, []string{"break"}, offers("--endpoints", "a:1", "b"))
	require.Equal(t, []string{"--ttl"}, offers("run", "--t"))
	require.Equal(t, []string{"--watch"}, offers("who", "--w"))
	require.Equal(t, []string{"ca.pem"}, offers("who", "--cacert", ""))
	require.Contains(t, offers("run", "job", "--", "ba"), "bash")
	require.Equal(t, []string{"ca.pem"}, offers("run", "job", "--", "cat", "c"))
	require.Equal(t, []string{"doctor"}, offers("help", "d"))
	require.Equal(t, []string{"zsh"}, offers("completion", "z"))
	for _, c := range commands() {
		offered := offers(c.name, "-")
		for _, f := range flagsOf(c) {
			require.True(t, slices.Contains(offered, dashed(f)), "%s %s", c.name, dashed(f))
		}
	}
}

// The version is one line, whichever way the user asks for it. It needs no etcd.
func TestTheVersionIsOneLine(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}, {"-version", "who"}} {
		status, text, stderr := runs(t, "", args...)
		require.Equal(t, exitGood, status)
		require.Regexp(t, `^etcdlock [^\n]+, etcd's client v3\.[^\n]+, go1\.[^\n]+\n$`, text)
		require.Empty(t, stderr)
	}
	status, _, stderr := runs(t, "", "version", "2")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, `"2"`)
}
