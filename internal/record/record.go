// Package record keeps what the tests of the faults have measured, and writes the published
// tables from it: internal/faults/results.json and, between the markers of
// internal/faults/README.md, the tables. A test that measures calls Save. Save does nothing
// unless the test binary has the flag -record with that directory.
package record

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var dir = flag.String("record", "",
	"directory whose results.json and README.md take the figures of this run")

// The two sides of the table.
const (
	Ours   = "etcdlock"
	Theirs = "concurrency.Mutex"
)

// A Result is what one side did under one fault.
type Result struct {
	Row     string // S1 to S45
	Case    string // the row's case, if the row has several, else ""
	Fault   string // what the test does
	Must    string // what must hold
	Side    string // Ours or Theirs
	Peer    string `json:",omitempty"` // the peer of this row, if it is not concurrency.Mutex
	N       int    // trials
	Broken  int    // trials in which Must did not hold
	Figures string // other measurements
	Command string // the command that measures it again
	Date    string // YYYY-MM-DD
	Etcd    string // version of the server and the client
	Go      string
}

// A Mutant is a planted wrong version of the library.
type Mutant struct {
	Name     string // the tempting design, in a few words
	KilledBy string // the test that sees it; "" if none does
	After    string // how much the test needed for that, such as "3 seeds"
	Command  string
	Date     string
}

type results struct {
	Rows    []Result
	Mutants []Mutant
}

var mu sync.Mutex

// Save records a result. It replaces an earlier one of the same row, case and side. It
// fills in Date and Go.
func Save(t testing.TB, r Result) {
	t.Helper()
	r.Date, r.Go = time.Now().Format(time.DateOnly), runtime.Version()
	update(t, func(all *results) {
		all.Rows = put(all.Rows, r, func(a, b Result) int {
			return cmp.Or(cmp.Compare(number(a.Row), number(b.Row)), cmp.Compare(a.Case, b.Case),
				cmp.Compare(b.Side, a.Side))
		})
	})
}

// SaveMutant records what became of a mutant. It replaces an earlier record of it.
func SaveMutant(t testing.TB, m Mutant) {
	t.Helper()
	m.Date = time.Now().Format(time.DateOnly)
	update(t, func(all *results) {
		all.Mutants = put(all.Mutants, m, func(a, b Mutant) int { return cmp.Compare(a.Name, b.Name) })
	})
}

func put[T any](all []T, v T, order func(a, b T) int) []T {
	i, found := slices.BinarySearchFunc(all, v, order)
	if found {
		all[i] = v
		return all
	}
	return slices.Insert(all, i, v)
}

func update(t testing.TB, change func(*results)) {
	t.Helper()
	if *dir == "" {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	if err := updateIn(*dir, change); err != nil {
		t.Errorf("record the result: %v", err)
	}
}

func updateIn(dir string, change func(*results)) error {
	all, err := load(dir)
	if err != nil {
		return err
	}
	change(all)
	data, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(data, '\n'), 0o666); err != nil {
		return err
	}
	readme := filepath.Join(dir, "README.md")
	text, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	filled, err := all.fill(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(readme, []byte(filled), 0o666)
}

func load(dir string) (*results, error) {
	all := new(results)
	data, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if errors.Is(err, os.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(data, all)
}

// fill replaces what stands between the markers.
func (all *results) fill(text string) (string, error) {
	for marker, table := range map[string]string{"rows": all.rows(), "mutants": all.mutants()} {
		begin, end := "<!-- "+marker+" -->\n", "<!-- end of "+marker+" -->"
		before, rest, found := strings.Cut(text, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			return "", fmt.Errorf("README.md lacks the markers of %q", marker)
		}
		text = before + begin + table + end + after
	}
	return text, nil
}

// rows is the table of the faults, a line for each row and case, with both sides.
func (all *results) rows() string {
	var b strings.Builder
	b.WriteString(
		"| # | fault | must hold | etcdlock | concurrency.Mutex | rerun | date, versions |\n|---|---|---|---|---|---|---|\n")
	type key struct{ row, fault string }
	sides := make(map[key]map[string]Result)
	var order []key
	for _, r := range all.Rows {
		k := key{r.Row, r.Case}
		if sides[k] == nil {
			sides[k] = make(map[string]Result)
			order = append(order, k)
		}
		sides[k][r.Side] = r
	}
	for _, k := range order {
		ours, theirs := sides[k][Ours], sides[k][Theirs]
		known := ours
		if known.Row == "" {
			known = theirs
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | `%s` | %s, etcd %s, %s |\n", known.Row,
			cell(known.Fault), cell(known.Must),
			cell(ours.verdict()), cell(theirs.verdict()), cell(known.Command), known.Date,
			known.Etcd, known.Go)
	}
	return b.String()
}

// verdict is a cell of the table.
func (r Result) verdict() string {
	if r.Row == "" {
		return "–"
	}
	verdict := fmt.Sprintf("held %d of %d", r.N-r.Broken, r.N)
	if r.Broken > 0 {
		verdict = fmt.Sprintf("**broken %d of %d**", r.Broken, r.N)
	}
	if r.Figures != "" {
		verdict += "; " + r.Figures
	}
	if r.Side == Theirs && r.Peer != "" {
		return fmt.Sprintf("`%s`: %s", r.Peer, verdict)
	}
	return verdict
}

func (all *results) mutants() string {
	var b strings.Builder
	b.WriteString("| mutant | killed by | after | rerun | date |\n|---|---|---|---|---|\n")
	for _, m := range all.Mutants {
		fmt.Fprintf(&b, "| %s | %s | %s | `%s` | %s |\n", cell(m.Name),
			cell(cmp.Or(m.KilledBy, "**nothing**")), cell(m.After), cell(m.Command), m.Date)
	}
	return b.String()
}

// cell makes a text fit into a table of Markdown.
func cell(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "|", `\|`), "\n", " ")
}

func number(row string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(row, "S"))
	if err != nil {
		panic("record: the row " + row + " is not S and a number")
	}
	return n
}
