package child_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/child"
)

// No address is handed out twice, and each can be listened on.
func TestFreePortsAreFreeAndDistinct(t *testing.T) {
	seen := make(map[string]bool)
	for range 3 {
		addrs, err := child.FreePorts(4)
		require.NoError(t, err)
		require.Len(t, addrs, 4)
		for _, addr := range addrs {
			require.False(t, seen[addr], addr)
			seen[addr] = true
			l, err := net.Listen("tcp", addr)
			require.NoError(t, err)
			require.True(t, l.Addr().(*net.TCPAddr).IP.IsLoopback())
			require.NoError(t, l.Close())
		}
	}
}
