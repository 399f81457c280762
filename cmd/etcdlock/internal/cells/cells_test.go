package cells_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/cells"
)

// scripts are names of several scripts, and how many cells each takes.
var scripts = map[string]int{
	"orders/42":         9,
	"在庫/東京":             9,
	"창고":                4,
	"مخزن":              4,
	"e\u0301te\u0301":   3, // a letter and what joins it
	"deploy/🚀":          9,
	"👩‍👩‍👧":             2, // a family is one character
	"हिन्दी/गोदाम":      cells.Width("हिन्दी/गोदाम"),
	"":                  0,
	"Ωmega/скла\u0301д": 11,
}

// Each script is measured and cut by cells, and no character is cut in two.
func TestTextIsMeasuredInCells(t *testing.T) {
	for text, width := range scripts {
		require.Equal(t, width, cells.Width(text), text)
		for n := range width + 3 {
			for _, cut := range []string{cells.Cut(text, n), cells.Middle(text, n)} {
				require.LessOrEqual(t, cells.Width(cut), n, text)
				require.NotContains(t, cut, "\ufffd")
				require.Equal(t, n >= width, cut == text, "%q in %d", text, n)
			}
			require.Equal(t, n, cells.Width(cells.Pad(text, n)), "%q in %d", text, n)
			for _, line := range cells.Wrap(text, n+2) {
				require.LessOrEqual(t, cells.Width(line), n+2)
			}
		}
	}
}

// The middle of a long name is what goes: names that differ in their ends look different.
func TestALongNameKeepsItsEnds(t *testing.T) {
	const name = "tenants/8f14e45f-ceea/shard-000"
	one, two := cells.Middle(name+"1", 16), cells.Middle(name+"2", 16)
	require.Equal(t, "tenants/~rd-0001", one)
	require.NotEqual(t, one, two)
	require.Equal(t, 16, cells.Width(one))
}

func TestWordsWrap(t *testing.T) {
	require.Equal(t, []string{"one two", "three"}, cells.Wrap("one two three", 7))
	require.Equal(t, []string{"東京", "第二", "庫"}, cells.Wrap("東京第二庫", 5))
}
