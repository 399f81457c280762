package matrix

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// older is the guest that uses the library as it was before it had readers.
const older = "the version before readers"

var theOlder = guest{older, before}

// before runs the library as it was before it had readers, as a process of its own.
func before(tr *trial, v *visit, ttl time.Duration) error {
	return holds(tr, v, ttl, olderVersion)
}

// holds runs a program that is built from ./before.
func holds(tr *trial, v *visit, ttl time.Duration, build func() (olderProgram, error)) error {
	program, err := build()
	if err != nil {
		return err
	}
	tr.t.Logf("%s is built from %s", v.who, program.from)
	how, err := json.Marshal(holder{tr.door, tr.name, ttl})
	if err != nil {
		return err
	}
	return v.runs(exec.Command(program.path, string(how)))
}

// An olderProgram is ./before, built with an older library.
type olderProgram struct{ path, from string }

// olderVersion builds it, once for all trials.
var olderVersion = sync.OnceValues(func() (olderProgram, error) {
	dir := filepath.Join(scratch, "before")
	if err := os.Mkdir(dir, 0o777); err != nil {
		return olderProgram{}, err
	}
	program := olderProgram{path: filepath.Join(dir, "holder")}
	from, args, err := olderSource(dir)
	if err != nil {
		// The history is shallow, or there is none.
		why := err
		if from, args, err = editedSource(dir); err != nil {
			return program, err
		}
		from += " (" + why.Error() + ")"
	}
	program.from = from
	return program, program.build(args...)
})

// build builds the program with arguments for go build.
func (p olderProgram) build(args ...string) error {
	args = append([]string{"GOWORK=off", "go", "build", "-o", p.path}, append(args, "./before")...)
	if out, err := runs(".", "env", args...); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// olderSource takes from the history the library as it was before the commit that brought
// readers. It returns what go build needs to use that.
func olderSource(dir string) (from string, args []string, err error) {
	const root = "../.."
	said, err := runs(root, "git", "log", "--diff-filter=A", "--format=%H", "--", "rwmutex.go")
	commits := strings.Fields(said)
	if err != nil || len(commits) == 0 {
		return "", nil, fmt.Errorf("git knows no commit that brought readers: %v", err)
	}
	commit := commits[len(commits)-1] + "^"
	source, archive := filepath.Join(dir, "source"), filepath.Join(dir, "source.tar")
	if err := os.Mkdir(source, 0o777); err != nil {
		return "", nil, err
	}
	if out, err := runs(root, "git", "archive", "-o", archive, commit); err != nil {
		return "", nil, fmt.Errorf("the history is not whole: %w: %s", err, strings.TrimSpace(out))
	}
	if out, err := runs(dir, "tar", "-x", "-f", archive, "-C", source); err != nil {
		return "", nil, fmt.Errorf("%w: %s", err, out)
	}
	module, err := os.ReadFile("go.mod")
	if err != nil {
		return "", nil, err
	}
	const replace = "replace github.com/etcdlock/etcdlock => "
	text := strings.Replace(string(module), replace+root+"\n", replace+source+"\n", 1)
	if text == string(module) {
		return "", nil, fmt.Errorf("go.mod has no %q", replace+root)
	}
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		return "", nil, err
	}
	modfile := filepath.Join(dir, "before.mod")
	if err := os.WriteFile(modfile, []byte(text), 0o666); err != nil {
		return "", nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "before.sum"), sums, 0o666); err != nil {
		return "", nil, err
	}
	return commit, []string{"-modfile", modfile}, nil
}

// editedSource is the library as it is, except that it takes every key for exclusive.
func editedSource(dir string) (from string, args []string, err error) {
	file, err := filepath.Abs("../line/kind.go")
	if err != nil {
		return "", nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", nil, err
	}
	const function = "func shapeOf(tail string) Shape {\n"
	if strings.Count(string(text), function) != 1 {
		return "", nil, fmt.Errorf("%s has no %q", file, function)
	}
	edited := filepath.Join(dir, "kind.go")
	text = []byte(strings.Replace(string(text), function, function+"\treturn Shape{}\n", 1))
	if err := os.WriteFile(edited, text, 0o666); err != nil {
		return "", nil, err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: edited}})
	if err != nil {
		return "", nil, err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o666); err != nil {
		return "", nil, err
	}
	return "the present source, with every key exclusive", []string{"-overlay", list}, nil
}

// In a clone without a history, an edit makes the older version. It must fit.
func TestTheEditThatMakesAnOlderVersionFits(t *testing.T) {
	t.Parallel()
	_, args, err := editedSource(t.TempDir())
	require.NoError(t, err)
	args = append([]string{"GOWORK=off", "go", "build"}, args...)
	out, err := runs(".", "env", append(args, "github.com/etcdlock/etcdlock/internal/line")...)
	require.NoError(t, err, out)
}
