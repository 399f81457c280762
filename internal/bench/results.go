package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A record is what one run has measured, as a file of its own keeps it.
type record struct {
	Name    string        `json:"run"`
	Command string        `json:"command"`
	Machine machine       `json:"machine"`
	Setups  []setupRecord `json:"setups"`
}

type setupRecord struct {
	Name        string         `json:"name"`
	Title       string         `json:"title"`
	Systems     []string       `json:"systems"`     // with their versions
	SyncedWrite figure         `json:"syncedWrite"` // seconds
	Cases       []caseRecord   `json:"cases"`
	Targets     []targetRecord `json:"targets,omitempty"`
}

type caseRecord struct {
	Name  string      `json:"name"`
	Title string      `json:"title"`
	Note  string      `json:"note,omitempty"`
	Rows  []rowRecord `json:"rows"`
}

// A rowRecord has the figures of an alternative by their names in the table figures.
type rowRecord struct {
	Title   string            `json:"alternative"`
	Figures map[string]figure `json:"figures,omitempty"`
	Failed  string            `json:"failed,omitempty"`
	Broken  string            `json:"broken,omitempty"` // how exclusion broke
}

// A targetRecord is what the library should reach in a setup, and what it did.
type targetRecord struct {
	What    string `json:"target"`
	AtLeast bool   `json:"atLeast"` // else at most
	Limit   figure `json:"limit"`
	Got     figure `json:"got"`
}

func (t targetRecord) reached() bool {
	if t.AtLeast {
		return t.Got.median() >= t.Limit.median()
	}
	return t.Got.median() <= t.Limit.median()
}

// A figure is a number, or the median of the rounds with the least and the greatest. Times
// are in seconds.
type figure []float64

func number(v float64) figure { return figure{v} }

func (s spread) figure() figure { return figure{s.Median, s.Least, s.Most} }

// known reports whether there is a figure, which a quotient by nothing is not.
func (f figure) known() bool {
	return len(f) > 0 && !slices.ContainsFunc(f, func(v float64) bool {
		return math.IsNaN(v) || math.IsInf(v, 0)
	})
}

// median is the number, or the median of the rounds, and NaN if there is none.
func (f figure) median() float64 {
	if len(f) == 0 {
		return math.NaN()
	}
	return f[0]
}

// MarshalJSON writes four digits of each number, more than the noise leaves.
func (f figure) MarshalJSON() ([]byte, error) {
	written := make([]string, len(f))
	for i, v := range f {
		written[i] = fourDigits(v)
	}
	if len(f) == 1 {
		return []byte(written[0]), nil
	}
	return fmt.Appendf(nil, "[%s]", strings.Join(written, ",")), nil
}

func fourDigits(v float64) string {
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		panic(err) // it was written a line above
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

func (f *figure) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte("[")) {
		return json.Unmarshal(text, (*[]float64)(f))
	}
	*f = make(figure, 1)
	return json.Unmarshal(text, &(*f)[0])
}

// record returns the report as a file keeps it.
func (r *report) record(name string) record {
	made := record{Name: name, Command: r.command, Machine: r.machine}
	for _, c := range r.chapters {
		s := setupRecord{
			Name: c.setup.name, Title: c.setup.title, Systems: c.versions,
			SyncedWrite: number(c.sync.Seconds()), Targets: c.targets(),
		}
		for _, t := range c.tables {
			s.Cases = append(s.Cases, t.record())
		}
		made.Setups = append(made.Setups, s)
	}
	return made
}

func (t table) record() caseRecord {
	c := caseRecord{Name: t.name, Title: t.benchCase.title, Note: t.note}
	for _, r := range t.rows {
		made := rowRecord{Title: r.title, Broken: r.broken}
		if r.failed != nil {
			made.Failed = r.failed.Error()
		}
		if r.ops > 0 {
			made.Figures = make(map[string]figure)
			for _, f := range figures {
				if got := f.of(t.benchCase, r); got.known() {
					made.Figures[f.name] = got
				}
			}
		}
		c.Rows = append(c.Rows, made)
	}
	return c
}

// json returns the record with a line for each setup, case, row and target.
func (r record) json() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return nil, err
	}
	// A quotation mark within a text would have a backslash before it.
	lines := strings.NewReplacer(`{"name":`, "\n"+`{"name":`, `{"alternative":`,
		"\n"+`{"alternative":`, `{"target":`, "\n"+`{"target":`)
	return []byte(lines.Replace(b.String())), nil
}

// records returns the records in a directory, in the order in which the program has their cases.
func records(dir string) ([]record, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []record
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var r record
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if r.Name+".json" != filepath.Base(file) {
			return nil, fmt.Errorf("%s is no record of a run: it names the run %q", file, r.Name)
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b record) int { return cmp.Compare(a.first(), b.first()) })
	return all, nil
}

// first is the index in cases of the first case that the record has.
func (r record) first() int {
	has := func(c benchCase) bool {
		return slices.ContainsFunc(r.Setups, func(s setupRecord) bool {
			return slices.ContainsFunc(s.Cases, func(measured caseRecord) bool {
				return measured.Name == c.name
			})
		})
	}
	if i := slices.IndexFunc(cases, has); i >= 0 {
		return i
	}
	return len(cases)
}

// render writes the page and the chart of a directory's records.
func render(dir string) error {
	all, err := records(dir)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("no record of a run in " + dir)
	}
	drawn := chart(all)
	err = os.WriteFile(filepath.Join(dir, "README.md"), []byte(page(all, drawn != "")), 0o666)
	if err == nil && drawn != "" {
		err = os.WriteFile(filepath.Join(dir, "benchmarks.svg"), []byte(drawn), 0o666)
	}
	return err
}

// find returns the row of an alternative in a case, if it was measured.
func (s setupRecord) find(caseName, title string) (rowRecord, bool) {
	for _, c := range s.Cases {
		for _, r := range c.Rows {
			if c.Name == caseName && r.Title == title && len(r.Figures) > 0 {
				return r, true
			}
		}
	}
	return rowRecord{}, false
}

// median returns a figure's number, or its median, and NaN if there is none.
func (r rowRecord) median(name string) float64 { return r.Figures[name].median() }
