package hold_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/hold"
)

// Several things may have happened to a hold before a call looks at it, and each may end it: what
// does is a table, to be read as one.
func TestWhatEndsAHoldIsAsInTheTable(t *testing.T) {
	requireTable(t, "testdata/ends.txt", hold.EndTable())
}

// requireTable compares a table with the one that a file has printed.
func requireTable(t *testing.T, file string, rows [][]string) {
	t.Helper()
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	require.NoError(t, w.Flush())
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text.String())
}
