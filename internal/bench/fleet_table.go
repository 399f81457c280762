package main

import (
	"fmt"
	"strings"
)

// fleetRows are what a fleet costs, and how it fares: the library beside the baseline.
var fleetRows = []struct {
	what  string
	cases []string // one figure of each
	cell  func(r row) string
}{
	{"idle waiter, 100 in line: RPCs/s", []string{"fleet-idle-waiters"}, perOp(rpcs)},
	{"idle waiter: bytes/s", []string{"fleet-idle-waiters"}, perOp(bytesMoved)},
	{"idle holder, a name each: RPCs/s", []string{"fleet-idle-holders"}, perOp(rpcs)},
	{"idle holder: bytes/s", []string{"fleet-idle-holders"}, perOp(bytesMoved)},
	{"user and password, idle: logins per renewal", []string{"fleet-auth"}, perOp(logins)},
	{"bytes per hand-over with 16 / 64 / 256 / 1,000 / 2,000 Sessions", fleetCrowds, perOp(bytesMoved)},
	{"RPCs per hand-over", fleetCrowds, perOp(rpcs)},
	{"hand-overs/s", fleetCrowds, func(r row) string { return digits(1 / r.value.Seconds()) }},
	{"1,000 Sessions begin at once on one core: holds in 30 s, goroutines", []string{"fleet-start-1000"}, func(r row) string {
		return fmt.Sprintf("%s, %s", digits(30/r.value.Seconds()), grouped(int64(r.goroutines)))
	}},
	{"2,000 Sessions begin at once: in, after", []string{"fleet-start-2000"}, inAfter},
	{"5,000 Sessions over 100 clients begin at once: in, after", []string{"fleet-start-5000"}, inAfter},
	{"etcd frozen for 20 s under 1,000 Sessions: the next hold, after it thaws", []string{"fleet-frozen"}, func(r row) string { return short(r.value) }},
	{"500 waiters give up at once: bytes each, until their keys are gone", []string{"fleet-leave-500"}, func(r row) string {
		return fmt.Sprintf("%s, %s", digits(r.per(r.spent.Bytes)), short(r.value))
	}},
	{"a key deleted under an old hold: told after, p50 and most", []string{"taken"}, func(r row) string {
		return fmt.Sprintf("%s, %s", short(r.p50), short(r.most))
	}},
}

var fleetCrowds = []string{"fleet-crowd-16", "fleet-crowd-64", "fleet-crowd-256", "fleet-crowd-1000", "fleet-crowd-2000"}

func perOp(count func(counts) int64) func(row) string {
	return func(r row) string { return digits(r.per(count(r.spent))) }
}

func inAfter(r row) string { return fmt.Sprintf("%s, %s", grouped(int64(r.in)), short(r.value)) }

// fleet returns the table of what the chapter has measured of a fleet, "" if that is
// nothing.
func (c *chapter) fleet() string {
	var b strings.Builder
	for _, f := range fleetRows {
		cell := func(name string) string {
			cells := make([]string, len(f.cases))
			for i, caseName := range f.cases {
				cells[i] = "-"
				if r, ok := c.find(caseName, name); ok {
					cells[i] = f.cell(r)
				}
			}
			return strings.Join(cells, " / ")
		}
		own := cell(library)
		if strings.Trim(own, "-/ ") == "" {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", f.what, own, cell(baseline))
	}
	if b.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("| | %s | %s |\n| --- | --: | --: |\n", library, baseline) + b.String()
}
