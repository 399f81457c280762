//go:build ported

package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// imports changes the line of a program that moves to package concurrency of the library. (A
// version of etcd's client before 3.5 has another path, which moved before.)
func imports(_ string, text []byte) []byte {
	for _, e := range []struct{ from, to string }{
		{`"go\.etcd\.io/etcd/client/?v3/concurrency"`, `"github.com/etcdlock/etcdlock/concurrency"`},
		{`"go\.etcd\.io/etcd/(clientv3\b)`, `"go.etcd.io/etcd/client/v3`},
	} {
		text = regexp.MustCompile(e.from).ReplaceAll(text, []byte(e.to))
	}
	return text
}

// Public modules keep their code: they compile with another import, and their own tests of what
// they lock pass, on an etcd. (etcdctl and the lock service have no such tests. The service cannot
// be moved, as the documentation of the package says; it compiles.)
func TestPortedModulesNeedAnotherImportOnly(t *testing.T) {
	addr := startEtcd(t)
	for _, p := range ports {
		t.Run(p.module, func(t *testing.T) {
			m := p.edited(t, imports)
			pkg := p.module + "/" + p.pkg
			m.must("build", pkg)
			require.Contains(t, string(m.must("list", "-f", "{{.Imports}}", pkg)),
				"github.com/etcdlock/etcdlock/concurrency")
			if p.tests == "" {
				return
			}
			env, flags := p.needs(addr)
			m.env = env
			args := append([]string{"test", "-count=1", "-v", "-timeout=5m", "-run=" + p.tests}, flags...)
			out := string(m.must(append(args, pkg)...))
			require.Contains(t, out, "\n--- PASS", "%s", out)
			require.NotContains(t, out, "--- SKIP", "%s", out)
			t.Logf("%d tests pass", strings.Count(out, "\n--- PASS"))
		})
	}
}

// ownTests are etcd's own tests of its package, with those of them that are left out.
var ownTests = []struct{ pkg, skip string }{
	{pkg: "integration/clientv3/concurrency"},

	// TestMutexSessionRelock has two Mutexes of a Session hold at once. Here the second one waits.
	// The tests of recipe.RWMutex, which takes a Session of etcd's, are cut out below.
	{pkg: "integration/clientv3/experimental/recipes", skip: "^TestMutexSessionRelock$"},
}

// etcd's own tests of its package pass with another import.
func TestPortedTestsOfEtcdPass(t *testing.T) {
	const module = "go.etcd.io/etcd/tests/v3"
	proof := filepath.Join(library(t), "internal", "proof")
	for _, own := range ownTests {
		t.Run(own.pkg, func(t *testing.T) {
			m := &importer{t: t, dir: t.TempDir()}
			for _, file := range []string{"go.mod", "go.sum"} { // with the versions that are built already
				text, err := os.ReadFile(filepath.Join(proof, file))
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(m.dir, file), text, 0o644))
			}
			copyModule(t, downloaded(t, module, "v3.7.3"), filepath.Join(m.dir, "source"), own.pkg,
				func(name string, text []byte) []byte {
					if before, _, found := strings.Cut(string(text), "\nfunc TestRWMutexSingleNode("); found {
						for _, unused := range []string{
							`"math/rand"`, `recipe "go.etcd.io/etcd/client/v3/experimental/recipes"`,
						} {
							before = strings.Replace(before, "\t"+unused+"\n", "", 1)
						}
						return imports(name, []byte(before))
					}
					if own.skip != "" { // another recipe
						return nil
					}
					return imports(name, text)
				})
			m.must("mod", "edit", "-module=example.com/ported", "-replace="+module+"=./source",
				"-replace=github.com/etcdlock/etcdlock="+library(t),
				"-replace=go.etcd.io/etcd/cache/v3="+filepath.Join(proof, "nocache"))
			out := string(m.must("test", "-count=1", "-v", "-timeout=5m", "-skip="+own.skip,
				module+"/"+own.pkg))
			require.Contains(t, out, "\n--- PASS: TestMutex", "%s", out)
			require.NotContains(t, out, "--- SKIP", "%s", out)
			t.Logf("%d tests pass", strings.Count(out, "\n--- PASS"))
		})
	}
}

// startEtcd starts an etcd that ends with the test, and returns its address.
func startEtcd(t *testing.T) (addr string) {
	t.Helper()
	dir := t.TempDir()
	server := filepath.Join(dir, "etcd")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", server, "go.etcd.io/etcd/server/v3")
	build.Dir = filepath.Join(library(t), "internal", "matrix", "etcd37")
	build.Env = append(os.Environ(), "GOWORK=off")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	var urls [2]string
	for i := range urls {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		urls[i] = "http://" + free.Addr().String()
		require.NoError(t, free.Close())
	}
	etcd := exec.Command(server, "--data-dir", filepath.Join(dir, "data"), "--log-level=error",
		"--unsafe-no-fsync", "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
		"--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1],
		"--initial-cluster", "default="+urls[1])
	etcd.Stderr = os.Stderr
	require.NoError(t, etcd.Start())
	t.Cleanup(func() {
		require.NoError(t, etcd.Process.Signal(syscall.SIGTERM))
		etcd.Wait()
	})
	require.Eventually(t, func() bool {
		resp, err := http.Get(urls[0] + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, 20*time.Second, 50*time.Millisecond, fmt.Sprint("etcd at ", urls[0]))
	return urls[0]
}
