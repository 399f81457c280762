package etcdlock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
)

func TestATokenComesFromHoldsOnly(t *testing.T) {
	token, ok := etcdlock.TokenFrom(t.Context())
	require.False(t, ok)
	require.Zero(t, token)
	token, ok = etcdlock.TokenFrom((*etcdlock.Mutex)(nil).Context(t.Context()))
	require.False(t, ok)
	require.Zero(t, token)
}
