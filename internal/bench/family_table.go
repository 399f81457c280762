package main

import (
	"fmt"
	"strings"
)

// familyRows are the figures of the locks that are not a mutex: the library beside what
// does the same in etcd's own packages, and on Redis.
var familyRows = []struct {
	what  string
	cases []string // one figure of each
	cell  func(r row) string
}{
	{"reads/s of 1 / 8 / 64 goroutines of a process, nobody writes", readerCases, everySecond},
	{"reads/s beside two others of the process", []string{"readers-beside"}, everySecond},
	{"holds/s of 16 contenders, of which 10 / 50 of 100 write", mixCases, everySecond},
	{"2 / 8 / 32 names locked and unlocked: time", severalCases, ofOne},
	{"RPCs", severalCases, perOp(rpcs)},
	{"revisions", severalCases, perOp(revisions)},
	{"hand-overs/s of 32 contenders that take a permit of 1 / 4 / 16", permitCases, everySecond},
	{"a leader resigns: time until the next leads", []string{"lead-resign"}, ofOne},
	{"a leader is killed: time until the next leads, in TTLs", []string{"lead-crash"}, inTTLs},
}

var (
	readerCases  = []string{"readers-1", "readers-8", "readers-64"}
	mixCases     = []string{"mix-90-10", "mix-50-50"}
	severalCases = []string{"several-2", "several-8", "several-32"}
	permitCases  = []string{"permits-1", "permits-4", "permits-16"}
)

func everySecond(r row) string { return digits(1 / r.value.Seconds()) }
func ofOne(r row) string       { return short(r.value) }
func inTTLs(r row) string      { return positive(r.ttls) }

// familyPeers are the columns. In each case one alternative of a column was measured.
var familyPeers = []struct {
	title string
	names []string
}{
	{library, []string{library}},
	{"etcd's own packages", []string{recipes, elections, baseline}},
	{"on Redis", []string{redissons, sortedSet}},
}

// family returns the table of what the chapter has measured of the family, "" if that is
// nothing.
func (c *chapter) family() string {
	var b strings.Builder
	for _, f := range familyRows {
		line, own := "| "+f.what, ""
		for i, peer := range familyPeers {
			cells := make([]string, len(f.cases))
			for i, caseName := range f.cases {
				cells[i] = "-"
				for _, name := range peer.names {
					if r, ok := c.find(caseName, name); ok {
						cells[i] = f.cell(r)
					}
				}
			}
			cell := strings.Join(cells, " / ")
			if strings.Trim(cell, "-/ ") == "" {
				cell = ""
			}
			if i == 0 {
				own = cell
			}
			line += " | " + cell
		}
		if own != "" {
			b.WriteString(line + " |\n")
		}
	}
	if b.Len() == 0 {
		return ""
	}
	head, rule := "| ", "| ---"
	for _, peer := range familyPeers {
		head += "| " + peer.title + " "
		rule += " | --:"
	}
	return fmt.Sprintf("%s|\n%s |\n%s", head, rule, &b)
}
