package matrix

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	wanted = flag.String("versions", "oldest,newest",
		"the columns to run: oldest, newest, all, or versions such as 3.5")
	etcd34 = flag.String("etcd34", "",
		"directory with etcd and etcdctl of 3.4, instead of Debian's packages")
)

// A version is a column of the matrix.
type version struct {
	name     string
	programs func(t testing.TB, dir string) // puts etcd and etcdctl into dir
	args     []string                       // of its members

	keepsDeadTokensOut bool // even where the client asks for a new one, see lonelyAuth

	made sync.Once
	dir  string // with etcd and etcdctl, once made; empty if that failed
}

// versions begin with the oldest. A new version needs a line here and, if it is built, a
// module like etcd37.
var versions = []*version{
	{name: "3.4", programs: packaged, keepsDeadTokensOut: true},
	{name: "3.5", programs: built("etcd35"), args: []string{"--unsafe-no-fsync"}},
	{name: "3.6", programs: built("etcd36"), args: []string{"--unsafe-no-fsync"}},
	{name: "3.7", programs: built("etcd37"), args: []string{"--unsafe-no-fsync"}},
}

func newest() *version { return versions[len(versions)-1] }

// columns are the versions that -versions asks for.
func columns(t testing.TB) (columns []*version) {
	t.Helper()
	if *wanted == "all" {
		return versions
	}
	for name := range strings.SplitSeq(*wanted, ",") {
		i := slices.IndexFunc(versions, func(v *version) bool { return v.name == name })
		switch name {
		case "oldest":
			i = 0
		case "newest":
			i = len(versions) - 1
		}
		require.NotEqual(t, -1, i, "-versions: no version %q", name)
		columns = append(columns, versions[i])
	}
	return columns
}

// scratch is where the programs are. TestMain makes and removes it.
var scratch string

// program returns the path of etcd or etcdctl. If need be, it makes both first.
func (v *version) program(t testing.TB, name string) string {
	t.Helper()
	v.made.Do(func() {
		dir := filepath.Join(scratch, v.name)
		require.NoError(t, os.Mkdir(dir, 0o777))
		v.programs(t, dir)
		v.dir = dir
	})
	require.NotEmpty(t, v.dir, "there is no etcd %s", v.name)
	return filepath.Join(v.dir, name)
}

// built builds the programs that the go.mod in a directory names as tools.
func built(module string) func(testing.TB, string) {
	return func(t testing.TB, dir string) {
		t.Helper()
		for program, source := range map[string]string{
			"etcd":    "go.etcd.io/etcd/server/v3",
			"etcdctl": "go.etcd.io/etcd/etcdctl/v3",
		} {
			out, err := runs(".", "go", "build", "-C", module, "-o", filepath.Join(dir, program), source)
			require.NoError(t, err, "%s", out)
		}
	}
}

// packaged takes the programs out of Debian's packages. It does not install them, which
// would start a service. apt's lists of packages belong to this run, which needs no root.
func packaged(t testing.TB, dir string) {
	t.Helper()
	from := *etcd34
	if from == "" {
		for _, made := range []string{"lists/partial", "cache/archives/partial"} {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, made), 0o777))
		}
		apt := func(args ...string) {
			t.Helper()
			out, err := runs(dir, "apt-get", append([]string{
				"-o", "Dir::State::lists=" + filepath.Join(dir, "lists"), "-o",
				"Dir::Cache=" + filepath.Join(dir, "cache"),
			}, args...)...)
			require.NoError(t, err, `%s
etcd 3.4 is taken from the packages of Debian 12. On another system, say where it is:
	go test . -etcd34 DIRECTORY
which has etcd and etcdctl: those of the packages etcd-server and etcd-client 3.4.`, out)
		}
		apt("update")
		apt("download", "etcd-server=3.4.*", "etcd-client=3.4.*")
		packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
		require.NoError(t, err)
		require.Len(t, packages, 2)
		for _, file := range packages {
			out, err := runs(dir, "dpkg-deb", "-x", file, dir)
			require.NoError(t, err, "%s", out)
		}
		from = filepath.Join(dir, "usr", "bin")
	}
	for _, program := range []string{"etcd", "etcdctl"} {
		path, err := filepath.Abs(filepath.Join(from, program))
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, program)))
	}
	out, err := runs(dir, filepath.Join(dir, "etcd"), "--version")
	require.NoError(t, err, "%s", out)
	require.Contains(t, out, "etcd Version: 3.4.")
}

// runs runs a program in a directory, and returns what it said.
func runs(dir, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return out.String(), err
}
