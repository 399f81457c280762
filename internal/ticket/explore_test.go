package ticket_test

import (
	"flag"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

var (
	depth  = flag.Int("depth", race.Fewer(9, 7), "steps to which the exploration goes with two faults, 0 for all")
	rounds = flag.Int("rounds", 1, "holds that each goroutine wants")
	states = flag.Int("states", 20_000_000, "states at which the exploration gives up")
)

// TestExploration goes every way that two Sessions can go, one with two goroutines, by the real
// cores: line, turn and ticket. An etcd of one name carries out their very transactions.
//
// On the way calls are given up whose requests arrive late or never, requests arrive twice,
// members that lag tell of the past, events get lost, an operator deletes keys, leases end, and
// calls of Lock give up. In no state two hold, but after an operator has deleted the key of one;
// tokens grow; and Unlock tells the truth. Where nothing can happen any more without a fault,
// everybody has got in, and nothing is left in etcd; so it is where one comes from one state in
// 64 when nothing fails any more. Once more all that goes with readings of one key, and with keys
// that are no contenders.
//
// Left out are set-backs of etcd, keys that somebody puts over, TryLock, hand-offs and keys that
// linger, and when leases end: here they end after their Session has given them up.
func TestExploration(t *testing.T) {
	all, toTheEnd := [kinds]int{1, 1, 1, 1, 1}, 0
	if race.Enabled { // there is but one goroutine
		toTheEnd = 8
	}
	t.Run("with one fault, to every end", func(t *testing.T) {
		explore(t, newWorld(*rounds, 1, all, 0), toTheEnd)
	})
	t.Run("with one fault, reading one of those before, and two strays", func(t *testing.T) {
		ticket.Reads(t, 1)
		explore(t, newWorld(*rounds, 1, all, 2), toTheEnd)
	})
	t.Run("with two faults", func(t *testing.T) {
		all[silence] = 2
		explore(t, newWorld(*rounds, 2, all, 0), *depth)
	})
}

// A node is a state, and how it was reached.
type node struct {
	*world // nil once it is done
	parent *node
	step   step
}

// way is how n was reached.
func (n *node) way() string {
	var steps []string
	for ; n.parent != nil; n = n.parent {
		steps = append(steps, n.step.String())
	}
	slices.Reverse(steps)
	return strings.Join(steps, "\n")
}

// oneIn is of how many states one is gone on from without faults, until everything has ended.
const oneIn = 64

// explore goes all ways, breadth first. States are told apart by 64 bits of a hash: among ten
// million there is one that is taken for another with a probability of 3 in a million.
func explore(t *testing.T, first *world, most int) {
	seed, started := maphash.MakeSeed(), time.Now()
	var text []byte
	hash := func(w *world) uint64 {
		text = w.append(text[:0])
		return maphash.Bytes(seed, text)
	}
	seen := map[uint64]struct{}{hash(first): {}}
	level, deep, ways, ends, done := []*node{{world: first}}, 0, 0, 0, 0
	for ; len(level) > 0 && (most == 0 || deep < most); deep++ {
		var next []*node
		for _, n := range level {
			moves := false // without a fault
			before := hash(n.world)
			for _, s := range n.steps() {
				if s.verb == progress {
					if !moves {
						ends++
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
				present := s.verb != looks || int64(s.b) == n.etcd.rev()
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
		require.Less(t, len(seen), *states, "too many states")
	}
	t.Logf("%d states, %d steps between them, depth %d, %d ends, %d ways to an end, in %v",
		len(seen), ways, deep, ends, done/oneIn, time.Since(started).Round(time.Millisecond))
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
			if s.verb == looks && int64(s.b) != w.etcd.rev() {
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
