package etcdlock

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A key that goes before its owner has begun to wait ends the wait at once.
func TestAPlaceThatIsLostBeforeTheWaitWakesIt(t *testing.T) {
	s, err := NewSession(fake.NewServer().Client("a"))
	require.NoError(t, err)
	p := &place{s: s, local: &localLine{s: s, name: "x"}, ahead: line.Ahead{Last: line.Line{{Key: "x/1"}}}}
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
			v := &view{local: &localLine{s: new(Session), name: "x"}, state: from}
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
