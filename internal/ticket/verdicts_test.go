package ticket_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/ticket"
)

// What a release says is a table, to be read as one. A cell that is a doubt means that the release
// is not confirmed.
func TestTheVerdictsOfAReleaseAreThoseOfTheTable(t *testing.T) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range ticket.VerdictTable() {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	require.NoError(t, w.Flush())
	want, err := os.ReadFile("testdata/release.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), text.String())
}
