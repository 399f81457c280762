// Package ci tests what the workflows, Dependabot and a release know about the repository.
package ci

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tests read files by their paths in the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir(filepath.Join("..", "..")); err != nil {
		panic(err)
	}
	m.Run()
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// modules returns the go.mod of each module, by its directory. The root is ".".
func modules(t *testing.T) map[string]string {
	t.Helper()
	mods := make(map[string]string)
	require.NoError(t, filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "vendor") {
			return filepath.SkipDir
		}
		if d.Name() == "go.mod" {
			mods[filepath.ToSlash(filepath.Dir(file))] = read(t, file)
		}
		return nil
	}))
	require.NotEmpty(t, mods)
	return mods
}

// workflows returns the texts of the workflows, by file name.
func workflows(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(".github/workflows/*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	texts := make(map[string]string)
	for _, file := range files {
		texts[filepath.Base(file)] = read(t, file)
	}
	return texts
}

// A tag of an action can be moved to other code, a commit cannot.
func TestEachActionIsPinnedByItsCommit(t *testing.T) {
	uses := regexp.MustCompile(`(?m)^[^#\n]*\buses:\s*(.*)$`)
	pinned := regexp.MustCompile(`^([\w.-]+/[\w./-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)$`)
	pins := make(map[string]string)
	for file, text := range workflows(t) {
		for _, use := range uses.FindAllStringSubmatch(text, -1) {
			pin := pinned.FindStringSubmatch(use[1])
			require.NotNil(t, pin, "%s: %q is not pinned by a commit with its version", file, use[1])
			if other, known := pins[pin[1]]; known {
				require.Equal(t, other, pin[2], "%s: two versions of %s", file, pin[1])
			}
			pins[pin[1]] = pin[2]
		}
	}
	require.NotEmpty(t, pins)
}

// A workflow may only read, but for the job that publishes a release, and those that publish what
// they have found.
func TestWorkflowsMayOnlyRead(t *testing.T) {
	top := regexp.MustCompile(`(?m)^permissions:\n  contents: read\n\n|^permissions: \{\}\n`)
	more := regexp.MustCompile(`(?m)^ +([\w-]+: write\b|permissions: *[^\s#].*)`)
	permitted := map[string][]string{
		"release.yml":   {"contents: write", "id-token: write", "attestations: write"},
		"codeql.yml":    {"security-events: write"},
		"scorecard.yml": {"security-events: write", "id-token: write"},
	}
	for file, text := range workflows(t) {
		require.Regexp(t, top, text, file)
		require.NotRegexp(t, `(?m)^permissions: *\w`, text, file)
		var got []string
		for _, m := range more.FindAllStringSubmatch(text, -1) {
			got = append(got, m[1])
		}
		require.Equal(t, permitted[file], got, file)
	}
}

// The scripts that workflows run are there, and .ci/run takes what they ask of it.
func TestWorkflowsRunWhatThereIs(t *testing.T) {
	script := regexp.MustCompile(
		`(?m)^ +(?:- )?(?:run: |tests: )?(bash )?((?:\.ci|spec)/\w+)(?: ([a-z]+))?`)
	runs := 0
	for file, text := range workflows(t) {
		for _, run := range script.FindAllStringSubmatch(text, -1) {
			runs++
			info, err := os.Stat(run[2])
			require.NoError(t, err, file)
			executable := info.Mode()&0o100 != 0
			require.True(t, run[1] != "" || executable, "%s: %s is not executable", file, run[2])
			if run[2] == ".ci/run" && run[3] != "" {
				require.Regexp(t, `usage: \.ci/run \[.*\b`+run[3]+`\b`, read(t, ".ci/run"), file)
			}
		}
	}
	require.Greater(t, runs, 8)
}

// Dependabot looks only into the directories that it is told.
func TestDependabotUpdatesEachModule(t *testing.T) {
	var listed []string
	for _, entry := range strings.Split(read(t, ".github/dependabot.yml"), "package-ecosystem: ")[1:] {
		if strings.HasPrefix(entry, "gomod\n") {
			for _, dir := range regexp.MustCompile(`(?m)^ +- (/\S*)$`).FindAllStringSubmatch(entry, -1) {
				listed = append(listed, dir[1])
			}
		}
	}
	var want []string
	for dir := range modules(t) {
		want = append(want, path.Join("/", dir))
	}
	require.ElementsMatch(t, want, listed)
}

// The modules that users import or install are released together, each with the library of the
// same version.
func TestPublicModulesRequireTheLibraryOfTheirRelease(t *testing.T) {
	version := regexp.MustCompile(`(?m)^## \[(\d+\.\d+\.\d+)\]`).FindStringSubmatch(read(t,
		"CHANGELOG.md"))
	require.NotNil(t, version, "CHANGELOG.md names no version")
	mods := modules(t)
	library := regexp.MustCompile(`(?m)^module (\S+)$`).FindStringSubmatch(mods["."])[1]
	requires := regexp.MustCompile(`(?m)^(?:require |\t)(` + regexp.QuoteMeta(library) + `\S*) (\S+)`)
	for dir, mod := range mods {
		if dir == "." || strings.HasPrefix(dir, "internal/") {
			continue
		}
		require.Contains(t, mod, "module "+path.Join(library, dir)+"\n")
		required := requires.FindAllStringSubmatch(mod, -1)
		if dir == "cmd/etcdlockvet" { // who checks code with it needs no etcd
			require.Empty(t, required)
		} else {
			require.NotEmpty(t, required, dir)
		}
		for _, r := range required {
			require.NotContains(t, r[1], "/internal/", "%s: users cannot get this module", dir)
			require.Equal(t, "v"+version[1], r[2], "%s requires %s", dir, r[1])
		}
		if strings.HasPrefix(dir, "cmd/") {
			require.NotRegexp(t, `(?m)^(replace|exclude)\b`, mod,
				"%s: go install refuses such a module", dir)
		}
	}
}
