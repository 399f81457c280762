package faults

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

type pause struct {
	name   string
	freeze func(tr *trial, p *process, proxy *etcdtest.Proxy)
}

// pauses are the ways in which a process stops for longer than its TTL. Either it has had
// etcd's last word before, or it wakes and finds an answer that would have renewed its
// lease.
var pauses = []pause{
	{"frozen", func(_ *trial, p *process, _ *etcdtest.Proxy) { p.freeze() }},
	{"frozen, with an answer in its socket", func(tr *trial, p *process, proxy *etcdtest.Proxy) {
		proxy.Hold(etcdtest.Replies)
		// When it sends a second request after that, the first one has its answer.
		since := now()
		for range 2 {
			e, ok := p.says("renewing", since, patience)
			require.True(tr, ok, "%s does not renew its lease", p.who)
			since = e.At + 1
		}
		p.freeze()
		proxy.Heal()
		require.True(tr, contract.Eventually(patience, func() bool {
			return unread(tr, proxy.Addr()) > 0
		}), "no answer in the socket")
	}},
}

// unread returns how many bytes wait in the sockets of this machine that are connected to
// an address.
func unread(tr *trial, addr string) (sum uint64) {
	tr.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	require.NoError(tr, err)
	to, err := net.ResolveTCPAddr("tcp4", addr)
	require.NoError(tr, err)
	for line := range bytes.Lines(table) {
		// number, local address, remote address, state, unsent:unread, ...
		fields := bytes.Fields(line)
		if !bytes.HasSuffix(fields[2], fmt.Appendf(nil, ":%04X", to.Port)) {
			continue
		}
		_, queue, _ := bytes.Cut(fields[4], []byte(":"))
		n, err := strconv.ParseUint(string(queue), 16, 64)
		require.NoError(tr, err)
		sum += n
	}
	return sum
}

// S4. A process that was frozen for longer than its TTL knows at its first look that it has
// lost the lock, whatever answers it finds waiting. It knows so for good.
//
//	a works, and asks before each unit | a is frozen | its lease expires, b gets in | a
//	wakes
func TestS04AProcessThatWasFrozenBeginsNoWorkAfterTheNextOwnerGotIn(t *testing.T) {
	t.Parallel()
	for _, pause := range pauses {
		t.Run(pause.name, func(t *testing.T) {
			prove(t, row{
				id: "S4", name: pause.name, quick: 4,
				fault: "holder " + pause.name + ", for more than the TTL",
				must:  "asked first, no work begins after the next owner got in; loss visible <= 50 ms after it wakes; never revived",
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				proxy := c.Proxy(tr, 0)
				a := tr.process("a", ttl, proxy.Addr())
				b := tr.party("b", c, 10*ttl)

				tr.sleepsThrough(a, b, func() { pause.freeze(tr, a, proxy) })
				b.stillHolds(c.Client(tr))
			})
		})
	}
}

// sleepsThrough makes a lock and b wait. a asks before each unit of its work. It is frozen
// until b has got in. The trial judges what a does when it wakes.
func (tr *trial) sleepsThrough(a *process, b *party, freeze func()) {
	tr.Helper()
	a.locks()
	next := b.waits()
	tr.phase(ttl / 3)
	freeze()
	next.getsIn(expires)
	thawed := now()
	a.thaw()
	told, ok := a.says("ended", thawed, patience)
	tr.must(ok, "a does not know of its loss %v after it woke", patience)
	visible := told.At - a.firstLook(thawed)
	tr.figures.longest("time from waking until the loss is visible", visible)

	time.Sleep(ttl) // time in which something might revive it
	begun := len(a.looks(next.at))
	tr.figures.add("units of work begun after the next owner got in", begun)
	tr.must(begun == 0, "a began %d units of work after b got in", begun)
	tr.must(visible <= 50*time.Millisecond, "a learnt of its loss %v after it woke", visible)
}

// S5. A process may be frozen between the question and the write. No lock can prevent that,
// but the token can: a resource that has seen a newer token refuses an older one.
//
//	a writes, and asks no more | a is frozen | its lease expires, b gets in and writes | a
//	wakes and goes on writing, and so does b
func TestS05AResourceThatChecksTheTokenRefusesEveryStaleWrite(t *testing.T) {
	t.Parallel()
	for _, pause := range pauses {
		t.Run(pause.name, func(t *testing.T) {
			prove(t, row{
				id: "S5", name: pause.name, quick: 4,
				fault: "holder " + pause.name + ", for more than the TTL, and writing without asking",
				must:  "a resource that checks the token refuses every stale write, and no other",
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				proxy := c.Proxy(tr, 0)
				store := newStore(tr)
				a := tr.process("a", ttl, proxy.Addr())
				b := tr.party("b", c, 10*ttl)

				a.locks()
				a.writes(store)
				tr.must(store.hears("a", 10), "a does not write")
				next := b.waits()
				tr.phase(ttl / 3)
				pause.freeze(tr, a, proxy)
				next.getsIn(expires)
				store.write("b", b.lock.Token())
				handed := now()
				a.thaw()
				for range 100 {
					tr.must(store.hears("a", 1), "a does not write any more")
					store.write("b", b.lock.Token())
				}
				b.stillHolds(c.Client(tr))

				stale := 0
				for _, w := range store.heard() {
					late := w.who == "a" && w.at > handed
					if late {
						stale++
					}
					switch {
					case late && w.taken:
						tr.must(false, "a's write was taken with token %d after b's with token %d", w.token,
							b.lock.Token())
					case !late && !w.taken:
						tr.must(false, "a write of %s, the holder, with token %d was refused", w.who, w.token)
					}
				}
				tr.figures.add("stale writes, all refused", stale)
			})
		})
	}
}

// A store accepts a write unless it has seen a greater token.
type store struct {
	url string

	mu       sync.Mutex
	greatest int64
	writes   []written
	more     chan struct{} // closed and made anew with each write
}

type written struct {
	who   string
	token int64
	at    time.Duration
	taken bool
}

func newStore(tr *trial) *store {
	tr.Helper()
	s := &store{more: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := strconv.ParseInt(r.FormValue("token"), 10, 64)
		if err != nil || !s.write(r.FormValue("who"), token) {
			w.WriteHeader(http.StatusConflict)
		}
	}))
	tr.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *store) write(who string, token int64) (taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken = token >= s.greatest
	s.greatest = max(s.greatest, token)
	s.writes = append(s.writes, written{who, token, now(), taken})
	close(s.more)
	s.more = make(chan struct{})
	return taken
}

func (s *store) heard() []written {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes[:len(s.writes):len(s.writes)]
}

// hears waits for n more writes of a writer.
func (s *store) hears(who string, n int) bool {
	deadline := time.After(patience)
	for next := len(s.heard()); ; {
		s.mu.Lock()
		writes, more := s.writes, s.more
		s.mu.Unlock()
		for ; next < len(writes); next++ {
			if writes[next].who == who {
				n--
			}
		}
		if n <= 0 {
			return true
		}
		select {
		case <-more:
		case <-deadline:
			return false
		}
	}
}
