package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBadFlagsAreRefusedByNameAndValue(t *testing.T) {
	noPEM := filepath.Join(t.TempDir(), "no.pem")
	require.NoError(t, os.WriteFile(noPEM, []byte("not a certificate"), 0o600))

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
		{"-endpoints", "-endpoints"},
		{"-crash -workers 1", "-crash with -workers 1"},
		{"-recall -no-lock", "-recall with -no-lock: there is no holder"},
		{"-recall -crash", "-recall with -crash"},
		{"-recall -requests 9", "-recall with -requests 9"},
		{"-recall -stock 9", "-recall with -stock 9"},
		{"-recall -workers 1", "-recall with -workers 1"},
		{"-orders -recall", "-orders with -recall"},
		{"-orders -crash", "-orders with -crash"},
		{"-no-lock -crash", "-no-lock with -crash"},
		{"-no-lock -ttl 3s", "-no-lock with -ttl 3s"},
		{"-no-lock -endpoints a:1", `-no-lock with -endpoints "a:1"`},
		{"-endpoints=", `-endpoints ""`},
		{"-endpoints a:1,,b:1", `-endpoints ""`},
		{"-endpoints localhost", `-endpoints "localhost": want host:port`},
		{"-endpoints :2379", `-endpoints ":2379"`},
		{"-endpoints a:0", `-endpoints "a:0"`},
		{"-endpoints a:65536", `-endpoints "a:65536"`},
		{"-endpoints ftp://a:21", `-endpoints "ftp://a:21": the scheme`},
		{"-endpoints http://a:1,https://b:1", "the same scheme"},
		{"-endpoints http://a:1 -cacert " + noPEM, "certificates need https"},
		{"-endpoints a:1 -user x", `-user "x" without -password`},
		{"-endpoints a:1 -user= -password y", `-user ""`},
		{"-endpoints a:1 -password y", "-password without -user"},
		{"-endpoints a:1 -cert c", `-cert "c" without -key`},
		{"-endpoints a:1 -key k", `-key "k" without -cert`},
		{"-endpoints a:1 -cert c -key k", `-cert "c", -key "k"`},
		{"-endpoints a:1 -cacert " + noPEM + ".gone", "no.pem.gone"},
		{"-endpoints a:1 -cacert " + noPEM, "no certificate"},
		{"-user x", `-user "x" without -endpoints`},
		{"-password secret", "-password without -endpoints"},
		{"-cacert c", `-cacert "c" without -endpoints`},
	} {
		t.Run(test.args, func(t *testing.T) {
			var stdout, stderr strings.Builder
			status := run(t.Context(), strings.Fields(test.args), &stdout, &stderr)
			require.Equal(t, exitUsage, status)
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), test.want)
			require.NotContains(t, stderr.String(), "goroutine")
			require.NotContains(t, stderr.String(), "secret")
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

	c, err = parseFlags(strings.Fields("-endpoints a:1,b:2 -user x -password y"))
	require.NoError(t, err)
	require.Equal(t, cluster{Endpoints: []string{"a:1", "b:2"}, User: "x", Password: "y"}, c.cluster)

	c, err = parseFlags(strings.Fields("-endpoints https://a:1,https://[::1]:2"))
	require.NoError(t, err)
	conf, err := c.cluster.tlsConfig()
	require.NoError(t, err)
	require.NotNil(t, conf)
}

func TestHelpIsNoError(t *testing.T) {
	var stdout, stderr strings.Builder
	require.Equal(t, exitGood, run(t.Context(), []string{"-h"}, &stdout, &stderr))
	require.Empty(t, stderr.String())
	newFlagSet(new(config), new(string)).VisitAll(func(f *flag.Flag) {
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
