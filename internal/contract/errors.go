package contract

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
)

// Sentinels are all sentinels of the package, by name.
var Sentinels = map[string]error{
	"ErrLocked":      etcdlock.ErrLocked,
	"ErrNotHeld":     etcdlock.ErrNotHeld,
	"ErrLost":        etcdlock.ErrLost,
	"ErrUnconfirmed": etcdlock.ErrUnconfirmed,
	"ErrUnlocked":    etcdlock.ErrUnlocked,
	"ErrMaxHold":     etcdlock.ErrMaxHold,
	"ErrDeadlock":    etcdlock.ErrDeadlock,
	"ErrClosed":      etcdlock.ErrClosed,
	"ErrNotRun":      etcdlock.ErrNotRun,
	"ErrUnavailable": etcdlock.ErrUnavailable,

	"ErrRecalled":      etcdlock.ErrRecalled,
	"ErrNotRecallable": etcdlock.ErrNotRecallable,

	"ErrExpired":        etcdlock.ErrExpired,
	"ErrSuspended":      etcdlock.ErrSuspended,
	"ErrKeyDeleted":     etcdlock.ErrKeyDeleted,
	"ErrKeyOverwritten": etcdlock.ErrKeyOverwritten,
	"ErrLeaseRevoked":   etcdlock.ErrLeaseRevoked,
}

// RequireIs fails the test unless err matches exactly these of the sentinels of this
// package and of context: what an error is not matters as much as what it is.
func RequireIs(t *testing.T, err error, want ...error) {
	t.Helper()
	require.Error(t, err)
	all := []error{context.Canceled, context.DeadlineExceeded}
	for _, sentinel := range Sentinels {
		all = append(all, sentinel)
	}
	for _, target := range append(all, want...) {
		expected := false
		for _, w := range want {
			expected = expected || errors.Is(w, target)
		}
		require.Equal(t, expected, errors.Is(err, target), "errors.Is(%q, %q)", err, target)
	}
}

// Reasons are the reasons of a loss, by name.
var Reasons = map[string]error{
	"ErrExpired":        etcdlock.ErrExpired,
	"ErrSuspended":      etcdlock.ErrSuspended,
	"ErrKeyDeleted":     etcdlock.ErrKeyDeleted,
	"ErrKeyOverwritten": etcdlock.ErrKeyOverwritten,
	"ErrLeaseRevoked":   etcdlock.ErrLeaseRevoked,
	"ErrMaxHold":        etcdlock.ErrMaxHold,
}

// RequireReasons fails the test unless err has exactly these of the reasons, and whatever
// else is wanted.
func RequireReasons(t *testing.T, err error, want ...error) {
	t.Helper()
	for name, reason := range Reasons {
		expected := slices.Contains(want, reason)
		require.Equal(t, expected, errors.Is(err, reason), "%s of: %v", name, err)
	}
	for _, target := range want {
		require.ErrorIs(t, err, target)
	}
}
