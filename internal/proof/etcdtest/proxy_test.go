//go:build timed

package etcdtest_test

import (
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// echo is a TCP server that sends back what it gets, and remembers it.
type echo struct {
	net.Listener
	mu  sync.Mutex
	got string
}

func newEcho(t *testing.T) *echo {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e := &echo{Listener: l}
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				io.Copy(conn, io.TeeReader(conn, e))
			})
		}
	})
	return e
}

func (e *echo) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got += string(p)
	return len(p), nil
}

func (e *echo) heard(t *testing.T, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.got == want
	}, within, time.Millisecond)
}

// caller is a connection through the proxy.
type caller struct {
	*testing.T
	conn net.Conn
}

func call(t *testing.T, p *etcdtest.Proxy) caller {
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return caller{t, conn}
}

func (c caller) says(s string) {
	c.Helper()
	_, err := c.conn.Write([]byte(s))
	require.NoError(c, err)
}

func (c caller) hears(want string) {
	c.Helper()
	c.conn.SetReadDeadline(time.Now().Add(within))
	got := make([]byte, len(want))
	_, err := io.ReadFull(c.conn, got)
	require.NoError(c, err)
	require.Equal(c, want, string(got))
}

func (c caller) hearsNothing() {
	c.Helper()
	c.conn.SetReadDeadline(time.Now().Add(moment))
	n, err := c.conn.Read(make([]byte, 1))
	require.Zero(c, n)
	require.ErrorContains(c, err, "timeout")
}

func (c caller) isReset() {
	c.Helper()
	c.conn.SetReadDeadline(time.Now().Add(within))
	_, err := c.conn.Read(make([]byte, 1))
	require.ErrorIs(c, err, syscall.ECONNRESET)
}

func TestAProxyPassesBytesAndTheirEnd(t *testing.T) {
	p := etcdtest.NewProxy(t, newEcho(t).Addr().String())
	a := call(t, p)
	a.says("hello")
	a.hears("hello")
	require.NoError(t, a.conn.(*net.TCPConn).CloseWrite())
	_, err := a.conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 1, p.Accepted())
}

func TestABlackHoleSwallowsAndHealResetsWhatLostBytes(t *testing.T) {
	server := newEcho(t)
	p := etcdtest.NewProxy(t, server.Addr().String())
	a, idle := call(t, p), call(t, p)
	a.says("1")
	a.hears("1")
	idle.says("2")
	idle.hears("2")

	p.BlackHole()
	a.says("3")
	a.hearsNothing()
	b := call(t, p)
	b.says("4")
	b.hearsNothing()
	server.heard(t, "12")

	p.Heal()
	a.isReset()
	b.isReset()
	idle.says("5")
	idle.hears("5")
	c := call(t, p)
	c.says("6")
	c.hears("6")
	server.heard(t, "1256")
}

func TestConnectionsThatAreLostSaySoAtHealAndNewOnesWork(t *testing.T) {
	server := newEcho(t)
	p := etcdtest.NewProxy(t, server.Addr().String())
	a, idle := call(t, p), call(t, p)
	for _, c := range []caller{a, idle} {
		c.says("1")
		c.hears("1")
	}
	p.Lose()
	a.says("2")
	a.hearsNothing()
	b := call(t, p)
	b.says("3")
	b.hears("3")
	server.heard(t, "113")

	p.Heal()
	a.isReset()
	idle.isReset()
	b.says("4")
	b.hears("4")
}

func TestABlackHoleForRepliesLetsRequestsThrough(t *testing.T) {
	server := newEcho(t)
	p := etcdtest.NewProxy(t, server.Addr().String())
	a := call(t, p)
	p.BlackHole(etcdtest.Replies)
	a.says("1")
	server.heard(t, "1")
	a.hearsNothing()
	p.Heal()
	a.isReset()
}

func TestHeldBytesAreDeliveredAtHeal(t *testing.T) {
	server := newEcho(t)
	p := etcdtest.NewProxy(t, server.Addr().String())
	a := call(t, p)
	p.Hold(etcdtest.Replies)
	a.says("1")
	server.heard(t, "1")
	a.hearsNothing()
	p.Hold()
	a.says("2")
	a.hearsNothing()
	server.heard(t, "1")
	p.Heal()
	a.hears("12")
}

func TestADelayCountsFromTheArrivalOfEachByte(t *testing.T) {
	p := etcdtest.NewProxy(t, newEcho(t).Addr().String())
	a := call(t, p)
	p.Delay(moment, etcdtest.Requests)
	start := time.Now()
	for range 10 {
		a.says("1")
		time.Sleep(time.Millisecond) // so that each travels alone
	}
	a.hears("1111111111")
	took := time.Since(start)
	require.GreaterOrEqual(t, took, moment)
	require.Less(t, took, 9*moment, "delays of bytes that follow each other do not add up")

	p.Delay(time.Hour)
	a.says("2")
	a.hearsNothing()
	p.Heal()
	a.hears("2")
}

func TestResetEndsWhatExistsAndRefuseWhatComes(t *testing.T) {
	p := etcdtest.NewProxy(t, newEcho(t).Addr().String())
	a := call(t, p)
	a.says("1")
	a.hears("1")
	p.Refuse()
	conn, err := net.Dial("tcp", p.Addr())
	if err == nil { // else the reset was faster than the dialer
		caller{t, conn}.isReset()
		conn.Close()
	} else {
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	a.says("2")
	a.hears("2")
	p.Reset()
	a.isReset()
	p.Heal()
	b := call(t, p)
	b.says("3")
	b.hears("3")
	require.Equal(t, 3, p.Accepted())
}

func TestAClientSurvivesABlackHoleByANewConnection(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	p := cluster.Proxy(t, 0)
	client, witness := cluster.Client(t, etcdtest.Via(p)), cluster.Client(t)
	require.NoError(t, put(bounded(t), client, "a"))

	p.BlackHole(etcdtest.Replies)
	pending := begin(func() error { return put(bounded(t), client, "b") })
	require.Eventually(t, func() bool { return exists(t, witness, "b") }, within, time.Millisecond)
	// The witness may see the key before the answer has reached the proxy.
	require.Eventually(t, func() bool { return p.Swallowed() > 0 }, within, time.Millisecond)
	p.Heal()
	require.Error(t, result(t, pending), "the answer was lost after the commit")
	require.Eventually(t, func() bool {
		return put(bounded(t), client, "c") == nil
	}, within, time.Millisecond)
	require.Equal(t, 2, p.Accepted())
}
