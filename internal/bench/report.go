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
		if sys := started.running[starter.kind]; sys != nil &&
			!slices.Contains(c.versions, sys.version()) {
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

// figures are what a record has of each alternative: those that say something in its case.
var figures = []struct {
	name string
	of   func(c benchCase, r row) figure
}{
	{perSecond, func(c benchCase, r row) figure {
		if !c.rate {
			return nil
		}
		return r.values.inverse().figure()
	}},
	{theTime, func(c benchCase, r row) figure {
		if c.rate {
			return nil
		}
		return r.values.figure()
	}},
	{"in", func(c benchCase, r row) figure {
		if r.in == 0 || c.rate {
			return nil // not a case in which each party must be in once
		}
		return number(float64(r.in))
	}},
	{"p50", exceptIn(func(r row) float64 { return r.p50.Seconds() }, names, idle, renewal)},
	{"p99", exceptIn(func(r row) float64 { return r.p99.Seconds() }, names, idle, renewal)},
	{"most", onlyIn(taken, func(r row) float64 { return r.most.Seconds() })},
	{"TTLs", func(_ benchCase, r row) figure { return positive(r.ttls) }},
	{"speed, by " + baseline, speedBy(baseline)},
	{"speed, by " + recipes, speedBy(recipes)},
	{"time, by " + baseline, timeBy(baseline)},
	{"time, by " + singly, timeBy(singly)},
	{"time, by " + elections, timeBy(elections)},
	{"time, by " + floor, timeBy(floor)},
	{"most of a client, by the mean", func(_ benchCase, r row) figure { return positive(r.busiest) }},
	{"RPCs", inEtcd(rpcs)},
	{"proposals", inEtcd(proposals)},
	{"revisions", inEtcd(revisions)},
	{"messages", inEtcd(func(c counts) int64 { return c.Messages })},
	{"grants", onlyIn(lineUp, func(r row) float64 { return r.per(r.spent.Grants) })},
	{"revokes", onlyIn(lineUp, func(r row) float64 { return r.per(r.spent.Revokes) })},
	{"warnings", onlyIn(lineUp, func(r row) float64 { return r.per(r.spent.Warnings) })},
	{"logins", onlyIn(idle, func(r row) float64 { return r.per(r.spent.Logins) })},
	{"bytes", count(bytesMoved)},
	{"allocations", count(func(c counts) int64 { return c.Allocs })},
	{"server CPU", func(c benchCase, r row) figure {
		if c.kind.crashes() {
			return nil
		}
		return number(r.per(int64(r.spent.ServerCPU)) / 1e9)
	}},
	{"client CPU", func(c benchCase, r row) figure {
		if c.kind.crashes() {
			return nil
		}
		return number(r.per(int64(r.spent.ClientCPU)) / 1e9)
	}},
	{"goroutines", func(c benchCase, r row) figure {
		if !slices.Contains([]kind{crowd, names, idle, fleet}, c.kind) {
			return nil
		}
		return positive(float64(r.goroutines))
	}},
	{"heap per name", func(c benchCase, r row) figure {
		if c.kind != names {
			return nil
		}
		return positive(r.heap)
	}},
	{"renewals per TTL/3", onlyIn(names, func(r row) float64 { return r.renewals })},
}

// Names of figures: an operation's time, as it is compared, or how many there are a second.
const (
	theTime   = "time"
	perSecond = "per second"
)

func onlyIn(k kind, of func(row) float64) func(benchCase, row) figure {
	return func(c benchCase, r row) figure {
		if c.kind != k {
			return nil
		}
		return number(of(r))
	}
}

func exceptIn(of func(row) float64, kinds ...kind) func(benchCase, row) figure {
	return func(c benchCase, r row) figure {
		if slices.Contains(kinds, c.kind) {
			return nil
		}
		return number(of(r))
	}
}

func count(of func(counts) int64) func(benchCase, row) figure {
	return func(c benchCase, r row) figure {
		if c.kind.crashes() {
			return nil // mostly those of the wait
		}
		return number(r.per(of(r.spent)))
	}
}

func inEtcd(of func(counts) int64) func(benchCase, row) figure {
	counted := count(of)
	return func(c benchCase, r row) figure {
		if r.system != onEtcd {
			return nil
		}
		return counted(c, r)
	}
}

func speedBy(peer string) func(benchCase, row) figure {
	return func(c benchCase, r row) figure { return ratio(c.rate, r.by[peer].inverse()) }
}

func timeBy(peer string) func(benchCase, row) figure {
	return func(c benchCase, r row) figure { return ratio(!c.rate, r.by[peer]) }
}

func ratio(wanted bool, s spread) figure {
	if !wanted || !s.known() {
		return nil
	}
	return s.figure()
}

func positive(v float64) figure {
	if v <= 0 {
		return nil
	}
	return number(v)
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
