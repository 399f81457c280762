package sim

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/race"
)

var fleetSeeds = flag.Uint64("fleet-seeds", uint64(race.Fewer(16, 1)),
	"how many schedules each story of a fleet runs")

// fleetOf is how many Sessions each of the three processes has, so that twenty-four
// contend. With roundOf, more than forty stand in one line, and go round and round in it.
const fleetOf, roundOf = 8, 15

// Two dozen Sessions contend for the same names, while the schedules of the simulation do
// all that they can. For most of that time, or all of it, etcd may take so long for an
// entry that a request takes longer than the leases last, or than the requests are allowed
// to. Then windows are narrow, and there is no credit for repeats. The simulation's
// promises hold here, too: nobody holds beside another, and once all is well everybody gets
// in everywhere and nothing is left behind.
func TestAFleetIsJudgedAsFewAre(t *testing.T) {
	for _, story := range []struct {
		name     string
		sessions int           // of each process
		entry    time.Duration // how long etcd takes for each
		alone    bool          // there are no other faults
	}{
		{"as fast as ever", fleetOf, 0, false},
		{"a crowd that goes round", roundOf, 0, false},
		{"an etcd that is busy", fleetOf, 20 * time.Millisecond, false},
		{"an etcd too slow for the leases", fleetOf, 150 * time.Millisecond, false},
		{"nothing but an etcd too slow for the leases", fleetOf, 150 * time.Millisecond, true},
		{"nothing but an etcd too slow for the requests", fleetOf, 600 * time.Millisecond, true},
	} {
		t.Run(story.name, func(t *testing.T) {
			sum := make(tally)
			for seed := *firstSeed; seed < *firstSeed+*fleetSeeds; seed++ {
				var w *world
				err := inBubble(t, seed, func(*testing.T) {
					w = newWorld(seed, Ours)
					w.crowd, w.round = story.sessions, story.sessions == roundOf
					w.scenario = mixed
					// What a network holds back comes late. It is not lost.
					w.judge.peaceful, w.judge.strict, w.judge.stale = false, false, 0
					w.schedule = nil
					if !story.alone {
						w.schedule = schedule(seed, mixed, w.ttl)
					}
					if story.entry > 0 {
						w.schedule = append(w.schedule, busy(story.entry))
					}
					w.run()
				})
				require.NoError(t, err, "seed %d", seed)
				if len(w.judge.violations) > 0 {
					require.Fail(t, "what the judge has seen", w.report())
				}
				s := sum.of(mixed)
				s.Seeds, s.Holds = s.Seeds+1, s.Holds+w.judge.holds
			}
			t.Logf("%d seeds, %d holds", sum.of(mixed).Seeds, sum.of(mixed).Holds)
		})
	}
}
