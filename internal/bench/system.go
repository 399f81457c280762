package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// A system is the running servers that keep locks.
type system interface {
	address() string // for the open function of an alternative
	version() string
	pids() []int
	stop()
}

// kinds of systems
const (
	onEtcd      = "etcd"
	onRedis     = "Redis"
	onRedisAOF  = "Redis, appendfsync always"
	onZooKeeper = "ZooKeeper"
	onPostgres  = "PostgreSQL"
)

// A setup is a set of systems that run side by side, and the place of their data.
type setup struct {
	name    string
	title   string
	members int // of etcd
	tmpfs   bool
}

// The peers run beside a single etcd, on the same disk: they are single servers, too.
var setups = []setup{
	{name: "1-disk", title: "one etcd member, data on disk", members: 1},
	{name: "1-tmpfs", title: "one etcd member, data on a tmpfs", members: 1, tmpfs: true},
	{name: "3-disk", title: "three etcd members, data on one disk", members: 3},
	{name: "3-tmpfs", title: "three etcd members, data on a tmpfs", members: 3, tmpfs: true},
}

func setupNames() (names []string) {
	for _, s := range setups {
		names = append(names, s.name)
	}
	return names
}

// starters start the systems, with data in a directory of theirs.
var starters = []struct {
	kind  string
	start func(ctx context.Context, dir string, members int) (system, error)
}{
	{onEtcd, startEtcd},
	{onRedis, startRedis("--appendonly", "no")},
	{onRedisAOF, startRedis("--appendonly", "yes", "--appendfsync", "always")},
	{onZooKeeper, startZooKeeper},
	{onPostgres, startPostgres},
}

// systems are the systems of a setup, by kind.
type systems struct {
	dir     string
	running map[string]system
}

// start starts etcd and, if peers is set, everything else. The caller must stop what it
// returns, even after an error.
func (s setup) start(ctx context.Context, cfg config) (*systems, error) {
	base := cfg.disk
	if s.tmpfs {
		base = cfg.tmpfs
	}
	started := &systems{running: make(map[string]system)}
	memory, err := onTmpfs(base)
	switch {
	case err != nil:
		return started, err
	case memory && !s.tmpfs:
		return started, fmt.Errorf("-disk: %s is a tmpfs", base)
	case !memory && s.tmpfs:
		return started, fmt.Errorf("-tmpfs: %s is none", base)
	}
	if started.dir, err = os.MkdirTemp(base, "etcdlock-bench-"); err != nil {
		return started, err
	}
	// PostgreSQL runs as a user of its own, and has to reach its part.
	if err := os.Chmod(started.dir, 0o711); err != nil {
		return started, err
	}
	for i, starter := range starters {
		if starter.kind != onEtcd && (!cfg.peers || s.members > 1) {
			continue
		}
		dir := filepath.Join(started.dir, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return started, err
		}
		sys, err := starter.start(ctx, dir, s.members)
		if err != nil {
			return started, err
		}
		if e, ok := sys.(*etcd); ok {
			e.trip = cfg.trip
		}
		started.running[starter.kind] = sys
	}
	return started, nil
}

// checkInstalled reports what the peers need and what is missing, before anything runs.
func checkInstalled() error {
	for _, find := range []func() (string, error){findRedis, findZooKeeper, findPostgres} {
		if _, err := find(); err != nil {
			return err
		}
	}
	return nil
}

func (s *systems) stop() {
	for _, sys := range s.running {
		sys.stop()
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}
