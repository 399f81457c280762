package etcd

import (
	"flag"
	"fmt"
	"hash/maphash"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/race"
)

var (
	further = flag.Int("further", 0, "steps further than by default to which the exploration goes")
	limit   = flag.Int("states", 2_000_000, "states of a scenario at which it gives up")
	way     = flag.String("way", "", "a way to go in place of all; its steps end with ; or the line")
)

// A scenario is a world, and what may go wrong in it.
type scenario struct {
	name string
	setting
	most, least int // steps, in all rounds and by default
}

const (
	near = 400 * time.Microsecond
	far  = 3 * time.Millisecond
)

// together has three callers of different locks under way together.
const together = `caller 0 asks; caller 1 asks; caller 2 asks; time passes; 0 is answered;
	caller 0 goes on; caller 0 goes on; caller 0 asks; carrier 1 goes on; time passes`

// met has three callers under way together that meet.
const met = `caller 0 asks; caller 1 asks; caller 2 asks; time passes;
	timer goes on; carrier 1 goes on; time passes`

func scenarios() []scenario {
	one := func(kinds ...fault) (each [numFaults]int) {
		for _, f := range kinds {
			each[f]++
		}
		return each
	}
	// the callers of a warm one came back at once, as far as it knows
	warm := pace{few: 1, took: near, out: 3, back: 3, answered: 3, came: 3}
	serial := warm
	serial.serial = true
	all := one(form, refusal, noSpace, silence, panics, exits, leaving)
	return []scenario{
		{"three locks of which nothing is known", setting{
			callers: "ABC", first: pace{few: fewUnderWay}, parts: 8, trip: near,
		}, 19, 15},
		{"three locks", setting{callers: "ABC", first: warm, parts: 8, trip: near}, 19, 15},
		{"four locks", setting{callers: "ABCD", first: warm, parts: 8, trip: near}, 16, 13},
		{"three locks at a far etcd", setting{
			callers: "ABC", first: warm, parts: 8, trip: far,
		}, 19, 15},
		{"two callers of a lock, who leave, and one of another", setting{
			callers: "AAB", first: warm, parts: 8, trip: near, faults: 2, each: one(leaving, leaving),
		}, 11, 9},
		{"reads of a lock, and a put", setting{
			callers: "aaA", first: warm, parts: 8, trip: near,
		}, 16, 13},
		{"few parts", setting{callers: "ABCD", first: warm, parts: 3, trip: near}, 16, 13},
		{"no parts", setting{
			callers: "ABC", first: warm, parts: 1, trip: near, faults: 1, each: all,
		}, 14, 10},
		{"callers that leave", setting{
			callers: "ABC", first: warm, parts: 8, trip: near, faults: 3,
			each: one(leaving, leaving, leaving),
		}, 11, 9},
		{"two faults", setting{
			callers: "ABC", first: warm, parts: 8, trip: near, faults: 2, each: all,
		}, 10, 8},
		{"two faults of what went together", setting{
			callers: "ABC", begins: together, first: warm, parts: 8, trip: near, faults: 2, each: all,
		}, 9, 7},
		{"refusals of what went together", setting{
			callers: "ABC", begins: together, first: warm, parts: 8, trip: near,
			faults: 3, each: one(refusal, refusal, leaving),
		}, 12, 8},
		{"looks", setting{
			callers: "aab", first: serial, parts: 8, trip: far, faults: 1, each: all,
		}, 10, 8},
		{"looks of which few go together", setting{
			callers: "abcd", first: serial, parts: 3, trip: far,
		}, 15, 12},
		{"what meets", setting{
			callers: "---", first: serial, parts: 8, trip: near, faults: 1, each: all,
		}, 13, 11},
		{"faults of what met", setting{
			callers: "---", begins: met, first: serial, parts: 8, trip: near, faults: 2,
			each: one(form, refusal, noSpace, silence, panics, exits, leaving, differs),
		}, 12, 8},
	}
}

// transitions are what etcd and a combiner do, the latter by the function that locks its mutex. The
// exploration must have seen each of them.
var transitions = []string{
	"a request is answered",
	"a request is fallen by a panic",
	"a request is fallen by an exit",
	"a request is lost",
	"a request is not as it was",
	"a request is refused",
	"a request is refused for its form",
	"a request is refused for now",
	"carryOne: all have left",
	"carryOne: several: false",
	"carryOne: several: true",
	"gather: all have come",
	"gather: it was sent meanwhile",
	"gather: others run",
	"gather: the timer waits for the others, in a goroutine that carries: false",
	"gather: the timer waits for the others, in a goroutine that carries: true",
	"join: it goes alone",
	"join: it goes at once",
	"join: it goes beside one of its lock",
	"join: it is the first that waits, gathering: false",
	"join: it is the first that waits, gathering: true",
	"join: it is the last that is waited for",
	"join: it waits with others",
	"join: no more fit",
	"join: they are many",
	"leave: of what is about to be sent, the last: false",
	"leave: of what is about to be sent, the last: true",
	"leave: of what is sent",
	"leave: of what waits",
	"leave: the last of what is sent",
	"leave: the last of what waits, gathering: false",
	"leave: the last of what waits, gathering: true",
	"next: enough are under way",
	"next: it gathers already",
	"next: it gathers, for those that wait: false",
	"next: it gathers, for those that wait: true",
	"next: nothing waits",
	"next: what waits is sent",
	"refuse: fewer parts are taken: false",
	"refuse: fewer parts are taken: true",
	"sendLate: it was sent meanwhile",
	"sendLate: no answer came",
	"sendLate: nobody came back",
	"sendLate: some did not come back",
	"sentAlone: no parts are taken: false",
	"sentAlone: no parts are taken: true",
}

// TestExploration goes every way that a few callers of a combiner can go. What runs is the combiner
// itself, with the Conn of a Session: the exploration chooses which goroutine is next to lock the
// combiner's mutex, and how etcd answers. Time is virtual, and passes where all goroutines wait.
//
// On the way etcd refuses transactions: for their form, for now, or for good, as one is guilty.
// Answers get lost. The user's code panics, or ends its goroutine. The contexts of callers end.
//
// In every state:
//   - Each caller has one answer: that to the request that was sent last for it. If etcd has
//     refused a transaction, each of its parts is sent alone, and none has that refusal for its
//     answer. If an answer is lost, each part knows that it may have been carried out, and none is
//     sent again.
//   - No two parts of one lock go in one transaction, if one puts a key.
//   - The part of a caller who left before it was sent is not sent.
//   - The timer runs out when it is due, and what waits is due to be sent by an answer or the
//     timer. No part waits longer than longestWait and mostPatience.
//   - As many count as under way as are, and no more are begun than may be.
//   - A fall is the answer to each part, and the listener hears of it once.
//
// From every state the exploration goes on without callers and faults until nothing happens any
// more. Then nothing is under way or waits, no timer is due, and one more caller is sent at once.
//
// world.append says which states are alike: callers of like requests may change places.
func TestExploration(t *testing.T) {
	collected := debug.SetGCPercent(400)
	defer debug.SetGCPercent(collected)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // one goroutine runs at a time
	taken := make(map[string]int)
	all, gone := scenarios(), 0
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			wrong := ""
			synctest.Test(t, func(t *testing.T) {
				if *way != "" {
					wrong = s.follow(t)
				} else {
					wrong = s.explore(t, taken)
				}
			})
			require.Empty(t, wrong)
			gone++
		})
	}
	if gone < len(all) || *way != "" || *further < 0 || race.Watched(1, 0) == 0 {
		return
	}
	known := slices.Sorted(maps.Keys(taken))
	for _, transition := range known {
		t.Logf("%9d %s", taken[transition], transition)
	}
	require.Equal(t, transitions, known)
}

// follow goes the way that the flag has.
func (s *scenario) follow(t *testing.T) (wrong string) {
	w := newWorld(&s.setting, newStub(t), func(transition string) { t.Log("\t", transition) })
	w.follow(*way, func(s step) {
		t.Logf("%v: %+v, at %v", s, w.state(), time.Now().Format(".000000"))
	})
	w.finish(false)
	w.abandon()
	return w.broken
}

// A node is a state, and the way to it.
type node struct {
	parent *node
	step   step
}

// steps are the steps of the way to n.
func (n *node) steps() (steps []step) {
	for ; n.parent != nil; n = n.parent {
		steps = append(steps, n.step)
	}
	slices.Reverse(steps)
	return steps
}

// explore goes all ways of at most so many steps, the shortest first. It goes each way from the
// beginning, since a combiner cannot be copied, and from a state that is like one before no
// further. It counts the transitions.
func (s *scenario) explore(t *testing.T, taken map[string]int) (wrong string) {
	most := race.Fewer(s.most, race.Watched(s.least, s.least-4))
	etcd, seed := newStub(t), maphash.MakeSeed()
	seen, ways, deep := make(map[uint64]struct{}), 0, 0
	var text []byte
	for level := []*node{{}}; len(level) > 0 && deep <= most+*further; deep++ {
		var next []*node
		for _, n := range level {
			w := newWorld(&s.setting, etcd, func(transition string) { taken[transition]++ })
			steps := n.steps()
			for _, s := range steps {
				w.do(s)
			}
			text = w.append(text[:0])
			h := maphash.Bytes(seed, text)
			if _, known := seen[h]; !known {
				seen[h] = struct{}{}
				for _, s := range w.steps() {
					next = append(next, &node{n, s})
				}
			}
			w.finish(ways%2 == 1)
			if ways++; w.broken != "" {
				w.abandon()
				return fmt.Sprintf("%s\nafter %d ways, with %d steps:\n%s",
					w.broken, ways, len(steps), wayOf(steps))
			}
		}
		if level = next; len(seen) > *limit {
			return "too many states"
		}
	}
	t.Logf("%d states, %d ways, depth %d", len(seen), ways, deep-1)
	return ""
}

// wayOf is the text of a way.
func wayOf(steps []step) string {
	lines := make([]string, len(steps))
	for i, s := range steps {
		lines[i] = s.String()
	}
	return strings.Join(lines, "\n")
}
