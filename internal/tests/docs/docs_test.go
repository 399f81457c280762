// Package docs tests the pages: their code and figures, and what they say of the library.
package docs

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/sim"
)

// The tests read files by their paths in the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir(filepath.Join("..", "..", "..")); err != nil {
		panic(err)
	}
	m.Run()
}

// docs returns the pages of docs/ and of the root, by file name.
func docs(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	pages := make(map[string]string)
	for _, file := range append(files, "docs/llms.txt", "README.md", "internal/ARCHITECTURE.md",
		"CHANGELOG.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		pages[filepath.ToSlash(file)] = string(text)
	}
	return pages
}

// sources returns the text of all files that a pattern matches.
func sources(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}

// allTests returns the text of all tests, wherever they run.
func allTests(t *testing.T) string {
	t.Helper()
	return sources(t, "*_test.go") + sources(t, "internal/*/*_test.go") +
		sources(t, "internal/tests/*/*_test.go") +
		sources(t, "internal/proof/*/*_test.go") + sources(t, "cmd/*/*_test.go") +
		sources(t, "cmd/*/internal/*/*_test.go") +
		sources(t, "etcdlock*/*_test.go") + sources(t, "internal/contract/*.go") +
		sources(t, "adapters/*/*_test.go") + sources(t, "internal/adapters/*/*_test.go")
}

// library returns the source of the library.
func library(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{
		".", "internal/hold", "internal/queue", "internal/lease", "internal/etcd",
	} {
		files, err := filepath.Glob(dir + "/*.go")
		require.NoError(t, err)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				all.WriteString(sources(t, file))
			}
		}
	}
	return all.String()
}

// tested are the files that have the code of the pages.
var tested = []string{
	"*example*_test.go", "internal/proof/contract/*example_test.go", "internal/cookbook/*_test.go",
	"etcdlock*/*example_test.go", "internal/observe/example_test.go", "adapters/*/example_test.go",
	"internal/adapters/*/*_test.go",
}

// All Go code on the pages, but for imports, is part of a file that is compiled and run here.
func TestTheCodeOfThePagesIsTested(t *testing.T) {
	var files strings.Builder
	for _, pattern := range tested {
		files.WriteString(sources(t, pattern))
	}
	fence := regexp.MustCompile("(?s)\n```go\n(.*?)\n```\n")
	shown := 0
	for page, text := range docs(t) {
		for _, block := range fence.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(block[1], "package main\n") {
				continue // it is run as it stands
			}
			shown++
			require.Contains(t, files.String(), leading.ReplaceAllString(block[1], ""), page)
		}
	}
	require.Positive(t, shown)
}

// The program of README.md is compiled and run, with an etcd in memory in place of the one at its
// address.
// The example of the package does the same, line by line.
func TestTheProgramOfTheReadmeRuns(t *testing.T) {
	_, program, found := strings.Cut(docs(t)["README.md"], "\n```go\npackage main\n")
	require.True(t, found)
	program, _, _ = strings.Cut(program, "\n```\n")
	_, example, found := strings.Cut(sources(t, "example_test.go"), "\nfunc Example() {\n")
	require.True(t, found)
	_, main, found := strings.Cut(program, "\nfunc main() {\n")
	require.True(t, found)
	main, _, _ = strings.Cut(main, "\n}\n")
	require.Less(t, strings.Count(main, "\n"), 25)
	main = strings.ReplaceAll(main, `[]string{"localhost:2379"}`, "endpoints")
	require.Contains(t, example, "\n"+main)

	endpoint, etcd, err := sim.Serve()
	require.NoError(t, err)
	defer etcd.Stop()
	file := filepath.Join(t.TempDir(), "main.go")
	source := "package main\n" + strings.ReplaceAll(program, "localhost:2379", endpoint)
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	said, err := exec.CommandContext(t.Context(), "go", "run", file).CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Contains(t, string(said), "only one process at a time is here")
}

// A client of a page, or of an example, has keepalive pings: without them it may keep a dead
// connection for ever.
func TestTheClientsOfThePagesHavePings(t *testing.T) {
	texts := docs(t)
	for _, pattern := range []string{
		"*example*_test.go", "internal/observe/example_test.go", "internal/cookbook/hosts_test.go",
		"adapters/*/*.go", "cmd/etcdlock/connect.go",
	} {
		texts[pattern] = sources(t, pattern)
	}
	made := 0
	for page, text := range texts {
		for _, after := range strings.Split(text, "clientv3.Config{")[1:] {
			config := strings.Join(strings.Fields(after[:min(len(after), 400)]), " ")
			if strings.HasPrefix(config, "Endpoints: ") {
				made++
				require.Contains(t, config, "DialKeepAliveTime: ", page)
				require.Contains(t, config, "DialKeepAliveTimeout: ", page)
			}
		}
	}
	require.Equal(t, 7, made)
}

// The program in the package's documentation is compiled, and run by an example.
func TestThePackageDocumentationShowsTestedCode(t *testing.T) {
	var shown strings.Builder
	for line := range strings.Lines(sources(t, "doc.go")) {
		if code, found := strings.CutPrefix(line, "//\t"); found {
			shown.WriteString(code)
		} else if shown.Len() > 0 {
			break
		}
	}
	require.Contains(t, shown.String(), "session.Do(")
	require.Contains(t, sources(t, "example_test.go"), "\n"+shown.String())
}

// Each option has an example, and so has everything that its signature does not explain.
func TestEachOptionHasAnExample(t *testing.T) {
	names := regexp.MustCompile(`(?m)^func (With\w+)\(`).FindAllStringSubmatch(sources(t,
		"options.go"), -1)
	require.GreaterOrEqual(t, len(names), 10)
	want := []string{
		"Contenders", "Holders", "Break", "Trace", "Session", "LockedError", "Mutex_Locker", "Mutex_Do",
		"Recall", "WithRecall", "Mutex_Lead", "WatchHolder",
	}
	for _, name := range names {
		want = append(want, name[1])
	}
	examples := sources(t, "*example*_test.go")
	for _, name := range want {
		require.Contains(t, examples, "\nfunc Example"+name+"() {", "no example of %s", name)
	}
}

// What a page names exists: files to which it links, headings in them, and tests.
func TestThePagesNameWhatExists(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`)
	name := regexp.MustCompile(`\b(Test|Example)[A-Z_]\w+`)
	tests := allTests(t)
	for page, text := range docs(t) {
		for _, to := range link.FindAllStringSubmatch(text, -1) {
			target := page
			if to[1] != "" {
				target = filepath.Join(filepath.Dir(page), to[1])
				require.FileExists(t, target, page)
			}
			if to[2] != "" {
				require.Contains(t, anchors(t, target), to[2], page)
			}
		}
		for _, test := range name.FindAllString(text, -1) {
			require.Contains(t, tests, "func "+test, page)
		}
	}
}

// Each promise names a row of the proof or a test, and each row that it names is there.
func TestEachPromiseNamesWhatShowsIt(t *testing.T) {
	_, section, found := strings.Cut(docs(t)["docs/promises.md"], "\n## What you may rely on\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	proof := sources(t, "internal/faults/README.md")
	promises := strings.Split(section, "\n- **")[1:]
	require.Greater(t, len(promises), 15)
	for _, promise := range promises {
		require.Regexp(t, "`Test[A-Z]|\\b[Rr]ows? S\\d", promise)
		for _, row := range regexp.MustCompile(`\bS\d+\b`).FindAllString(promise, -1) {
			require.Contains(t, proof, "\n| "+row+" |", promise)
		}
	}
}

// The pages for users have at most 30,000 words, code aside: what is added makes room for itself.
func TestThePagesStayShort(t *testing.T) {
	code := regexp.MustCompile("(?s)\n```.*?\n```\n")
	words := 0
	for page, text := range docs(t) {
		if strings.HasPrefix(page, "docs/") || page == "README.md" {
			words += len(strings.Fields(code.ReplaceAllString(text, "\n")))
		}
	}
	require.LessOrEqual(t, words, 30_000)
}

// A row of a table is one line: a line break in it ends the table.
func TestTheRowsOfThePagesAreWhole(t *testing.T) {
	for page, text := range docs(t) {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "| ") {
				require.True(t, strings.HasSuffix(line, "|\n"), "%s: %s", page, line)
			}
		}
	}
}

// anchors returns the headings of a page, as links name them.
func anchors(t *testing.T, page string) (anchors []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	dropped := regexp.MustCompile(`[^a-z0-9 _-]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text),
		-1) {
		plain := dropped.ReplaceAllString(strings.ToLower(heading[1]), "")
		anchors = append(anchors, "#"+strings.ReplaceAll(plain, " ", "-"))
	}
	return anchors
}

// The runbook's table has each line that the library logs, with its level and fields.
func TestTheRunbookHasEveryLineOfTheLog(t *testing.T) {
	source := library(t)
	call := regexp.MustCompile(
		`(?s)\.(?:[lL]og\(slog\.Level(\w+)|warnOf\([^"]*?), "([^"]+)"(.*?)\)\n`)
	field := regexp.MustCompile(`, *\s*"(\w+)"`)
	logged := make(map[string]bool)
	for _, found := range call.FindAllStringSubmatch(source, -1) {
		var fields []string
		for _, name := range field.FindAllStringSubmatch(found[3], -1) {
			fields = append(fields, name[1])
		}
		level := strings.ToUpper(found[1])
		if level == "" { // warnOf, which adds a field
			level, fields = "WARN", append(fields, "also")
		}
		logged[fmt.Sprintf("| %s | `etcdlock: %s` | %s |", level, found[2],
			strings.Join(fields, ", "))] = true
	}
	calls := strings.Count(source, ".log(slog.") + strings.Count(source, ".Log(slog.") +
		strings.Count(source, ".warnOf(")
	require.Equal(t, calls, len(logged), "a call that this test cannot read, or two of one text")

	page := docs(t)["docs/runbook.md"]
	row := regexp.MustCompile(
		"(?m)^\\| (DEBUG|INFO|WARN|ERROR) \\| `etcdlock: [^`]+` \\| [a-z, ]* \\|")
	require.ElementsMatch(t, slices.Collect(maps.Keys(logged)), row.FindAllString(page, -1))
}

// The reasons for a loss in the runbook are texts of the library's, all of them.
func TestTheRunbookExplainsReasonsThatThereAre(t *testing.T) {
	_, section, found := strings.Cut(docs(t)["docs/runbook.md"], "\n## Holders lose their lock\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	reasons := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1)
	require.Len(t, reasons, 7)
	for _, sentinel := range []string{
		"ErrExpired", "ErrSuspended", "ErrKeyDeleted", "ErrKeyOverwritten", "ErrLeaseRevoked",
		"ErrMaxHold",
	} {
		require.Contains(t, section, "| `"+sentinel+"` |")
	}
	source := strings.ReplaceAll(library(t), `"etcdlock: `, `"`)
	for _, reason := range reasons {
		require.Contains(t, source, `"`+reason[1]+`"`)
	}
}

// The ratios of docs/performance.md are those of the published run: of a case, or of a case with an
// option, divided by that of concurrency.Mutex, in the order of the run's setups.
func TestTheRatiosAreThoseOfTheRun(t *testing.T) {
	runs := map[string]benchRun{"mutex": theBenchRun(t, "mutex", 4),
		"processes": theBenchRun(t, "processes", 4)}
	rows := regexp.MustCompile(
		"(?m)^\\| `([a-z0-9-]+)`(?:, `(With.*?)`)? \\|.*? \\| (.*) \\|$").FindAllStringSubmatch(
		docs(t)["docs/performance.md"], -1)
	require.Len(t, rows, 11)
	for _, row := range rows {
		title := "etcdlock"
		if row[2] != "" {
			title += ", " + row[2]
		}
		run := runs["mutex"]
		if strings.HasPrefix(row[1], "processes") {
			run = runs["processes"]
		}
		var want []string
		for _, setup := range run.Setups {
			figures := setup.find(row[1], title)
			ratio := figures["time, by concurrency.Mutex"]
			if speed := figures["speed, by concurrency.Mutex"]; speed != nil {
				ratio = speed
			}
			want = append(want, shown(ratio.median(t)))
		}
		require.Equal(t, want, strings.Split(row[3], " | "), row[0])
	}
}

// The ten figures of docs/performance.md are those of the run's first setup. README.md has some of
// them, for the first two columns.
func TestTheTenFiguresAreThoseOfTheRun(t *testing.T) {
	columns := []string{
		"etcdlock", "concurrency.Mutex", "go-zookeeper Lock", "rueidislock",
		"rueidislock (appendfsync always)", "pg_advisory_lock",
	}
	run := theBenchRun(t, "mutex", 4)
	rows := regexp.MustCompile(
		"(?m)^\\| (.*) \\(`([a-z0-9-]+)`, (p50|p99|per second)\\) \\| (.*) \\|$").FindAllStringSubmatch(
		docs(t)["docs/performance.md"], -1)
	require.Len(t, rows, 10)
	option := regexp.MustCompile(`With\w+\(\w+\)`)
	inReadme := 0
	for _, row := range rows {
		cells := strings.Split(row[4], " | ")
		require.Len(t, cells, len(columns), row[0])
		asShown := shownTime
		if row[3] == "per second" {
			asShown = shown
		}
		for i, title := range columns {
			if name := option.FindString(row[1]); i == 0 && name != "" {
				title += ", " + name
			}
			measured := run.Setups[0].find(row[2], title)[row[3]]
			if measured == nil {
				require.Equal(t, "–", cells[i], "%s: %s", row[0], title)
				continue
			}
			require.Equal(t, asShown(measured.median(t)), cells[i], "%s: %s", row[0], title)
		}
		if row[2] == "handover-5ms" && row[3] == "p50" {
			require.Contains(t, strings.Join(strings.Fields(docs(t)["README.md"]), " "), "takes "+cells[0]+
				" after a hold of 5 ms, where `concurrency.Mutex` takes "+cells[1])
		}
		both := fmt.Sprintf("\n| %s | %s | %s |\n", row[1], cells[0], cells[1])
		if strings.Contains(docs(t)["README.md"], both) {
			inReadme++
		}
	}
	_, table, found := strings.Cut(docs(t)["README.md"], "\n| | etcdlock | `concurrency.Mutex` |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	require.Equal(t, strings.Count(table, "\n"), inReadme, "a row of README.md is not of the run")
}

// The two tables of many names are those of their run: the rates of its second setup, and the
// ratios to concurrency.Mutex of all four.
func TestTheNamesAreThoseOfTheRun(t *testing.T) {
	columns := []string{
		"etcdlock", "concurrency.Mutex", "go-zookeeper Lock", "rueidislock",
		"rueidislock (appendfsync always)", "pg_advisory_lock",
	}
	run := theBenchRun(t, "names", 4)
	_, section, found := strings.Cut(docs(t)["docs/performance.md"], "\n## Many names at once\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	rows := regexp.MustCompile(`(?m)^\| ([\d,]+) \| (.*) \|$`).FindAllStringSubmatch(section, -1)
	require.Len(t, rows, 12)
	for _, row := range rows {
		name := "each-" + strings.ReplaceAll(row[1], ",", "")
		var want []string
		cells := strings.Split(row[2], " | ")
		if len(cells) == len(columns) {
			for _, title := range columns {
				rate := run.Setups[1].find(name, title)["per second"]
				if rate == nil {
					want = append(want, "–")
					continue
				}
				want = append(want, shown(rate.median(t)))
			}
		} else {
			for _, setup := range run.Setups {
				speed := setup.find(name, "etcdlock")["speed, by concurrency.Mutex"]
				want = append(want, shown(speed.median(t)))
			}
		}
		require.Equal(t, want, cells, row[0])
	}
}

// The table of renewals is that of its run.
func TestTheRenewalsAreThoseOfTheRun(t *testing.T) {
	_, section, found := strings.Cut(docs(t)["docs/scale.md"],
		"\n## How many renewals one etcd carries\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	run := theBenchRun(t, "renewals", 1).Setups[0]
	for _, of := range [][2]string{
		{"fleet-renewals-1000", "etcdlock"}, {"fleet-renewals-1000", "concurrency.Mutex"},
		{"fleet-renewals-1000", "KeepAliveOnce, again and again"},
		{"fleet-renewals-5000", "etcdlock"}, {"fleet-renewals-5000", "concurrency.Mutex"},
	} {
		figures := run.find(of[0], of[1])
		rate, took := figures["per second"].median(t), figures["server CPU"].median(t)
		require.Contains(t, section, fmt.Sprintf(" | %s | %s |\n", shown(rate), shownTime(took)))
	}
}

// A benchRun is what these tests read of a record of internal/bench.
type benchRun struct{ Setups []benchSetup }

type benchSetup struct {
	Cases []struct {
		Name string
		Rows []struct {
			Alternative string
			Figures     map[string]benchFigure
		}
	}
}

// A benchFigure is a number, or a median with the least and the greatest. Times are in seconds.
type benchFigure json.RawMessage

func (f *benchFigure) UnmarshalJSON(text []byte) error {
	return (*json.RawMessage)(f).UnmarshalJSON(text)
}

func (f benchFigure) median(t *testing.T) (v float64) {
	t.Helper()
	first, _, _ := strings.Cut(strings.Trim(string(f), "[]"), ",")
	v, err := strconv.ParseFloat(first, 64)
	require.NoError(t, err)
	return v
}

// find returns the figures of an alternative in a case.
func (s benchSetup) find(benchCase, title string) map[string]benchFigure {
	for _, c := range s.Cases {
		for _, row := range c.Rows {
			if c.Name == benchCase && row.Alternative == title {
				return row.Figures
			}
		}
	}
	return nil
}

func theBenchRun(t *testing.T, name string, setups int) (run benchRun) {
	t.Helper()
	text, err := os.ReadFile("internal/bench/results/" + name + ".json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &run))
	require.Len(t, run.Setups, setups)
	return run
}

// shown is a number as the pages have it, with three digits.
func shown(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%d,%03d", int(v)/1000, int(v)%1000)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	default:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
}

// shownTime is a time as the pages have it.
func shownTime(seconds float64) string {
	switch {
	case seconds >= 1:
		return fmt.Sprintf("%.2f s", seconds)
	case seconds >= 0.01:
		return fmt.Sprintf("%.1f ms", seconds*1e3)
	case seconds >= 0.001:
		return fmt.Sprintf("%.2f ms", seconds*1e3)
	default:
		return fmt.Sprintf("%.0f µs", seconds*1e6)
	}
}
