package main

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What goes to etcd takes no longer, and what comes from there a trip longer, each in its turn.
func TestAFarEtcdAnswersATripLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, server := net.Pipe()
		far := newFarConn(near, 20*time.Millisecond)
		began := time.Now()
		go func() {
			for _, b := range []string{"ab", "c"} {
				_, _ = server.Write([]byte(b))
				time.Sleep(time.Millisecond)
			}
			server.Close()
		}()
		b := make([]byte, 1)
		for _, want := range []struct {
			byte string
			at   time.Duration
		}{{"a", 20 * time.Millisecond}, {"b", 20 * time.Millisecond}, {"c", 21 * time.Millisecond}} {
			n, err := far.Read(b)
			require.NoError(t, err)
			require.Equal(t, want.byte, string(b[:n]))
			require.Equal(t, want.at, time.Since(began))
		}
		_, err := far.Read(b)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 22*time.Millisecond, time.Since(began))
		require.NoError(t, far.Close())
		_, err = far.Read(b)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}
