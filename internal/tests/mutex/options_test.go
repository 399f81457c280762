package mutex_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An option does not compile for what cannot use it, where its type can tell: the options of a
// lease are for what has a lease of its own.
func TestAnOptionOfALeaseDoesNotCompileForALockOfASession(t *testing.T) {
	out, err := build(t,
		`s.Mutex("n", etcdlock.WithOwner("me"))`,
		`etcdlock.New(nil, "n", etcdlock.WithOwner("me"))`,
		`etcdlock.NewSession(nil, etcdlock.WithTTL(1), etcdlock.WithOwner("me"))`,
	)
	require.NoError(t, err, out)

	not := []string{
		`s.Mutex("n", etcdlock.WithTTL(1))`,
		`s.RWMutex("n", etcdlock.WithSafetyMargin(1))`,
		`s.Semaphore("n", 1, etcdlock.WithSafetyMargin(1))`,
		`etcdlock.New(nil, "n", func() {})`,
	}
	out, err = build(t, not...)
	require.Error(t, err)
	for i := range not {
		require.Regexp(t, fmt.Sprintf(`(?m)p\.go:%d:.*does not implement etcdlock\.(Session)?Option`,
			firstCall+i), out)
	}
}

// firstCall is the line of the first call that build builds.
const firstCall = 6

// build builds calls, each on a line of its own, with a Session s.
func build(t *testing.T, calls ...string) (output string, err error) {
	t.Helper()
	var file strings.Builder
	file.WriteString(
		"package p\n\nimport \"github.com/etcdlock/etcdlock\"\n\nfunc f(s *etcdlock.Session) {\n")
	for _, call := range calls {
		fmt.Fprintf(&file, "\t_, _ = %s\n", call)
	}
	file.WriteString("}\n")
	dir := t.TempDir()
	text := filepath.Join(dir, "p.go")
	require.NoError(t, os.WriteFile(text, []byte(file.String()), 0o600))
	here, err := os.Getwd()
	require.NoError(t, err)
	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(here, "p", "p.go"): text},
	})
	require.NoError(t, err)
	path := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(path, overlay, 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", path,
		"./p").CombinedOutput()
	return string(out), err
}
