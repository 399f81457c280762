package main

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stretchr/testify/require"
)

// Small cases of each kind of lock that is not a mutex.
var smallFamily = []benchCase{
	readersCase(3),
	mixCase(50),
	severalCase(3),
	permitsCase(2),
	resignCase(20 * time.Millisecond),
	leaderCrashCase,
}

func TestASmallFamilyIsMeasuredInEachWay(t *testing.T) {
	_, chapter, page := measured(t, smallFamily)
	require.NotContains(t, page, "let two in")

	of := func(caseName, name string) row {
		found, ok := chapter.find(caseName, name)
		require.True(t, ok, "%s: nothing of %s", caseName, name)
		return found
	}
	for caseName, peer := range map[string]string{
		"readers-3": recipes, "mix-50-50": recipes, "several-3": baseline,
		"lead-resign": elections, "lead-crash": elections,
	} {
		require.True(t, of(caseName, library).by[peer].known(), "%s by %s", caseName, peer)
	}
	const n = 3
	for name, requests := range map[string]int{library: 2, singly: 2 * n, baseline: 2 * n} {
		r := of("several-3", name)
		require.InDelta(t, requests, r.per(r.spent.RPCs), 0.5, name) // a renewal may be among them
		require.InDelta(t, requests, r.per(r.spent.Revisions), 0.01, name)
	}
	permit := of("permits-2", library)
	require.InDelta(t, 2, permit.per(permit.spent.Revisions), 0.2)
	for _, name := range []string{library, elections} {
		require.Less(t, of("lead-resign", name).p50, time.Second, name)
		require.Greater(t, of("lead-crash", name).ttls, 0.5, name)
	}
	require.Contains(t, page, "LeaseDuration 15 s, RenewDeadline 10 s")
	require.Contains(t, page, "until the next leads, in TTLs | ")
}

// If a term was lost before it was given up, the candidate reports that.
func TestACandidateTellsThatItsTermWasLost(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	sys, err := startEtcd(ctx, t.TempDir(), 1)
	require.NoError(t, err)
	defer sys.stop()
	p, err := openLibrary()(ctx, sys.address(), ttl, &wire{})
	require.NoError(t, err)
	defer p.close()
	c, err := candidateOf(ctx, p, "term")
	require.NoError(t, err)
	require.NoError(t, c.Lock(ctx))
	require.NoError(t, c.Unlock(ctx))

	require.NoError(t, c.Lock(ctx))
	_, err = sys.(*etcd).admin.Delete(ctx, "term/", clientv3.WithPrefix())
	require.NoError(t, err)
	a := &arena{system: sys}
	require.NoError(t, a.until(ctx, "term", 1), "it leads again, a term that nobody asked for")
	require.ErrorContains(t, c.Unlock(ctx), "lost")
	require.NoError(t, a.until(ctx, "term", 0))
}
