//go:build bound

package hold_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/hold"
)

// These tests hold the mutex of a Session while time goes on. So they need the overlay of
// internal/bound, by which a goroutine that waits for a mutex waits at a channel:
//
//	go run ./internal/bound/counted -run WhileTheSessionsMutexIsHeld ./internal/hold

const (
	safetyTTL    = 24 * time.Second
	safetyMargin = 3 * time.Second
	renewedAt    = 8 * time.Second // and each 8 s later

	// takenAt is when the test takes the mutex, after the first renewal.
	takenAt = 10 * time.Second
)

// An anyHold is a Hold, or a Mutex that is held.
type anyHold interface {
	Context(parent context.Context) context.Context
	Status() etcdlock.Status
	Token() int64
	Unlock(ctx context.Context) error
}

// holdsOf makes holds of a Session, of each kind.
var holdsOf = []struct {
	kind string
	most int // holds; there may be more contexts
	lock func(s *etcdlock.Session, i int) (anyHold, error)
}{
	{"Mutexes", 2_000, func(s *etcdlock.Session, i int) (anyHold, error) {
		m, err := s.Mutex(fmt.Sprint(i))
		if err != nil {
			return nil, err
		}
		return m, m.Lock(context.Background())
	}},
	{"a Mutex", 1, func(s *etcdlock.Session, i int) (anyHold, error) {
		m, err := s.Mutex("n")
		if err != nil {
			return nil, err
		}
		return m, m.Lock(context.Background())
	}},
	{"reads", 10_000, func(s *etcdlock.Session, _ int) (anyHold, error) {
		rw, err := s.RWMutex("n")
		if err != nil {
			return nil, err
		}
		return rw.RLock(context.Background())
	}},
	{"permits", 200, func(s *etcdlock.Session, _ int) (anyHold, error) {
		sem, err := s.Semaphore("n", math.MaxUint16)
		if err != nil {
			return nil, err
		}
		return sem.Acquire(context.Background(), 1)
	}},
	{"names of LockAll", 300, func(s *etcdlock.Session, i int) (anyHold, error) {
		var names []string
		for j := range 10 {
			names = append(names, fmt.Sprint(i, "-", j))
		}
		return s.LockAll(context.Background(), names...)
	}},
}

// A watched is a context of a hold, and when it has ended.
type watched struct {
	context.Context
	hold  anyHold
	token int64
	ended time.Time
}

// withMutexHeld calls test with n contexts of holds of each kind, which are on one lease and 10 s
// old. mu is locked as test begins, and is unlocked when it returns. Then more is called.
func withMutexHeld(
	t *testing.T, test, more func(t *testing.T, etcd *fake.Server, all []*watched),
) {
	for _, n := range []int{1, 10_000} {
		for _, of := range holdsOf {
			t.Run(fmt.Sprintf("%d contexts, %s", n, of.kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					etcd := fake.NewServer()
					etcd.ForgetCalls()
					s, err := etcdlock.NewSession(etcd.Client("a"),
						etcdlock.WithTTL(safetyTTL), etcdlock.WithSafetyMargin(safetyMargin))
					require.NoError(t, err)
					var holds []anyHold
					var all []*watched
					var ended sync.WaitGroup
					for i := range n {
						if i < of.most {
							h, err := of.lock(s, i)
							require.NoError(t, err)
							holds = append(holds, h)
						}
						type number struct{}
						h := holds[i%len(holds)]
						ctx := h.Context(context.WithValue(context.Background(), number{}, i))
						c := &watched{Context: ctx, hold: h, token: h.Token()}
						all = append(all, c)
						done := c.Done()
						ended.Go(func() { <-done; c.ended = time.Now() })
					}
					time.Sleep(takenAt)
					hold.SessionOf(s).Mu().Lock()
					test(t, etcd, all)
					hold.SessionOf(s).Mu().Unlock()
					synctest.Wait()
					more(t, etcd, all)
					etcd.Heal("a")
					for _, h := range holds {
						_ = h.Unlock(context.Background())
					}
					assert.NoError(t, s.Close(context.Background()))
					ended.Wait()
				})
			})
		}
	}
}

// atOnce calls f, which must not wait for the mutex that the test holds.
func atOnce[T any](t *testing.T, what string, f func() T) (v T, ok bool) {
	t.Helper()
	told := make(chan T, 1)
	go func() { told <- f() }()
	synctest.Wait()
	select {
	case v := <-told:
		return v, true
	default:
		return v, assert.Fail(t, what+" waits for the mutex of the Session")
	}
}

// saysWhole requires that the hold of c says at once that it is whole.
func (c *watched) saysWhole(t *testing.T) bool {
	t.Helper()
	err, ok := atOnce(t, "Err of a whole hold", c.Err)
	if !ok {
		return false
	}
	now, ok := atOnce(t, "Status of a whole hold", c.hold.Status)
	return ok && assert.NoError(t, err) && assert.True(t, now.Held) &&
		assert.Equal(t, c.token, now.Token) && assert.True(t, now.Deadline.After(time.Now()))
}

// saysLost requires that the hold of c says at once that it is lost, and why.
func (c *watched) saysLost(t *testing.T) bool {
	t.Helper()
	err, ok := atOnce(t, "Err of a lost hold", c.Err)
	if !ok {
		return false
	}
	now, ok := atOnce(t, "Status of a lost hold", c.hold.Status)
	if !ok {
		return false
	}
	cause, ok := atOnce(t, "the Cause of a lost hold", func() error { return context.Cause(c) })
	return ok && assert.ErrorIs(t, err, context.Canceled) && assert.Zero(t, now) &&
		c.lostBy(t, cause)
}

// lostBy requires that c has ended with the LostError of its own hold.
func (c *watched) lostBy(t *testing.T, cause error) bool {
	t.Helper()
	var lost *etcdlock.LostError
	return assert.ErrorAs(t, cause, &lost) && assert.Equal(t, c.token, lost.Token) &&
		assert.ErrorIs(t, lost, etcdlock.ErrExpired)
}

// some are a few of all, the first and the last among them.
func some(all []*watched) []*watched {
	return slices.Concat(all[:1], all[len(all)/2:len(all)/2+1], all[len(all)-1:])
}

// The mutex of a Session is held for ten TTLs, and etcd does not answer. Each context ends with the
// trust in the lease, with the LostError of its own hold as the cause. Meanwhile Status, Err and
// Cause tell the truth.
//
//	0     8                 10                  29                   250
//	lock  the last renewal  the mutex is taken  the trust has ended  the mutex is free
//	                        etcd is gone
func TestHoldsEndInTimeWhileTheSessionsMutexIsHeld(t *testing.T) {
	withMutexHeld(t, func(t *testing.T, etcd *fake.Server, all []*watched) {
		taken := time.Now()
		until := taken.Add(renewedAt + safetyTTL - safetyMargin - takenAt)
		etcd.Cut("a")
		time.Sleep(time.Until(until) - time.Nanosecond)
		told := true
		for _, c := range some(all) {
			told = told && c.saysWhole(t)
		}
		time.Sleep(time.Nanosecond)
		for _, c := range some(all) { // whatever runs first at this instant
			told = told && c.saysLost(t)
		}
		synctest.Wait()
		late := 0
		for _, c := range all {
			if !c.ended.Equal(until) {
				late++
			}
		}
		assert.Zero(t, late, "of %d contexts have not ended with the trust in the lease", len(all))
		time.Sleep(time.Until(taken.Add(10 * safetyTTL)))
	}, func(t *testing.T, _ *fake.Server, all []*watched) {
		for _, c := range all {
			if !c.lostBy(t, context.Cause(c)) {
				return
			}
		}
	})
}

// The mutex of a Session is held for three TTLs, and etcd is well. The lease is renewed as ever.
// Each hold is whole meanwhile and afterwards.
func TestLeasesAreRenewedWhileTheSessionsMutexIsHeld(t *testing.T) {
	withMutexHeld(t, func(t *testing.T, etcd *fake.Server, all []*watched) {
		renewals, told := etcd.Counts()[fake.KeepAlive], true
		for range 3 {
			time.Sleep(safetyTTL)
			for _, c := range some(all) {
				told = told && c.saysWhole(t)
			}
		}
		assert.Equal(t, 9, etcd.Counts()[fake.KeepAlive]-renewals, "renewals")
	}, func(t *testing.T, _ *fake.Server, all []*watched) {
		time.Sleep(safetyTTL)
		for _, c := range all {
			if !assert.NoError(t, c.Err()) || !assert.Equal(t, c.token, c.hold.Token()) {
				return
			}
		}
		unlocked := make(map[anyHold]bool)
		for _, c := range all {
			if !unlocked[c.hold] && !assert.NoError(t, c.hold.Unlock(context.Background())) {
				return
			}
			unlocked[c.hold] = true
		}
	})
}
