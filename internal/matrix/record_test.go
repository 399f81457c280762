package matrix

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var record = flag.Bool("record", false,
	"write what this run has found to results.json and README.md")

// A cell is what a version with a setup has shown.
type cell struct {
	Version string // as versions have it
	Setup   string
	Etcd    string // the version that the server reports
	Date    string
	Stories int      // how many were told
	Notes   []string `json:",omitempty"` // by number, see README.md
	Not     []string `json:",omitempty"` // stories that went otherwise, and why
}

// index is the place of a cell in the table.
func (c cell) index() (row, column int) {
	return slices.IndexFunc(setups, func(s setup) bool { return s.name == c.Setup }),
		slices.IndexFunc(versions, func(v *version) bool { return v.name == c.Version })
}

func (c cell) String() string {
	if c.Stories == 0 {
		return "–"
	}
	says := []string{fmt.Sprintf("ok (%d)", c.Stories)}
	if len(c.Not) > 0 {
		says[0] = fmt.Sprintf("**%d of %d**", c.Stories-len(c.Not), c.Stories)
	}
	says = append(says, c.Notes...)
	for _, not := range c.Not {
		says = append(says, "not "+strings.ReplaceAll(strings.ReplaceAll(not, "|", `\|`), "\n", " "))
	}
	return strings.Join(says, ", ")
}

var saving sync.Mutex

// save puts a cell into the record. It replaces an earlier one.
func save(t *testing.T, c cell) {
	t.Helper()
	if !*record {
		return
	}
	saving.Lock()
	defer saving.Unlock()
	all := load(t)
	all = slices.DeleteFunc(all, func(old cell) bool {
		row, column := old.index()
		// no more in the matrix
		return old.Version == c.Version && old.Setup == c.Setup || row < 0 || column < 0
	})
	all = append(all, c)
	slices.SortFunc(all, func(a, b cell) int {
		ra, ca := a.index()
		rb, cb := b.index()
		return cmp.Or(cmp.Compare(ra, rb), cmp.Compare(ca, cb))
	})
	data, err := json.MarshalIndent(all, "", "\t")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("results.json", append(data, '\n'), 0o666))
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("README.md", []byte(fill(t, string(text), all)), 0o666))
}

func load(t *testing.T) (all []cell) {
	t.Helper()
	data, err := os.ReadFile("results.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &all))
	return all
}

// fill puts the table between the markers of a text.
func fill(t *testing.T, text string, all []cell) string {
	t.Helper()
	const begin, end = "<!-- matrix -->\n", "<!-- end of matrix -->"
	before, rest, found := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	require.True(t, found && closed, "README.md lacks the markers of the table")
	return before + begin + table(all) + end + after
}

// table has a line for each setup, a column for each version, and a last line for the
// dates. A column that was run in parts shows its oldest date and version.
func table(all []cell) string {
	cells := make([][]cell, len(setups))
	for i := range cells {
		cells[i] = make([]cell, len(versions))
	}
	etcds, dates := make([]string, len(versions)), make([]string, len(versions))
	older := func(a, b string) string {
		if a == "" || b < a {
			return b
		}
		return a
	}
	for _, c := range all {
		row, column := c.index()
		cells[row][column] = c
		etcds[column], dates[column] = older(etcds[column], c.Etcd), older(dates[column], c.Date)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| setup | %s |\n|---|%s\n", strings.Join(etcds, " | "),
		strings.Repeat("---|", len(versions)))
	for row, s := range setups {
		fmt.Fprintf(&b, "| %s |", s.name)
		for _, c := range cells[row] {
			fmt.Fprintf(&b, " %s |", c)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "| run on | %s |\n", strings.Join(dates, " | "))
	return b.String()
}

// The published table says what was recorded, and nothing is missing.
func TestTheTableSaysWhatWasRecorded(t *testing.T) {
	saving.Lock()
	defer saving.Unlock()
	all := load(t)
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Equal(t, fill(t, string(text), all), string(text), "results.json and README.md differ")
	told := make(map[[2]int]bool)
	for _, c := range all {
		row, column := c.index()
		told[[2]int{row, column}] = c.Stories > 0
	}
	for row, s := range setups {
		for column, v := range versions {
			require.True(t, told[[2]int{row, column}], "etcd %s, %s, is not in the table", v.name, s.name)
		}
	}
}
