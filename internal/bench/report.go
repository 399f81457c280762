package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// A report is what a run has measured.
type report struct {
	command  string
	machine  machine
	chapters []*chapter
}

// A chapter is about a setup, and has a table for each case.
type chapter struct {
	setup    setup
	versions []string
	sync     time.Duration
	tables   []table
}

type table struct {
	benchCase
	rows []row
}

// A row is an alternative in a case.
type row struct {
	name, title string
	system      string
	failed      error
	summary
	by map[string]spread // time by the time of a peer, in pairs
}

// peers are the alternatives with which a row is compared, if they were measured too.
var peers = []string{baseline, floor, recipes, singly, elections}

func (r *report) begin(s setup, started *systems, sync time.Duration) {
	c := &chapter{setup: s, sync: sync}
	for _, starter := range starters {
		if sys := started.running[starter.kind]; sys != nil && !slices.Contains(c.versions, sys.version()) {
			c.versions = append(c.versions, sys.version())
		}
	}
	r.chapters = append(r.chapters, c)
}

func (r *report) add(c benchCase, entrants []*entrant) {
	t := table{benchCase: c}
	for _, e := range entrants {
		t.rows = append(t.rows, row{
			name: e.name, title: e.title(), system: e.system, failed: e.failed,
			summary: summarize(e.rounds), by: against(e, entrants),
		})
	}
	last := r.chapters[len(r.chapters)-1]
	last.tables = append(last.tables, t)
}

func against(e *entrant, entrants []*entrant) map[string]spread {
	by := make(map[string]spread)
	for _, other := range entrants {
		if slices.Contains(peers, other.name) && other != e {
			by[other.name] = spreadOf(ratios(e.rounds, other.rounds))
		}
	}
	return by
}

// broken lists the cases in which an alternative let two in at once.
func (r *report) broken(name string) (where []string) {
	for _, c := range r.chapters {
		for _, t := range c.tables {
			for _, row := range t.rows {
				if row.name == name && row.broken != "" {
					where = append(where, c.setup.name+" "+t.benchCase.name)
				}
			}
		}
	}
	return where
}

// find returns the row of an alternative in a case.
func (c *chapter) find(caseName, name string) (row, bool) {
	for _, t := range c.tables {
		for _, row := range t.rows {
			if t.benchCase.name == caseName && row.name == name && row.ops > 0 {
				return row, true
			}
		}
	}
	return row{}, false
}

// markdown returns the report as a page.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Locks, measured\n\n%s.\n\nMade by `%s` in internal/bench.\n", r.machine, r.command)
	fmt.Fprintf(&b, `
Medians of the rounds, with the least and the greatest in brackets. A comparison is
made within each round, with %s in the same round; p50 and p99 are of all single
operations. Counts are per operation: RPCs are calls to etcd and messages sent on its
streams, messages are those in both directions, proposals are what its Raft has
committed; allocations are those of the clients' process; CPU is the servers'.
`, baseline)
	if r.chart() != "" {
		b.WriteString("\n![Hand-overs per second, by the number of contenders](benchmarks.svg)\n")
	}
	for _, c := range r.chapters {
		fmt.Fprintf(&b, "\n## %s\n\n%s. A synced write takes %s.\n",
			upperFirst(c.setup.title), strings.Join(c.versions, ", "), short(c.sync))
		for _, t := range c.tables {
			fmt.Fprintf(&b, "\n### %s\n\n%s.\n\n", t.benchCase.name, upperFirst(t.title))
			if t.note != "" {
				fmt.Fprintf(&b, "%s\n\n", t.note)
			}
			b.WriteString(t.markdown())
		}
		if rows := c.fleet(); rows != "" {
			fmt.Fprintf(&b, "\n### The fleet\n\nEach process of a fleet has a Session of its own. These are the figures of the tables above\n"+
				"that begin with fleet, and of taken, side by side.\n\n%s", rows)
		}
		if rows := c.family(); rows != "" {
			fmt.Fprintf(&b, "\n### The family\n\nThese are the figures of the tables above that are not of a mutex, side by side.\n\n%s", rows)
		}
		if rows := c.targets(); rows != "" {
			fmt.Fprintf(&b, "\n### What the library is to reach here\n\n%s", rows)
		}
	}
	return b.String()
}

// columns are the columns of all tables. A table has those that say something in it.
var columns = []struct {
	title string
	cell  func(c benchCase, r row) string
}{
	{"", func(_ benchCase, r row) string { return r.title }},
	{"per second", func(c benchCase, r row) string {
		if !c.rate {
			return ""
		}
		v := r.values.inverse()
		return fmt.Sprintf("%s (%s to %s)", digits(v.Median), digits(v.Least), digits(v.Most))
	}},
	{"time each", onlyIn(names, func(r row) string { return short(r.value) })},
	{"time of all", inStarts(func(r row) string { return short(r.value) })},
	{"in", inStarts(func(r row) string { return grouped(int64(r.in)) })},
	{"p50", exceptIn(func(r row) string { return short(r.p50) }, names, idle)},
	{"p99", exceptIn(func(r row) string { return short(r.p99) }, names, idle)},
	{"most", onlyIn(taken, func(r row) string { return short(r.most) })},
	{"TTLs", func(_ benchCase, r row) string { return positive(r.ttls) }},
	{"speed, by " + baseline, speedBy(baseline)},
	{"speed, by " + recipes, speedBy(recipes)},
	{"time, by " + baseline, timeBy(baseline)},
	{"time, by " + singly, timeBy(singly)},
	{"time, by " + elections, timeBy(elections)},
	{"time, by " + floor, timeBy(floor)},
	{"most of a client, by the mean", func(_ benchCase, r row) string { return positive(r.busiest) }},
	{"RPCs", inEtcd(func(s summary) int64 { return s.spent.RPCs })},
	{"proposals", inEtcd(func(s summary) int64 { return s.spent.Proposals })},
	{"revisions", inEtcd(func(s summary) int64 { return s.spent.Revisions })},
	{"messages", inEtcd(func(s summary) int64 { return s.spent.Messages })},
	{"logins", onlyIn(idle, func(r row) string { return digits(r.per(r.spent.Logins)) })},
	{"bytes", count(func(s summary) int64 { return s.spent.Bytes })},
	{"allocations", count(func(s summary) int64 { return s.spent.Allocs })},
	{"server CPU", func(c benchCase, r row) string {
		if c.kind.crashes() {
			return ""
		}
		return short(time.Duration(r.per(int64(r.spent.ServerCPU))))
	}},
	{"goroutines", func(c benchCase, r row) string {
		if !slices.Contains([]kind{crowd, names, idle, fleet}, c.kind) || r.goroutines == 0 {
			return ""
		}
		return fmt.Sprint(r.goroutines)
	}},
	{"heap per name", onlyIn(names, func(r row) string {
		if r.heap == 0 {
			return ""
		}
		return digits(r.heap) + " B"
	})},
	{"renewals per TTL/3", onlyIn(names, func(r row) string { return digits(r.renewals) })},
}

func onlyIn(k kind, cell func(row) string) func(benchCase, row) string {
	return func(c benchCase, r row) string {
		if c.kind != k {
			return ""
		}
		return cell(r)
	}
}

// inStarts is for the cases in which each party must be in once.
func inStarts(cell func(row) string) func(benchCase, row) string {
	return func(c benchCase, r row) string {
		if r.in == 0 || c.rate {
			return ""
		}
		return cell(r)
	}
}

func exceptIn(cell func(row) string, kinds ...kind) func(benchCase, row) string {
	return func(c benchCase, r row) string {
		if slices.Contains(kinds, c.kind) {
			return ""
		}
		return cell(r)
	}
}

func count(of func(summary) int64) func(benchCase, row) string {
	return func(c benchCase, r row) string {
		if c.kind.crashes() {
			return "" // mostly those of the wait
		}
		return digits(r.per(of(r.summary)))
	}
}

func inEtcd(of func(summary) int64) func(benchCase, row) string {
	cell := count(of)
	return func(c benchCase, r row) string {
		if r.system != onEtcd {
			return ""
		}
		return cell(c, r)
	}
}

func speedBy(peer string) func(benchCase, row) string {
	return func(c benchCase, r row) string { return ratio(c.rate, r.by[peer].inverse()) }
}

func timeBy(peer string) func(benchCase, row) string {
	return func(c benchCase, r row) string { return ratio(!c.rate, r.by[peer]) }
}

func ratio(wanted bool, s spread) string {
	if !wanted || !s.known() {
		return ""
	}
	return fmt.Sprintf("%s (%s to %s)", digits(s.Median), digits(s.Least), digits(s.Most))
}

func positive(v float64) string {
	if v <= 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}

func (t table) markdown() string {
	cells := make([][]string, 0, len(t.rows))
	said := make([]bool, len(columns))
	var remarks []string
	for _, r := range t.rows {
		if r.broken != "" {
			remarks = append(remarks, fmt.Sprintf("**%s let two in at once: %s.**", r.title, r.broken))
		}
		if r.failed != nil {
			remarks = append(remarks, fmt.Sprintf("%s failed: %v.", r.title, r.failed))
		}
		if r.ops == 0 {
			continue
		}
		line := make([]string, len(columns))
		for i, c := range columns {
			line[i] = c.cell(t.benchCase, r)
			said[i] = said[i] || line[i] != ""
		}
		cells = append(cells, line)
	}
	if !slices.Contains([]kind{names, idle, taken, readers}, t.kind) && !slices.ContainsFunc(t.rows, func(r row) bool { return r.broken != "" }) {
		remarks = append(remarks, "Exclusion held.")
	}

	var b strings.Builder
	write := func(cell func(i int) string) {
		for i := range columns {
			if said[i] {
				fmt.Fprintf(&b, "| %s ", cell(i))
			}
		}
		b.WriteString("|\n")
	}
	if len(cells) > 0 {
		write(func(i int) string { return columns[i].title })
		write(func(i int) string {
			if i == 0 {
				return "---"
			}
			return "--:"
		})
	}
	for _, line := range cells {
		write(func(i int) string { return line[i] })
	}
	for _, remark := range remarks {
		fmt.Fprintf(&b, "\n%s\n", remark)
	}
	return b.String()
}

// show is a measured value as the case reports it.
func (c benchCase) show(d time.Duration) string {
	if c.rate {
		return digits(1/d.Seconds()) + "/s"
	}
	return short(d)
}

// digits returns a number with three digits, since no more mean anything.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case math.IsInf(v, 0) || math.IsNaN(v):
		return "-"
	case a == 0:
		return "0"
	case a >= 100:
		return grouped(int64(math.Round(v)))
	case a >= 10:
		return trimZeros(fmt.Sprintf("%.1f", v))
	case a >= 1:
		return trimZeros(fmt.Sprintf("%.2f", v))
	default:
		return trimZeros(fmt.Sprintf("%.3f", v))
	}
}

func trimZeros(s string) string {
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// grouped returns n with commas between groups of three digits.
func grouped(n int64) string {
	if n < 0 {
		return "-" + grouped(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// short returns a duration without what says nothing.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1e3)
	default:
		return fmt.Sprintf("%.0f µs", d.Seconds()*1e6)
	}
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
