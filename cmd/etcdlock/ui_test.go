package main

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// ui prints an address that a browser can open.
func TestTheAddressOfThePage(t *testing.T) {
	t.Parallel()
	machine, err := os.Hostname()
	require.NoError(t, err)
	for listen, want := range map[string]string{
		"127.0.0.1:0":    "http://127.0.0.1:4242/",
		"localhost:8379": "http://localhost:4242/",
		"[::1]:8379":     "http://[::1]:4242/",
		"0.0.0.0:8379":   "http://" + machine + ":4242/",
		"[::]:8379":      "http://" + machine + ":4242/",
		":8379":          "http://" + machine + ":4242/",
	} {
		require.Equal(t, want, pageAddress(listen, &net.TCPAddr{IP: net.IPv6zero, Port: 4242}), listen)
	}
}
