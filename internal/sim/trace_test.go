package sim

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var traces = flag.Uint64("traces", 0,
	"how many runs TestTraces has the specification follow, which needs Node: see spec/check")

// specification is where quint is: see spec/check.
const specification = "../../spec"

// TestTraces writes runs down, and has quint follow them by the specification: see
// spec/trace.qnt. It reports a run that the specification refuses in a line as TestSimulation's.
// (It does not ask the judge, so that it shows what the specification refuses.) That needs Node:
//
//	go test ./internal/sim -run TestTraces -traces 50
func TestTraces(t *testing.T) {
	if *traces == 0 { // without Node two are written down, and nothing judges them
		for seed, steps := range newTraces(t, *firstSeed, 2).steps {
			require.NotEmpty(t, steps, "seed %d", seed)
		}
		return
	}
	const most = 25 // runs in a file: quint takes as long to begin as to follow ten
	running := make(chan struct{}, *procs)
	var all sync.WaitGroup
	defer all.Wait()
	for first := *firstSeed; first < *firstSeed+*traces; first += most {
		runs := newTraces(t, first, min(most, *firstSeed+*traces-first))
		running <- struct{}{}
		all.Go(func() {
			runs.follow(t)
			<-running
		})
	}
}

// A tracesOf is the traces of some seeds, in a file of quint.
type tracesOf struct {
	first, last uint64
	steps       map[uint64][]string // by seed: what they say
	text        string
}

// newTraces runs seeds, and writes them down.
func newTraces(t *testing.T, first, n uint64) tracesOf {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as in runShare
	all := tracesOf{first: first, last: first + n - 1, steps: make(map[uint64][]string)}
	all.text = "module traces {\n\timport trace.* from \"./trace\"\n"
	all.text += fmt.Sprintf("\tpure val names = %s\n",
		strings.ReplaceAll(fmt.Sprintf("%q", happenings), `" "`, `", "`))
	for seed := first; seed <= all.last; seed++ {
		var w *world
		require.NoError(t, inBubble(t, seed, func(*testing.T) {
			w = newTraced(seed)
			w.run()
		}))
		steps, texts := w.judge.trace.steps()
		all.steps[seed] = texts
		all.text += fmt.Sprintf("\tpure val of%d = [\n\t\t%s]\n", seed,
			strings.Join(packed(steps), ",\n\t\t"))
		all.text += fmt.Sprintf("\trun seed%dTest = follows(%d, of%d, names)\n", seed, len(steps), seed)
		if *whole {
			fmt.Println(strings.Join(slices.Compact(texts), "\n"))
		}
	}
	all.text += "}\n"
	return all
}

// packed returns 20 steps in each number.
func packed(steps []string) (numbers []string) {
	none := strings.Repeat("0", len(steps[0]))
	for some := range slices.Chunk(steps, 20) {
		for len(some) < 20 {
			some = append(slices.Clone(some), none)
		}
		numbers = append(numbers, "1_"+strings.Join(some, "_"))
	}
	return numbers
}

// refused matches what quint says of a run that it cannot follow.
var refused = regexp.MustCompile(`\) seed(\d+)Test:\n[^\n]*iteration #(\d+) `)

// follow has quint follow the runs.
func (all tracesOf) follow(t *testing.T) {
	began, count := time.Now(), 0
	for _, steps := range all.steps {
		count += len(steps)
	}
	file, err := os.CreateTemp(specification, "traces-*.qnt")
	if err != nil {
		t.Error(err)
		return
	}
	defer os.Remove(file.Name())
	_, err = file.WriteString(all.text)
	_ = file.Close()
	cmd := exec.CommandContext(t.Context(), "node_modules/.bin/quint", "test",
		filepath.Base(file.Name()), "--main=traces", "--backend=typescript", "--max-samples=1",
		"--match=^seed")
	cmd.Dir = specification
	said, failed := cmd.CombinedOutput()
	t.Logf("seeds %d to %d: %d steps, followed in %v", all.first, all.last, count,
		time.Since(began).Round(time.Millisecond))
	if err == nil && failed == nil {
		return
	}
	t.Fail()
	found := refused.FindAllStringSubmatch(string(said), -1)
	for _, r := range found {
		seed, _ := strconv.ParseUint(r[1], 10, 64)
		at, _ := strconv.Atoi(r[2])
		steps := all.steps[seed]
		at-- // it counts from 1
		before := slices.Compact(slices.Clone(steps[max(0, at-40):at]))
		fmt.Printf(failedLine+"%d failed: the specification refuses step %d of %d: %s\nafter\n\t%s\n",
			seed, at, len(steps), steps[at], strings.Join(before, "\n\t"))
	}
	if len(found) == 0 {
		fmt.Printf("%s: %v\n%s\n", cmd, failed, said)
	}
}
