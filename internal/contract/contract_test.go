package contract

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A test that is not in the table runs nowhere.
func TestTheTableIsComplete(t *testing.T) {
	var written []string
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(source, -1) {
			written = append(written, string(found[1]))
		}
	}
	require.NotEmpty(t, written)
	require.ElementsMatch(t, written, Rows())
}
