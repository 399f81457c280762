package main

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBadFlagsAreRefusedByNameAndValue(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-workers 0", "-workers 0: must be from 1 to 64"},
		{"-workers -1", "-workers -1: must be"},
		{"-workers 65", "-workers 65: must be"},
		{"-requests 0", "-requests 0: must be"},
		{"-requests -5", "-requests -5: must be"},
		{"-requests 10001", "-requests 10001: must be from 1 to 10000"},
		{"-requests 99999999999999999999", `"99999999999999999999"`},
		{"-requests many", `"many" for flag -requests`},
		{"-stock 0", "-stock 0: must be"},
		{"-stock -300", "-stock -300: must be"},
		{"-stock 1000001", "-stock 1000001: must be"},
		{"-ttl 0", "-ttl 0s: must be from 1s to 1m"},
		{"-ttl -5s", "-ttl -5s: must be"},
		{"-ttl 999ms", "-ttl 999ms: must be"},
		{"-ttl 24h", "-ttl 24h0m0s: must be"},
		{"-ttl 5", `"5" for flag -ttl`},
		{"sale", `unexpected argument "sale"`},
		{"-workers 2 sale", `unexpected argument "sale"`},
		{"-nolock", "-nolock"},
		{"-crash -workers 1", "-crash with -workers 1"},
		{"-orders -crash", "-orders with -crash"},
		{"-no-lock -crash", "-no-lock with -crash"},
		{"-no-lock -ttl 3s", "-no-lock with -ttl 3s"},
	} {
		t.Run(test.args, func(t *testing.T) {
			var stdout, stderr strings.Builder
			status := run(t.Context(), strings.Fields(test.args), &stdout, &stderr)
			require.Equal(t, exitUsage, status)
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), test.want)
			require.NotContains(t, stderr.String(), "goroutine")
		})
	}
}

func TestGoodFlags(t *testing.T) {
	c, err := parseFlags(nil)
	require.NoError(t, err)
	require.Equal(t, config{workers: 4, requests: 500, stock: 300, ttl: 5 * time.Second}, c)

	c, err = parseFlags([]string{"-crash"})
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, c.ttl)

	c, err = parseFlags([]string{"-crash", "-ttl", "3s"})
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, c.ttl)
}

func TestHelpIsNoError(t *testing.T) {
	var stdout, stderr strings.Builder
	require.Equal(t, exitGood, run(t.Context(), []string{"-h"}, &stdout, &stderr))
	require.Empty(t, stderr.String())
	newFlagSet(new(config)).VisitAll(func(f *flag.Flag) {
		require.Contains(t, stdout.String(), "\n  -"+f.Name)
	})
	requireNarrow(t, stdout.String())
}

// requireNarrow requires lines that fit a terminal of 80 columns.
func requireNarrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(strings.ReplaceAll(text, "\t", "        ")) {
		require.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 78, line)
	}
}
