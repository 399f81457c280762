//go:build bound

package bound_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/etcdlock/etcdlock/internal/bound/steps"
)

var (
	others = flag.Int("others", 1000, "beside how many others; that is compared with a tenth of these")
	whole  = flag.Bool("whole", false, "show what is within its bound, too")
)

// A kind is what the steps of something are bounded by.
type kind int

const (
	one  kind = iota // it concerns one: the same steps beside few others and beside many
	each             // it concerns each of the others: a constant number of steps for each
)

// atOnce is how many steps are made at most from a Lock to its Unlock. What concerns many gives the
// mutex up between pieces of sixteen of them, and makes some dozen steps for each.
const atOnce = 4_000

// ofSession is where the mutex of a Session is declared. The others are locked for a moment at a
// time.
const ofSession = "internal/guard/"

// beyond says in which way the counts of a mutex are beyond their bound, as they are beside n[0]
// others and beside n[1].
func (k kind) beyond(mutex string, few, many steps.Counts, n [2]int) (how []string) {
	times := float64(n[1]) / float64(n[0])
	switch {
	case !strings.HasPrefix(mutex, ofSession):
	case k == one && many.Steps > few.Steps*3/2+200:
		how = append(how, "more beside more others")
	case k == each && float64(many.Steps) > 2*times*float64(few.Steps)+10*float64(n[1]):
		how = append(how, "more for each beside more others")
	}
	grown := many.Longest > 1500 && float64(many.Longest) > float64(few.Longest)*(1+(times-1)/2)
	if many.Longest > atOnce || grown {
		how = append(how, "many at once")
	}
	return how
}

// What runs under a mutex is bounded. What concerns one makes the same steps beside few others and
// beside many. What concerns each of the others makes a constant number of steps for each, and
// gives the mutex up in between.
func TestBound(t *testing.T) {
	for _, c := range companies {
		t.Run(c.name, func(t *testing.T) {
			n := [2]int{*others / 10, *others}
			switch {
			case c.slow:
				n = [2]int{*others / 13, *others / 4}
			case c.blind:
				n = [2]int{*others / 3, *others * 3}
			}
			compare(t, "they come, and calls beside them", n, func(w *world) {
				w.count("they come", each, func() { c.come(w) })
				w.makeCalls()
			})
			for _, e := range events {
				if e.fits(c) {
					compare(t, e.name, n, func(w *world) {
						c.come(w)
						w.count(e.name, e.kind, func() { e.happens(w) })
					})
				}
			}
		})
	}
}

// compare counts what happens beside n[0] others and beside n[1], and requires that it is bounded.
func compare(t *testing.T, what string, n [2]int, happens func(w *world)) {
	t.Run(what, func(t *testing.T) {
		var rows [2][]row
		for i := range n {
			inWorld(t, n[i], func(w *world) {
				happens(w)
				rows[i] = w.rows
			})
		}
		for i, many := range rows[1] {
			if i >= len(rows[0]) || rows[0][i].what != many.what {
				t.Errorf("%s beside %d others, and not beside %d", many.what, n[1], n[0])
				return
			}
			for _, mutex := range slices.Sorted(maps.Keys(many.counts)) {
				few, many := rows[0][i].counts[mutex], many.counts[mutex]
				text := fmt.Sprintf("%s, %s: %d -> %d steps, %d -> %d at once",
					rows[0][i].what, mutex, few.Steps, many.Steps, few.Longest, many.Longest)
				if how := rows[0][i].kind.beyond(mutex, few, many, n); how != nil {
					t.Errorf("%s: %s\n\tin all %s\n\tat once %s",
						text, strings.Join(how, ", "), loops(many.Sites), loops(many.Of))
				} else if *whole {
					t.Log(text)
				}
			}
		}
	})
}

// loops are the loops in which most steps were made.
func loops(all []steps.Site) string {
	var most []string
	for _, site := range all {
		if site.Loop && len(most) < 6 {
			most = append(most, fmt.Sprintf("%d %s", site.Steps, site.Name))
		}
	}
	return strings.Join(most, ", ")
}
