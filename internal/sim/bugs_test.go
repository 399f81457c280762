package sim

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/record"
)

var bugSeeds = flag.Uint64("bug-seeds", uint64(race.Watched(race.Fewer(100, 12), 4)),
	"how many schedules TestSimulationOfEtcdsBugs runs for each bug at least")

// mostBugSeeds is how many schedules show a bug in any case.
const mostBugSeeds = 100

// TestSimulationOfEtcdsBugs runs random schedules in which etcd has a bug: no two hold, no call
// hangs, nothing is left, as ever.
func TestSimulationOfEtcdsBugs(t *testing.T) {
	side := map[string]Side{Ours.Name: Ours, Theirs.Name: Theirs}[*sideName]
	require.NotEmpty(t, side.Name)
	for _, b := range bugs {
		t.Run(string(b), func(t *testing.T) {
			if *stride > 0 {
				runShare(t, side, story(b))
				return
			}
			began := time.Now()
			sum, seeds := runSeeds(t, *bugSeeds), *bugSeeds
			for sum.of(mixed).Struck == 0 && seeds < mostBugSeeds && !t.Failed() {
				sum.add(divide(t, *firstSeed+seeds, *bugSeeds)) // one in four schedules shows a rare bug
				seeds += *bugSeeds
			}
			t.Logf("%s: %v; %d times; %v", side.Name, sum, sum.of(mixed).Struck,
				time.Since(began).Round(time.Millisecond))
			command := "go test ./internal/sim -run 'TestSimulationOfEtcdsBugs$'"
			if side.Name != Ours.Name {
				command += " -side " + side.Name
			}
			command += fmt.Sprintf(" -bug-seeds %d", seeds)
			if s := sum.of(mixed); !t.Failed() {
				require.EqualValues(t, seeds, s.Seeds)
				require.Positive(t, s.Struck, "the bug has never shown")
				record.Save(t, record.Result{
					Row: "S44", Case: string(b),
					Fault: "simulation in virtual time of a bug of etcd, and of what brings it about: " + string(b),
					Must:  "no overlap, hang or ghost; tokens grow", Side: side.library.Name, N: s.Seeds,
					Broken: s.Broken, Figures: figures(s), Etcd: "3.7.3 client, simulated server",
					Command: command,
				})
			}
		})
	}
}
