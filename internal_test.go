package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/record"
	"github.com/etcdlock/etcdlock/internal/ticket"
	"github.com/etcdlock/etcdlock/internal/trust"
)

func TestOrdinalsAreEnglish(t *testing.T) {
	for n, want := range map[int]string{
		1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 5: "5th", 9: "9th",
		10: "10th", 11: "11th", 12: "12th", 13: "13th", 14: "14th", 19: "19th",
		20: "20th", 21: "21st", 22: "22nd", 23: "23rd", 24: "24th",
		100: "100th", 101: "101st", 102: "102nd", 103: "103rd", 111: "111th", 112: "112th", 113: "113th",
		121: "121st", 1000: "1000th", 1001: "1001st", 1011: "1011th", 1012: "1012th", 1013: "1013th", 1022: "1022nd",
	} {
		require.Equal(t, want, ordinal(n))
	}
}

func TestTheDefaultMarginIsAnEighthOfTheGrantedTTLButNotTooLittle(t *testing.T) {
	for granted, want := range map[time.Duration]time.Duration{
		16 * time.Second: 2 * time.Second, 2 * time.Second: 250 * time.Millisecond,
		time.Second: 125 * time.Millisecond, 800 * time.Millisecond: 100 * time.Millisecond, 0: 100 * time.Millisecond,
	} {
		require.Equal(t, want, (&config{}).marginOf(granted), "%v", granted)
		require.Equal(t, time.Minute, (&config{margin: time.Minute}).marginOf(granted))
	}
}

// oneKey is a KV with one key in it, whatever is asked.
type oneKey struct {
	clientv3.KV
	kv *mvccpb.KeyValue
}

func (k oneKey) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return &clientv3.GetResponse{Kvs: []*mvccpb.KeyValue{k.kv}}, nil
}

// unusedClient is a client that New accepts. Any use of it panics.
func unusedClient() *clientv3.Client {
	client := clientv3.NewCtxClient(context.Background())
	client.KV = struct{ clientv3.KV }{}
	client.Lease = struct{ clientv3.Lease }{}
	client.Watcher = struct{ clientv3.Watcher }{}
	return client
}

// A name is either refused with a short text, or it is that of a lock whose keys are read
// back as exactly its own.
func FuzzName(f *testing.F) {
	for _, name := range []string{
		"", "/", "a", "a/", "a//b", "/a", "\x00", "a\x00b", "\xff", "a\xed\xa0\x80", " \n", "日本語/🔒",
		strings.Repeat("n", 1024), strings.Repeat("n", 1025), "a/6ba7b810-9dad-41d1-80b4-00c04fd430c8",
		"6ba7b810-9dad-41d1-80b4-00c04fd430c8",
	} {
		f.Add(name)
	}
	client := unusedClient()
	f.Fuzz(func(t *testing.T, name string) {
		err := checkName(name)
		mu, newErr := New(client, name)
		require.Equal(t, err, newErr)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "etcdlock: name "), "%v", err)
			require.Less(t, len(err.Error()), 8*maxNameLen)
			return
		}
		require.Equal(t, name, mu.Name())
		for _, tail := range []string{uuid.NewString(), "694d8a6e5bd0a31f"} {
			kv := &mvccpb.KeyValue{Key: []byte(name + "/" + tail), Lease: 0x694d8a6e5bd0a31f, CreateRevision: 7}
			c, ok := parseContender(name, kv)
			require.True(t, ok)
			want := Contender{
				Name: name, Key: name + "/" + tail, Token: 7, Lease: 0x694d8a6e5bd0a31f,
				Mode: "exclusive", Holds: true,
			}
			require.Equal(t, want, c)
			for _, prefix := range []string{"", name[:len(name)/2], name} {
				holders, err := Holders(t.Context(), oneKey{kv: kv}, prefix)
				require.NoError(t, err)
				require.Equal(t, []Contender{want}, holders, "below %q", prefix)
			}
			_, ok = parseContender(name+"/"+tail, kv)
			require.False(t, ok, "a key is no contender of a nested name")
			if outer, _, nested := strings.Cut(name, "/"); nested {
				_, ok = parseContender(outer, kv)
				require.False(t, ok, "a key is no contender of the name around it")
			}
		}
	})
}

// parseContender reports whether kv stands in line for the lock name.
func parseContender(name string, kv *mvccpb.KeyValue) (Contender, bool) {
	e := line.EntryOf(kv)
	if !e.StandsIn(name) {
		return Contender{}, false
	}
	return contenderOf(name, e, true), true
}

// modeOf is the mode of a contender, by the grammar of its key.
func modeOf(tail string) string {
	if regexp.MustCompile(`^f{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\z`).MatchString(tail) {
		return "read"
	}
	return "exclusive"
}

// canonical is what a UUID in a key looks like, by its grammar.
var canonical = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\z`)

// Of all keys below a prefix, whoever put them, Holders returns those of contenders, each
// with the name that its key has before the last "/". That may be a name that this package
// refuses: etcd's own Mutex queues under it all the same, and Break must reach it.
func FuzzHolderKey(f *testing.F) {
	const lease = 0x694d8a6e5bd0a31f
	const id = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	for _, key := range []string{
		"", "/", id, "/" + id, "a/" + id, "a//" + id, "a/b/" + id, "a/" + id + "/" + id, "a/" + id + "/", "a\x00/" + id,
		"a/ffffffff-6ba7-8dad-81d1-80b400c04fd4", "a/ffffffff-6ba7-4dad-81d1-80b400c04fd4",
		"\xff/" + id, "\n/" + id, "a/694d8a6e5bd0a31f", "694d8a6e5bd0a31f", "a/" + strings.ToUpper(id),
	} {
		for _, prefix := range []string{"", "a", "a/", "a/b", "a/" + id, "b"} {
			f.Add(key, prefix, int64(lease))
		}
		f.Add(key, "", int64(0))
	}
	f.Fuzz(func(t *testing.T, key, prefix string, lease int64) {
		kv := &mvccpb.KeyValue{Key: []byte(key), Lease: lease, CreateRevision: 7}
		holders, err := Holders(t.Context(), oneKey{kv: kv}, prefix)
		require.NoError(t, err)
		parts := strings.Split(key, "/")
		name, tail := strings.Join(parts[:len(parts)-1], "/"), parts[len(parts)-1]
		stands := lease != 0 && (canonical.MatchString(tail) || tail == fmt.Sprintf("%x", lease))
		if !stands || name == "" || !strings.HasPrefix(name, prefix) {
			require.Empty(t, holders)
			return
		}
		require.Equal(t, []Contender{{
			Name: name, Key: key, Token: 7, Lease: clientv3.LeaseID(lease), Mode: modeOf(tail), Holds: true,
		}}, holders)
		line, err := Contenders(t.Context(), oneKey{kv: kv}, name)
		if checkName(name) != nil {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, holders, line, "Contenders sees what Holders sees")
	})
}

// Rule 2: a check after a pause sees that the trust is over, although no timer and no
// goroutine of the library has run since.
func TestTheFirstLookNeedsNoTimer(t *testing.T) {
	looks := map[string]func(m *Mutex, ctx context.Context) bool{
		"Err":      func(_ *Mutex, ctx context.Context) bool { return ctx.Err() == context.Canceled },
		"Cause":    func(_ *Mutex, ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrLost) },
		"Token":    func(m *Mutex, _ context.Context) bool { return m.Token() == 0 },
		"Key":      func(m *Mutex, _ context.Context) bool { return m.Key() == "" },
		"Deadline": func(m *Mutex, _ context.Context) bool { return m.Deadline().IsZero() },
		"Unlock":   func(m *Mutex, ctx context.Context) bool { return errors.Is(m.Unlock(ctx), ErrLost) },
		"Done": func(_ *Mutex, ctx context.Context) bool {
			select {
			case <-ctx.Done():
				return true
			default:
				return false
			}
		},
	}
	for name, truth := range looks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, err := New(fake.NewServer().Client("a"), "x")
				require.NoError(t, err)
				require.NoError(t, m.Lock(t.Context()))
				ctx := m.Context(t.Context())
				m.s.mu.Lock()
				l := m.hold.place.lease
				l.expiry.Stop()
				trustUntil(l, time.Now())
				m.s.mu.Unlock()
				require.True(t, truth(m, ctx))
				require.NoError(t, m.Close(t.Context()))
			})
		})
	}
}

// The same for a key that lingers: the next hold has another lease, and another key.
func TestWhatLingersIsNotHeldWhenTheTrustIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(fake.NewServer().Client("a"), "x", WithLinger(time.Minute))
		require.NoError(t, err)
		require.NoError(t, m.Lock(t.Context()))
		key := m.Key()
		l := m.hold.place.lease
		require.NoError(t, m.Unlock(t.Context()))
		m.s.mu.Lock()
		l.expiry.Stop()
		trustUntil(l, time.Now())
		m.s.mu.Unlock()
		require.NoError(t, m.Lock(t.Context()))
		require.NotEqual(t, key, m.Key())
		require.True(t, m.Deadline().After(time.Now()), "deadline %v", m.Deadline())
		require.NoError(t, m.Close(t.Context()))
	})
}

// A key lingers on a lease that has too little trust left for another hold. It gives way to
// a contender that comes, which would otherwise wait for it.
func TestWhatLingersAndCannotBeHeldGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(fake.NewServer().Client("a"), "x", WithLinger(time.Minute), WithTTL(24*time.Second))
		require.NoError(t, err)
		defer m.Close(context.Background())
		require.NoError(t, m.Lock(t.Context()))
		token := m.Token()
		l := m.hold.place.lease
		require.NoError(t, m.Unlock(t.Context()))
		m.s.mu.Lock()
		lingers := m.s.lines["x"].queue.Lingering() != nil
		trustUntil(l, time.Now().Add(2*time.Second)) // the renewals are late
		m.s.mu.Unlock()
		require.True(t, lingers)
		started := time.Now()
		require.NoError(t, m.Lock(t.Context()))
		require.Less(t, time.Since(started), time.Second)
		require.Greater(t, m.Token(), token, "another key, if of the same name")
	})
}

// A key that goes before its owner has begun to wait ends the wait at once.
func TestAPlaceThatIsLostBeforeTheWaitWakesIt(t *testing.T) {
	s, err := NewSession(fake.NewServer().Client("a"))
	require.NoError(t, err)
	p := &place{s: s, local: &localLine{name: "x"}, ahead: line.Ahead{Last: line.Line{{Key: "x/1"}}}}
	p.ticket = ticket.New("x", 1, &ticket.Slot{}, func(string) string { return "x/2" })
	entering := p.ticket.Enter(false, false)
	entering.Judge(ticket.Answer{Succeeded: true, Revision: 2})
	s.mu.Lock()
	p.observedLocked(ticket.Observation{Entry: line.Entry{Key: "x/2"}})
	s.mu.Unlock()
	p.listen()
	select {
	case <-p.news:
	default:
		require.Fail(t, "the waiter is not told")
	}
}

// Rule 1: the trust ends as the answer comes that shows the key first in line, and no timer
// has run yet. Lock then holds with another lease.
func TestNoHoldBeginsWhenTheTrustIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		m, err := New(etcd.Client("a"), "x")
		require.NoError(t, err)
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method != fake.Txn || c.N > 1 {
				return fake.Effect{}
			}
			return fake.Effect{Edit: func(any) {
				m.s.mu.Lock()
				defer m.s.mu.Unlock()
				m.s.current.expiry.Stop()
				trustUntil(m.s.current, time.Now())
			}}
		})
		require.NoError(t, m.Lock(t.Context()))
		require.True(t, m.Deadline().After(time.Now()), "deadline %v", m.Deadline())
		require.Len(t, etcd.Calls(fake.Grant), 2)
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, m.Close(t.Context()))
	})
}

// Rule 2: while a machine is suspended the monotonic clock may stand still, so the wall
// clock may end a hold, too. It never lengthens one. (A bubble has no monotonic clock, so
// this is in real time.)
func TestTheWallClockMayEndAHoldAndNeverLengthensOne(t *testing.T) {
	rows := []struct {
		promise         string
		wall, monotonic time.Duration // that remain
		reason          error
	}{
		{"the machine was suspended", -time.Second, time.Hour, ErrSuspended},
		{"the wall clock was set back", time.Hour, -time.Second, ErrExpired},
		{"both clocks say that it is over", -time.Second, -time.Second, ErrExpired},
		{"both clocks say that time is left", time.Hour, time.Hour, nil},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			m, err := New(fake.NewServer().Client("a"), "x")
			require.NoError(t, err)
			require.NoError(t, m.Lock(t.Context()))
			ctx := m.Context(t.Context())
			until := fake.MoveMonotonic(time.Now().Add(row.wall), row.monotonic-row.wall)
			m.s.mu.Lock()
			trustUntil(m.hold.place.lease, until)
			m.s.mu.Unlock()
			if row.reason == nil {
				require.NoError(t, ctx.Err())
			} else {
				require.ErrorIs(t, ctx.Err(), context.Canceled)
				require.ErrorIs(t, context.Cause(ctx), row.reason)
			}
			require.Equal(t, row.reason == nil, before(time.Now(), until), "as the longest hold sees it")
			require.NoError(t, m.Close(t.Context()))
		})
	}
	record.Save(t, record.Result{
		Row: "S29", Case: "wall clock", Side: record.Ours, N: len(rows),
		Fault:   "the wall clock is set forward beyond the TTL, or back by an hour (in the times that the library keeps: no process can be given a wall clock of its own)",
		Must:    "forward ends a hold early, back lengthens none, and clocks that agree lose nothing",
		Command: "go test . -run TheWallClock",
		Etcd:    "3.7.3 client, etcd in memory",
	})
}

// trustUntil makes the trust in l last until a time.
func trustUntil(l *lease, until time.Time) {
	l.trust = trust.New(until.Add(-l.plan.Span), l.ttl, l.s.cfg.marginOf)
}

// The Session has heard of a term, and no later linearizable answer knows it. Then it was
// the term of a leader that nobody elected, or of one before a restore.
func TestATermThatEtcdDoesNotKnowAnyMoreIsForgotten(t *testing.T) {
	s, err := NewSession(fake.NewServer().Client("a"))
	require.NoError(t, err)
	term := func(term uint64) header { return &pb.ResponseHeader{RaftTerm: term} }
	epoch := s.epoch.Load()
	before := s.sending()
	s.heard(term(3), epoch, 0)
	s.heardNow(term(2), before)
	require.EqualValues(t, 3, epoch.term.Load(), "asked before")
	s.heard(term(2), epoch, 0)
	require.EqualValues(t, 3, epoch.term.Load(), "a member that is behind")
	s.heardNow(term(2), s.sending())
	require.EqualValues(t, 2, epoch.term.Load())
	s.heardNow(term(4), s.sending())
	require.EqualValues(t, 4, epoch.term.Load())
}

// A lease that has ended serves nobody again, and it is gone only once it has ended: then its keys
// are.
func TestALeaseGoesOnlyForward(t *testing.T) {
	states := []leaseState{leaseServing, leaseDraining, leaseEnded, leaseGone}
	legal := map[leaseState][]leaseState{
		leaseServing:  {leaseDraining, leaseEnded},
		leaseDraining: {leaseEnded},
		leaseEnded:    {leaseGone},
	}
	for _, from := range states {
		for _, to := range states {
			l, why := &lease{state: from}, errors.New("a reason")
			become := func() { l.becomesLocked(to, why) }
			if !slices.Contains(legal[from], to) {
				require.Panics(t, become, "%v becomes %v", from, to)
				require.Equal(t, from, l.state)
				continue
			}
			require.NotPanics(t, become, "%v becomes %v", from, to)
			require.Equal(t, to, l.state)
			require.Equal(t, why, l.why)
			require.Equal(t, to >= leaseEnded, l.hasEndedLocked())
		}
	}
}

// A view that is over stays so, and only one that is live is relied on: it comes to that by the
// beginning of a watch, and a read that is not answered takes it away until one is.
func TestAViewIsReliedOnWhileItIsLive(t *testing.T) {
	states := []viewState{viewBegun, viewBlind, viewLive, viewFailed, viewOver}
	illegal := map[viewState][]viewState{
		viewBegun:  {viewBegun, viewFailed},
		viewBlind:  {viewBegun, viewFailed},
		viewLive:   {viewBegun},
		viewFailed: {viewBegun, viewFailed},
	}
	for _, from := range states {
		for _, to := range states {
			v := &view{local: &localLine{name: "x"}, state: from}
			become := func() { v.becomesLocked(to) }
			if slices.Contains(illegal[from], to) {
				require.Panics(t, become, "%v becomes %v", from, to)
				continue
			}
			require.NotPanics(t, become, "%v becomes %v", from, to)
			if from == viewOver {
				to = viewOver
			}
			require.Equal(t, to, v.state, "%v becomes it", from)
			require.Equal(t, to == viewLive, v.isLiveLocked())
		}
	}
	require.False(t, (*view)(nil).isLiveLocked())
}

// A view that a Session has of a short line hears of a deletion in the very moment in which a
// permit finds itself behind too many to wait by that view. The permit then waits for what it has
// found, and gets in.
func TestAPermitWaitsForThoseThatItHasFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		sema := func(name string) *Semaphore {
			s, err := NewSession(etcd.Client(name))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
			sem, err := s.Semaphore("n", 12)
			require.NoError(t, err)
			return sem
		}
		a, b := sema("a"), sema("b")
		acquire := func(from *Semaphore, n int) *Hold {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			h, err := from.Acquire(ctx, n)
			require.NoError(t, err)
			return h
		}
		var full []*Hold
		for range 8 {
			full = append(full, acquire(b, 1))
		}
		time.AfterFunc(time.Millisecond, func() { full[7].Unlock(context.Background()) })
		require.NoError(t, acquire(a, 5).Unlock(t.Context())) // it has waited by a view, which stays
		for full = full[:7]; len(full) < 12; {
			full = append(full, acquire(b, 1))
		}
		synctest.Wait()

		s := a.m.s
		s.mu.Lock()
		n := s.lines["n"]
		require.NotNil(t, n.view)
		require.Len(t, n.view.keys, 12, "more than a permit waits behind by a view, and no long line")
		var meanwhile func() // at the end of each critical section, until the permit has found them
		meanwhile = func() {
			s.mu.Mutex.Lock()
			defer s.mu.Mutex.Unlock() // which leaves what After is given to the next one
			if owner := n.queue.Owner(); owner == nil || owner.place == nil || owner.place.news == nil {
				s.mu.After(meanwhile)
				return
			}
			s.mu.After(func() {
				require.NoError(t, full[0].Unlock(context.Background()))
				synctest.Wait()
			})
		}
		s.mu.After(meanwhile)
		s.mu.Mutex.Unlock()
		require.NotPanics(t, func() { require.NoError(t, acquire(a, 1).Unlock(t.Context())) })
	})
}

// What a view remembers does not grow with what comes and goes in its line or below it, however
// long the Session depends on the view.
func TestWhatAViewRemembersIsBounded(t *testing.T) {
	lockLater := func(m *Mutex) { go func() { _ = m.Lock(context.Background()) }() }
	for _, row := range []struct {
		state string
		reach func(t *testing.T, etcd *fake.Server, other, m *Mutex)
	}{
		{"a key waits", func(t *testing.T, _ *fake.Server, other, m *Mutex) {
			require.NoError(t, other.Lock(t.Context()))
			lockLater(m)
		}},
		{"a put is under way", func(t *testing.T, etcd *fake.Server, other, m *Mutex) {
			require.NoError(t, other.Lock(t.Context()))
			soon, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.ErrorIs(t, m.Lock(soon), context.DeadlineExceeded) // the view stays for a while
			etcd.Intercept(func(c fake.Call) (e fake.Effect) {
				if c.Process == "a" && c.Method == fake.Txn {
					e.DelayReply = time.Second
				}
				return e
			})
			lockLater(m)
		}},
		{"it is held", func(t *testing.T, _ *fake.Server, _, m *Mutex) {
			require.NoError(t, m.Lock(t.Context()))
		}},
		{"it lingers", func(t *testing.T, _ *fake.Server, _, m *Mutex) {
			require.NoError(t, m.Lock(t.Context()))
			require.NoError(t, m.Unlock(t.Context()))
		}},
	} {
		t.Run(row.state, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcd := fake.NewServer()
				mutex := func(process string) *Mutex {
					m, err := New(etcd.Client(process), "n", WithTTL(time.Minute), WithLinger(time.Hour))
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, m.Close(context.Background())) })
					return m
				}
				strangers, err := etcd.Client("strangers").Grant(t.Context(), 3600)
				require.NoError(t, err)
				m := mutex("a")
				row.reach(t, etcd, mutex("b"), m)
				synctest.Wait()
				most := 0
				for i := range 2000 {
					key := "n/" + uuid.NewString()
					if i%2 == 0 || row.state == "it lingers" {
						key = "n/nested/" + uuid.NewString()
					}
					require.NoError(t, etcd.PutKey(key, strangers.ID))
					etcd.DeleteKey(key)
					synctest.Wait()
					m.s.mu.Lock()
					if v := m.s.lines["n"].view; v != nil {
						most = max(most, len(v.deleted), len(v.keys), len(v.read), len(v.putOver))
					} else {
						require.Equal(t, "a put is under way", row.state)
					}
					m.s.mu.Unlock()
				}
				require.LessOrEqual(t, most, viewReads)
				etcd.Intercept(nil)
			})
		})
	}
}

// An oddContext cannot be compared with another.
type oddContext struct {
	context.Context
	_ []string
}

// A hold knows a context until the context ends, and no two for one parent: so a leader may ask for
// one before each step, and with a parent of its own for each request.
func TestAHoldKeepsNoMoreContextsThanItHasParents(t *testing.T) {
	type key struct{}
	background := context.Background()
	for name, row := range map[string]struct {
		ask   func(t *testing.T, m *Mutex)
		kept  int
		later int // once the parents that end have ended
	}{
		"one that never ends": {func(_ *testing.T, m *Mutex) { m.Context(background) }, 1, 1},
		"one with a value": {func() func(*testing.T, *Mutex) {
			parent := context.WithValue(background, key{}, 1)
			return func(_ *testing.T, m *Mutex) { m.Context(parent) }
		}(), 1, 1},
		"a copy of one": {func(_ *testing.T, m *Mutex) { m.Context(struct{ context.Context }{background}) }, 1, 1},
		"one of the hold's own": {func(_ *testing.T, m *Mutex) {
			ctx := background
			for range 10 {
				ctx = m.Context(ctx)
			}
		}, 1, 1},
		"one that is cancelled, for each request": {func(t *testing.T, m *Mutex) {
			parent, cancel := context.WithCancel(background)
			require.NoError(t, m.Context(parent).Err())
			cancel()
		}, 0, 0},
		"one with a time-out, for each request": {func(t *testing.T, m *Mutex) {
			parent, cancel := context.WithTimeout(background, time.Second)
			t.Cleanup(cancel)
			require.NoError(t, m.Context(parent).Err())
		}, 1000, 0},
		"one that cannot be compared, for each request": {func(t *testing.T, m *Mutex) {
			parent, cancel := context.WithCancel(background)
			require.NotPanics(t, func() { require.NoError(t, m.Context(oddContext{Context: parent}).Err()) })
			cancel()
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := heldMutex(t)
				kept := func() int {
					synctest.Wait()
					m.s.mu.Lock()
					defer m.s.mu.Unlock()
					return len(m.hold.contexts)
				}
				for range 1000 {
					row.ask(t, m)
				}
				require.Equal(t, row.kept, kept())
				time.Sleep(2 * time.Second)
				require.Equal(t, row.later, kept())
			})
		})
	}
}

// A busyContext does something else when it is asked for its Done for the first time.
type busyContext struct {
	context.Context
	first func()
}

func (c *busyContext) Done() <-chan struct{} {
	if first := c.first; first != nil {
		c.first = nil
		first()
	}
	return c.Context.Done()
}

// For one parent a hold has one context, also if two calls ask for it at the same time, and the next
// hold has another.
func TestOneParentHasOneContextOfAHold(t *testing.T) {
	m := heldMutex(t)
	ended, cancel := context.WithCancelCause(t.Context())
	parent := &busyContext{Context: ended}
	var first context.Context
	parent.first = func() { first = m.Context(parent) } // while another call makes one
	require.Same(t, m.Context(parent), first)
	require.Same(t, m.Context(parent), first)
	require.NotSame(t, first, m.Context(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	require.ErrorIs(t, context.Cause(first), ErrUnlocked)

	require.NoError(t, m.Lock(t.Context()))
	second := m.Context(parent)
	require.NotSame(t, first, second)
	require.NoError(t, second.Err())
	full := errors.New("disk full")
	cancel(full)
	require.Equal(t, full, context.Cause(second))
	require.Equal(t, full, context.Cause(m.Context(parent)))
	require.NoError(t, m.Context(t.Context()).Err())
}
