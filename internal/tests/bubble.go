package tests

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

const (
	// TTL makes round numbers: the margin is 3 s, a renewal is sent each 8 s.
	TTL           = 24 * time.Second
	RenewalPeriod = TTL / 3

	// CareTakes is the time within which the keeper has done what is due.
	CareTakes = time.Millisecond

	// LookEvery is the time within which a Session sees that another one of its client has noticed a
	// set-back.
	LookEvery = 350 * time.Millisecond

	// WatchedBy is the age by which a hold is watched.
	WatchedBy = time.Second + CareTakes

	// UnwatchedLook is the time within which an audit of the lease's keys comes while no
	// watch covers a hold that lasts. SeldomLook is that time while watches cover all.
	UnwatchedLook = RenewalPeriod + CareTakes
	SeldomLook    = 4*RenewalPeriod + CareTakes
)

// InVirtualTime runs test in a bubble with an etcd of its own. In the end, when all
// Sessions are closed and every TTL is over, no key and no lease may be left.
func InVirtualTime(t *testing.T, test func(t *testing.T, etcd *fake.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		etcd := fake.NewServer()
		t.Cleanup(func() {
			time.Sleep(time.Hour)
			require.Empty(t, etcd.Keys(""), "keys left behind")
			require.Empty(t, etcd.Leases(), "leases left behind")
		})
		test(t, etcd)
	})
}

// SessionOf returns a Session of a process of its own, which has that name and TTL unless opts say
// otherwise. It is closed in the end, when the faults are over.
func SessionOf(
	t *testing.T, etcd *fake.Server, name string, opts ...etcdlock.SessionOption,
) *etcdlock.Session {
	t.Helper()
	opts = append([]etcdlock.SessionOption{etcdlock.WithTTL(TTL), etcdlock.WithOwner(name)}, opts...)
	s, err := etcdlock.NewSession(etcd.Client(name), opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		etcd.Intercept(nil)
		etcd.Heal(name)
		etcd.Thaw()
		require.NoError(t, s.Close(context.Background()))
	})
	return s
}

// RWMutexOf is Session.RWMutex for a test, with the name "n".
func RWMutexOf(t *testing.T, s *etcdlock.Session, opts ...etcdlock.Option) *etcdlock.RWMutex {
	t.Helper()
	rw, err := s.RWMutex("n", opts...)
	require.NoError(t, err)
	return rw
}

// SemaphoreOf is Session.Semaphore for a test, with the name "n".
func SemaphoreOf(
	t *testing.T, s *etcdlock.Session, limit int, opts ...etcdlock.Option,
) *etcdlock.Semaphore {
	t.Helper()
	sem, err := s.Semaphore("n", limit, opts...)
	require.NoError(t, err)
	return sem
}
