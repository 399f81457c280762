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

	tests string // that need its locks; empty: it has none. See imported_test.go
	needs func(addr string) (env, flags []string)
}

var ports = []port{
	{module: "go.etcd.io/etcd/etcdctl/v3", version: "v3.7.3", pkg: "ctlv3/command"},
	{module: "go.etcd.io/etcd/server/v3", version: "v3.7.3", pkg: "etcdserver/api/v3lock"},
	{
		module: "github.com/hashicorp/terraform", version: "v1.2.9",
		pkg: "internal/backend/remote-state/etcdv3", also: "cloud.google.com/go@v0.123.0",
		tests: "Test", needs: func(addr string) (env, flags []string) {
			return []string{"TF_ETCDV3_TEST=1", "TF_ETCDV3_ENDPOINTS=" + addr}, nil
		},
	},
	{
		module: "github.com/hashicorp/vault", version: "v1.21.4", pkg: "physical/etcd",
		tests: "Test", needs: func(addr string) (env, flags []string) {
			return []string{"ETCD_ADDR=" + addr}, nil
		},
	},
	{
		module: "github.com/cilium/cilium", version: "v1.20.2", pkg: "pkg/kvstore",
		tests: "Lock", needs: func(addr string) (env, flags []string) {
			return []string{"INTEGRATION_TESTS=1"}, []string{
				"-ldflags=-X github.com/cilium/cilium/pkg/kvstore.etcdDummyAddress=" + addr,
			}
		},
	},
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
	shim, err := os.ReadFile("testdata/ported/concurrency.go.txt")
	require.NoError(t, err)
	for _, p := range ports {
		t.Run(p.module, func(t *testing.T) {
			m := p.edited(t, func(name string, text []byte) []byte {
				if strings.HasSuffix(name, "_test.go") {
					return nil
				}
				for _, e := range edits {
					text = regexp.MustCompile(e.from).ReplaceAll(text, []byte(e.to))
				}
				return text
			})
			require.NoError(t, os.Mkdir(filepath.Join(m.dir, "concurrency"), 0o755))
			into := filepath.Join(m.dir, "concurrency", "concurrency.go")
			require.NoError(t, os.WriteFile(into, shim, 0o644))
			source := "package " + m.name + "\n\nimport (\n\t\"context\"\n" +
				"\t\"example.com/ported/concurrency\"\n)\n" + planted[1:]
			into = filepath.Join(m.dir, "source", p.pkg, "planted.go")
			require.NoError(t, os.WriteFile(into, []byte(source), 0o644))
			pkg := p.module + "/" + p.pkg
			m.must("build", pkg)
			out, _ := m.run("go", "vet", "-vettool="+self, "-lost", pkg)
			var finds []string
			for line := range bytes.SplitSeq(out, []byte("\n")) {
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

// An edit says what a file becomes; it goes if that is nil.
type edit func(name string, text []byte) []byte

// An importer is a main module that imports an edited one.
type importer struct {
	t    *testing.T
	dir  string
	name string   // of the edited package
	env  []string // for what it runs
}

// run runs a program in the module.
func (m *importer) run(name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(m.t.Context(), name, args...)
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "ETCDLOCKVET=1", "GOWORK=off", "GOFLAGS=-mod=mod")
	cmd.Env = append(cmd.Env, m.env...)
	return cmd.CombinedOutput()
}

// must runs go in the module.
func (m *importer) must(args ...string) []byte {
	m.t.Helper()
	out, err := m.run("go", args...)
	require.NoError(m.t, err, "%s", out)
	return out
}

// edited makes a module that requires that of p, with its package edited, and the library of now.
func (p port) edited(t *testing.T, edit edit) *importer {
	t.Helper()
	m := &importer{t: t, dir: t.TempDir()}
	m.must("mod", "init", "example.com/ported")
	from, to := downloaded(t, p.module, p.version), filepath.Join(m.dir, "source")
	m.name = copyModule(t, from, to, p.pkg, edit)
	m.must("mod", "edit", "-require="+p.module+"@"+p.version, "-replace="+p.module+"=./source",
		"-require=github.com/etcdlock/etcdlock@v0.1.0",
		"-replace=github.com/etcdlock/etcdlock="+library(t))
	m.must("get", "go.etcd.io/etcd/client/v3@v3.7.3")
	if p.also != "" {
		m.must("get", p.also)
	}
	return m
}

// library is where the library is.
func library(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	return dir
}

// downloaded is where the source of a module is, from the module cache or the proxy.
func downloaded(t *testing.T, module, version string) string {
	t.Helper()
	var source struct{ Dir string }
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json",
		module+"@"+version).Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &source))
	return source.Dir
}

// copyModule links the files of a module, and edits those of a package, whose name it returns.
func copyModule(t *testing.T, from, to, pkg string, edit edit) (pkgName string) {
	t.Helper()
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
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if found := regexp.MustCompile(`(?m)^package (\w+)$`).FindSubmatch(text); found != nil &&
			!strings.HasSuffix(name, "_test.go") {
			pkgName = string(found[1])
		}
		if text = edit(name, text); text == nil {
			return nil
		}
		return os.WriteFile(filepath.Join(to, name), text, 0o644)
	}))
	return pkgName
}
