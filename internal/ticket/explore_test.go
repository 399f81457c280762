package ticket_test

import (
	"flag"
	"hash/maphash"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

var (
	further = flag.Int("further", 0, "steps further than by default to which the exploration goes")
	ends    = flag.Bool("ends", false, "go to every end, but with two faults")
	limit   = flag.Int("states", 20_000_000, "states of a scenario at which it gives up")
)

// A scenario is a world, and what may go wrong in it.
type scenario struct {
	name  string
	reads int64 // how many of the keys before it a ticket reads; 0 for the library's number
	setting
	most int // steps by default, 0 for all; toTheEnd for all, in short, too
}

const toTheEnd = -1

// scenarios are what the exploration goes through, the shortest first: one of these sees
// most of what is wrong.
func scenarios() []scenario {
	waiter := func(home int) goroutine { return goroutine{home: home, rounds: 1} }
	again := func(home int) goroutine { return goroutine{home: home, rounds: 2} }
	trier := func(home, rounds int) goroutine {
		return goroutine{home: home, rounds: rounds, try: true}
	}
	reader := func(home int) goroutine { return goroutine{home: home, rounds: 1, reads: true} }
	tries := func(home int) goroutine {
		return goroutine{home: home, rounds: 1, reads: true, try: true}
	}
	permit := func(home int, weight, limit uint16) goroutine {
		return goroutine{home: home, rounds: 1,
			permit: line.Shape{Kind: line.Permit, Weight: weight, Limit: limit}}
	}
	tryPermit := func(home int, weight, limit uint16) goroutine {
		g := permit(home, weight, limit)
		g.try = true
		return g
	}
	one := func(kinds ...fault) (each [numFaults]int) {
		for _, f := range kinds {
			each[f]++
		}
		return each
	}
	two := []goroutine{waiter(0), waiter(0), waiter(1)}
	three := []goroutine{waiter(0), waiter(1), waiter(2)}
	four := []goroutine{waiter(0), waiter(0), waiter(0), waiter(0)}
	all := one(silence, repeat, deletion, putOver, loss, leaving)
	return []scenario{
		{"a key that stays", 0, setting{
			claims: []goroutine{again(0)}, least: true, faults: 2,
			each: one(silence, repeat, deletion, putOver, loss),
		}, toTheEnd},
		{"an operator beside a release", 0, setting{
			claims: []goroutine{waiter(0)}, faults: 3,
			each: one(silence, silence, repeat, deletion, putOver, loss),
		}, toTheEnd},
		{"an operator beside a release that puts the next key", 0, setting{
			claims: []goroutine{waiter(0), waiter(0)}, faults: 2,
			each: one(silence, repeat, deletion, putOver),
		}, toTheEnd},
		{"keys that stay", 0, setting{
			claims: []goroutine{waiter(0), waiter(1)}, least: true, faults: 2,
			each: one(silence, repeat, deletion, putOver, loss),
		}, 12},
		{"a set-back under keys that stay", 0, setting{
			claims: []goroutine{waiter(0), waiter(1)}, least: true, faults: 2,
			each: one(setBack, silence, repeat),
		}, 11},
		{"reads of one Session, and two run out of time as they are let in", 0, setting{
			claims: []goroutine{reader(0), reader(0), reader(0)}, faults: 2, each: one(leaving, leaving),
		}, toTheEnd},
		{"permits of one Session, and two run out of time as they are let in", 0, setting{
			claims: []goroutine{permit(0, 1, 2), permit(0, 1, 2), permit(0, 1, 2)},
			faults: 2, each: one(leaving, leaving),
		}, toTheEnd},
		{"a crowd, reading keys of one, beside a stray", 1, setting{
			claims: []goroutine{again(0), waiter(1)},
			crowd:  true, strays: 1, faults: 1, each: one(silence, repeat, deletion, putOver, leaving),
		}, 12},
		{"permits of one Session, and one that is exclusive there", 0, setting{
			claims: []goroutine{permit(0, 1, 2), permit(0, 1, 2), waiter(0)}, faults: 1, each: all,
		}, 13},
		{"two that read in one Session, and a writer there", 0, setting{
			claims: []goroutine{reader(0), reader(0), waiter(0)}, faults: 1, each: all,
		}, 14},
		{"a permit, one that reads, and one that is exclusive", 0, setting{
			claims: []goroutine{permit(0, 1, 2), reader(1), waiter(0)},
			faults: 1, each: one(silence, repeat, deletion, putOver, leaving),
		}, 10},
		{"four goroutines of a Session, who leave", 0,
			setting{claims: four, faults: 1, each: one(leaving)}, 0},
		{"permits that disagree on the limit, and one that is exclusive", 0, setting{
			claims: []goroutine{permit(0, 1, 1), permit(1, 1, 2), waiter(1)}, faults: 1, each: all,
		}, 10},
		{"permits of one Session beyond the limit, who leave", 0, setting{
			claims: []goroutine{permit(0, 1, 2), permit(0, 2, 2), permit(0, 1, 2)}, faults: 1, each: all,
		}, 13},
		{"TryAcquire beside permits of its Session and of another", 0, setting{
			claims: []goroutine{permit(0, 1, 2), tryPermit(0, 1, 2), tryPermit(1, 1, 2)},
			strays: 1, faults: 1, each: one(silence, repeat, deletion, putOver, loss),
		}, 11},
		{"TryAcquire beside permits that come", 0, setting{
			claims: []goroutine{tryPermit(0, 1, 2), permit(1, 1, 2), permit(2, 1, 2)},
			strays: 1, faults: 1, each: one(silence, repeat, deletion, setBack),
		}, 10},
		{"a set-back under two that read, and a writer", 0, setting{
			claims: []goroutine{reader(0), reader(0), waiter(1)}, faults: 1, each: one(setBack),
		}, 12},
		{"permits of two Sessions, which fill the limit", 0, setting{
			claims: []goroutine{permit(0, 1, 2), permit(1, 1, 2), permit(2, 2, 2)}, faults: 1, each: all,
		}, 9},
		{"TryRLock beside a reader and a writer", 0, setting{
			claims: []goroutine{tries(0), reader(1), waiter(2)},
			faults: 1, each: one(silence, repeat, deletion, putOver),
		}, 10},
		{"TryRLock beside reads of its Session, and a writer", 0, setting{
			claims: []goroutine{reader(0), tries(0), waiter(1)},
			faults: 1, each: one(silence, deletion, loss, leaving),
		}, 10},
		{"three Sessions of a crowd, reading keys of one", 1, setting{
			claims: three, crowd: true, faults: 1, each: one(deletion, leaving),
		}, 11},
		{"a key that lingers", 0, setting{
			claims: []goroutine{again(0), trier(0, 2), waiter(1)},
			linger: true, faults: 1, each: one(silence, deletion, putOver, loss),
		}, 11},
		{"hand-offs", 0, setting{
			claims:  []goroutine{again(0), waiter(0), waiter(1)},
			handoff: 1, faults: 1, each: one(silence, deletion, putOver, loss, leaving),
		}, 12},
		{"two that read in one Session, and a writer, reading one, beside a stray", 1, setting{
			claims: []goroutine{reader(0), reader(0), waiter(1)},
			strays: 2, faults: 1, each: all,
		}, 12},
		{"a set-back", 0, setting{claims: two, faults: 1, each: one(setBack)}, 13},
		{"three that read in one Session, who leave, behind a writer", 0, setting{
			claims: []goroutine{waiter(1), reader(0), reader(0), reader(0)},
			faults: 2, each: one(leaving, leaving),
		}, 9},
		{"a set-back under permits", 0, setting{
			claims: []goroutine{permit(0, 1, 2), permit(0, 1, 2), permit(1, 1, 2)}, faults: 1,
			each: one(setBack),
		}, 12},
		{"one fault, reading one of those before, beside strays", 1,
			setting{claims: two, strays: 2, faults: 1, each: all}, 13},
		{"TryLock beside Lock, reading one, beside strays", 1, setting{
			claims: []goroutine{trier(0, 1), waiter(0), trier(1, 2)},
			strays: 2, faults: 1, each: all,
		}, 13},
		{"two faults", 0, setting{
			claims: two, faults: 2,
			each: one(silence, silence, repeat, deletion, putOver, loss, leaving),
		}, 8},
		{"a set-back, and calls without an answer", 0, setting{
			claims: []goroutine{waiter(0), waiter(1)},
			faults: 2, each: one(setBack, silence, repeat),
		}, 11},
		{"three Sessions, reading one", 1,
			setting{claims: three, faults: 1, each: one(deletion, putOver, leaving)}, 11},
		{"two that read, of two Sessions, and a writer", 0, setting{
			claims: []goroutine{reader(0), reader(1), waiter(2)}, faults: 1, each: all,
		}, 10},
		{"one fault", 0, setting{claims: two, faults: 1, each: all}, 0},
	}
}

// steps is how many steps the exploration of s goes.
func (s *scenario) steps() int {
	switch {
	case s.most == toTheEnd:
		return 0
	case !race.Whole:
		return 6 + *further
	case *ends && s.faults == 1, s.most == 0:
		return 0
	default:
		return s.most + *further
	}
}

// TestExploration goes every way that a few Sessions can go, by the real cores: line, home
// and ticket. An etcd of one name carries out their very transactions.
//
// On the way, calls are given up while their requests arrive late or never. Requests arrive
// twice. Members that lag show the past. Events get lost. An operator deletes keys or puts
// them over. Leases end. Calls of Lock give up. etcd is restored or wiped.
//
// In every state:
//   - No two contenders hold unless both read, except after an operator or a restore has taken
//     the key of one.
//   - A writer's token is above all tokens before it, and a reader's above the tokens of all
//     writers before it, except after a restore.
//   - No contender takes another's key for its own.
//   - TryLock puts no key behind another, and TryRLock none behind a writer, except after a
//     restore, and where they cannot know it before. They say that the lock is taken only if it is,
//     and wait for no other contender.
//   - A claim joins the holders of its Session before none that has come before it.
//   - The readers of a Session share a key, which goes with the last of them.
//   - A key is handed off no more often than it may be.
//   - Unlock tells the truth.
//
// In a state in which nothing more can happen without a fault, every goroutine has got in, and
// nothing is left in etcd. The same holds for the end of the ways without faults, which the
// exploration goes from one state in 64.
//
// world_test.go is another driver of the decisions of home, which takes its own facts. It has
// copies of the few methods of the engine for which it says that it stands. It says how a view
// learns of deletions, how a Session learns that etcd was set back, and what it gives up then. Two
// things are left out. One is
// a set-back that no answer shows, since the cluster is the same and has passed the
// revision that it had. The other is when leases end: here they end after their Session has
// given them up.
func TestExploration(t *testing.T) {
	collected := debug.SetGCPercent(400) // worlds live for two steps
	defer debug.SetGCPercent(collected)
	states, ways := 0, 0
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			if s.reads > 0 {
				ticket.Reads(t, s.reads)
			}
			n, m := explore(t, newWorld(&s.setting), s.steps())
			states, ways = states+n, ways+m
		})
	}
	t.Logf("%d states, %d steps between them", states, ways)
}

// A node is a state, and the way to it.
type node struct {
	*world // nil once it is done
	parent *node
	step   step
}

// way is the way to n.
func (n *node) way() string {
	var steps []string
	for ; n.parent != nil; n = n.parent {
		steps = append(steps, n.step.String())
	}
	slices.Reverse(steps)
	return strings.Join(steps, "\n")
}

// From one state in oneIn the exploration goes on without faults, until everything has
// ended.
const oneIn = 64

// explore goes all ways, breadth first. It tells states apart by 64 bits of a hash. Among
// ten million states, the probability that one is taken for another is 3 in a million.
func explore(t *testing.T, first *world, most int) (states, ways int) {
	seed, started := maphash.MakeSeed(), time.Now()
	var text []byte
	hash := func(w *world) uint64 {
		text = w.append(text[:0])
		return maphash.Bytes(seed, text)
	}
	seen := map[uint64]struct{}{hash(first): {}}
	level, deep, over, done := []*node{{world: first}}, 0, 0, 0
	for ; len(level) > 0 && (most == 0 || deep < most); deep++ {
		var next []*node
		for _, n := range level {
			moves := false // without a fault
			before := hash(n.world)
			for _, s := range n.steps() {
				if s.verb == progress {
					if !moves {
						over++
						if wrong := n.over(); wrong != "" {
							require.Fail(t, wrong, "after\n%s", n.way())
						}
					}
					continue
				}
				w := n.copy()
				w.do(s)
				ways++
				after := &node{w, n, s}
				if w.broken != "" {
					require.Fail(t, w.broken, "after\n%s", after.way())
				}
				h := hash(w)
				present := n.isPresent(s)
				moves = moves || s.verb < progress && present && h != before
				if _, known := seen[h]; !known {
					seen[h] = struct{}{}
					next = append(next, after)
				}
			}
			if done++; done%oneIn == 0 {
				finish(t, n, hash)
			}
			n.world = nil
		}
		level = next
		require.Less(t, len(seen), *limit, "too many states")
	}
	t.Logf("%d states, %d steps between them, depth %d, %d ends, %d ways to an end, in %v",
		len(seen), ways, deep, over, done/oneIn, time.Since(started).Round(time.Millisecond))
	return len(seen), ways
}

// finish goes on from n without faults, until nothing happens any more. Every goroutine must get
// in, and leave nothing behind.
func finish(t *testing.T, n *node, hash func(*world) uint64) {
	w, steps := n.world, []string(nil)
	fail := func(wrong string) {
		t.Helper()
		require.Fail(t, wrong, "after\n%s\nand without faults\n%s", n.way(), strings.Join(steps, "\n"))
	}
	for range 1000 {
		moved := false
		before := hash(w)
		for _, s := range w.steps() {
			if s.verb >= progress {
				break
			}
			if !w.isPresent(s) {
				continue
			}
			next := w.copy()
			next.do(s)
			steps = append(steps, s.String())
			if next.broken != "" {
				fail(next.broken)
			}
			if moved = hash(next) != before; moved {
				w = next
				break
			}
			steps = steps[:len(steps)-1]
		}
		if !moved {
			if wrong := w.over(); wrong != "" {
				fail(wrong)
			}
			return
		}
	}
	require.Fail(t, "no end without faults", "after\n%s", n.way())
}

// The exploration has few copies of the engine, and each names the method that it is a copy of.
func TestTheWorldNamesWhatItStandsFor(t *testing.T) {
	text, err := os.ReadFile("world_test.go")
	require.NoError(t, err)
	stands := regexp.MustCompile(`\bstands? for\b(?: ([a-z]+)\.(\w+)\.(\w+))?`)
	copies := stands.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, copies)
	require.Less(t, len(copies), 6)
	for _, c := range copies {
		pkg, method := c[1], regexp.MustCompile(`(?m)^func \(\w+ \*?`+c[2]+`\) `+c[3]+`\(`)
		files, err := filepath.Glob(filepath.Join("..", pkg, "*.go"))
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(files, func(file string) bool {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			return !strings.HasSuffix(file, "_test.go") && method.Match(source)
		}), "no such method: %q", c[0])
	}
}
