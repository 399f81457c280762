package sim

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A seed fixes the faults, what each worker sets out to do, the delays of the net and the
// names of keys. It does not fix the member with which gRPC's round robin begins, the
// jitter that the library and gRPC draw for their pauses, the order in which Go runs
// goroutines that are ready at the same instant, or the arm that a select takes. So two
// runs of a seed are the same story, but not the same events. To repeat a failure, run its
// seed several times.
func TestASeedRepeatsItsFaultsAndWork(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	same := 0
	const runs = 3
	for seed := range uint64(runs) {
		var logs [2][]string
		var faults, work [2]string
		for i := range logs {
			require.NoError(t, inBubble(t, seed, func(*testing.T) {
				w := newWorld(seed, Ours)
				w.run()
				logs[i] = w.judge.log
				for _, f := range w.schedule {
					faults[i] += f.String() + "\n"
				}
				for _, p := range w.processes[:processes] {
					work[i] += fmt.Sprintln(p.name, len(p.sessions), w.cluster.rates[p.name])
				}
			}))
		}
		require.Equal(t, faults[0], faults[1])
		require.Equal(t, work[0], work[1])
		if slices.Equal(logs[0], logs[1]) {
			same++
		}
	}
	t.Logf("%d of %d seeds repeat to the last event", same, runs)
}
