package record

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const blank = "# Title\n\n<!-- rows -->\n<!-- end of rows -->\n\n" +
	"between\n\n<!-- mutants -->\n<!-- end of mutants -->\n"

func in(t *testing.T, readme string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "README.md"), []byte(readme), 0o666))
	return dir
}

func saved(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	require.NoError(t, err)
	return string(text)
}

// save is Save in a test that runs with -record into.
func save(t *testing.T, into string, r Result) {
	t.Helper()
	before := *dir
	*dir = into
	defer func() { *dir = before }()
	Save(t, r)
}

func TestALaterResultTakesThePlaceOfAnEarlierOne(t *testing.T) {
	d := in(t, blank)
	save(t, d, Result{Row: "S10", Side: Ours, Fault: "chaos", N: 1})
	save(t, d, Result{Row: "S9", Side: Theirs, Fault: "late unlock", N: 20, Broken: 3,
		Figures: "said nil"})
	save(t, d, Result{Row: "S9", Side: Ours, Fault: "late unlock", N: 5})
	save(t, d, Result{Row: "S9", Side: Ours, Fault: "late unlock", N: 20,
		Command: "go test -run 'S9|S10'"})
	text := saved(t, d)
	require.Regexp(t,
		`(?s)\| S9 \| late unlock \|  \| held 20 of 20 \| \*\*broken 3 of 20\*\*; said nil \| .go test -run 'S9\\\|S10'. \|.*\n\| S10 \|`, text)
	require.NotContains(t, text, "held 5 of 5")
	require.Contains(t, text, "between")
}

func TestAPeerOfItsOwnIsNamedInTheTable(t *testing.T) {
	d := in(t, blank)
	save(t, d, Result{Row: "S33", Side: Ours, Peer: "recipe.RWMutex", N: 2})
	save(t, d, Result{Row: "S33", Side: Theirs, Peer: "recipe.RWMutex", N: 2, Broken: 1})
	require.Contains(t, saved(t, d), "| held 2 of 2 | `recipe.RWMutex`: **broken 1 of 2** |")
}

func TestNothingIsRecordedUnlessAskedFor(t *testing.T) {
	d := in(t, blank)
	save(t, "", Result{Row: "S1", Side: Ours})
	require.Equal(t, blank, saved(t, d))
}

func TestAReadmeWithoutMarkersIsAnError(t *testing.T) {
	for _, readme := range []string{"", "<!-- rows -->\n", "<!-- rows -->\n<!-- end of rows -->"} {
		require.Error(t, updateIn(in(t, readme), func(*results) {}), "%q", readme)
	}
}

// The published tables say what was recorded, all rows are in them, and all promises hold
// on our side.
func TestTheTablesSayWhatWasRecorded(t *testing.T) {
	const published = "../faults"
	all, err := load(published)
	require.NoError(t, err)
	text := saved(t, published)
	filled, err := all.fill(text)
	require.NoError(t, err)
	require.Equal(t, filled, text, "results.json and README.md differ")

	rows := make(map[string]bool)
	for _, r := range all.Rows {
		if r.Side != Ours {
			continue
		}
		rows[r.Row] = true
		require.Positive(t, r.N, "%s %s was not tried", r.Row, r.Case)
		require.Zero(t, r.Broken, "%s %s", r.Row, r.Case)
	}
	for n := 1; n <= 39; n++ {
		if n <= 29 || n >= 33 {
			require.True(t, rows[fmt.Sprint("S", n)], "S%d is not in the table", n)
		}
	}
	require.GreaterOrEqual(t, len(all.Mutants), 12)
	for _, m := range all.Mutants {
		require.NotEmpty(t, m.KilledBy, "the mutant %q lives", m.Name)
	}
}
