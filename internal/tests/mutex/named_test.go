package mutex_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A lock by its name excludes a Mutex of that name and another lock by it, and has the same errors.
func TestALockByNameIsThatOfAMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		s, other := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
		h, err := s.Lock(t.Context(), "n")
		require.NoError(t, err)
		require.Equal(t, []string{"n"}, h.Names())
		require.Equal(t, etcd.Keys("n/"), []string{h.Key()})
		require.Positive(t, h.Token())
		require.Equal(t, etcdlock.Status{
			Held: true, Token: h.Token(), Key: h.Key(), TTL: tests.TTL, SafetyMargin: tests.TTL / 8,
			Deadline: time.Now().Add(tests.TTL - tests.TTL/8),
		}, h.Status())

		_, err = other.TryLock(t.Context(), "n")
		var locked *etcdlock.LockedError
		is := errors.As(err, &locked)
		require.True(t, is, "%v", err)
		require.Equal(t, h.Key(), locked.Holder.Key)
		_, err = s.TryLock(t.Context(), "n")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.ErrorIs(t, contract.MutexOf(t, other, "n").TryLock(t.Context()), etcdlock.ErrLocked)
		err = other.TryDo(t.Context(), "n", func(context.Context) error { panic("called") })
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		require.ErrorIs(t, err, etcdlock.ErrNotRun)

		_, err = s.Lock(h.Context(t.Context()), "n")
		require.ErrorIs(t, err, etcdlock.ErrDeadlock)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = other.Lock(soon, "n")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, etcdlock.ErrLocked)

		hold := h.Context(t.Context())
		require.NoError(t, h.Unlock(t.Context()))
		require.ErrorIs(t, context.Cause(hold), etcdlock.ErrUnlocked)
		require.ErrorIs(t, h.Unlock(t.Context()), etcdlock.ErrNotHeld)
		require.Zero(t, h.Status())
		require.Empty(t, h.Key())
		require.Equal(t, []string{"n"}, h.Names(), "it was of them")

		// What Do does is done, and its error is the function's, or that of the loss.
		full := errors.New("disk full")
		require.Equal(t, full, other.Do(t.Context(), "n", func(ctx context.Context) error {
			token, held := etcdlock.TokenFrom(ctx)
			require.True(t, held)
			require.Positive(t, token)
			return full
		}))
		err = other.Do(t.Context(), "n", func(ctx context.Context) error {
			etcd.DeleteKey(etcd.Keys("n/")[0])
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.NotErrorIs(t, err, etcdlock.ErrNotRun)

		// Options are those of a Mutex.
		h, err = s.Lock(t.Context(), "n", etcdlock.WithOwner("me"), etcdlock.WithReentrancy())
		require.NoError(t, err)
		all, err := etcdlock.Contenders(t.Context(), etcd.Client("c"), "n")
		require.NoError(t, err)
		require.Equal(t, "me", all[0].Owner)
		nested, err := s.Lock(h.Context(t.Context()), "n", etcdlock.WithReentrancy())
		require.NoError(t, err)
		require.Equal(t, h.Token(), nested.Token())
		require.NoError(t, nested.Unlock(t.Context()))
		require.True(t, h.Status().Held)
		require.NoError(t, h.Unlock(t.Context()))
		h, err = s.Lock(t.Context(), "n", etcdlock.WithMaxHold(time.Second))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.ErrorIs(t, h.Unlock(t.Context()), etcdlock.ErrMaxHold)
		synctest.Wait()
		require.Empty(t, etcd.Keys("n/"))
	})
}

// A bad argument of a call by name is an error at once that names it, and nothing is sent.
func TestABadCallByNameIsAnErrorAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		s := tests.SessionOf(t, etcd, "a")
		closed := tests.SessionOf(t, etcd, "b")
		require.NoError(t, closed.Close(t.Context()))
		var nilContext context.Context
		nothing := func(context.Context) error { panic("called") }
		for name, row := range map[string]struct {
			s    *etcdlock.Session
			ctx  context.Context
			name string
			opts []etcdlock.Option
			says string
		}{
			"no name":        {s, t.Context(), "", nil, `name "" is empty`},
			"a bad name":     {s, t.Context(), "a/", nil, `name "a/" ends with "/"`},
			"a nil context":  {s, nilContext, "n", nil, "nil context"},
			"a nil option":   {s, t.Context(), "n", []etcdlock.Option{nil}, "option 1 is nil"},
			"a bad option":   {s, t.Context(), "n", []etcdlock.Option{etcdlock.WithMaxHold(0)}, "WithMaxHold(0s)"},
			"a zero Session": {new(etcdlock.Session), t.Context(), "n", nil, "Session not made with NewSession"},
			"no Session":     {nil, t.Context(), "n", nil, "Session not made with NewSession"},
			"a closed one":   {closed, t.Context(), "n", nil, "closed"},
		} {
			_, locks := row.s.Lock(row.ctx, row.name, row.opts...)
			_, tries := row.s.TryLock(row.ctx, row.name, row.opts...)
			does := row.s.Do(row.ctx, row.name, nothing, row.opts...)
			triesToDo := row.s.TryDo(row.ctx, row.name, nothing, row.opts...)
			leads := row.s.Lead(row.ctx, row.name, nothing, row.opts...)
			for _, err := range []error{locks, tries, does, triesToDo, leads} {
				require.ErrorContains(t, err, row.says, name)
			}
			require.ErrorIs(t, does, etcdlock.ErrNotRun, name)
			require.ErrorIs(t, triesToDo, etcdlock.ErrNotRun, name)
		}
		mu, rw := contract.MutexOf(t, s, "n"), tests.RWMutexOf(t, s)
		permits := tests.SemaphoreOf(t, s, 1)
		for _, row := range []struct {
			op  string
			err error
		}{
			{"Do", s.Do(t.Context(), "n", nil)}, {"TryDo", s.TryDo(t.Context(), "n", nil)},
			{"DoAll", s.DoAll(t.Context(), []string{"n"}, nil)},
			{"TryDoAll", s.TryDoAll(t.Context(), []string{"n"}, nil)},
			{"Do", mu.Do(t.Context(), nil)}, {"TryDo", mu.TryDo(t.Context(), nil)},
			{"Do", rw.Do(t.Context(), nil)}, {"TryDo", rw.TryDo(t.Context(), nil)},
			{"RDo", rw.RDo(t.Context(), nil)}, {"TryRDo", rw.TryRDo(t.Context(), nil)},
			{"Do", permits.Do(t.Context(), 1, nil)}, {"TryDo", permits.TryDo(t.Context(), 1, nil)},
		} {
			require.ErrorIs(t, row.err, etcdlock.ErrNotRun)
			require.EqualError(t, row.err, "etcdlock: "+row.op+": nil function")
		}
		require.ErrorContains(t, s.Lead(t.Context(), "n", nil), "nil function")
		require.Empty(t, etcd.Counts())
		require.Zero(t, (*etcdlock.Hold)(nil).Status())
		require.Empty(t, (*etcdlock.Hold)(nil).Names())
		require.Zero(t, new(etcdlock.Hold).Status())
	})
}

// Lead by name leads as a Mutex does, with the options of the call, and takes turns with a Mutex of
// the name.
func TestALeaderByNameLeadsAsAMutexDoes(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s, other := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
		ctx, end := context.WithCancel(context.Background())
		enough := func(context.Context) error { return etcdlock.ErrStopLeading }
		var infos []string
		over := contract.Async(func() error {
			return s.Lead(ctx, "n", func(ctx context.Context) error {
				held, err := etcdlock.Holders(ctx, etcd.Client("c"), "n")
				require.NoError(t, err)
				infos = append(infos, held[0].Info)
				require.ErrorIs(t, s.Lead(ctx, "n", enough), etcdlock.ErrDeadlock)
				time.Sleep(time.Minute)
				return nil
			}, etcdlock.WithInfo("here"))
		})
		time.Sleep(time.Second)
		began := time.Now()
		mu := contract.MutexOf(t, other, "n")
		require.NoError(t, mu.Lock(t.Context()))
		require.Equal(t, time.Minute-time.Second, time.Since(began).Round(time.Second))
		time.Sleep(time.Minute)
		require.NoError(t, mu.Unlock(t.Context()))
		time.Sleep(time.Second)
		end()
		require.ErrorIs(t, <-over, context.Canceled)
		require.Equal(t, []string{"here", "here"}, infos)
		require.ErrorIs(t, s.Lead(t.Context(), "n", enough), etcdlock.ErrStopLeading)
	})
}

// A call that tries says by its error whether this lock was taken, or one inside the function.
func TestATryTellsItsOwnLockFromOneInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		s, other := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
		h, err := other.Lock(t.Context(), "taken")
		require.NoError(t, err)
		nothing := func(context.Context) error { return nil }
		inside := func(ctx context.Context) error { return s.TryDo(ctx, "taken", nothing) }
		mu, rw := contract.MutexOf(t, s, "n"), tests.RWMutexOf(t, s)
		permits := tests.SemaphoreOf(t, s, 1)
		own := s.TryDo(t.Context(), "taken", nothing)
		require.ErrorIs(t, own, etcdlock.ErrLocked)
		require.ErrorIs(t, own, etcdlock.ErrNotRun)
		for op, err := range map[string]error{
			"Session.TryDo":    s.TryDo(t.Context(), "free", inside),
			"Session.TryDoAll": s.TryDoAll(t.Context(), []string{"free", "too"}, inside),
			"Mutex.TryDo":      mu.TryDo(t.Context(), inside),
			"RWMutex.TryRDo":   rw.TryRDo(t.Context(), inside),
			"Semaphore.TryDo":  permits.TryDo(t.Context(), 1, inside),
		} {
			require.ErrorIs(t, err, etcdlock.ErrLocked, op)
			require.NotErrorIs(t, err, etcdlock.ErrNotRun, op)
		}
		require.NoError(t, h.Unlock(t.Context()))
	})
}

// A call by name sends what a Mutex sends that was made once and is used again, and allocates no
// more but for its Hold.
func TestALockByNameCostsThatOfAMutex(t *testing.T) {
	etcd := fake.NewServer()
	s, err := etcdlock.NewSession(etcd.Client("a"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	ctx := t.Context()
	mu := contract.MutexOf(t, s, "n")
	byMutex := func() {
		require.NoError(t, mu.Lock(ctx))
		require.NoError(t, mu.Unlock(ctx))
	}
	byName := func() {
		h, err := s.Lock(ctx, "n")
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
	}
	byMutex()
	sent := func(f func()) int {
		before := etcd.Counts()[fake.Txn]
		f()
		return etcd.Counts()[fake.Txn] - before
	}
	require.Equal(t, 2, sent(byMutex))
	require.Equal(t, 2, sent(byName))
	require.LessOrEqual(t, objects(byName), objects(byMutex)+1)
}

// A Lock and its Unlock allocate about as much as those of etcd's Mutex.
func TestALockAllocatesAboutWhatEtcdsOwnDoes(t *testing.T) {
	ctx, client := context.Background(), fake.NewServer().Client("a")
	s, err := etcdlock.NewSession(client)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	theirs, err := concurrency.NewSession(client)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, theirs.Close()) })
	each := func(mu locks) float64 {
		return objects(func() {
			require.NoError(t, mu.Lock(ctx))
			require.NoError(t, mu.Unlock(ctx))
		})
	}
	ours := each(contract.MutexOf(t, s, "ours"))
	require.LessOrEqual(t, ours, each(concurrency.NewMutex(theirs, "theirs"))+25)
}

type locks interface {
	Lock(context.Context) error
	Unlock(context.Context) error
}

// objects is how many objects a call of f allocates. What else runs may only add.
func objects(f func()) float64 {
	f()
	n := testing.AllocsPerRun(200, f)
	for range 5 {
		n = min(n, testing.AllocsPerRun(200, f))
	}
	return n
}

// TryDoAll and Semaphore.TryDo do what is free at once, and say so where it is not.
func TestWhatIsTriedIsDoneIfItIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		s, other := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
		done := 0
		do := func(context.Context) error { done++; return nil }
		sem := tests.SemaphoreOf(t, s, 2)
		require.NoError(t, sem.TryDo(t.Context(), 2, do))
		require.NoError(t, s.TryDoAll(t.Context(), []string{"n", "o"}, do))
		require.Equal(t, 2, done)

		h, err := other.LockAll(t.Context(), "o", "p")
		require.NoError(t, err)
		require.Equal(t, []string{"o", "p"}, h.Names())
		require.Contains(t, h.Key(), "o/")
		permit, err := tests.SemaphoreOf(t, other, 2).Acquire(t.Context(), 1)
		require.NoError(t, err)
		for _, err := range []error{
			s.TryDoAll(t.Context(), []string{"n", "o"}, do), sem.TryDo(t.Context(), 2, do),
		} {
			require.ErrorIs(t, err, etcdlock.ErrNotRun)
			require.ErrorIs(t, err, etcdlock.ErrLocked)
		}
		require.Equal(t, 2, done)
		require.NoError(t, sem.TryDo(t.Context(), 1, do))
		require.NoError(t, permit.Unlock(t.Context()))
		require.NoError(t, h.Unlock(t.Context()))
	})
}

// A lock by name that nests in several names is of its own name only: its Unlock leaves the holds
// of the others as they are.
func TestALockByNameNestsInOneOfSeveralNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithReentrancy())
		all, err := s.LockAll(t.Context(), "n", "o")
		require.NoError(t, err)
		ctx := all.Context(t.Context())
		for range 3 {
			for _, name := range []string{"n", "o"} {
				soon, cancel := context.WithTimeout(ctx, time.Minute)
				h, err := s.Lock(soon, name)
				cancel()
				require.NoError(t, err, "it waits for itself")
				require.Equal(t, []string{name}, h.Names())
				require.Contains(t, h.Key(), name+"/")
				require.Len(t, h.IsOwner(), 1)
				require.NoError(t, h.Unlock(t.Context()))
				require.True(t, all.Status().Held)
			}
		}
		require.Equal(t, []string{"n", "o"}, all.Names())
		require.Len(t, all.IsOwner(), 2)
		require.NoError(t, all.Unlock(t.Context()))
		require.Empty(t, etcd.Keys(""))
	})
}
