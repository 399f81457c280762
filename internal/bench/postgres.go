package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// pgConnections is how many connections the server allows. Each is a process there.
const pgConnections = 600

// A postgres is one server, with its own defaults except for the number of connections.
type postgres struct {
	process *process
	dsn     string
	release string
}

// findPostgres returns the server; its other programs are beside it.
func findPostgres() (string, error) {
	// Debian keeps them off the PATH, by release.
	programs, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	return find("postgresql", append(programs, "postgres")...)
}

func startPostgres(ctx context.Context, dir string, _ int) (system, error) {
	server, err := findPostgres()
	if err != nil {
		return nil, err
	}
	if server, err = filepath.EvalSymlinks(server); err != nil {
		return nil, err
	}
	addr, host, port, err := freePort()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(filepath.Dir(server), "initdb"),
		"--pgdata", data, "--username", "bench", "--auth", "trust", "--no-sync")
	serve := exec.Command(server, "-D", data, "-h", host, "-p", port, "-k", "",
		"-N", strconv.Itoa(pgConnections))
	for _, cmd := range []*exec.Cmd{initdb, serve} {
		cmd.Dir = dir
		if err := unprivileged(cmd, dir); err != nil {
			return nil, err
		}
	}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	p := &postgres{dsn: fmt.Sprintf("postgres://bench@%s/postgres?sslmode=disable", addr)}
	// A server killed on the spot would leave its shared memory behind.
	if p.process, err = startProcess("postgres", serve, syscall.SIGQUIT); err != nil {
		return nil, err
	}
	if err := p.process.ready(ctx, p.prepare); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// unprivileged makes cmd run as the package's user if this program is root, since
// PostgreSQL refuses to be root. It gives dir to that user.
func unprivileged(cmd *exec.Cmd, dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	runAs(cmd, uint32(uid), uint32(gid))
	return os.Chown(dir, int(uid), int(gid))
}

// prepare proves that the server serves, and makes the table of the lease rows.
func (p *postgres) prepare(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&p.release); err != nil {
		return err
	}
	p.release, _, _ = strings.Cut(p.release, " ")
	_, err = conn.Exec(ctx, leaseTable)
	return err
}

func (p *postgres) address() string { return p.dsn }
func (p *postgres) version() string { return "PostgreSQL " + p.release }
func (p *postgres) pids() []int     { return []int{p.process.cmd.Process.Pid} }
func (p *postgres) stop()           { p.process.stop(syscall.SIGINT) } // the fast way to stop
