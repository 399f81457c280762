package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A run measures each kind of case, reports, and leaves nothing behind.
func TestARunMeasuresReportsAndClearsAway(t *testing.T) {
	out, data := t.TempDir(), "/dev/shm"
	before, err := filepath.Glob(filepath.Join(data, "etcdlock-bench-*"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	status := run(ctx, []string{
		"-setup", "1-tmpfs", "-tmpfs", data, "-rounds", "1", "-slice", "50ms", "-out", out,
		"-only", "^(etcdlock|raw etcd requests)$",
		"-case",
		"^(uncontended|handover-5ms-busy|crowd-2|crowd-8|trylock|names-1|turns|crash|readers-beside|mix-50-50)$",
	}, &stdout, &stderr)
	require.Equal(t, exitGood, status, "%s%s", &stdout, &stderr)

	page, err := os.ReadFile(filepath.Join(out, "README.md"))
	require.NoError(t, err)
	require.NotContains(t, string(page), "failed:")
	require.NotContains(t, string(page), "let two in")
	for _, want := range []string{"### uncontended", "### crash", "| uncontended: RPCs | <= 2 | 2 |",
		"| TryLock of a taken name: revisions | <= 0 | 0 |"} {
		require.Contains(t, string(page), want)
	}
	require.FileExists(t, filepath.Join(out, "benchmarks.svg"))
	require.FileExists(t, filepath.Join(out, "run.json"))
	after, err := filepath.Glob(filepath.Join(data, "etcdlock-bench-*"))
	require.NoError(t, err)
	require.Equal(t, before, after, "data left behind")
}

func TestDiskAndTmpfsAreToldApart(t *testing.T) {
	memory, err := onTmpfs("/dev/shm")
	require.NoError(t, err)
	require.True(t, memory)
	_, err = setups[0].start(context.Background(), config{disk: "/dev/shm"})
	require.ErrorContains(t, err, "is a tmpfs")
}

func TestStatOfAProcessWithASpitefulName(t *testing.T) {
	s, err := parseStat([]byte("42 (a) b (c) S 7 1 1 0 -1 0 1 2 3 4 100 20 3 4 20 0 1 0 99 0 0"))
	require.NoError(t, err)
	require.Equal(t, procStat{own: 120, waitedFor: 7}, s)
	for _, bad := range []string{"", "42", "42 (a) S", "42 (a) S 7 1 1 0 -1 0 1 2 3 4 100 x 3 4 20"} {
		_, err := parseStat([]byte(bad))
		require.Error(t, err, "%q", bad)
	}
}

func TestProcessorTimeGrowsWithWork(t *testing.T) {
	pids := []int{os.Getpid()}
	before, err := cpuTime(pids)
	require.NoError(t, err)
	for began := time.Now(); time.Since(began) < 200*time.Millisecond; {
	}
	after, err := cpuTime(pids)
	require.NoError(t, err)
	require.Greater(t, after, before)
}
