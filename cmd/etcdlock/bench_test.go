//go:build linux || darwin || freebsd

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// bench measures each case on both sides, and leaves nothing behind.
func TestBenchMeasuresBothSides(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "etcdlock-bench/other")
	status, stdout, stderr := runs(t, "", "bench", "--endpoints", e.addr, "--for", "14s", "-o", "json",
		"--max-rate", "500")
	require.Equal(t, exitGood, status)
	require.Contains(t, stderr, "loads etcd for 14s")
	var results []result
	require.NoError(t, json.Unmarshal([]byte(stdout), &results))
	require.Len(t, results, 2*len(benchCases))
	for _, r := range results {
		require.Empty(t, r.Error, r.Case)
		require.Positive(t, r.Count, "%s of %s", r.Case, r.Side)
		require.LessOrEqual(t, r.P50, r.P99, r.Case)
		require.Less(t, r.PerSecond, 1000., r.Case)
	}
	left, err := e.client.Get(t.Context(), "etcdlock-bench/", clientv3.WithPrefix(),
		clientv3.WithCountOnly())
	require.NoError(t, err)
	require.EqualValues(t, 1, left.Count, "what it has not put, and nothing else")
}

// --max-rate bounds the renewals, too.
func TestRenewalsKeepToTheRate(t *testing.T) {
	for rate := range 100 {
		every := time.Duration(0)
		if rate > 0 {
			every = time.Second / time.Duration(rate)
		}
		ttl, leases := renewedAt(every)
		renewals := float64(3*leases) / ttl.Seconds()
		require.True(t, rate == 0 || renewals <= float64(rate)*1.001, "%d: %.2f", rate, renewals)
		require.True(t, renewals > 11 || renewals > float64(rate)/2, "%d: %.2f", rate, renewals)
	}
}

// The judge's holders are processes, and in a healthy etcd no two believe at a time.
func TestTheJudgeSeesOneHolderAtATime(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	c := starts(t, []string{
		"bench", "--judge", "--endpoints", e.addr, "--for", "3s", "--processes", "3",
	})
	c.exits(exitGood)
	require.Regexp(t, `^\d\d+ holds, 0 lost, \S+ at most without a holder: two held at a time 0 times`,
		c.stdout.String())
}

// Two that believed at a time are found, whatever the order in which they tell it.
func TestTheVerdict(t *testing.T) {
	for name, row := range map[string]struct {
		all  []belief
		want verdict
	}{
		"none": {nil, verdict{}},
		"one after the other": {
			[]belief{{from: 30, to: 40, lost: true}, {from: 10, to: 20}},
			verdict{holds: 2, lost: 1, longest: 10},
		},
		"two at the same time": {[]belief{{from: 15, to: 40}, {from: 10, to: 20}}, verdict{holds: 2, twice: 1}},
		"one inside another":   {[]belief{{from: 10, to: 90}, {from: 20, to: 30}, {from: 40, to: 50}}, verdict{holds: 3, twice: 2}},
		"at the same instant":  {[]belief{{from: 10, to: 20}, {from: 20, to: 30}}, verdict{holds: 2, twice: 1}},
		"one that saw no time": {[]belief{{from: 10, to: 10}, {from: 12, to: 12}}, verdict{holds: 2, longest: 2}},
	} {
		require.Equal(t, row.want, judgeBeliefs(row.all), name)
	}
	var out, errs strings.Builder
	a := &app{stdout: &out, stderr: &errs}
	require.NoError(t, judged(a, verdict{holds: 3, longest: time.Second}))
	require.Error(t, judged(a, verdict{holds: 3, twice: 1}))
	require.Contains(t, out.String(), "two held at a time 1 times")
}

// What bench cannot use is an error at once.
func TestBenchRefusesWhatItCannotUse(t *testing.T) {
	for _, args := range [][]string{
		{"-o", "xml"}, {"--max-rate", "-1"}, {"--for", "0s"}, {"--processes", "1", "--judge"},
	} {
		status, _, stderr := runs(t, "", append([]string{"bench"}, args...)...)
		require.Equal(t, exitUsage, status, stderr)
	}
}
