package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	memoryOf = flag.Int("sessions", 50,
		"how many Sessions TestTheMemoryOfAFleet has: docs/scale.md has 100, 300 and 1,000")
	memoryOver = flag.Int("clients", 0, "how many clients they share, 0 for one each")
)

// The memory of Sessions that each hold a name, here and in etcd. A Session with a client
// of its own takes less than a megabyte in all. (docs/scale.md has more of them.)
func TestTheMemoryOfAFleet(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("/dev/shm", "etcdlock-bench-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	sys, err := startEtcd(ctx, dir, 1)
	require.NoError(t, err)
	defer sys.stop()
	at := slices.IndexFunc(alternatives, func(a alternative) bool { return a.name == library })
	own, serial, n := alternatives[at], 0, *memoryOf
	clients := *memoryOver
	if clients == 0 {
		clients = n
	}
	a := &arena{alternative: own, system: sys, wire: &wire{}, dir: dir, serial: &serial}
	here, there := heap(), resident(t, sys.pids()[0])
	parties, end, err := a.fleet(ctx, n, clients, fleetTTL)
	require.NoError(t, err)
	defer end()
	i := &idleness{arena: a, parties: parties, ttl: fleetTTL, end: func() {}}
	require.NoError(t, i.hold(ctx))
	defer func() { i.end() }()
	require.NoError(t, sleep(ctx, 6*time.Second)) // time for a renewal, and for the watch of each hold
	here, there = (heap()-here)/n, (resident(t, sys.pids()[0])-there)/n
	t.Logf("%d Sessions over %d clients: %d KiB each here, %d KiB each in etcd", n, clients,
		here>>10, there>>10)
	require.Positive(t, here)
	require.Less(t, here+there, 1<<20)
}

// heap returns what this process has in use, of heap and stacks.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}

// resident returns how much of a process is in memory.
func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	require.Fail(t, "no VmRSS")
	return 0
}
