package faults

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/version"

	"github.com/etcdlock/etcdlock/internal/record"
	"github.com/etcdlock/etcdlock/internal/side"
)

// A row is one line of the published table.
type row struct {
	id    string // S1 to S45; S44 is in internal/sim
	name  string // if several have that id, else ""
	fault string
	must  string // what must hold, with its figure

	leastMargin time.Duration // from the end of a hold by a loss to the next hold

	quick  int // trials of a quick run, at least 1
	full   int // trials of a full run without -trials
	lanes  int // trials at once, 8 unless said otherwise: most of them wait most of the time
	noPeer bool
	peer   string // instead of concurrency.Mutex
	// the command that measures the row again, if it is not this test with -trials and -peer
	command string
}

// slack is what a loaded machine may take for something that is due now.
const slack = 10 * time.Second

// prove runs a row's story for each side, judges the beliefs in it, and records the
// figures.
func prove(t *testing.T, r row, story func(tr *trial)) {
	t.Helper()
	sides := []side.Side{side.Ours}
	if *peer && !r.noPeer {
		sides = append(sides, side.Theirs)
	}
	for _, s := range sides {
		t.Run(s.Name, func(t *testing.T) {
			f := r.run(t, s, story)
			t.Logf("%s %s: %d of %d broken; %s", r.id, r.name, f.broken, f.n, f)
			if t.Failed() && f.broken == 0 {
				return // the machinery failed, not the lock: that is no figure
			}
			record.Save(t, record.Result{
				Row: r.id, Case: r.name, Fault: r.fault, Must: r.must, Side: s.Name, Peer: r.peer,
				N: f.n, Broken: f.broken, Figures: f.String(), Etcd: version.Version,
				Command: cmp.Or(r.command,
					fmt.Sprintf("go test . -run '^%s$' -trials %d -peer", strings.Split(t.Name(), "/")[0], f.n)),
			})
		})
	}
}

func (r row) run(t *testing.T, s side.Side, story func(tr *trial)) *figures {
	n := cmp.Or(r.quick, 1)
	if *trials > 0 {
		n = cmp.Or(r.full, *trials)
	}
	f := newFigures(n)
	free := make(chan struct{}, cmp.Or(r.lanes, 8))
	var all sync.WaitGroup
	for i := range n {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			t.Run(fmt.Sprint("trial ", i+1), func(t *testing.T) {
				tr := &trial{T: t, row: r, side: s, i: i, n: n, figures: f,
					name: fmt.Sprintf("lock/%s/%d", r.id, i)}
				// It comes first, so that it runs when all else that the trial made has
				// ended.
				t.Cleanup(tr.judge)
				tr.tell(story)
			})
		})
	}
	all.Wait()
	return f
}

// A trial is one run of a story, by one side, about one lock.
type trial struct {
	*testing.T
	row     row
	side    side.Side
	i, n    int    // the number of this trial, from 0, and of all trials
	name    string // of the lock
	figures *figures

	mu     sync.Mutex
	broken []string
	spans  []*span
	epoch  int
}

// A broken trial that cannot go on panics with endOfTrial.
type endOfTrial struct{}

// tell runs a story to its end, or to where it is broken.
func (tr *trial) tell(story func(*trial)) {
	defer func() {
		if r := recover(); r != nil && r != (endOfTrial{}) {
			panic(r)
		}
	}()
	story(tr)
}

// broke records that a promise does not hold. The trial goes on.
func (tr *trial) broke(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.broken = append(tr.broken, fmt.Sprintf(format, args...))
}

// must ends the trial unless a promise holds. Only the story's goroutine may call it.
func (tr *trial) must(holds bool, format string, args ...any) {
	if !holds {
		tr.broke(format, args...)
		panic(endOfTrial{})
	}
}

// A span is the time for which a party believed to hold the lock.
type span struct {
	who         string
	shares      bool // so it may be beside others that share
	weight      int  // of its permits, if that is what it shares
	token       int64
	from, until time.Duration // on the monotonic clock; until is 0 while it lasts
	lost        bool          // ended by a loss
	epoch       int
}

// begins records a belief.
func (tr *trial) begins(who string, token int64, from time.Duration) *span {
	return tr.beginsTo(exclusive, who, token, from)
}

func (tr *trial) beginsTo(u use, who string, token int64, from time.Duration) *span {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	s := &span{who: who, shares: u == reading || u.weight() > 0, weight: u.weight(), token: token,
		from: from, epoch: tr.epoch}
	tr.spans = append(tr.spans, s)
	return s
}

// forgets records that etcd was set back: tokens begin anew.
func (tr *trial) forgets() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.epoch++
}

// ends records the end of a belief, unless it has ended before.
func (tr *trial) ends(s *span, at time.Duration, lost bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if s.until == 0 {
		s.until, s.lost = at, lost
	}
}

// judge checks the Invariant, and counts the trial.
//
// Invariant: no two beliefs overlap unless both share. Tokens grow, from each hold that is
// alone to those after it, and from all to one that is alone. The permits held never exceed
// the limit.
func (tr *trial) judge() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	slices.SortFunc(tr.spans, func(a, b *span) int { return cmp.Compare(a.from, b.from) })
	last := make(map[bool]*span) // by whether it shares: the earlier belief that lasts longest
	for _, s := range tr.spans {
		if s.until == 0 {
			s.until = now()
		}
		for _, l := range last {
			if !l.shares || !s.shares {
				tr.compare(l, s)
			}
		}
		if l := last[s.shares]; l == nil || s.until > l.until {
			last[s.shares] = s
		}
	}
	tr.countPermits()
	if say := tr.Log; len(tr.broken) > 0 {
		if tr.side.Name == side.Ours.Name {
			say = tr.Error
		}
		const enough = 5
		say(fmt.Sprintf("broken %d times:\n%s", len(tr.broken),
			strings.Join(tr.broken[:min(enough, len(tr.broken))], "\n")))
	}
	tr.figures.count(len(tr.broken) > 0)
}

// countPermits judges each belief by those that last at its beginning, with mu held.
func (tr *trial) countPermits() {
	for i, s := range tr.spans {
		held, least := s.weight, s.until
		for _, o := range tr.spans[:i] {
			if o.until > s.from {
				held, least = held+o.weight, min(least, o.until)
			}
		}
		if held > permits {
			tr.broken = append(tr.broken, fmt.Sprintf("%d permits of %d were held, for %v", held, permits,
				least-s.from))
		}
	}
}

// compare judges a belief by an earlier one, with mu held.
func (tr *trial) compare(last, s *span) {
	switch gap := s.from - last.until; {
	case gap < 0:
		overlap := min(s.until, last.until) - s.from
		tr.broken = append(tr.broken, fmt.Sprintf("%s and %s both believed to hold the lock, for %v",
			last.who, s.who, overlap))
		tr.figures.longest("overlap", overlap)
		tr.figures.add("overlaps", 1)
	case last.lost:
		tr.figures.shortest("margin", gap)
		if gap < tr.row.leastMargin {
			tr.broken = append(tr.broken,
				fmt.Sprintf("%s knew only %v before %s got in", last.who, gap, s.who))
		}
	}
	told := tr.side.Name == side.Ours.Name || s.token != 0 // a recipe.RWMutex has no token
	if told && s.epoch == last.epoch && !grows(last.token, s.token) {
		tr.broken = append(tr.broken, fmt.Sprintf("token %d of %s after %d of %s", s.token, s.who,
			last.token, last.who))
	}
}

// figures are the measurements of the trials of a row and a side.
type figures struct {
	mu          sync.Mutex
	n, broken   int
	least, most map[string]time.Duration
	sums        map[string]int
}

func newFigures(n int) *figures {
	return &figures{n: n, least: map[string]time.Duration{}, most: map[string]time.Duration{},
		sums: map[string]int{}}
}

func (f *figures) count(broken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if broken {
		f.broken++
	}
}

// shortest records a time, of which the table shows the least.
func (f *figures) shortest(what string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if least, known := f.least[what]; !known || d < least {
		f.least[what] = d
	}
}

// longest records a time, of which the table shows the greatest.
func (f *figures) longest(what string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.most[what] = max(f.most[what], d)
}

// add counts something.
func (f *figures) add(what string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sums[what] += n
}

func (f *figures) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var parts []string
	for what, d := range f.least {
		parts = append(parts, fmt.Sprintf("least %s %v", what, rounded(d)))
	}
	for what, d := range f.most {
		parts = append(parts, fmt.Sprintf("longest %s %v", what, rounded(d)))
	}
	for what, n := range f.sums {
		parts = append(parts, fmt.Sprintf("%s %d", what, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func rounded(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

// phase lets a part of d pass that differs from trial to trial. So a fault does not always
// strike at the same moment of a period.
func (tr *trial) phase(d time.Duration) {
	time.Sleep(d * time.Duration(tr.i%tr.n) / time.Duration(tr.n))
}

// bounded is a context for what must come. It outlives t.Context, so Cleanup can use it.
func (tr *trial) bounded(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	tr.Cleanup(cancel)
	return ctx
}
