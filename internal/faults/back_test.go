package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/side"
)

// save writes a snapshot of etcd into a file.
func (s *servers) save(tr *trial) (path string) {
	tr.Helper()
	client := s.client(tr, s.at(0))
	defer client.Close()
	from, err := client.Snapshot(tr.bounded(patience))
	require.NoError(tr, err)
	defer from.Close()
	path = filepath.Join(tr.TempDir(), "snapshot.db")
	to, err := os.Create(path)
	require.NoError(tr, err)
	defer to.Close()
	_, err = io.Copy(to, from)
	require.NoError(tr, err)
	return path
}

// goBack stops all members and starts them again from a snapshot, as etcdutl restores it,
// or from nothing if path is "". bump raises the revision. The members keep their names and
// addresses, so the cluster keeps its id.
func (s *servers) goBack(tr *trial, path string, bump uint64) {
	tr.Helper()
	s.goBackAfter(tr, 0, path, bump)
}

// goBackAfter is goBack, with etcd away for a while.
func (s *servers) goBackAfter(tr *trial, away time.Duration, path string, bump uint64) {
	tr.Helper()
	s.goBackAs(tr, away, path, way{bump, sameToken})
}

// A way is one to restore a snapshot.
type way struct {
	bump  uint64 // --bump-revision, with --mark-compacted, without which etcdutl refuses it
	token string // --initial-cluster-token: another one gives the cluster another id
}

const sameToken = "etcd-cluster" // etcd's default

// goBackAs is goBackAfter, with the snapshot restored in a way.
func (s *servers) goBackAs(tr *trial, away time.Duration, path string, w way) {
	tr.Helper()
	for i := range s.members {
		s.kill(i)
	}
	time.Sleep(away)
	for i, m := range s.members {
		dir := m.flag("--data-dir")
		require.NoError(tr, os.RemoveAll(dir))
		if path != "" {
			require.NoError(tr, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
				SnapshotPath: path, Name: m.flag("--name"), OutputDataDir: dir,
				PeerURLs:            []string{m.flag("--initial-advertise-peer-urls")},
				InitialCluster:      m.flag("--initial-cluster"),
				InitialClusterToken: w.token,
				RevisionBump:        w.bump,
				MarkCompacted:       w.bump > 0,
			}))
		}
		s.restart(i)
	}
	s.serves()
}

// flag is the value of one of the member's flags.
func (m *server) flag(name string) string {
	for i, arg := range m.args {
		if arg == name {
			return m.args[i+1]
		}
	}
	return ""
}

// S30. When etcd is set back, nobody gets in beside another, every holder whose key went
// learns of it, and the line goes on.
//
//	a holds, n wait | other keys are written | etcd is set back, to before or after a and
//	they queued | a unlocks: nil if its key came back, else a loss | all n get in, one at a
//	time | other keys are written until etcd is past its old revision, all n lock and unlock
//	meanwhile
func TestS30WhereEtcdIsSetBackNoTwoHoldAndTheLineGoesOn(t *testing.T) {
	t.Parallel()
	type world struct {
		name    string
		members int
		kept    bool // a's key and those of the waiters come back
		raised  bool // revisions, and so tokens, go on above those seen before
		back    func(tr *trial, s, other *servers, clients []*clientv3.Client, saved string)
	}
	worlds := []world{
		{"restored from a snapshot with the line", 1,
			true, false, func(tr *trial, s, _ *servers, _ []*clientv3.Client, saved string) {
				s.goBack(tr, saved, 0)
			}},
		{"restored from a snapshot before the line, 3 members", 3,
			false, false, func(tr *trial, s, _ *servers, _ []*clientv3.Client, saved string) {
				s.goBack(tr, saved, 0)
			}},
		{"restored from a snapshot before the line, revision raised", 1,
			false, true, func(tr *trial, s, _ *servers, _ []*clientv3.Client, saved string) {
				s.goBack(tr, saved, 1_000_000_000)
			}},
		{"wiped", 1, false, false, func(tr *trial, s, _ *servers, _ []*clientv3.Client, _ string) {
			s.goBack(tr, "", 0)
		}},
		{"the clients moved to another cluster", 1,
			false, false, func(_ *trial, _, other *servers, clients []*clientv3.Client, _ string) {
				for _, c := range clients {
					c.SetEndpoints(other.endpoints()...)
				}
			}},
	}
	for _, w := range worlds {
		for _, n := range []int{1, 4, 20} {
			name := fmt.Sprintf("%s, waiters %d", w.name, n)
			t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
				t.Parallel()
				prove(t, row{
					id: "S30", name: name, quick: 1, lanes: 2, noPeer: true,
					fault: "etcd set back: " + name,
					must: "0 overlaps; a key that went is told in <= 2 s; all get in <= 5 s after the release, " +
						"and a waiter that has noticed it a TTL later, a minute in a line of more than nine " +
						"which it has just joined",
				}, func(tr *trial) {
					const long = 10 * ttl // TTL of the Sessions
					s := startServers(tr, w.members)
					admin := s.client(tr)
					clients := []*clientv3.Client{admin}
					open := func(who string) *party {
						client := s.client(tr)
						clients = append(clients, client)
						return tr.partyOf(who, client, long)
					}
					other := startServers(tr, 1, "--initial-cluster-token", "another")
					saved := s.save(tr)
					a := open("a")
					a.locks()
					var waiting []*wait
					for i := range n {
						waiting = append(waiting, open(fmt.Sprint("b", i)).starts(context.Background()))
					}
					tr.lineIs(admin, 1+n)
					if w.kept {
						saved = s.save(tr)
					}
					writeOthers(tr, admin, 200)
					reached := revisionOf(tr, admin)

					if !w.kept {
						a.leaves() // another may get in before a knows, as with any taken key
					}
					if !w.kept && !w.raised {
						tr.forgets()
					}
					w.back(tr, s, other, clients, saved)
					if w.kept {
						a.unlocks()
					} else {
						served := now()
						a.loses(patience)
						told := now() - served
						tr.figures.longest("time until the holder was told", told)
						tr.must(told <= 2*time.Second, "a was told %v after etcd was back", told)
						tr.must(side.Ours.Lost(a.releases(patience)), "a is not told of its loss")
					}
					released := now()
					// A waiter that has noticed it waits for the lock delay. (A recheck may have told it,
					// though the keys are there.)
					delayed := released + long
					if n > 9 { // a waiter reads the TTLs of all before it with its first recheck
						delayed = released + queue.DefaultRestoreDelay
					}
					for range waiting {
						most := max(0, delayed-released) + 5*time.Second
						next := first(tr, waiting, most+slack)
						tr.figures.longest("time until one more got in", next.at-released)
						tr.must(next.at-released <= most, "%s got in %v after the release", next.p.who,
							next.at-released)
						released = now()
						next.p.unlocks()
					}

					var all sync.WaitGroup
					past := make(chan struct{})
					for _, w := range waiting {
						all.Go(func() {
							for {
								select {
								case <-past:
									return
								default:
								}
								if w.p.tries(tr.bounded(patience), "Lock") == nil {
									time.Sleep(time.Millisecond)
									_ = w.p.releases(patience)
								}
							}
						})
					}
					writeOthers(tr, admin, 200)
					for revisionOf(tr, admin) < reached+200 {
						writeOthers(tr, admin, 10)
					}
					close(past)
					all.Wait()
				})
			})
		}
	}
}

// S30, of those who wait. Who has lived through a set-back gets in only once the holder of before
// knows that its hold is over, or its trust has ended: the holder may learn of the set-back later.
//
//	a holds, b waits, or was refused and tries again and again | etcd is killed, wiped or restored,
//	and away for 0.1 to 3 s; a reaches it as b does, or not any more | a is told, or its lease is not
//	renewed | b gets in
func TestS30WhoHasLivedThroughASetBackLeavesTheHolderItsTime(t *testing.T) {
	t.Parallel()
	const rounds, soon = 20, 5 * time.Second
	type world struct {
		name          string
		leases        bool          // the snapshot has the leases, and not the keys
		wiped         bool          // there is no snapshot
		cut           bool          // the holder does not reach etcd any more
		holder, other time.Duration // their TTLs
	}
	worlds := []world{
		{name: "wiped", wiped: true, holder: 2 * ttl, other: 2 * ttl},
		{name: "restored from a snapshot before the leases", holder: 2 * ttl, other: 2 * ttl},
		{name: "restored from a snapshot between the leases and the keys", leases: true,
			holder: 2 * ttl, other: 2 * ttl},
		{name: "wiped, the holder cut off", wiped: true, cut: true, holder: 2 * ttl, other: 2 * ttl},
		{name: "wiped, the holder cut off with a longer TTL", wiped: true, cut: true,
			holder: 4 * ttl, other: ttl},
	}
	uses := []struct {
		holds, waits use
		verb         string
	}{
		{exclusive, exclusive, "Lock"}, {exclusive, exclusive, "TryLock"},
		{reading, writing, "Lock"}, {writing, reading, "Lock"},
		{allOfThem, allOfThem, "Lock"},
	}
	for _, w := range worlds {
		for _, u := range uses {
			name := fmt.Sprintf("%s; %s, then %s by %s", w.name, u.holds, u.waits, u.verb)
			t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
				t.Parallel()
				prove(t, row{
					id: "S30", name: name, quick: 1, full: min(rounds, *trials), lanes: 2, noPeer: true,
					fault: "etcd set back, and away for 0.1 to 3 s: " + name,
					must: "0 overlaps; the next in <= the longer TTL + 5 s after etcd is back, or a minute + 5 s if " +
						"it had no place in line, or its lease was over by then",
				}, func(tr *trial) {
					s := startServers(tr, 1)
					proxy := etcdtest.NewProxy(tr, s.endpoints()[0])
					saved := ""
					if !w.wiped && !w.leases {
						saved = s.save(tr)
					}
					through := func(cfg *clientv3.Config) { cfg.Endpoints = []string{proxy.Addr()} }
					a := tr.partyOfFor(u.holds, "a", s.client(tr, through), w.holder)
					b := tr.partyOfFor(u.waits, "b", s.client(tr), w.other)
					a.mends(proxy.Heal)
					a.getsALease()
					b.getsALease()
					if w.leases {
						saved = s.save(tr)
					}
					a.locks()
					var next *wait
					if u.verb == "Lock" {
						next = b.starts(context.Background())
						tr.lineIs(s.client(tr), 2)
					} else {
						err := b.tries(tr.bounded(patience), u.verb)
						tr.must(errors.Is(err, etcdlock.ErrLocked), "b is not refused: %v", err)
					}
					tr.phase(w.holder)
					tr.forgets()
					if w.cut {
						proxy.Refuse()
						proxy.Reset()
					}
					step := 2900 * time.Millisecond / time.Duration(tr.n)
					away := 100*time.Millisecond + step*time.Duration(tr.i*7%tr.n)
					s.goBackAfter(tr, away, saved, 0)
					served := now()
					if next == nil {
						next = b.triesUntilIn()
					}
					most := queue.DefaultRestoreDelay + soon
					next.getsIn(most + slack)
					took := next.at - served
					tr.figures.longest("time until the next got in", took)
					tr.must(took <= w.holder+soon || took >= most-2*soon && took <= most,
						"b got in %v after etcd was back", took)
					a.loses(patience)
					tr.must(side.Ours.Lost(a.releases(patience)), "a is not told of its loss")
					b.unlocks()
				})
			})
		}
	}
}

// S46. etcd is restored as its own page says, and as our runbook does, from a snapshot that lacks
// the holder's key. A process that has used etcd before gets in once the holder, which is cut off,
// knows that its hold is over.
//
//	b has used etcd | a snapshot | a holds, and is cut off | etcd is killed, restored, and started |
//	b comes: it gets in
func TestS46ARestoreByTheBookLetsNoTwoHold(t *testing.T) {
	t.Parallel()
	ways := []struct {
		name string
		way
	}{
		{"without flags", way{0, sameToken}},
		{"--bump-revision 1000000000 --mark-compacted", way{1_000_000_000, sameToken}},
		{"the same, and another --initial-cluster-token", way{1_000_000_000, "restored-1"}},
	}
	uses := []struct {
		holds, waits use
		verb         string
	}{
		{exclusive, exclusive, "Lock"}, {exclusive, exclusive, "TryLock"}, {writing, writing, "Lock"},
		{reading, writing, "Lock"}, {writing, reading, "Lock"}, {allOfThem, allOfThem, "Lock"},
	}
	for _, w := range ways {
		for _, u := range uses {
			name := fmt.Sprintf("%s; %s, then %s by %s", w.name, u.holds, u.waits, u.verb)
			t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
				t.Parallel()
				prove(t, row{
					id: "S46", name: name, quick: 1, full: 1, lanes: 2, noPeer: true,
					fault: "etcd restored from a snapshot before the hold: " + name,
					must:  "0 overlaps; the next in <= 1 min + 5 s after etcd is back",
				}, func(tr *trial) {
					const holds = 7 * ttl
					s := startServers(tr, 1)
					proxy := etcdtest.NewProxy(tr, s.endpoints()[0])
					through := func(cfg *clientv3.Config) { cfg.Endpoints = []string{proxy.Addr()} }
					a := tr.partyOfFor(u.holds, "a", s.client(tr, through), holds)
					b := tr.partyOfFor(u.waits, "b", s.client(tr), holds)
					a.mends(proxy.Heal)
					a.getsALease()
					b.getsALease()
					saved := s.save(tr)
					if w.bump == 0 {
						writeOthers(tr, s.client(tr), 200) // else nothing shows that they are gone
						b.getsALease()
					}
					a.locks()
					tr.phase(holds)
					if w.bump == 0 {
						tr.forgets()
					}
					proxy.Refuse()
					proxy.Reset()
					s.goBackAs(tr, 100*time.Millisecond, saved, w.way)
					served := now()
					begins := func() *wait { return b.starts(context.Background()) }
					if u.verb == "TryLock" {
						begins = b.triesUntilIn
					}
					next := begins()
					next.getsIn(2 * time.Minute)
					took := next.at - served
					tr.figures.longest("time until the next got in", took)
					tr.must(took <= time.Minute+5*time.Second, "b got in %v after etcd was back", took)
					a.loses(patience)
					tr.must(side.Ours.Lost(a.releases(patience)), "a is not told of its loss")
					b.unlocks()
				})
			})
		}
	}
}

// S46, where the revision says nothing: it was raised by no more than etcd may have written
// meanwhile, or others have written as much since. Another sign shows the set-back, and the next
// gets in once the holder, which is cut off, knows that its hold is over.
//
//	etcd is started anew | a snapshot | a holds, b is in the line or is not | both are cut off |
//	etcd is killed, restored, and started; others write | b comes back, and gets in
func TestS46ARestoreWhoseRevisionSaysNothingLetsNoTwoHold(t *testing.T) {
	t.Parallel()
	const (
		holds = 7 * ttl
		must  = holds + 5*time.Second // b knows, or may assume, that TTL
	)
	for _, w := range []struct {
		name   string
		starts int  // of etcd before: each begins a term, which a restored etcd has yet to reach
		waits  bool // b is in the line
		bump   uint64
		writes int // of others, before b comes back
	}{
		{"Raft's terms begin anew", 3, false, 1000, 0},
		{"the key of a waiter is gone without an event", 0, true, 1000, 0},
		{"the key of a waiter was never there", 0, true, 0, 200},
	} {
		t.Run(strings.ReplaceAll(w.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			prove(t, row{
				id: "S46", name: w.name, quick: 1, full: 1, lanes: 2, noPeer: true,
				fault: fmt.Sprintf("etcd restored from a snapshot before the hold, its revision raised by %d; "+
					"%d writes of others; %s", w.bump, w.writes, w.name),
				must: fmt.Sprintf("0 overlaps; the next in <= %v after etcd is back", must),
			}, func(tr *trial) {
				s := startServers(tr, 1)
				for range w.starts {
					s.kill(0)
					s.restart(0)
					s.serves()
				}
				admin := s.client(tr)
				var proxies []*etcdtest.Proxy
				open := func(who string) *party {
					proxy := etcdtest.NewProxy(tr, s.endpoints()[0])
					proxies = append(proxies, proxy)
					p := tr.partyOf(who, s.client(tr, func(cfg *clientv3.Config) {
						cfg.Endpoints = []string{proxy.Addr()}
					}), holds)
					p.mends(proxy.Heal)
					p.getsALease()
					return p
				}
				a, b := open("a"), open("b")
				saved := s.save(tr)
				a.locks()
				var next *wait
				if w.waits {
					next = b.starts(context.Background())
					tr.lineIs(admin, 2)
				}
				tr.phase(holds)
				if w.bump == 0 {
					tr.forgets()
				}
				for _, proxy := range proxies {
					proxy.Refuse()
					proxy.Reset()
				}
				s.goBackAs(tr, 100*time.Millisecond, saved, way{w.bump, sameToken})
				writeOthers(tr, s.client(tr), w.writes)
				b.heals()
				served := now()
				if next == nil {
					next = b.starts(context.Background())
				}
				next.getsIn(2 * time.Minute)
				took := next.at - served
				tr.figures.longest("time until the next got in", took)
				tr.must(took <= must, "b got in %v after etcd was back", took)
				a.loses(patience)
				tr.must(side.Ours.Lost(a.releases(patience)), "a is not told of its loss")
				b.unlocks()
			})
		})
	}
}

// S46, by the runbook: etcd stays stopped for the longest TTL. A process that starts afterwards
// knows of no older hold, and needs not to.
//
//	a holds | a snapshot of before | etcd is killed | a's hold ends in its TTL | etcd is restored
//	with a raised revision and another token | c, a new process, gets in at once, with a higher
//	token; b, which has lived through it, a minute after it has noticed
func TestS46TheRunbookOfARestoreLetsNoTwoHold(t *testing.T) {
	t.Parallel()
	prove(t, row{
		id: "S46", name: "by the runbook", quick: 1, full: 1, noPeer: true,
		fault: "etcd restored by the runbook, the longest TTL after it was stopped",
		must:  "0 overlaps, tokens grow; a new process in <= 5 s, another in <= 1 min + 5 s",
	}, func(tr *trial) {
		const holds = 4 * ttl
		s := startServers(tr, 1)
		a, b := tr.partyOf("a", s.client(tr), holds), tr.partyOf("b", s.client(tr), holds)
		a.getsALease()
		b.getsALease()
		saved := s.save(tr)
		a.locks()
		s.goBackAs(tr, holds+time.Second, saved, way{1_000_000_000, "restored-1"})
		served := now()
		a.loses(patience)
		c := tr.partyOf("c", s.client(tr), holds).starts(context.Background())
		c.getsIn(5 * time.Second)
		c.p.unlocks()
		next := b.starts(context.Background())
		next.getsIn(time.Minute + 5*time.Second)
		tr.figures.longest("time until all got in", next.at-served)
		b.unlocks()
		tr.must(side.Ours.Lost(a.releases(patience)), "a is not told of its loss")
	})
}

// triesUntilIn begins to try again and again, until TryLock says nil or the trial ends.
func (p *party) triesUntilIn() *wait {
	ctx, cancel := context.WithCancel(context.Background())
	w := &wait{p: p, started: now(), done: make(chan struct{}), cancel: cancel}
	go func() { // ends with the trial
		defer close(w.done)
		for {
			w.err = p.tries(ctx, "TryLock")
			w.at = now()
			if w.err == nil || ctx.Err() != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	p.tr.Cleanup(func() { cancel(); <-w.done })
	return w
}

// first waits until one more of the waiters has got in, and removes it from waiting.
func first(tr *trial, waiting []*wait, d time.Duration) (in *wait) {
	tr.Helper()
	tr.must(contract.Eventually(d, func() bool {
		for _, w := range waiting {
			select {
			case <-w.done:
				if !w.left {
					in = w
					return true
				}
			default:
			}
		}
		return false
	}), "nobody has got in after %v", d)
	in.left = true
	tr.must(in.err == nil, "%s: Lock: %v", in.p.who, in.err)
	return in
}

func revisionOf(tr *trial, client *clientv3.Client) int64 {
	tr.Helper()
	resp, err := client.Get(tr.bounded(patience), "x")
	require.NoError(tr, err)
	return resp.Header.Revision
}

// writeOthers writes keys that have nothing to do with the lock.
func writeOthers(tr *trial, client *clientv3.Client, n int) {
	tr.Helper()
	for range n {
		_, err := client.Put(tr.bounded(patience), "something else", "")
		require.NoError(tr, err)
	}
}
