package etcdtest

import (
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/etcdlock/etcdlock/internal/contract"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Proxy is a TCP proxy on the loopback interface: the network that a test can break. Its
// verbs work on all connections through it, existing and future, until Heal. They are safe
// for concurrent use.
//
// Bytes that are lost from the middle of a TCP stream never come back, and HTTP/2 does not
// work without them. So Heal resets the connections that lost any, as a network does in the
// end.
type Proxy struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup // accept, and four goroutines for each link

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced when a rule or a link changes
	closed    bool
	refusing  bool
	rules     [2]rule // by Direction
	links     []*link
	accepted  int
	swallowed int // bytes
}

// A Direction is one of the two ways through a proxy.
type Direction int

const (
	Requests Direction = iota // from the client to the server
	Replies                   // from the server to the client
)

// rule is what happens to the bytes of a direction.
type rule struct {
	swallow bool
	hold    bool
	delay   time.Duration
}

// link is a client's connection and the connection to the server that goes with it.
type link struct {
	client, server net.Conn
	lost           bool // guarded by Proxy.mu: nothing is delivered any more, and nothing says so
	poisoned       bool // guarded by Proxy.mu: bytes were lost
	dead           bool // guarded by Proxy.mu: nothing is delivered any more
}

// NewProxy puts a proxy before a TCP address. It closes when t ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("etcdtest: listen: %v", err)
	}
	p := &Proxy{listener: l, target: target, changed: make(chan struct{})}
	p.running.Go(p.accept) // ends when the listener is closed
	t.Cleanup(p.close)
	return p
}

// Proxy puts a proxy before a member.
func (c *Cluster) Proxy(t testing.TB, member int) *Proxy {
	t.Helper()
	return NewProxy(t, c.Endpoint(member))
}

// Via gives a client the endpoints of these proxies only.
func Via(proxies ...*Proxy) contract.ClientOption {
	return func(cfg *clientv3.Config) {
		scheme := "http"
		if cfg.TLS != nil {
			scheme = "https"
		}
		cfg.Endpoints = nil
		for _, p := range proxies {
			cfg.Endpoints = append(cfg.Endpoints, fmt.Sprintf("%s://%s", scheme, p.Addr()))
		}
	}
}

// Addr returns the proxy's address, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Accepted returns how many connections were made, refused ones included.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Swallowed returns how many bytes fell into a black hole.
func (p *Proxy) Swallowed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallowed
}

// BlackHole takes all bytes and delivers none, in the given directions or in both. New
// connections are made, and fall into it too.
func (p *Proxy) BlackHole(in ...Direction) {
	p.set(in, func(r *rule) { r.swallow = true })
}

// Lose loses the existing connections without a sign, as the end of a load balancer or of a virtual
// machine does: what is sent on them is acknowledged, and never delivered. New connections work.
func (p *Proxy) Lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		l.lost = true
	}
	p.changedLocked()
}

// Hold keeps the bytes, in the given directions or in both, and delivers them all at Heal.
func (p *Proxy) Hold(in ...Direction) {
	p.set(in, func(r *rule) { r.hold = true })
}

// Delay delivers bytes d after they came, in the given directions or in both.
func (p *Proxy) Delay(d time.Duration, in ...Direction) {
	p.set(in, func(r *rule) { r.delay = d })
}

func (p *Proxy) set(in []Direction, change func(*rule)) {
	if len(in) == 0 {
		in = []Direction{Requests, Replies}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range in {
		change(&p.rules[d])
	}
	p.changedLocked()
}

// Refuse resets each new connection as soon as it is made. Existing connections go on.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = true
}

// Reset resets the existing connections, once; what they carry is lost.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		p.resetLocked(l)
	}
}

// Heal ends all faults of the proxy. It delivers what was held, and resets the connections
// that lost something.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		if l.poisoned || l.lost {
			p.resetLocked(l)
		}
	}
	p.refusing = false
	p.rules = [2]rule{}
	p.changedLocked()
}

func (p *Proxy) changedLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) resetLocked(l *link) {
	l.dead = true
	reset(l.client)
	reset(l.server)
	p.changedLocked()
}

// reset closes a connection by RST. The other side sees that at once, whatever it does.
func reset(conn net.Conn) {
	conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

func (p *Proxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Reset()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.connect(client) })
	}
}

// connect makes a link of a client's connection and runs it until both
// directions have ended.
func (p *Proxy) connect(client net.Conn) {
	p.mu.Lock()
	p.accepted++
	refuse := p.refusing || p.closed
	p.mu.Unlock()
	if refuse {
		reset(client)
		return
	}
	server, err := net.DialTimeout("tcp", p.target, contract.Patience)
	if err != nil {
		reset(client)
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	p.links = append(p.links, l)
	if p.closed {
		p.resetLocked(l)
	}
	p.mu.Unlock()

	var both sync.WaitGroup
	both.Go(func() { p.carry(l, Requests, client, server) })
	both.Go(func() { p.carry(l, Replies, server, client) })
	both.Wait()

	client.Close()
	server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links = slices.DeleteFunc(p.links, func(other *link) bool { return other == l })
}

// chunk is some bytes on their way, or the end of them.
type chunk struct {
	bytes []byte
	end   error // io.EOF, or why the connection broke
	came  time.Time
}

// carry moves the bytes of one direction. A reader takes them at once, so that their delay
// counts from then and TCP does not push back on the sender. The writer delivers them in
// order, by the rule of the moment.
func (p *Proxy) carry(l *link, d Direction, from, to net.Conn) {
	chunks := make(chan chunk, 1024)
	p.running.Go(func() { // ends with the connection that it reads
		defer close(chunks)
		for {
			buf := make([]byte, 16<<10)
			n, err := from.Read(buf)
			if n > 0 {
				chunks <- chunk{bytes: buf[:n], came: time.Now()}
			}
			if err != nil {
				chunks <- chunk{end: err, came: time.Now()}
				return
			}
		}
	})
	for c := range chunks {
		if !p.passes(l, d, c) {
			continue
		}
		switch {
		case c.end == io.EOF:
			to.(*net.TCPConn).CloseWrite()
		case c.end != nil:
			reset(to)
		default:
			if _, err := to.Write(c.bytes); err != nil {
				reset(from) // which also ends the reader
			}
		}
	}
}

// passes waits until the rules say what becomes of a chunk, and reports whether to deliver
// it.
func (p *Proxy) passes(l *link, d Direction, c chunk) bool {
	for {
		p.mu.Lock()
		rule, changed, dead := p.rules[d], p.changed, l.dead
		rule.swallow = rule.swallow || l.lost
		if rule.swallow {
			l.poisoned = true
			p.swallowed += len(c.bytes)
		}
		p.mu.Unlock()
		if dead || rule.swallow {
			return false
		}
		early := rule.delay - time.Since(c.came)
		if !rule.hold && early <= 0 {
			return true
		}
		var due <-chan time.Time
		if !rule.hold {
			due = time.After(early)
		}
		select {
		case <-changed:
		case <-due:
		}
	}
}
