//go:build ported

package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A port is a public module that uses concurrency.Mutex.
type port struct {
	module, version, pkg string
	also                 string // a module in the version with which it builds
}

var ports = []port{
	{"go.etcd.io/etcd/etcdctl/v3", "v3.7.3", "ctlv3/command", ""},
	{"go.etcd.io/etcd/server/v3", "v3.7.3", "etcdserver/api/v3lock", ""},
	{"github.com/hashicorp/terraform", "v1.2.9", "internal/backend/remote-state/etcdv3",
		"cloud.google.com/go@v0.123.0"},
	{"github.com/hashicorp/vault", "v1.21.4", "physical/etcd", ""},
	{"github.com/cilium/cilium", "v1.20.2", "pkg/kvstore", ""},
}

// edits make the port: the Mutex is another one, and what it does not have goes.
var edits = []struct{ from, to string }{
	{`"go\.etcd\.io/etcd/client/?v3/concurrency"`, `"example.com/ported/concurrency"`},
	{`"go\.etcd\.io/etcd/(clientv3\b)`, `"go.etcd.io/etcd/client/v3`},
	{`Header: m\.Header\(\), `, ``},
	{`m\.Header\(\)\.Revision`, `m.Token()`},
}

// planted is added to each port, so that there is something to find.
const planted = `

func planted(ctx context.Context, mu *concurrency.Mutex) error {
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	mu.Unlock(ctx)
	return nil
}
`

// Of public modules after a mechanical port nothing is reported but what was planted: they unlock
// on each path, look at the errors of Unlock, and what works under a lock of theirs has its key.
// Their sources come from the module proxy.
func TestNothingIsReportedOfPortedModules(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	library, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	for _, p := range ports {
		t.Run(p.module, func(t *testing.T) {
			dir := t.TempDir()
			run := func(name string, args ...string) ([]byte, error) {
				cmd := exec.CommandContext(t.Context(), name, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "ETCDLOCKVET=1", "GOWORK=off", "GOFLAGS=-mod=mod")
				return cmd.CombinedOutput()
			}
			must := func(args ...string) []byte {
				out, err := run("go", args...)
				require.NoError(t, err, "%s", out)
				return out
			}
			must("mod", "init", "example.com/ported")
			var source struct{ Dir string }
			out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json",
				p.module+"@"+p.version).Output()
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(out, &source))
			copyModule(t, source.Dir, filepath.Join(dir, "source"), p.pkg)
			shim, err := os.ReadFile("testdata/ported/concurrency.go.txt")
			require.NoError(t, err)
			require.NoError(t, os.Mkdir(filepath.Join(dir, "concurrency"), 0o755))
			into := filepath.Join(dir, "concurrency", "concurrency.go")
			require.NoError(t, os.WriteFile(into, shim, 0o644))
			must("mod", "edit", "-require="+p.module+"@"+p.version, "-replace="+p.module+"=./source",
				"-require=github.com/etcdlock/etcdlock@v0.1.0",
				"-replace=github.com/etcdlock/etcdlock="+library)
			must("get", "go.etcd.io/etcd/client/v3@v3.7.3")
			if p.also != "" {
				must("get", p.also)
			}
			pkg := p.module + "/" + p.pkg
			must("build", pkg)
			out, _ = run("go", "vet", "-vettool="+self, "-lost", pkg)
			var finds []string
			for _, line := range bytes.Split(out, []byte("\n")) {
				if file, said, ok := bytes.Cut(line, []byte(".go:")); ok {
					finds = append(finds, filepath.Base(string(file))+".go:"+string(said))
				}
			}
			require.Equal(t, []string{
				"planted.go:9:12: mu is not unlocked on each path: the return on line 13 leaves it locked",
				"planted.go:15:2: the error of Unlock is dropped: it tells whether the lock was lost",
			}, finds, "%s", out)
		})
	}
}

// copyModule links the files of a module, and edits those of the package.
func copyModule(t *testing.T, from, to, pkg string) {
	t.Helper()
	pkgName := ""
	require.NoError(t, filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		if filepath.ToSlash(filepath.Dir(name)) != pkg {
			return os.Link(file, filepath.Join(to, name))
		}
		if strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if found := regexp.MustCompile(`(?m)^package (\w+)$`).FindSubmatch(text); found != nil {
			pkgName = string(found[1])
		}
		for _, e := range edits {
			text = regexp.MustCompile(e.from).ReplaceAll(text, []byte(e.to))
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), text, 0o644)
		}
		return err
	}))
	source := "package " + pkgName + `

import (
	"context"
	"example.com/ported/concurrency"
)
` + planted[1:]
	require.NoError(t, os.WriteFile(filepath.Join(to, pkg, "planted.go"), []byte(source), 0o644))
}
