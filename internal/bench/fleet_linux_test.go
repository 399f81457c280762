package main

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each kind of case of a fleet, with few Sessions and short times.
var smallFleet = []benchCase{
	waitersCase(4, 2*time.Second),
	holdersCase(4, 2*time.Second),
	authCase(2, 2*time.Second),
	fleetCrowdCase(4),
	massStart{n: 6, clients: 6, ttl: fleetTTL, within: time.Second, oneCore: true}.benchCase(),
	massStart{n: 7, clients: 3, ttl: fleetTTL, within: 20 * time.Second, once: true}.benchCase(),
	frozenCase(4, time.Minute, 300*time.Millisecond, 500*time.Millisecond),
	leaveCase(4, fleetTTL),
	takenCase(2, time.Second),
}

// measured measures cases, none of which fails, and returns the report, its chapter of
// them, and its page.
func measured(t *testing.T, cases []benchCase) (*report, *chapter, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cfg, err := parseFlags([]string{"-rounds", "1", "-slice", "100ms", "-tmpfs", "/dev/shm"})
	require.NoError(t, err)
	var progress bytes.Buffer
	r := &runner{cfg: cfg, progress: &progress, report: report{command: cfg.command}}
	s := setups[1]
	started, err := s.start(ctx, cfg)
	defer started.stop()
	require.NoError(t, err)
	r.report.begin(s, started, time.Millisecond)
	for _, c := range cases {
		require.NoError(t, r.run(ctx, c, started), "%s: %s", c.name, &progress)
	}
	page := pageOf(t, &r.report)
	require.NotContains(t, page, "failed:", "%s", &progress)
	return &r.report, r.report.chapters[0], page
}

func TestASmallFleetIsMeasuredInEachWay(t *testing.T) {
	r, chapter, page := measured(t, smallFleet)
	require.Empty(t, r.broken(library))

	own := func(name string) row {
		found, ok := chapter.find(name, library)
		require.True(t, ok, "%s: nothing of the library", name)
		if name != "taken" {
			_, ok = chapter.find(name, baseline)
			require.True(t, ok, "%s: nothing of the peer", name)
		}
		return found
	}
	for _, name := range []string{"fleet-idle-waiters", "fleet-idle-holders"} {
		require.Positive(t, own(name).spent.Renewals, name)
		require.Positive(t, own(name).goroutines, name)
	}
	require.EqualValues(t, own("fleet-auth").spent.Renewals, own("fleet-auth").ops)
	require.Positive(t, own("fleet-crowd-4").spent.Bytes)
	require.Positive(t, own("fleet-start-6").goroutines)
	require.Equal(t, 7, own("fleet-start-7").in)
	require.Less(t, own("fleet-start-7").value, 20*time.Second)
	require.Positive(t, own("fleet-frozen").value)
	require.EqualValues(t, 4, own("fleet-leave-4").spent.Revisions, "their keys")
	require.Len(t, own("taken").title, len(library))
	require.Positive(t, own("taken").most)
	require.Contains(t, page, "idle waiter: bytes/s")
}

func TestOneCoreIsSharedUntilItIsReleased(t *testing.T) {
	allowed := func() (set cpuSet) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.NoError(t, set.affinity(getAffinity, 0))
		return set
	}
	before := allowed()
	release, err := shareOneCore([]int{os.Getpid()})
	require.NoError(t, err)
	require.Equal(t, before.first(), allowed())
	release()
	require.Equal(t, before, allowed())
}
