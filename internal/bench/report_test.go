package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// aReport is the report of a run that never was.
func aReport() *report {
	r := &report{
		command: "go run . -case x",
		machine: machine{Processor: "a <fast> one", Cores: 2, Memory: 24, Kernel: "Linux 6.1",
			Go: "go1.26", Date: "2026-11-21"},
		chapters: []*chapter{{setup: setups[0], versions: []string{"etcd 3.7.3"},
			sync: time.Millisecond}},
	}
	made := func(name, system string, values ...time.Duration) *entrant {
		e := &entrant{alternative: alternative{name: name, system: system}, rounds: make(map[int]measure)}
		for round, v := range values {
			e.rounds[round] = measure{
				value: v, samples: []time.Duration{v}, ops: 10,
				spent: counts{RPCs: 20, Proposals: 20, Revisions: 20, Bytes: 5000,
					ServerCPU: 10 * time.Millisecond},
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

// pageOf is the page of a report, as it is when it has been written and read again.
func pageOf(t *testing.T, r *report) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, (&runner{cfg: config{out: dir, name: "run"}, report: *r}).write())
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	require.NoError(t, err)
	return string(text)
}

func TestThePageHasMachineVersionsDateAndCommand(t *testing.T) {
	page := pageOf(t, aReport())
	for _, want := range []string{
		"a <fast> one, 2 cores, 24 GiB, Linux 6.1, go1.26, 2026-11-21", "etcd 3.7.3",
		"`go run . -case x`", "1.00 ms", "(run.json)", "(benchmarks.svg)",
	} {
		require.Contains(t, page, want)
	}
}

func TestThePageHasTheFigureThatDecides(t *testing.T) {
	page := pageOf(t, aReport())
	require.Contains(t, page, "| etcdlock | 3.00 ms | 2 | 500 |", "a time, where a case has times")
	require.Contains(t, page, "| etcdlock | 1,000 | 2 | 500 |", "a rate, where it has rates")
	require.Contains(t, page, "| pg <&> lock | 500 |  | 500 |", "no RPCs to etcd, of another system")
}

func TestRecordsCompareInPairs(t *testing.T) {
	s := aReport().record("run").Setups[0]
	r, ok := s.find("uncontended", library)
	require.True(t, ok)
	require.Equal(t, figure{1.5, 1, 2}, r.Figures["time, by "+baseline],
		"times, where a case has times")
	require.Equal(t, figure{3, 2, 4}, r.Figures["time, by "+floor])
	r, ok = s.find("crowd-2", library)
	require.True(t, ok)
	require.InDeltaSlice(t, []float64{35, 30, 40}, []float64(r.Figures["speed, by "+baseline]), 0.001,
		"speeds, where it has rates")
}

func TestRecordsLeaveOutFiguresThatSayNothing(t *testing.T) {
	s := aReport().record("run").Setups[0]
	r, _ := s.find("uncontended", library)
	require.NotContains(t, r.Figures, "heap per name")
	require.NotContains(t, r.Figures, perSecond)
	r, ok := s.find("crowd-2", "pg <&> lock")
	require.True(t, ok)
	require.NotContains(t, r.Figures, "RPCs", "to etcd, of another system")
	require.NotContains(t, r.Figures, theTime)
}

// A record that is read is the one that was written, to four digits.
func TestRecordsAreReadAsTheyWereWritten(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, (&runner{cfg: config{out: dir, name: "run"}, report: *aReport()}).write())
	all, err := records(dir)
	require.NoError(t, err)
	require.Len(t, all, 1)
	again, err := all[0].json()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "run.json"))
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))
	for v, want := range map[float64]string{0: "0", 0.00046661: "0.0004666", 1.23456: "1.235",
		12345.6: "12346", 999.96: "1000"} {
		require.Equal(t, want, fourDigits(v))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "other.json"), []byte("{}"), 0o666))
	_, err = records(dir)
	require.ErrorContains(t, err, "other.json is no record of a run")
}

// The published page and chart are those of the records beside them, and each record is as a
// run writes it.
func TestThePublishedPageIsThatOfItsRecords(t *testing.T) {
	all, err := records("results")
	require.NoError(t, err)
	require.NotEmpty(t, all)
	published := func(name string) string {
		text, err := os.ReadFile(filepath.Join("results", name))
		require.NoError(t, err)
		return string(text)
	}
	const render = "run: go run . -render -out results"
	require.True(t, page(all, true) == published("README.md"), render)
	require.True(t, chart(all) == published("benchmarks.svg"), render)
	for _, r := range all {
		text, err := r.json()
		require.NoError(t, err)
		require.True(t, string(text) == published(r.Name+".json"), r.Name)
	}
}

func TestThePageSaysWhatFailedAndWhatWasBroken(t *testing.T) {
	r := aReport()
	page := pageOf(t, r)
	require.Contains(t, page,
		"redsync (appendfsync always) failed: the disk is full (1-disk, uncontended)")
	require.Contains(t, page, "Exclusion held in each case")
	require.Empty(t, r.broken(library))

	r.chapters[0].tables[0].rows[0].broken = "1 overlaps"
	page = pageOf(t, r)
	require.Contains(t, page, "**etcdlock let two in at once: 1 overlaps** (1-disk, uncontended)")
	require.NotContains(t, page, "Exclusion held")
	require.Equal(t, []string{"1-disk uncontended"}, r.broken(library))
	require.Empty(t, r.broken(baseline))
}

func TestTargetsAreJudgedByTheirFigures(t *testing.T) {
	page := pageOf(t, aReport())
	for _, want := range []string{
		"| uncontended: RPCs | <= 2 | 2 |",
		"| uncontended: time, by concurrency.Mutex | <= 1.05 | **1.5** |",
		"| hand-overs/s, N = 2, by concurrency.Mutex | >= 20 | 35 |",
	} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "N = 512", "a target of what was not measured")
	require.Equal(t, 1, strings.Count(page, "hand-overs/s, N = 2"), "a target of another setup")
}

// The page shows cases that there are.
func TestThePageIsOfCasesThatThereAre(t *testing.T) {
	names := slices.Clone(shown)
	for _, row := range slices.Concat(familyRows, fleetRows) {
		names = append(names, row.cases...)
	}
	for _, name := range names {
		require.Contains(t, caseNames(), name)
	}
}

func TestChartIsWellFormedAndNamesEachLine(t *testing.T) {
	svg := chart([]record{aReport().record("run")})
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		_, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	for _, want := range []string{">etcdlock  1,000<", ">pg &lt;&amp;&gt; lock  500<", "2026-11-21",
		"etcd 3.7.3"} {
		require.Contains(t, svg, want)
	}
	require.NotContains(t, svg, "NaN")
	require.NotContains(t, svg, "%!", "a format that does not fit")
	require.Equal(t, 3, strings.Count(svg, "<polyline"))
	require.Equal(t, 3*2, strings.Count(svg, "<circle"))
}

func TestEveryLineOfTheChartHasAHueOfItsOwn(t *testing.T) {
	lines := make(map[string]bool) // of all panels: a line has the same hue in each
	for _, c := range cases {
		for _, a := range alternatives {
			if c.drawn && a.fits(c) {
				lines[a.title()] = true
			}
		}
	}
	require.LessOrEqual(t, len(lines), len(hues))
}

// A line has the same hue in each panel of the chart, though the panels have not the same lines.
func TestThePanelsOfTheChartHaveOneHueForALine(t *testing.T) {
	r := aReport()
	r.chapters[0].setup = setups[1]
	rows := r.chapters[0].tables[1].rows // of crowd-2
	for _, c := range cases {
		if c.kind == each {
			r.chapters[0].tables = append(r.chapters[0].tables, table{c, rows[1:]})
		}
	}
	svg := chart([]record{r.record("run")})
	require.Equal(t, 3+2, strings.Count(svg, "<polyline"))
	require.Equal(t, len(panels), strings.Count(svg, "<g transform"))
	hue := func(n int) string {
		_, line, found := strings.Cut(svg, "<polyline")
		for range n {
			_, line, found = strings.Cut(line, "<polyline")
		}
		require.True(t, found)
		_, stroke, _ := strings.Cut(line, `stroke="`)
		return stroke[:len("#rrggbb")]
	}
	require.Equal(t, hue(0), hue(3))
	require.Equal(t, hue(1), hue(4))
	require.NotContains(t, svg, "%!", "a format that does not fit")
}

func TestNoChartWithoutCrowds(t *testing.T) {
	r := aReport()
	r.chapters[0].tables = r.chapters[0].tables[:2] // one number of contenders
	require.Empty(t, chart([]record{r.record("run")}))
	require.Empty(t, chart([]record{{}}))
}

func TestNumbersHaveTheDigitsThatMeanSomething(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0466: "0.047", 0.5: "0.5", 1.2345: "1.23", 2: "2", 47.04: "47", 123.4: "123",
		1234567: "1,234,567", -1500: "-1,500",
	} {
		require.Equal(t, want, digits(v))
	}
	for d, want := range map[time.Duration]string{
		90 * time.Microsecond: "90 µs", 1500 * time.Microsecond: "1.50 ms",
		54200 * time.Microsecond: "54.2 ms", 4100 * time.Millisecond: "4.10 s",
	} {
		require.Equal(t, want, short(d))
	}
}
