package sim

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	_ "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/record"
)

var (
	seeds = flag.Uint64("seeds", uint64(race.Fewer(1000, 20)),
		"how many schedules TestSimulation runs")
	firstSeed = flag.Uint64("first", 0, "the first seed of both")
	sideName  = flag.String("side", Ours.Name, "whose locks TestSimulation runs: "+Ours.Name+", or "+
		Theirs.Name+", which is counted and never fails")
	procs = flag.Int("procs", min(runtime.NumCPU(), 4),
		"processes that TestSimulation divides the seeds among")
	atMost = flag.Duration("for", 0, "begin no more seeds after this time, if it is not 0")
	stride = flag.Uint64("stride", 0,
		"run one of so many of -seeds, in this very process: how others are started")
	ofFamily = flag.Uint64("family-seeds", uint64(race.Watched(race.Fewer(200, ofEach), 6)),
		"how many schedules TestSimulationOfTheFamily runs")
	sumFile = flag.String("sum", "",
		"file that keeps the sum of what has run, and from which a later run of the same seeds goes on")
	goroutines = flag.Int("goroutines", 1, "how many times as many goroutines each Session has")
	whole      = flag.Bool("log", false, "print what happened, too")
)

// ofEach is how many schedules of the family have something of each kind happen.
const ofEach = 24

// clientv3's watches wait on this channel, which nobody closes. A goroutine that waits on a
// channel from outside its bubble stops the bubble's time, so each bubble has its own
// channel.
//
//go:linkname valCtxCh go.etcd.io/etcd/client/v3.valCtxCh
var valCtxCh chan struct{}

// inBubble runs f in virtual time. The seed decides the names of the keys that the library
// puts. The error is non-nil if a goroutine is left behind.
func inBubble(t *testing.T, seed uint64, f func(t *testing.T)) (err error) {
	outside := valCtxCh
	defer func() {
		valCtxCh = outside
		uuid.SetRand(nil)
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		valCtxCh = make(chan struct{})
		uuid.SetRand(&bytesOf{r: generator(seed, "uuid")})
		f(t)
	})
	return nil
}

// A tally is the result of seeds, by scenario.
type tally map[scenario]*score

type score struct {
	Seeds, Holds int
	Broken       int            // seeds in which something was broken
	By           map[string]int // seeds by invariant
	Modes        map[string]int // holds by mode
	Beside       int            // holds that began beside others
	Several      int            // holds of several names
	Recalls      int            // holds that a recall has ended
	Heeded       int            // holds that their holder unlocked because of a recall
	Asked        int            // requests that waits have written
	Terms        int            // of leaders that have led
	Told         int            // infos that holders have set
	Longest      int            // holds that their longest time has ended
	Seen         int            // changes that followers have seen
	Outlasted    int            // holds whose key stayed for the rest of their least time
	Combined     int            // transactions that came as parts of one
	Struck       int            // times that a bug of etcd has shown
	Excused      int            // holds that began beside one that a set-back had ended, unseen
}

func (all tally) of(s scenario) *score {
	if all[s] == nil {
		all[s] = &score{By: make(map[string]int), Modes: make(map[string]int)}
	}
	return all[s]
}

func (all tally) add(other tally) {
	for scenario, s := range other {
		all.of(scenario).add(s)
	}
}

func (sum *score) add(s *score) {
	sum.Seeds, sum.Holds, sum.Broken = sum.Seeds+s.Seeds, sum.Holds+s.Holds, sum.Broken+s.Broken
	for invariant, n := range s.By {
		sum.By[invariant] += n
	}
	for mode, n := range s.Modes {
		sum.Modes[mode] += n
	}
	sum.Beside, sum.Several = sum.Beside+s.Beside, sum.Several+s.Several
	sum.Recalls, sum.Heeded, sum.Terms = sum.Recalls+s.Recalls, sum.Heeded+s.Heeded, sum.Terms+s.Terms
	sum.Told += s.Told
	sum.Asked += s.Asked
	sum.Outlasted += s.Outlasted
	sum.Longest, sum.Seen = sum.Longest+s.Longest, sum.Seen+s.Seen
	sum.Excused += s.Excused
	sum.Combined += s.Combined
	sum.Struck += s.Struck
}

// String sums everything up in one line.
func (all tally) String() string {
	var parts []string
	for _, scenario := range scenarios {
		s := all.of(scenario)
		var part strings.Builder
		fmt.Fprintf(&part, "%s: %d seeds, %d holds", scenario, s.Seeds, s.Holds)
		if s.Excused > 0 {
			fmt.Fprintf(&part, " (%d excused)", s.Excused)
		}
		for _, invariant := range slices.Sorted(maps.Keys(s.By)) {
			fmt.Fprintf(&part, ", %q in %d", invariant, s.By[invariant])
		}
		parts = append(parts, part.String())
	}
	return strings.Join(parts, "; ")
}

// These begin the lines that a process of TestSimulation prints.
const (
	atLine    = "sim: at "
	tallyLine = "sim: tally "
)

// TestSimulation runs random schedules in virtual time, and judges them. It reports a seed
// that fails in a line "sim: seed 17 failed: ..." with what broke.
func TestSimulation(t *testing.T) {
	side := map[string]Side{Ours.Name: Ours, Theirs.Name: Theirs}[*sideName]
	require.NotEmpty(t, side.Name, "-side is %s or %s", Ours.Name, Theirs.Name)
	if *stride > 0 {
		runShare(t, side, mutexes)
		return
	}
	began := time.Now()
	sum := runSeeds(t, *seeds)
	t.Logf("%s: %v; %v", side.Name, sum, time.Since(began).Round(time.Millisecond))
	if !t.Failed() {
		save(t, side, mutexes, sum)
	}
}

// TestSimulationOfTheFamily runs random schedules in which contenders of all kinds ask for
// the same names: mutexes, writers, readers, permits, several names at once, and leaders.
// An operator recalls some of them. Some holds have a least time. In some worlds a process beside
// them uses etcd's concurrency.Mutex. The judge knows for each kind what it may hold beside.
func TestSimulationOfTheFamily(t *testing.T) {
	if *stride > 0 {
		runShare(t, Ours, family)
		return
	}
	began := time.Now()
	sum := runSeeds(t, *ofFamily)
	t.Logf("%v; %v", sum, time.Since(began).Round(time.Millisecond))
	all := make(tally).of("")
	for _, s := range sum {
		all.add(s)
	}
	t.Logf("holds: %v, %d of them beside others, %d of several names, %d terms of leaders, "+
		"%d ended by a recall, %d unlocked because of one, %d asked by a wait; %d infos were set; "+
		"%d with a key that stayed for a least time, %d ended by their longest time; "+
		"followers saw %d changes; %d transactions were parts of one",
		all.Modes, all.Beside, all.Several, all.Terms, all.Recalls, all.Heeded, all.Asked, all.Told,
		all.Outlasted, all.Longest, all.Seen, all.Combined)
	if t.Failed() || *atMost > 0 || *ofFamily < ofEach {
		return
	}
	for _, k := range []kind{alone{}, read{}, permit{}} {
		require.NotZero(t, all.Modes[k.mode()], k.mode())
	}
	require.NotZero(t, all.Beside)
	require.NotZero(t, all.Several)
	require.NotZero(t, all.Terms)
	require.NotZero(t, all.Recalls)
	require.NotZero(t, all.Heeded)
	require.NotZero(t, all.Told)
	require.NotZero(t, all.Asked)
	require.NotZero(t, all.Outlasted)
	require.NotZero(t, all.Longest)
	require.NotZero(t, all.Seen)
	require.NotZero(t, all.Combined)
	save(t, Ours, family, sum)
}

// runShare is the work of one process: it runs its share of the seeds until one fails.
func runShare(t *testing.T, side Side, who story) {
	runtime.GOMAXPROCS(1) // goroutines then run in nearly the same order every time
	debug.SetGCPercent(1000)
	sum := make(tally)
	began := time.Now()
	for seed := *firstSeed; seed < *firstSeed+*seeds; seed += *stride {
		if *atMost > 0 && time.Since(began) > *atMost {
			break
		}
		fmt.Println(atLine, seed)
		broken := runSeed(t, side, who, seed, sum)
		if broken && side.judged {
			t.Fail()
			return
		}
	}
	text, err := json.Marshal(sum)
	require.NoError(t, err)
	fmt.Printf("%s%s\n", tallyLine, text)
}

// runSeed runs a schedule, and reports it if something broke.
func runSeed(t *testing.T, side Side, who story, seed uint64, sum tally) (broken bool) {
	var w *world
	err := inBubble(t, seed, func(*testing.T) {
		switch who {
		case family:
			w = newFamily(seed)
		case mutexes:
			w = newWorld(seed, side)
		default:
			w = newSuffering(seed, side, bug(who))
		}
		w.times = *goroutines
		w.each *= w.times
		w.run()
	})
	if err != nil {
		w.judge.violated(left, "goroutines: %v", err)
	}
	s := sum.of(w.scenario)
	s.Seeds++
	s.Holds += w.judge.holds
	s.Beside, s.Several = s.Beside+w.judge.beside, s.Several+w.judge.several
	s.Recalls, s.Heeded, s.Terms = s.Recalls+w.judge.recalls, s.Heeded+w.judge.heeded,
		s.Terms+w.judge.terms
	s.Told += w.judge.told
	s.Asked += w.judge.wrote
	s.Outlasted += w.judge.outlasted
	s.Longest, s.Seen = s.Longest+w.judge.longest, s.Seen+w.judge.seen
	s.Excused += w.judge.excused
	s.Combined += w.cluster.Combined()
	s.Struck += w.cluster.Struck()
	for mode, n := range w.judge.modes {
		s.Modes[mode] += n
	}
	if len(w.judge.violations) > 0 {
		s.Broken++
	}
	seen := make(map[string]bool)
	for _, v := range w.judge.violations {
		if !seen[v.invariant] {
			s.By[v.invariant]++
		}
		seen[v.invariant] = true
	}
	if len(seen) > 0 && side.judged {
		fmt.Print(w.report())
	}
	if *whole {
		fmt.Println(strings.Join(w.judge.log, "\n"))
	}
	return len(seen) > 0
}

// runSeeds runs that many seeds, and sums up the results. If a file keeps the sum, the run
// goes on where the run before has ended, and keeps the sum of each part.
func runSeeds(t *testing.T, seeds uint64) tally {
	if *sumFile == "" {
		return divide(t, *firstSeed, seeds)
	}
	require.Zero(t, *atMost, "-sum counts the seeds of whole parts: not with -for")
	const part = 1000
	type series struct {
		Test, Side string
		First      uint64
	}
	kept := struct {
		Of    series
		Seeds uint64
		Sum   tally
	}{Of: series{t.Name(), *sideName, *firstSeed}, Sum: make(tally)}
	this := kept.Of
	if text, err := os.ReadFile(*sumFile); !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &kept), *sumFile)
		require.Equal(t, this, kept.Of, "%s is the sum of another run", *sumFile)
	}
	for kept.Seeds < seeds {
		n := min(seeds-kept.Seeds, part)
		sum := divide(t, *firstSeed+kept.Seeds, n)
		if t.Failed() {
			break
		}
		kept.Seeds += n
		kept.Sum.add(sum)
		text, err := json.Marshal(kept)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(*sumFile, text, 0o666))
	}
	return kept.Sum
}

// divide runs the seeds from the first one on in several processes, and sums up the
// results. When one process fails, all end.
func divide(t *testing.T, first, seeds uint64) tally {
	var mu sync.Mutex
	sum := make(tally)
	var all sync.WaitGroup
	ctx, endAll := context.WithCancel(t.Context())
	defer endAll()
	n := uint64(max(1, *procs))
	for i := range min(n, seeds) {
		args := []string{
			"-test.run=^" + t.Name() + "$", "-stride", fmt.Sprint(n), "-side", *sideName,
			"-first", fmt.Sprint(first + i), "-seeds", fmt.Sprint(seeds - i), "-for", atMost.String(),
			"-goroutines", fmt.Sprint(*goroutines),
		}
		if *whole {
			args = append(args, "-log")
		}
		cmd := exec.CommandContext(ctx, os.Args[0], args...)
		cmd.Env = append(os.Environ(), race.QuickExit())
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		all.Go(func() {
			at, told, failed := uint64(0), false, false
			lines := bufio.NewScanner(out)
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				line := lines.Text()
				if text, found := strings.CutPrefix(line, atLine); found {
					at, _ = strconv.ParseUint(strings.TrimSpace(text), 10, 64)
				} else if text, found := strings.CutPrefix(line, tallyLine); found {
					share := make(tally)
					told = json.Unmarshal([]byte(text), &share) == nil
					mu.Lock()
					sum.add(share)
					mu.Unlock()
				} else if line != "PASS" && line != "FAIL" && !strings.HasPrefix(line, "--- FAIL") {
					failed = failed || strings.HasPrefix(line, failedLine)
					fmt.Println(line)
				}
			}
			err := cmd.Wait()
			mu.Lock()
			defer mu.Unlock()
			if t.Failed() || told && err == nil {
				return // all is well, or another share has failed and this one was ended
			}
			if !failed {
				fmt.Printf(failedLine+"%d failed: its process died: %v\n", at, err)
			}
			t.Fail()
			endAll()
		})
	}
	all.Wait()
	return sum
}

// save puts the figures into the published table.
func save(t *testing.T, side Side, who story, sum tally) {
	command, row := "go test ./internal/sim -run 'TestSimulation$'", ""
	count := "seeds"
	if who == family {
		command, row = "go test ./internal/sim -run 'TestSimulationOfTheFamily$'", "the family, "
		count = "family-seeds"
	}
	if side.Name != Ours.Name {
		command += " -side " + side.Name
	}
	ran := 0
	for _, s := range sum {
		ran += s.Seeds
	}
	command += fmt.Sprintf(" -first %d -%s %d", *firstSeed, count, ran)
	for scenario, s := range sum {
		if s.Seeds == 0 {
			continue
		}
		record.Save(t, record.Result{
			Row: "S12", Case: row + string(scenario),
			Fault: "simulation in virtual time, 3 members, 3 processes: " + row + string(scenario),
			Must:  "no overlap, hang or ghost; tokens grow", Side: side.library.Name, N: s.Seeds,
			Broken:  s.Broken,
			Figures: figures(s), Command: command, Etcd: "3.7.3 client, simulated server",
		})
	}
}

func figures(s *score) string {
	parts := []string{fmt.Sprintf("%d holds", s.Holds)}
	for _, mode := range slices.Sorted(maps.Keys(s.Modes)) {
		if s.Modes[mode] < s.Holds {
			parts = append(parts, fmt.Sprintf("%s: %d", mode, s.Modes[mode]))
		}
	}
	for _, some := range []struct {
		of string
		n  int
	}{
		{"beside others", s.Beside}, {"of several names", s.Several}, {"of leaders", s.Terms},
		{"ended by a recall", s.Recalls}, {"unlocked because of one", s.Heeded},
		{"infos set", s.Told}, {"combined transactions", s.Combined},
		{"the bug has shown", s.Struck},
		{"outlasted by their keys", s.Outlasted},
		{"beside one that a set-back had ended, unseen", s.Excused},
	} {
		if some.n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", some.of, some.n))
		}
	}
	for _, invariant := range slices.Sorted(maps.Keys(s.By)) {
		parts = append(parts, fmt.Sprintf("%s: %d", invariant, s.By[invariant]))
	}
	return strings.Join(parts, "; ")
}
