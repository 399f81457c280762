package docs

import (
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// leading is the import declaration that a snippet begins with.
var leading = regexp.MustCompile(`\Aimport (?:\((?s:.*?)\n\)|.*)\n+`)

// Each snippet of docs/adapters.md begins with the imports that it uses, as the file has them that
// the snippet is from.
func TestTheSnippetsForHostsImportWhatTheyUse(t *testing.T) {
	fence := regexp.MustCompile("(?s)\n```go\n(.*?)\n```\n")
	blocks := fence.FindAllStringSubmatch(docs(t)["docs/adapters.md"], -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		declared := leading.FindString(block[1])
		code := strings.TrimPrefix(block[1], declared)
		used := make(map[string]string)
		for name, path := range importsOf(t, fileWith(t, code)) {
			if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(uncommented(code)) {
				used[name] = path
			}
		}
		require.Equal(t, used, importsOf(t, "package p\n"+declared), code)
	}
}

// fileWith returns the text of the tested file that has the code.
func fileWith(t *testing.T, code string) string {
	t.Helper()
	for _, pattern := range tested {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			if text := sources(t, file); strings.Contains(text, code) {
				return text
			}
		}
	}
	require.Fail(t, "no tested file has the code", code)
	return ""
}

// importsOf returns the imports of a file, by the names that it uses them with.
func importsOf(t *testing.T, source string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", source, parser.ImportsOnly)
	require.NoError(t, err)
	imports := make(map[string]string)
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		name := path.Base(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		} else if regexp.MustCompile(`^v\d+$`).MatchString(name) {
			name = path.Base(path.Dir(imported))
		}
		imports[name] = imported
	}
	return imports
}

func uncommented(code string) string {
	return regexp.MustCompile(`(?m)//.*$`).ReplaceAllString(code, "")
}

// docs/llms.txt is for readers that take names from it without a look at the library.
func TestTheNamesForModelsAreTheLibrarys(t *testing.T) {
	api := sources(t, "*.go")
	// What a reader looks for may not be there, but its answer is, and stands in two places.
	pages := docs(t)
	text := pages["docs/llms.txt"]
	guesses := regexp.MustCompile(`(?s)\| if you look for \|.*?\n\n`).FindString(text)
	require.NotEmpty(t, guesses)
	require.Contains(t, pages["docs/migrating.md"], guesses)
	text = regexp.MustCompile(`(?m)^\|.*?\|`).ReplaceAllString(text, "")
	code := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1)
	name := regexp.MustCompile(`^(?:(?:session|etcdlock|mu|h|rw|sem|Mutex)\.)?([A-Z]\w+)\b`)
	named := 0
	for _, span := range code {
		for part := range strings.FieldsSeq(span[1]) {
			if found := name.FindStringSubmatch(part); found != nil {
				named++
				require.Regexp(t, `(?m)^(func (\(.*\) )?|type |\t)`+found[1]+`\b`, api, span[1])
			}
		}
	}
	require.Greater(t, named, 50)
}
