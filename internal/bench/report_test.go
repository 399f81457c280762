package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// aReport is the report of a run that never was.
func aReport() *report {
	r := &report{
		command: "go run . -case x",
		machine: machine{processor: "a <fast> one", cores: 2, memory: 24, kernel: "Linux 6.1",
			golang: "go1.26", date: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)},
		chapters: []*chapter{{setup: setups[0], versions: []string{"etcd 3.7.3"}, sync: time.Millisecond}},
	}
	made := func(name, system string, values ...time.Duration) *entrant {
		e := &entrant{alternative: alternative{name: name, system: system}, rounds: make(map[int]measure)}
		for round, v := range values {
			e.rounds[round] = measure{
				value: v, samples: []time.Duration{v}, ops: 10,
				spent: counts{RPCs: 20, Proposals: 20, Revisions: 20, Bytes: 5000, ServerCPU: 10 * time.Millisecond},
			}
		}
		return e
	}
	const ms = time.Millisecond
	for _, c := range cases {
		switch c.name {
		case "uncontended":
			slow := made("redsync", onRedisAOF, 5*ms)
			slow.failed = errors.New("the disk is full")
			r.add(c, []*entrant{
				made(library, onEtcd, 2*ms, 4*ms, 3*ms),
				made(baseline, onEtcd, 2*ms, 2*ms, 2*ms),
				made(floor, onEtcd, 1*ms, 1*ms, 1*ms), slow,
			})
		case "crowd-2", "crowd-8", "processes-8": // the last is no point of the chart
			r.add(c, []*entrant{
				made(library, onEtcd, 1*ms, 1*ms, 1*ms), made(baseline, onEtcd, 40*ms, 30*ms, 35*ms),
				made("pg <&> lock", onPostgres, 2*ms),
			})
		}
	}
	return r
}

func TestReportHasMachineVersionsDateAndCommand(t *testing.T) {
	page := aReport().markdown()
	for _, want := range []string{"a <fast> one, 2 cores, 24 GiB, Linux 6.1, go1.26, 2026-11-21", "etcd 3.7.3", "`go run . -case x`", "1.00 ms"} {
		require.Contains(t, page, want)
	}
}

func TestReportComparesInPairs(t *testing.T) {
	page := aReport().markdown()
	require.Contains(t, page, "| etcdlock | 3.00 ms | 4.00 ms | 1.5 (1 to 2) | 3 (2 to 4) | 2 |", "times, where a case has times")
	require.Contains(t, page, "| etcdlock | 1,000 (1,000 to 1,000) | 1.00 ms | 1.00 ms | 35 (30 to 40) |", "speeds, where it has rates")
}

func TestReportLeavesOutColumnsThatSayNothing(t *testing.T) {
	page := aReport().markdown()
	uncontended := page[strings.Index(page, "### uncontended"):strings.Index(page, "### crowd-2")]
	require.NotContains(t, uncontended, "heap per name")
	require.NotContains(t, uncontended, "per second")
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| redsync") {
			require.NotContains(t, line, "20", "RPCs to etcd, of Redis")
		}
	}
}

func TestReportSaysWhatFailedAndWhatWasBroken(t *testing.T) {
	r := aReport()
	page := r.markdown()
	require.Contains(t, page, "redsync (appendfsync always) failed: the disk is full.")
	require.Contains(t, page, "Exclusion held.")
	require.Empty(t, r.broken(library))

	r.chapters[0].tables[0].rows[0].broken = "1 overlaps"
	page = r.markdown()
	require.Contains(t, page, "**etcdlock let two in at once: 1 overlaps.**")
	require.Equal(t, []string{"1-disk uncontended"}, r.broken(library))
	require.Empty(t, r.broken(baseline))
}

func TestTargetsAreJudgedByTheirFigures(t *testing.T) {
	page := aReport().markdown()
	for _, want := range []string{
		"| uncontended: RPCs | <= 2 | 2 | yes |",
		"| uncontended: time, by concurrency.Mutex | <= 1.05 | 1.5 | **no** |",
		"| hand-overs/s, N = 2, by concurrency.Mutex | >= 20 | 35 | yes |",
	} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "N = 512", "a target of what was not measured")
	require.Equal(t, 1, strings.Count(page, "hand-overs/s, N = 2"), "a target of another setup")
}

func TestChartIsWellFormedAndNamesEachLine(t *testing.T) {
	svg := aReport().chart()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		_, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	for _, want := range []string{">etcdlock  1,000<", ">pg &lt;&amp;&gt; lock  500<", "2026-11-21", "etcd 3.7.3"} {
		require.Contains(t, svg, want)
	}
	require.NotContains(t, svg, "NaN")
	require.NotContains(t, svg, "%!", "a format that does not fit")
	require.Equal(t, 3, strings.Count(svg, "<polyline"))
	require.Equal(t, 3*2, strings.Count(svg, "<circle"))
}

func TestEveryLineOfTheChartHasAHueOfItsOwn(t *testing.T) {
	for _, c := range cases {
		lines := 0
		for _, a := range alternatives {
			if c.drawn && a.fits(c) {
				lines++
			}
		}
		require.LessOrEqual(t, lines, len(hues), c.name)
	}
}

func TestNoChartWithoutCrowds(t *testing.T) {
	r := aReport()
	r.chapters[0].tables = r.chapters[0].tables[:2] // one number of contenders
	require.Empty(t, r.chart())
	require.Empty(t, (&report{}).chart())
}

func TestNumbersHaveTheDigitsThatMeanSomething(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0466: "0.047", 0.5: "0.5", 1.2345: "1.23", 2: "2", 47.04: "47", 123.4: "123", 1234567: "1,234,567", -1500: "-1,500",
	} {
		require.Equal(t, want, digits(v))
	}
	for d, want := range map[time.Duration]string{
		90 * time.Microsecond: "90 µs", 1500 * time.Microsecond: "1.50 ms", 54200 * time.Microsecond: "54.2 ms", 4100 * time.Millisecond: "4.10 s",
	} {
		require.Equal(t, want, short(d))
	}
}
