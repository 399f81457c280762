// Package pgtest starts PostgreSQL for tests.
package pgtest

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/child"
)

// readyWithin is how long the server may take until it serves on a busy machine.
const readyWithin = time.Minute

// A Server is a PostgreSQL that listens on nothing but a Unix socket.
type Server struct {
	dir       string // of the socket
	databases int
}

// Start starts a server that ends with t. It fails t if PostgreSQL is not installed.
func Start(t *testing.T) *Server {
	t.Helper()
	program := find(t)
	// Not t.TempDir: the path of a socket has 107 bytes at most, and the user of the server has to
	// get at it.
	dir, err := os.MkdirTemp("", "pg")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(filepath.Dir(program), "initdb"),
		"--pgdata", data, "--username", "test", "--auth", "trust", "--no-sync")
	serve := exec.Command(program, "-D", data, "-h", "", "-k", dir, "-F")
	for _, cmd := range []*exec.Cmd{initdb, serve} {
		unprivileged(t, cmd, dir)
	}
	out, err := initdb.CombinedOutput()
	require.NoError(t, err, "%s", out)

	var said bytes.Buffer
	serve.Stdout, serve.Stderr = &said, &said
	// A server that was killed would leave its shared memory behind.
	require.NoError(t, child.Start(serve, syscall.SIGQUIT))
	t.Cleanup(func() {
		require.NoError(t, serve.Process.Signal(syscall.SIGQUIT))
		_ = serve.Wait() // its status says only how it was stopped
		if t.Failed() {
			t.Logf("PostgreSQL said:\n%s", said.Bytes())
		}
	})
	s := &Server{dir: dir}
	db, err := sql.Open("pgx", s.dsn("postgres"))
	require.NoError(t, err)
	defer db.Close()
	require.EventuallyWithT(t, func(c *assert.CollectT) { require.NoError(c, db.Ping()) },
		readyWithin, 50*time.Millisecond)
	return s
}

// find returns the path of the server's program; the others are beside it.
func find(t *testing.T) string {
	// Debian keeps them off the PATH, by release.
	programs, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	for _, program := range append(programs, "postgres") {
		if path, err := exec.LookPath(program); err == nil {
			path, err = filepath.EvalSymlinks(path)
			require.NoError(t, err)
			return path
		}
	}
	t.Fatal("pgtest: there is no PostgreSQL here: apt-get install postgresql")
	return ""
}

// unprivileged makes cmd run as the package's user if the test is root's, since PostgreSQL refuses
// to be root. It gives dir to that user.
func unprivileged(t *testing.T, cmd *exec.Cmd, dir string) {
	cmd.Dir = dir
	if os.Getuid() != 0 {
		return
	}
	u, err := user.Lookup("postgres")
	require.NoError(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	require.NoError(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	require.NoError(t, err)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
	}
	require.NoError(t, os.Chown(dir, int(uid), int(gid)))
}

func (s *Server) dsn(database string) string {
	return fmt.Sprintf("host=%s user=test dbname=%s", s.dir, database)
}

// Database makes an empty database, and returns how to open it. It is not for concurrent use.
func (s *Server) Database(t *testing.T) (dsn string) {
	t.Helper()
	s.databases++
	name := fmt.Sprint("test", s.databases)
	_, err := Open(t, s.dsn("postgres")).Exec("CREATE DATABASE " + name)
	require.NoError(t, err)
	return s.dsn(name)
}

// Open opens a database by the driver "pgx". It is closed when t ends.
func Open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
