// Package steps counts what runs under the mutexes of the library. Only a build with the overlay of
// package bound uses it: there each function and each turn of a loop calls [At], what the standard
// library goes through counts by its length, and each mutex is a [Mutex].
//
// A step counts for a mutex if the very goroutine that makes it has locked that. So the counts do
// not depend on what other goroutines do meanwhile, nor on time.
package steps

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// A section is what a goroutine does from the Lock of a mutex to its Unlock.
type section struct {
	magic uintptr // else a label of package pprof is taken for a section
	outer *section
	open  bool // a goroutine that it has begun finds it as it begins, and may outlive it
	tally *tally
}

const magic = 0x57e9_5b0d

// A tally is how often each site was passed.
type tally struct {
	steps  int
	counts []int // by site
	passed []int // the sites that have a count
}

func (t *tally) add(site, n int) {
	if n == 0 {
		return
	}
	if site >= len(t.counts) {
		t.counts = append(t.counts, make([]int, max(len(sites), site+1)-len(t.counts))...)
	}
	if t.counts[site] == 0 {
		t.passed = append(t.passed, site)
	}
	t.counts[site] += n
	t.steps += n
}

func (t *tally) reset() {
	for _, site := range t.passed {
		t.counts[site] = 0
	}
	t.passed, t.steps = t.passed[:0], 0
}

func (t *tally) sites() []Site {
	all := make([]Site, 0, len(t.passed))
	for _, site := range t.passed {
		passed := Site{Name: fmt.Sprint("site ", site), Steps: t.counts[site]}
		if site < len(sites) {
			passed.Name, passed.Loop = strings.CutSuffix(sites[site], Loop)
		}
		all = append(all, passed)
	}
	slices.SortFunc(all, func(a, b Site) int { return b.Steps - a.Steps })
	return all
}

// A Site is a place in the source, and how many steps were made there.
type Site struct {
	Name  string
	Loop  bool // or a call that goes through many
	Steps int
}

// Loop ends the names of the sites that are loops.
const Loop = " loop"

// Counts are what was counted of the mutexes that one declaration has made: of all Sessions, for
// instance.
type Counts struct {
	Sections int // how often one was locked
	Steps    int // in all of these
	Longest  int // steps from a Lock to its Unlock
	Sites    []Site
	Of       []Site // the longest
}

// all is what was counted of each declaration since the last Reset.
var all = struct {
	sync.Mutex
	of   map[string]*totals
	free []*tally // empty ones
}{of: make(map[string]*totals)}

type totals struct {
	sections int
	tally    tally
	longest  tally
}

// Reset forgets what was counted.
func Reset() {
	all.Lock()
	defer all.Unlock()
	clear(all.of)
}

// Read returns what was counted since the last Reset, by the declarations of the mutexes.
func Read() map[string]Counts {
	all.Lock()
	defer all.Unlock()
	read := make(map[string]Counts)
	for name, t := range all.of {
		read[name] = Counts{
			Sections: t.sections, Steps: t.tally.steps, Longest: t.longest.steps,
			Sites: t.tally.sites(), Of: t.longest.sites(),
		}
	}
	return read
}

// begin begins a section of the goroutine.
func begin() *section {
	s := &section{magic: magic, outer: current(), open: true, tally: new(tally)}
	all.Lock()
	if n := len(all.free); n > 0 {
		s.tally, all.free = all.free[n-1], all.free[:n-1]
	}
	all.Unlock()
	setLabel(unsafe.Pointer(s))
	return s
}

// end ends it, of a mutex that was declared at name.
func (s *section) end(name string) {
	s.open = false
	for inner := current(); inner != nil; inner = inner.outer {
		if inner.outer == s { // they were not unlocked in the reverse order
			inner.outer = s.outer
		}
	}
	if (*section)(label()) == s {
		setLabel(unsafe.Pointer(s.outer))
	}
	all.Lock()
	defer all.Unlock()
	t := all.of[name]
	if t == nil {
		t = &totals{}
		all.of[name] = t
	}
	t.sections++
	for _, site := range s.tally.passed {
		t.tally.add(site, s.tally.counts[site])
	}
	if s.tally.steps > t.longest.steps {
		t.longest.reset()
		for _, site := range s.tally.passed {
			t.longest.add(site, s.tally.counts[site])
		}
	}
	s.tally.reset()
	all.free = append(all.free, s.tally)
}

// current is the innermost section of the goroutine, nil if it has locked nothing.
func current() *section {
	s := (*section)(label())
	if s == nil || s.magic != magic || !s.open {
		return nil
	}
	return s
}

// Began is called first by each goroutine that the library begins. Its own sections are yet to
// come: it has none of the goroutine that has begun it.
func Began() { setLabel(nil) }

// Go0 is what a goroutine begins with that calls f.
func Go0(f func()) {
	Began()
	f()
}

// Go1 is Go0 for an f with an argument.
func Go1[A any](f func(A), a A) {
	Began()
	f(a)
}

// Go2 is Go0 for an f with two arguments.
func Go2[A, B any](f func(A, B), a A, b B) {
	Began()
	f(a, b)
}

// At counts one step at a site.
func At(site int) { passed(site, 1) }

func passed(site, n int) {
	for s := current(); s != nil; s = s.outer {
		s.tally.add(site, n)
	}
}

// Slice counts a step for each element.
func Slice[S ~[]E, E any](site int, s S) S {
	passed(site, len(s))
	return s
}

// Map counts a step for each key.
func Map[M ~map[K]V, K comparable, V any](site int, m M) M {
	passed(site, len(m))
	return m
}

// Len counts n steps.
func Len[N ~int | ~int64 | ~uint32](site int, n N) N {
	passed(site, int(n))
	return n
}

// Seq counts a step for each element that is asked for.
func Seq[S ~func(func(V) bool), V any](site int, seq S) iter.Seq[V] {
	return func(yield func(V) bool) {
		seq(func(v V) bool {
			At(site)
			return yield(v)
		})
	}
}

// Closed counts a step for each goroutine that waits for something from c, which is about to be
// closed.
func Closed[C any](site int, c C) C {
	passed(site, receivers(*(*unsafe.Pointer)(unsafe.Pointer(&c))))
	return c
}

// receivers is how many receives wait at a channel, by its layout in package runtime.
func receivers(c unsafe.Pointer) (n int) {
	if c == nil {
		return 0
	}
	type waiting struct {
		_    unsafe.Pointer
		next *waiting
	}
	type channel struct {
		count, size  uint
		buf          unsafe.Pointer
		elemSize     uint16
		closed       uint32
		timer        unsafe.Pointer
		elemType     unsafe.Pointer
		sendx, recvx uint
		first, last  *waiting
	}
	for w := (*channel)(c).first; w != nil; w = w.next {
		n++
	}
	return n
}

//go:linkname label runtime/pprof.runtime_getProfLabel
func label() unsafe.Pointer

//go:linkname setLabel runtime/pprof.runtime_setProfLabel
func setLabel(unsafe.Pointer)
