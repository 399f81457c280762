package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const program = `package main

import (
	"context"

	"github.com/etcdlock/etcdlock"
)

func work(ctx context.Context) error { return nil }

func main() {
	ctx := context.Background()
	new(etcdlock.Mutex).Do(ctx, func(context.Context) error { return work(ctx) })
}
`

// The test binary is the command if it is called as one.
func TestMain(m *testing.M) {
	if os.Getenv("ETCDLOCKVET") != "" {
		main()
	}
	os.Exit(m.Run())
}

// The command runs with go vet, and by itself.
func TestTheCommandReports(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	stub, err := os.ReadFile("analyzer/testdata/src/github.com/etcdlock/etcdlock/etcdlock.go")
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	write("main.go", program)
	write("go.mod", "module example.com/program\n\ngo 1.26.0\n\n"+
		"require github.com/etcdlock/etcdlock v0.1.0\n\n"+
		"replace github.com/etcdlock/etcdlock => ./library\n")
	write("library/go.mod", "module github.com/etcdlock/etcdlock\n\ngo 1.26.0\n")
	write("library/etcdlock.go", string(stub))
	for _, args := range [][]string{{"go", "vet", "-vettool=" + self, "."}, {self, "."}} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "ETCDLOCKVET=1", "GOWORK=off", "GOFLAGS=", "GOPROXY=off")
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "main.go:13:72: ctx does not end if the lock is lost: "+
			"use the context that Do gives the function")
	}
}
