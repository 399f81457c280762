package queue

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A key that goes before its owner has begun to wait ends the wait at once.
func TestAPlaceThatIsLostBeforeTheWaitWakesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(t, fake.NewServer().Client("a"))
		p := s.take(t, line.Shape{})
		s.put(t, p)
		s.mu.Lock()
		p.Ahead = &line.Ahead{Last: line.Line{{Key: "n/1"}}}
		p.observedLocked(ticket.Observation{Entry: line.Entry{Key: p.Ticket.Key}})
		s.mu.Unlock()
		p.listen()
		select {
		case <-p.news:
		default:
			require.Fail(t, "the waiter is not told")
		}
	})
}

// A view that a Session has of a short line may hear of a deletion in the very moment in which a
// permit finds itself behind too many to wait by that view. The permit then waits for what it has
// found, and gets in.
func TestAPermitWaitsForThoseThatItHasFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		other, s := newSession(t, server.Client("b")), newSession(t, server.Client("a"))
		permit := line.Shape{Kind: line.Permit, Weight: 1, Limit: 1}
		holder := other.take(t, permit)
		other.put(t, holder)
		p := s.take(t, permit)
		s.put(t, p)
		found, _ := p.Predecessors()
		require.Equal(t, 1, found.Count())

		s.mu.Lock()
		left := p.Ahead.Without(func(line.Entry) bool { return true }) // by the view
		p.Ahead = &left
		s.mu.Unlock()
		server.DeleteKey(holder.Ticket.Key)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w, broken := new(Waiter), attempt.Backoff{}
		require.NotPanics(t, func() { require.NoError(t, w.waitBehindSome(ctx, p, found, &broken)) })
		ahead, stale := p.Predecessors()
		require.True(t, ahead.Clear() && !stale)
	})
}

// A lease may be over unsaid, since its process was suspended, as the Session hears of a set-back.
// Others may have got in since: the places of that lease are none that know of all holds.
func TestALeaseThatIsOverSparesNoRestoreDelay(t *testing.T) {
	for _, others := range []int{0, guard.Piece} {
		t.Run(fmt.Sprint(others, " other places"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fake.NewServer()
				s := newSession(t, server.Client("a"))
				s.keys.RestoreDelay = time.Hour
				for range others {
					s.take(t, line.Shape{})
				}
				s.put(t, s.take(t, line.Shape{}))
				require.EqualValues(t, 1, s.line.delay.stands[behind])
				server.Cut("a")
				over := s.place.Account.Lease.TTL - time.Second // the margin
				time.Sleep(over - 1)
				s.mu.Lock() // so that no timer gets to tell of the end
				time.Sleep(time.Nanosecond)
				present := s.etcd.Epoch()
				present.Number, present.Noticed = 1, time.Now()
				s.keys.SetBackLocked(present)
				delay := s.line.DelayLocked(time.Now(), line.Exclusive)
				s.mu.Unlock()
				require.Equal(t, LockDelay{time.Hour, true}, delay)
				server.Heal("a")
			})
		})
	}
}

// A wait that begins as its Session is closed ends with the error of that, also one at the head of
// its line, which waits for the other places of its call and has to read the line again.
func TestAWaitWhoseSessionIsClosedSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		other, s := newSession(t, server.Client("b")), newSession(t, server.Client("a"))
		other.put(t, other.take(t, line.Shape{}))
		p := s.take(t, line.Shape{})
		s.put(t, p)
		w := new(Waiter)
		s.mu.Lock()
		p.Account.ReleaseLocked() // or the lease may end first, and with it the place
		s.keys.Leases.CloseLocked()
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			p.Account.ReleasedLocked()
			s.mu.Unlock()
		}()
		require.Equal(t, errClosed, w.Wait(t.Context(), p, func() {}))
		s.mu.Lock()
		p.listenLocked()
		p.tellLocked()
		s.mu.Unlock()
		require.Equal(t, errClosed, w.StayFirst(t.Context(), p, nil))
	})
}

// A set-back ends the view by which a key lingers, as soon as the view is asked for. Then the key
// is given up. The audit, which has the keys of holds watched, may be the first to ask. It does not
// begin to watch that key: such a watch would last as long as the Session.
func TestAKeyThatIsGivenUpWithItsViewIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		s := newSession(t, server.Client("a"))
		s.put(t, s.take(t, line.Shape{}))
		s.mu.Lock()
		s.line.WatchLocked(false)
		s.place.HoldLocked(true, time.Now())
		s.place.Refs, s.lingers = 0, true
		s.mu.Unlock()
		time.Sleep(2 * watchAfter)
		server.Restore(server.Snapshot(), 2)
		_, err := s.etcd.Read(t.Context(), etcd.Range("any"))
		require.NoError(t, err)
		synctest.Wait()
		require.False(t, s.lingers)
		require.Nil(t, s.place.watch)
		require.Zero(t, server.Watches())
	})
}

// What a view remembers does not grow with what comes and goes in its line or below it, however
// long the Session depends on the view.
func TestWhatAViewRemembersIsBounded(t *testing.T) {
	for _, row := range []struct {
		state  string
		reach  func(t *testing.T, other, s *session)
		nested bool // what comes and goes is of nested names only
	}{
		{"a key waits", func(t *testing.T, other, s *session) {
			other.put(t, other.take(t, line.Shape{}))
			s.put(t, s.take(t, line.Shape{}))
		}, false},
		{"a put is under way", func(t *testing.T, other, s *session) {
			s.take(t, line.Shape{})
		}, false},
		{"it is held", func(t *testing.T, _, s *session) {
			s.put(t, s.take(t, line.Shape{}))
			s.mu.Lock()
			defer s.mu.Unlock()
			s.place.HoldLocked(true, time.Now())
		}, false},
		{"it lingers", func(t *testing.T, _, s *session) {
			s.put(t, s.take(t, line.Shape{}))
			s.mu.Lock()
			defer s.mu.Unlock()
			s.place.HoldLocked(true, time.Now())
			s.lingers = true
		}, true},
	} {
		t.Run(row.state, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := fake.NewServer()
				strangers, err := server.Client("strangers").Grant(t.Context(), 3600)
				require.NoError(t, err)
				s := newSession(t, server.Client("a"))
				row.reach(t, newSession(t, server.Client("b")), s)
				s.mu.Lock()
				s.line.WatchLocked(false)
				s.mu.Unlock()
				synctest.Wait()
				most := 0
				for i := range 2000 {
					key := "n/" + uuid.NewString()
					if i%2 == 0 || row.nested {
						key = "n/nested/" + uuid.NewString()
					}
					require.NoError(t, server.PutKey(key, strangers.ID))
					server.DeleteKey(key)
					synctest.Wait()
					s.mu.Lock()
					most = max(most, s.line.view.Remembers())
					s.mu.Unlock()
				}
				require.LessOrEqual(t, most, viewReads)
				require.Equal(t, !row.nested, most > 1)
			})
		})
	}
}
