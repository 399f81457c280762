//go:build quint

package spec

import (
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/spec/quint"
)

var (
	runs = flag.Uint64("runs", 0,
		"how many runs of each small world TestWorlds makes, which needs Node: see spec/check")
	whole = flag.Bool("whole", false,
		"whether TestWholeWorlds goes through all states of a world, which needs Node")
	mutants = flag.Bool("mutants", false,
		"whether TestMutants weakens the specification in each place, which needs Node")
	part = flag.String("part", "", "in one place of five, which this text chooses")
)

const (
	steps = 100 // of a run
	share = 20  // one run of so many must come to what its world must reach
)

// quintCommand is where spec/check installs quint.
var quintCommand = filepath.Join(directory, "node_modules", ".bin", "quint")

// load has quint parse a file of the specification.
func load(t *testing.T, name string) *quint.File {
	f, err := quint.Load(quintCommand, filepath.Join(directory, name), t.TempDir())
	require.NoError(t, err)
	return f
}

// worldsOf are the modules of a file.
func worldsOf(f *quint.File) []string {
	isProtocol := func(name string) bool { return name == "lock" }
	return slices.DeleteFunc(slices.Clone(f.Modules()), isProtocol)
}

// promised is an error if the state of m breaks a promise.
func promised(m *quint.Machine) error {
	promises, err := m.Truths("promises")
	for name, is := range promises {
		if !is {
			return fmt.Errorf("%s is broken: %s", name, m.State())
		}
	}
	return err
}

// TestWorlds makes random runs of each small world. No state of them may break a promise, and
// enough of them must reach what the world is for. The constants of the world must be as lock.qnt
// assumes.
func TestWorlds(t *testing.T) {
	if *runs == 0 {
		t.Skip("-runs says how many, and needs Node")
	}
	f := load(t, "small.qnt")
	require.Len(t, worldsOf(f), 9)
	for _, world := range worldsOf(f) {
		t.Run(world, func(t *testing.T) {
			t.Parallel()
			m := f.New(world, nil)
			assert.Empty(t, broken(t, f, m), "the constants break what is assumed of them")
			reached := make(map[string]uint64)
			for seed := range *runs {
				here := make(map[string]bool)
				require.NoError(t, m.Wander("begin", "go", seed, steps, func() error {
					truths, err := m.Truths("reached")
					for name, is := range truths {
						here[name] = here[name] || is
					}
					return errors.Join(err, promised(m))
				}))
				for name, is := range here {
					reached[name] += map[bool]uint64{true: 1}[is]
				}
			}
			t.Logf("%d runs: %v", *runs, reached)
			require.NotEmpty(t, reached)
			for name, n := range reached {
				assert.GreaterOrEqual(t, n*share, *runs, "%s: too few runs reach it", name)
			}
		})
	}
}

// broken are the assumptions that the constants of a machine break.
func broken(t *testing.T, f *quint.File, m *quint.Machine) (names []string) {
	for _, assumption := range f.Assumptions("lock") {
		is, err := m.Holds(assumption.Name)
		require.NoError(t, err)
		if !is {
			names = append(names, assumption.Name)
		}
	}
	return names
}

// TestConstantsThatBreakAnAssumptionAreSeen has the two faults that are in constants.
func TestConstantsThatBreakAnAssumptionAreSeen(t *testing.T) {
	if *runs == 0 {
		t.Skip("-runs says that there is Node")
	}
	for fault, assumption := range map[string]string{
		"noMargin": "theMarginPaysForTheDrift", "ownTTL": "theFloorOutlastsEachTTL",
	} {
		f := load(t, filepath.Join("faults", fault+".qnt"))
		assert.Equal(t, []string{assumption}, broken(t, f, f.New(fault, nil)))
	}
}

// TestEachFaultBreaksItsPromise has a run of each module in faults come to a state that breaks the
// promise: the promises would see it in a world, too. spec/check has quint find the same.
func TestEachFaultBreaksItsPromise(t *testing.T) {
	if *runs == 0 {
		t.Skip("-runs says that there is Node")
	}
	files, err := filepath.Glob(filepath.Join(directory, "faults", "*.qnt"))
	require.NoError(t, err)
	require.Len(t, files, len(faults))
	for fault, promises := range faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			f := load(t, filepath.Join("faults", fault+".qnt"))
			for _, promise := range promises {
				seed, found := breaks(t, f.New(fault, nil), promise)
				if assert.True(t, found, "no run breaks %s", promise) {
					t.Logf("seed %d breaks %s", seed, promise)
				}
			}
		})
	}
}

// faults are the modules in faults, with the promises that they break.
var faults = map[string][]string{
	"noMargin": {"OneHolder"}, "fromTheReceipt": {"OneHolder"}, "byName": {"OneHolder"},
	"lateCopy": {"NoGhostAfterTTL"}, "atOnce": {"OneHolder"}, "ownTTL": {"OneHolder"},
	"noLook": {"TokenGrows", "OvertakesNobody"}, "isDone": {"UnlockTellsTheTruth"},
	"isCertain": {"UnlockTellsTheTruth"},
}

// breaks returns the seed of a run of a fault, as long as quint's, that breaks a promise.
func breaks(t *testing.T, m *quint.Machine, promise string) (seed uint64, found bool) {
	for ; seed < 20_000 && !found; seed++ {
		require.NoError(t, m.Wander("begin", "go", seed, 24, func() error {
			is, err := m.Holds(promise)
			found = found || err == nil && !is
			return err
		}))
	}
	return seed - 1, found
}

// history are definitions that no step depends on: they are what the promises ask for.
var history = strings.Fields("fate lose isNow isBackedUp isAfterUnlock needs setPlace together")

// choices are the actions that say only how often runs take others.
var choices = strings.Fields("asking wait release place message late renewal granting expiry " +
	"operator leaving givingUp repeating restoring step")

// TestMutants weakens the specification in one place after the other. A test of refused.qnt must
// fail then, or a run of a small world must break a promise.
func TestMutants(t *testing.T) {
	if !*mutants {
		t.Skip("-mutants says so, and needs Node")
	}
	refused, small := load(t, "refused.qnt"), load(t, "small.qnt")
	require.Empty(t, failingTest(refused, quint.Mutant{}), "without a change")
	without := slices.Concat(history, choices)
	ofTests, ofWorlds := refused.Mutants("lock", without...), small.Mutants("lock", without...)
	require.Len(t, ofTests, len(ofWorlds))
	require.Greater(t, len(ofTests), 150)
	var mu sync.Mutex
	killers := make(map[string]int)
	t.Run("each", func(t *testing.T) {
		for i, mutant := range ofTests {
			if !chosen(i) {
				continue
			}
			t.Run(mutant.String(), func(t *testing.T) {
				t.Parallel()
				by := failingTest(refused, mutant)
				if by == "" {
					by = breakingWorld(small, ofWorlds[i])
				}
				require.NotEmpty(t, by, "it lives")
				t.Log(by)
				mu.Lock()
				defer mu.Unlock()
				kind, _, _ := strings.Cut(by, " ")
				killers[kind]++
			})
		}
	})
	t.Logf("of %d mutants: %v", len(ofTests), killers)
}

// chosen says whether -part has a mutant killed.
func chosen(i int) bool {
	if *part == "" {
		return true
	}
	sum := fnv.New32()
	_, _ = sum.Write([]byte(*part))
	return i%5 == int(sum.Sum32()%5)
}

// failingTest returns what fails of refused.qnt.
func failingTest(f *quint.File, mutant quint.Mutant) string {
	m := f.New("refused", mutant.Edits)
	for _, d := range f.Definitions("refused") {
		if !strings.HasSuffix(d.Name, "Test") {
			continue
		}
		if is, err := m.Test(d.Name); err != nil || !is {
			return "test " + d.Name
		}
	}
	return ""
}

// breakingWorld returns the small world whose runs break a promise.
func breakingWorld(f *quint.File, mutant quint.Mutant) string {
	const most = 1000
	for _, world := range worldsOf(f) {
		m := f.New(world, mutant.Edits)
		for seed := range uint64(most) {
			if err := m.Wander("begin", "go", seed, steps, func() error { return promised(m) }); err != nil {
				text, _, breaks := strings.Cut(err.Error(), " is broken")
				if !breaks { // quint could not go on there
					return "error in the world " + world + ", " + text
				}
				return "run of the world " + world + ", " + text
			}
		}
	}
	return ""
}

// TestWholeWorlds visits every state of two worlds that can be reached in twelve steps.
func TestWholeWorlds(t *testing.T) {
	if !*whole {
		t.Skip("-whole says so, and needs Node")
	}
	f := load(t, "whole.qnt")
	require.Len(t, worldsOf(f), 2)
	for _, world := range worldsOf(f) {
		t.Run(world, func(t *testing.T) {
			m := f.New(world, nil)
			assert.Empty(t, broken(t, f, m), "the constants break what is assumed of them")
			added, err := m.Explore("begin", "go", 12, func() error { return promised(m) })
			require.NoError(t, err)
			all := 0
			for _, n := range added {
				all += n
			}
			require.NotZero(t, all)
			t.Logf("%d states: %v", all, added)
		})
	}
}
