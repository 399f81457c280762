package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// shown are the cases of the page that have a table of their own, by the figure that
// decides. The records have the others.
var shown = []string{
	"uncontended", "each-1", "each-4", "each-8", "each-64", "each-1000",
	"handover-5ms", "handover-150ms", "crowd-2", "crowd-8", "crowd-64", "crowd-2000",
	"processes-8", "processes-64",
	"fleet-renewals-1000", "fleet-renewals-5000", "begin-1000", "close-5000", "audit-5000",
	"trylock", "names-10000", "relock", "turns", "crash", "several-8-beside",
}

// page returns what the records say of the cases that decide.
func page(all []record, charted bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Locks, measured

<!-- Written by go run . -render -out results, from the files beside it. -->

The cases that decide, of each run. The file of a run has all cases and figures, with the least
and the greatest of the rounds. `+"`jq`"+` prints one:

`+"```sh\njq '.setups[] | {name, case: (.cases[] | select(.name == \"%s\"))}' %s.json\n```"+`

Times are medians of all operations, rates are medians of the rounds. Each round measures all
alternatives in turn. Ratios, in the files, are to %s in the same round. Counts are per
operation, of the first setup: RPCs are calls to etcd and messages sent on its streams, bytes are those
of the clients' connections. Servers and clients share the machine.
`, shown[0], all[0].Name, baseline)
	if charted {
		fmt.Fprintf(&b, "\n![%s](benchmarks.svg)\n", chartTitle)
	}
	for _, r := range all {
		b.WriteString(r.markdown())
	}
	return b.String()
}

func (r record) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"\n## %s\n\n[All figures](%s.json). %s.\n\nMade by `%s` in internal/bench, with `-out results -name %[2]s`.\n\n| setup | | systems | a synced write |\n| --- | --- | --- | --: |\n",
		upperFirst(r.Name), r.Name, r.Machine, r.Command)
	for _, s := range r.Setups {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.Name, s.Title, strings.Join(s.Systems, ", "),
			short(seconds(s.SyncedWrite.median())))
	}
	for _, name := range shown {
		b.WriteString(r.caseTable(name))
	}
	for _, t := range []struct {
		title   string
		rows    []sideRow
		columns []sideColumn
	}{{"The family", familyRows, familyColumns}, {"The fleet", fleetRows, fleetColumns}} {
		b.WriteString(r.sideBySide(t.title, t.rows, t.columns))
	}
	b.WriteString(r.targetTable())
	b.WriteString(r.remarks())
	return b.String()
}

// caseTable has the figure that decides a case for each alternative and setup, and the
// counts of the first setup. It is "" if the record does not have the case.
func (r record) caseTable(name string) string {
	var title, decides string
	var alternatives []string
	for _, s := range r.Setups {
		for _, c := range s.Cases {
			if c.Name != name {
				continue
			}
			title = c.Title
			for _, row := range c.Rows {
				if !slices.Contains(alternatives, row.Title) {
					alternatives = append(alternatives, row.Title)
				}
				decides = cmp.Or(decides, row.decides())
			}
		}
	}
	if decides == "" {
		return ""
	}
	unit := "The time of one"
	if decides == perSecond {
		unit = "How many a second"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n\n%s. %s:\n\n| ", name, upperFirst(title), unit)
	for _, s := range r.Setups {
		fmt.Fprintf(&b, "| %s ", s.Name)
	}
	b.WriteString("| RPCs | bytes |\n| --- |" + strings.Repeat(" --: |", len(r.Setups)+2) + "\n")
	for _, alternative := range alternatives {
		fmt.Fprintf(&b, "| %s ", alternative)
		var counted rowRecord
		for _, s := range r.Setups {
			row, ok := s.find(name, alternative)
			if ok && counted.Figures == nil {
				counted = row
			}
			fmt.Fprintf(&b, "| %s ", row.cell(decides))
		}
		fmt.Fprintf(&b, "| %s | %s |\n", counted.cell("RPCs"), counted.cell("bytes"))
	}
	return b.String()
}

// decides is the figure by which the page compares the rows of a case, "" if there is none.
func (r rowRecord) decides() string {
	for _, name := range []string{perSecond, "p50", theTime} {
		if r.Figures[name].known() {
			return name
		}
	}
	return ""
}

// cell is a figure as the tables have it, "" if there is none.
func (r rowRecord) cell(name string) string {
	v := r.median(name)
	switch {
	case math.IsNaN(v):
		return ""
	case slices.Contains([]string{theTime, "p50", "p99", "most", "server CPU"}, name):
		return short(seconds(v))
	case name == "TTLs":
		return fmt.Sprintf("%.2f", v)
	default:
		return digits(v)
	}
}

// A sideRow is a row of the tables that have figures of several cases side by side.
type sideRow struct {
	what  string
	cases []string // one figure of each
	cell  func(r rowRecord) string
}

// A sideColumn is a column there. In each case one alternative of a column was measured.
type sideColumn struct {
	title string
	names []string
}

// What the locks that are not a mutex do, beside what does the same in etcd's own packages,
// and on Redis.
var familyRows = []sideRow{
	{"reads/s of 1 / 8 / 64 goroutines of a process, nobody writes", readerCases, the(perSecond)},
	{"reads/s beside two others of the process", []string{"readers-beside"}, the(perSecond)},
	{"holds/s of 16 contenders, of which 10 / 50 of 100 write", mixCases, the(perSecond)},
	{"2 / 8 / 32 names locked and unlocked: time", severalCases, the(theTime)},
	{"RPCs", severalCases, the("RPCs")},
	{"revisions", severalCases, the("revisions")},
	{"hand-overs/s of 32 contenders that take a permit of 1 / 4 / 16", permitCases, the(perSecond)},
	{"a leader resigns: time until the next leads", []string{"lead-resign"}, the(theTime)},
	{"a leader is killed: time until the next leads, in TTLs", []string{"lead-crash"}, the("TTLs")},
}

var (
	readerCases  = []string{"readers-1", "readers-8", "readers-64"}
	mixCases     = []string{"mix-90-10", "mix-50-50"}
	severalCases = []string{"several-2", "several-8", "several-32"}
	permitCases  = []string{"permits-1", "permits-4", "permits-16"}
)

var familyColumns = []sideColumn{
	{library, []string{library}},
	{"etcd's own packages", []string{recipes, elections, baseline}},
	{"on Redis", []string{redissons, sortedSet}},
}

// What a fleet costs, and how it fares, where each process has a Session of its own.
var fleetRows = []sideRow{
	{"idle waiter, 100 in line: RPCs/s", []string{"fleet-idle-waiters"}, the("RPCs")},
	{"idle waiter: bytes/s", []string{"fleet-idle-waiters"}, the("bytes")},
	{"idle holder, a name each: RPCs/s", []string{"fleet-idle-holders"}, the("RPCs")},
	{"idle holder: bytes/s", []string{"fleet-idle-holders"}, the("bytes")},
	{"user and password, idle: logins per renewal", []string{"fleet-auth"}, the("logins")},
	{"bytes per hand-over with 16 / 64 / 256 / 1,000 / 2,000 Sessions", fleetCrowds, the("bytes")},
	{"RPCs per hand-over", fleetCrowds, the("RPCs")},
	{"hand-overs/s", fleetCrowds, the(perSecond)},
	{"1,000 / 3,000 / 5,000 new Sessions over 20 clients: all in one line after", lineUps,
		the(theTime)},
	{"etcd's processor time for each", lineUps, the("server CPU")},
	{"1,000 Sessions begin at once on one core: holds in 30 s, goroutines",
		[]string{"fleet-start-1000"}, func(r rowRecord) string {
			return fmt.Sprintf("%s, %s", digits(30*r.median(perSecond)), r.cell("goroutines"))
		}},
	{"2,000 Sessions begin at once: in, after", []string{"fleet-start-2000"}, both("in", theTime)},
	{"5,000 Sessions over 100 clients begin at once: in, after", []string{"fleet-start-5000"},
		both("in", theTime)},
	{"etcd frozen for 20 s under 1,000 Sessions: the next hold, after it thaws",
		[]string{"fleet-frozen"}, the(theTime)},
	{"500 waiters give up at once: bytes each, until their keys are gone", []string{"fleet-leave-500"},
		both("bytes", theTime)},
	{"a key deleted under an old hold: told after, p50 and most", []string{"taken"},
		both("p50", "most")},
}

var fleetCrowds = []string{"fleet-crowd-16", "fleet-crowd-64", "fleet-crowd-256",
	"fleet-crowd-1000", "fleet-crowd-2000"}

var lineUps = []string{"lineup-1000", "lineup-3000", "lineup-5000"}

var fleetColumns = []sideColumn{{library, []string{library}}, {baseline, []string{baseline}}}

func the(figure string) func(rowRecord) string {
	return func(r rowRecord) string { return r.cell(figure) }
}

func both(a, b string) func(rowRecord) string {
	return func(r rowRecord) string { return r.cell(a) + ", " + r.cell(b) }
}

// sideBySide returns a table of what the record has of some rows, with the columns of each
// setup beside each other, "" if it has nothing.
func (r record) sideBySide(title string, rows []sideRow, columns []sideColumn) string {
	var lines strings.Builder
	var notes []string
	for _, row := range rows {
		line, said := "| "+row.what, false
		for _, s := range r.Setups {
			for i, column := range columns {
				cell := s.side(row, column)
				said = said || i == 0 && cell != ""
				line += " | " + cell
			}
			for _, c := range s.Cases {
				if c.Note != "" && slices.Contains(row.cases, c.Name) && !slices.Contains(notes, c.Note) {
					notes = append(notes, c.Note)
				}
			}
		}
		if said {
			lines.WriteString(line + " |\n")
		}
	}
	if lines.Len() == 0 {
		return ""
	}
	head, rule := "| ", "| ---"
	for _, s := range r.Setups {
		for i, column := range columns {
			name := column.title
			if i == 0 {
				name = s.Name + ": " + name
			}
			head, rule = head+"| "+name+" ", rule+" | --:"
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n\n%s|\n%s |\n%s", title, head, rule, &lines)
	for _, note := range notes {
		b.WriteString("\n" + note + "\n")
	}
	return b.String()
}

// side is a cell: a figure of each case, "" if there is none at all.
func (s setupRecord) side(row sideRow, column sideColumn) string {
	cells := make([]string, len(row.cases))
	for i, caseName := range row.cases {
		cells[i] = "-"
		for _, name := range column.names {
			if r, ok := s.find(caseName, name); ok {
				cells[i] = row.cell(r)
			}
		}
	}
	cell := strings.Join(cells, " / ")
	if strings.Trim(cell, "-/ ") == "" {
		return ""
	}
	return cell
}

// targetTable has each target with what each setup reached. What misses it is bold.
func (r record) targetTable() string {
	type key struct{ what, limit string }
	var order []key
	cells := make(map[key][]string)
	head, rule := "| | to reach ", "| --- | --: "
	for i, s := range r.Setups {
		head, rule = head+"| "+s.Name+" ", rule+"| --: "
		for _, t := range s.Targets {
			k := key{t.What, "<= " + digits(t.Limit.median())}
			if t.AtLeast {
				k.limit = ">= " + digits(t.Limit.median())
			}
			if cells[k] == nil {
				order, cells[k] = append(order, k), make([]string, len(r.Setups))
			}
			cells[k][i] = digits(t.Got.median())
			if !t.reached() {
				cells[k][i] = "**" + cells[k][i] + "**"
			}
		}
	}
	if len(order) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n### What the library is to reach\n\nWhat misses it is bold.\n\n%s|\n%s|\n",
		head, rule)
	for _, k := range order {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", k.what, k.limit, strings.Join(cells[k], " | "))
	}
	return b.String()
}

// remarks says of all cases what let two in at once, and what could not be measured.
func (r record) remarks() string {
	var broken, failed []string
	for _, s := range r.Setups {
		for _, c := range s.Cases {
			for _, row := range c.Rows {
				if row.Broken != "" {
					broken = append(broken, fmt.Sprintf("- **%s let two in at once: %s** (%s, %s)", row.Title,
						row.Broken, s.Name, c.Name))
				}
				if row.Failed != "" {
					failed = append(failed, fmt.Sprintf("- %s failed: %s (%s, %s)", row.Title, row.Failed,
						s.Name, c.Name))
				}
			}
		}
	}
	said := "Exclusion held in each case that checks it, with each alternative."
	if len(broken) > 0 {
		said = "Exclusion did not hold:\n\n" + strings.Join(broken, "\n")
	}
	if len(failed) > 0 {
		said += "\n\nWhat could not be measured to its end:\n\n" + strings.Join(failed, "\n")
	}
	return "\n### Exclusion and failures\n\n" + said + "\n"
}

func seconds(v float64) time.Duration { return time.Duration(math.Round(v * float64(time.Second))) }
