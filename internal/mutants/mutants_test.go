package mutants

import (
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/bound"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/record"
)

var (
	all   = flag.Bool("mutants", false, "have all mutants killed, which takes minutes, instead of two")
	only  = flag.String("mutant", "", "have the mutants killed whose names contain this")
	files = flag.String("changed", "",
		"have those killed that edit a package of one of these files, or have a killer "+
			"there, or two if none does")
	some = flag.String("some", "",
		"of all mutants, or of those by -changed, have at most 100 killed, which this text chooses")
	byWays = flag.Bool("explored", false, "have the cores' killed by explorations alone")
	kind   = flag.String("killers", "",
		"have them killed by computing killers only, or by waiting, simulating or following ones")
)

// module is the root of the module, seen from here.
const module = "../.."

// timeLimit is what one run of a killer may take. On an idle machine that is seconds; CI
// leaves little of the processor to those that compute. A killer that needs longer has seen
// nothing.
const timeLimit = 10 * time.Minute

// runs is how often a killer may try. UUIDs are random and goroutines are scheduled freely,
// so a killer may miss a mutant once. The record says in which run the killer saw it.
const runs = 3

// A mutant is one wrong version of the library.
type mutant struct {
	name    string   // the design
	why     string   // why it tempts, and what is wrong with it
	change  change   // it makes the mutant out of the library as it is
	killers []killer // the tests that must see it

	// unexplored says why the exploration of the cores cannot see the mutant, if it changes
	// only cores.
	unexplored string
}

// A killer is a test that must fail for a mutant, and for nothing else.
type killer struct {
	dir     string // of its package, relative to the module
	test    string
	seeds   int  // how many seeds it tries at most; 0 if it does not try seeds
	follows bool // the specification follows the runs of the seeds
	counted bool // the library that it tests counts its steps; see internal/bound
	brief   bool // it has fewer rounds than each night; see internal/race
}

// kind is "waiting" if k is about real time: about processes, or etcd's own servers.
// Whatever else runs on the machine must leave it the time that it needs. It is
// "simulating" if k tries random schedules, which may take long, "following" if it needs Node, and
// "computing" otherwise.
func (k killer) kind() string {
	switch {
	case k.follows:
		return "following"
	case k.dir == "./cmd/etcdlock", k.dir == "./internal/proof/contract":
		return "waiting"
	case k.seeds > 0:
		return "simulating"
	default:
		return "computing"
	}
}

// simulation is the random simulation, with at most that many seeds.
func simulation(seeds int) killer {
	return killer{dir: "./internal/sim", test: "TestSimulation", seeds: seeds}
}

// ofFamily is the random simulation with all kinds.
func ofFamily(seeds int) killer {
	return killer{dir: "./internal/sim", test: "TestSimulationOfTheFamily", seeds: seeds}
}

// following has the specification follow that many runs of the simulation.
func following(seeds int) killer {
	return killer{dir: "./internal/sim", test: "TestTraces", seeds: seeds, follows: true}
}

// counted is k with the library that counts its steps, whose mutexes a test may hold.
func counted(k killer) killer {
	k.counted = true
	return k
}

// withMutexHeld is a test of the engine that holds the mutex of a Session.
func withMutexHeld(test string) killer { return counted(core("hold", test)) }

// inBound is what happens beside a company: a part of the table of steps under mutexes.
func inBound(company, event string) killer {
	return counted(core("bound", strings.ReplaceAll("TestBound/"+company+"/"+event, " ", "_")))
}

// inArea is a test of the library from outside, by its area.
func inArea(area, test string) killer { return killer{dir: "./internal/tests/" + area, test: test} }

// inSim is another test of the simulation's package.
func inSim(test string) killer { return killer{dir: "./internal/sim", test: test} }

// core is a test of one of the packages that the library is made of. The exploration is brief: it
// takes seconds where it takes ten minutes to its end, and it sees nearly all mutants in its first
// steps.
func core(pkg, test string) killer {
	name, _, _ := strings.Cut(test, "/")
	return killer{dir: "./internal/" + pkg, test: test, brief: name == "TestExploration"}
}

// throughout is k with all its rounds.
func throughout(k killer) killer {
	k.brief = false
	return k
}

// followsTheSpecification drives the cores along the paths of the specification.
var followsTheSpecification = core("spec", "TestTheTicketsAndTheTrustFollowTheSpecification")

// exploring is one part of the cores' exploration. The parts before it may take a minute.
func exploring(part string) killer {
	return core("ticket", "TestExploration/"+strings.ReplaceAll(part, " ", "_"))
}

// ofCommand is a test of the command.
func ofCommand(test string) killer { return killer{dir: "./cmd/etcdlock", test: test} }

// ofBoard is a test of what the command knows of all locks.
func ofBoard(test string) killer { return killer{dir: "./cmd/etcdlock/internal/board", test: test} }

// inContract is a row of the contract's table, on an etcd in memory.
func inContract(row string) killer { return killer{dir: ".", test: "TestContract/" + row} }

// onCluster is a test that needs etcd's own servers.
func onCluster(test string) killer { return killer{dir: "./internal/proof/contract", test: test} }

// If a replacement does not find its place, the test says which mutant to bring up to date.
// Every test would kill a mutant that does not compile.
func TestEveryMutantFitsTheLibrary(t *testing.T) {
	lib, err := library()
	require.NoError(t, err)
	s := newSchema(t, mutants)
	_, err = lib.Check(s.texts(), nil)
	together := err == nil // else one of them does not compile, and fails by itself
	defer func() {
		require.True(t, together || t.Failed(), "each fits, but not all together: %v", err)
	}()
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			require.NotEmpty(t, m.why)
			require.NotEmpty(t, m.change.steps)
			others := func(k killer) bool { return k.kind() == "simulating" || k.kind() == "following" }
			require.NotEmpty(t, slices.DeleteFunc(slices.Clone(m.killers), others),
				"of which CI runs all")
			texts := m.texts(t)
			if s.numbers[m.name] > 0 {
				if together {
					return // it compiles with the others
				}
				// In a schema, as it is built. By itself it may leave an import unused.
				texts = newSchema(t, []mutant{m}).texts()
			}
			_, err := lib.Check(texts, nil)
			require.NoError(t, err)
		})
	}
}

// explorations are the tests that go all ways of the cores.
var explorations = []struct {
	cores []string
	killer
}{
	{[]string{"internal/ticket/several.go"}, explorationOfSeveral},
	{[]string{"internal/ticket/observe.go"}, core("ticket", "TestObservations")},
	{[]string{"internal/line/watched.go"}, explorationOfWatched},
	{
		[]string{"internal/line/", "internal/ticket/", "internal/home/"},
		throughout(core("ticket", "TestExploration")),
	},
	{[]string{"internal/lease/trust/"}, explorationOfTrust},
}

var explorationOfSeveral = core("ticket", "TestExplorationOfSeveral")

var explorationOfWatched = core("line", "TestAWatchedProvesGoneWhatHasGone|"+
	"TestAWatchedFromBeforeAPutProvesNothing|TestAWatchedRemembersTheLastDeletions")

var explorationOfTrust = core("lease/trust",
	"TestExplorationOfAChangeOfLeader|TestExplorationOfASuspend|TestExplorationOfSchedules|"+
		"TestExplorationOfErrorsThatComeBackAtOnce")

// exploration goes all ways of the cores that m changes. ok is false if m changes anything
// else, or something that is not explored.
func (m mutant) exploration(t *testing.T) (k killer, ok bool) {
	t.Helper()
	if m.unexplored != "" {
		return killer{}, false
	}
	for _, e := range explorations {
		elsewhere := func(file string) bool {
			in := func(core string) bool { return strings.HasPrefix(file, core) }
			return !slices.ContainsFunc(e.cores, in)
		}
		if !slices.ContainsFunc(m.files(t), elsewhere) {
			return e.killer, true
		}
	}
	return killer{}, false
}

// The exploration goes all ways of a core, so it finds whatever is wrong in the core, even
// what nobody has thought of.
func TestMutantsOfTheCoresAreExplored(t *testing.T) {
	found := 0
	for _, m := range mutants {
		if k, ok := m.exploration(t); ok {
			part := func(o killer) bool {
				return o.dir == k.dir && (o.test == k.test || strings.HasPrefix(o.test, k.test+"/"))
			}
			require.True(t, slices.ContainsFunc(m.killers, part), m.name)
			found++
		}
	}
	require.NotZero(t, found)
	t.Logf("%d of %d mutants are wrong versions of the cores alone", found, len(mutants))
}

func TestMutantsAreKilled(t *testing.T) {
	chosen := by(t, *kind, chosen(t))
	if len(chosen) == 0 && *files != "" { // those of what has changed have other killers
		chosen = by(t, *kind, ofFew())
	}
	require.NotEmpty(t, chosen, "no mutant is called %q", *only)
	s := newSchema(t, chosen)
	t.Logf("%d mutants are built together, and %d alone", len(s.numbers), len(s.alone))
	built := &binaries{t: t, texts: s.texts()}
	// A killer that kills everything shows nothing. These take the longest, so they begin.
	for _, k := range together(chosen) {
		t.Run("the library as it is survives "+k.pkg(), func(t *testing.T) {
			t.Parallel()
			killed, _, output := k.faces(t, built.of(t, k), 0)
			require.False(t, killed, "fails for the library as it is:\n%s", output)
		})
	}
	for _, m := range chosen {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if number := s.numbers[m.name]; number > 0 {
				m.isKilled(t, built, number)
			} else {
				m.isKilled(t, &binaries{t: t, texts: m.texts(t)}, 0)
			}
		})
	}
}

// isKilled requires each killer of m to see it in some run. number chooses m in the
// binaries.
func (m mutant) isKilled(t *testing.T, built *binaries, number int) {
	result := record.Mutant{Name: m.name,
		Command: fmt.Sprintf("go test ./internal/mutants -mutant '%s'", m.name)}
	for _, k := range m.killers {
		killed, after, run := false, "", 0
		for ; !killed && run < runs; run++ {
			killed, after, _ = k.faces(t, built.of(t, k), number)
		}
		if !killed {
			t.Errorf("%s does not see this in %d runs:\n%s", k.test, runs, m.why)
			continue
		}
		if run > 1 {
			after += fmt.Sprintf(" in run %d", run)
		}
		t.Logf("killed by %s after %s", k.test, after)
		if result.KilledBy != "" {
			result.KilledBy, result.After = result.KilledBy+", ", result.After+", "
		}
		result.KilledBy, result.After = result.KilledBy+k.test, result.After+after
	}
	if *kind == "" { // else these are not all of its killers
		record.SaveMutant(t, result)
	}
}

// few run without a flag: a test of the library kills one of them, and a test of a core the
// other. Each takes a few seconds to build and run.
var few = []string{"each renewal counts from its own sending",
	"a hold begins without a look at the clock"}

// chosen are the mutants that the flags ask for.
func chosen(t *testing.T) []mutant {
	t.Helper()
	switch {
	case *byWays:
		return explored(t)
	case *only != "":
		return slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool {
			return !strings.Contains(m.name, *only)
		})
	case *some != "" && *files == "":
		return someOf(mutants)
	case *all:
		return mutants
	}
	var ms []mutant
	packages := make(map[string]bool)
	for file := range strings.FieldsSeq(*files) {
		if strings.HasSuffix(file, ".go") {
			packages[filepath.Dir(file)] = true
		}
	}
	edits := func(file string) bool { return packages[filepath.Dir(file)] }
	kills := func(k killer) bool { return k.kind() == "computing" && packages[filepath.Clean(k.dir)] }
	for _, m := range mutants {
		if slices.ContainsFunc(m.files(t), edits) || slices.ContainsFunc(m.killers, kills) {
			ms = append(ms, m)
		}
	}
	switch {
	case *some != "" && len(ms) > 0:
		return someOf(ms)
	case len(ms) > 0:
		return ms
	}
	return ofFew()
}

func ofFew() []mutant {
	return slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool {
		return !slices.Contains(few, m.name)
	})
}

// most is how many mutants CI has the time for, two minutes. A change of the whole engine touches
// some 450. The nightly run has them all.
const most = 100

// someOf is each second, third or so of ms: at most as many as there is time for. The flag chooses
// where it begins.
func someOf(ms []mutant) (chosen []mutant) {
	h := fnv.New32()
	_, _ = h.Write([]byte(*some))
	each := (len(ms) + most - 1) / most
	for i := int(h.Sum32() % uint32(each)); i < len(ms); i += each {
		chosen = append(chosen, ms[i])
	}
	return chosen
}

// by returns the mutants of ms that have killers of a kind, with only these killers. If no kind is
// given it leaves out those that need Node where that is not there: see spec/check.
func by(t *testing.T, kind string, ms []mutant) (killed []mutant) {
	t.Helper()
	kinds := []string{"", "computing", "waiting", "simulating", "following"}
	require.Contains(t, kinds, kind, "-killers")
	_, err := os.Stat(filepath.Join(module, "spec/node_modules"))
	for _, m := range ms {
		m.killers = slices.DeleteFunc(slices.Clone(m.killers), func(k killer) bool {
			return kind != "" && k.kind() != kind || kind == "" && k.follows && err != nil
		})
		if len(m.killers) > 0 {
			killed = append(killed, m)
		}
	}
	return killed
}

// explored returns the mutants that change only cores, each with the exploration as its
// only killer.
func explored(t *testing.T) (ms []mutant) {
	t.Helper()
	for _, m := range mutants {
		if k, ok := m.exploration(t); ok && strings.Contains(m.name, *only) {
			m.killers = []killer{k}
			ms = append(ms, m)
		}
	}
	return ms
}

// together returns the killers of all ms, joined into one for each package, and into another for
// what is brief.
func together(ms []mutant) []killer {
	var packages []killer
	for _, m := range ms {
		for _, k := range m.killers {
			i := slices.IndexFunc(packages, func(p killer) bool {
				return p.pkg() == k.pkg() && p.brief == k.brief
			})
			if i < 0 {
				packages = append(packages, k)
				continue
			}
			packages[i].test += "|" + k.test
			packages[i].seeds = max(packages[i].seeds, k.seeds)
		}
	}
	return packages
}

// ---- building

// files are the files that m changes, relative to the module.
func (m mutant) files(t *testing.T) []string {
	t.Helper()
	files, err := m.change.files()
	require.NoError(t, err, "bring the mutant %q up to date", m.name)
	return files
}

// texts returns the library's files that m changes, by their paths.
func (m mutant) texts(t *testing.T) map[string][]byte {
	t.Helper()
	changed, err := m.change.texts()
	require.NoError(t, err, "bring the mutant %q up to date", m.name)
	return changed
}

// plant writes files, and returns the path of the overlay that puts them in the place of
// the library's.
func plant(t *testing.T, texts map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	replace := make(map[string]string)
	for path, text := range texts {
		replace[path] = filepath.Join(dir, strconv.Itoa(len(replace))+filepath.Base(path))
		require.NoError(t, os.WriteFile(replace[path], text, 0o600))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	path := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(path, overlay, 0o600))
	return path
}

// pkg is the package of k, and how it is built.
func (k killer) pkg() string {
	if k.counted {
		return k.dir + ", which counts steps"
	}
	return k.dir
}

// binaries are the test binaries of packages, with mutants planted by an overlay. All that
// need the same one wait for the one that builds it.
type binaries struct {
	t     *testing.T        // whose subtests need them
	texts map[string][]byte // of the library's files that differ, by their paths
	built sync.Map          // by the package, as pkg has it: func() (string, error)
}

// of returns the test binary of k's package. The linker leaves out what a debugger needs,
// which saves most of its time. CI vets the library elsewhere.
func (b *binaries) of(t *testing.T, k killer) (binary string) {
	t.Helper()
	built, _ := b.built.LoadOrStore(k.pkg(), sync.OnceValues(func() (string, error) {
		texts, tags := b.texts, "timed"
		if k.counted {
			counted, err := bound.Texts(b.t.Context(), module, texts)
			if err != nil {
				return "", err
			}
			texts, tags = counted, "timed,bound"
		}
		binary := filepath.Join(b.t.TempDir(), "killer.test")
		output, err := goCommand(b.t, "test", "-c", "-tags", tags, "-vet=off",
			"-overlay", plant(b.t, texts), "-ldflags", "-s -w", "-o", binary, k.dir).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w:\n%s", err, output)
		}
		return binary, err
	}))
	binary, err := built.(func() (string, error))()
	require.NoError(t, err, "it does not compile")
	return binary
}

// read is the text of a file of the library.
func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

// goCommand is a command of go in the module.
func goCommand(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = module
	// it lists the clusters' module, too
	workspace, err := filepath.Abs(filepath.Join(module, "go.work"))
	require.NoError(t, err)
	cmd.Env = append(os.Environ(), "GOWORK="+workspace)
	return cmd
}

// ---- killing

// faces runs k, which was built with mutants planted. number chooses one of them, or none
// if it is 0. It returns whether k failed as a test does, how long that took, and the
// output.
func (k killer) faces(t *testing.T, binary string, number int) (killed bool, after, output string) {
	t.Helper()
	args := []string{"-test.run", k.pattern(), "-test.timeout", timeLimit.String(), "-test.failfast"}
	if k.seeds > 0 { // one after the other, in this process, which the time limit ends
		args = append(args, "-stride", "1", "-seeds", strconv.Itoa(k.seeds))
	}
	if k.follows {
		args = append(args, "-traces", strconv.Itoa(k.seeds))
	}
	if k.counted {
		args = append(args, "-test.cpu", "1")
	}
	test := exec.CommandContext(t.Context(), binary, args...)
	test.Dir = filepath.Join(module, k.dir)
	test.Env = append(os.Environ(), fmt.Sprintf("%s=%d", chosenEnv, number))
	if !k.brief {
		test.Env = append(test.Env, race.WholeEnv+"=1")
	}
	if number > 0 {
		test.Env = append(test.Env, contract.PatienceEnv+"=20s")
	}
	said, err := test.CombinedOutput()
	if err == nil {
		require.Contains(t, string(said), "PASS")
		require.NotContains(t, string(said), "no tests to run")
		return false, "", string(said)
	}
	require.Contains(t, string(said), "--- FAIL: ", "%s did not fail as a test does: %v", k.test, err)
	return true, k.seedsTried(said), string(said)
}

// pattern matches exactly the tests of k, and their subtests. A slash parts the patterns of
// tests and subtests only outside of brackets.
func (k killer) pattern() string {
	var tests []string
	for test := range strings.SplitSeq(k.test, "|") {
		tests = append(tests, "^"+strings.ReplaceAll(test, "/", "$/^")+"$")
	}
	return strings.Join(tests, "|")
}

// failedSeed matches the simulation's report of the first seed that failed.
var failedSeed = regexp.MustCompile(`(?m)^sim: seed (\d+) failed`)

// seedsTried returns how many seeds a killer had tried when it failed.
func (k killer) seedsTried(said []byte) string {
	if k.seeds == 0 {
		return "one run"
	}
	match := failedSeed.FindSubmatch(said)
	if match == nil {
		return "some seeds"
	}
	seed, _ := strconv.Atoi(string(match[1]))
	if seed == 0 {
		return "1 seed"
	}
	return fmt.Sprintf("%d seeds", seed+1)
}
