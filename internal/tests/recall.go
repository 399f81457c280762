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

// Listens is the option of most holds that may be recalled.
var Listens = etcdlock.WithRecall(10 * time.Second)

// Recall recalls the first in the line for "n".
func Recall(t *testing.T, etcd *fake.Server, grace time.Duration) {
	t.Helper()
	RecallAt(t, etcd, 0, grace)
}

// RecallAt recalls the i-th in the line for "n".
func RecallAt(t *testing.T, etcd *fake.Server, i int, grace time.Duration) {
	t.Helper()
	require.NoError(t, etcdlock.Recall(context.Background(), etcd.Client("operator"),
		PlaceOf(t, etcd, "n", i),
		etcdlock.RecallRequest{By: "op", Reason: "update", Grace: grace}))
	synctest.Wait()
}

// IsRecalled reports whether the hold of a context was recalled.
func IsRecalled(hold context.Context) bool {
	select {
	case <-etcdlock.RecallFrom(hold):
		return true
	default:
		return false
	}
}

// RecalledAfter waits for the recall of a hold, and returns how long after start it came.
func RecalledAfter(t *testing.T, hold context.Context, start time.Time) time.Duration {
	t.Helper()
	require.NotNil(t, etcdlock.RecallFrom(hold))
	select {
	case <-etcdlock.RecallFrom(hold):
		return time.Since(start)
	case <-time.After(24 * time.Hour):
		require.FailNow(t, "the recall is not noticed")
		return 0
	}
}
