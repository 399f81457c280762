package main

import (
	"context"
	"os/exec"
	"strings"
	"syscall"

	goredis "github.com/redis/go-redis/v9"
)

// A redis is one server, with the persistence that its arguments ask for.
type redis struct {
	process *process
	addr    string
	release string
}

func findRedis() (string, error) { return find("redis-server", "redis-server") }

func startRedis(persistence ...string) func(context.Context, string, int) (system, error) {
	return func(ctx context.Context, dir string, _ int) (system, error) {
		program, err := findRedis()
		if err != nil {
			return nil, err
		}
		addr, host, port, err := freePort()
		if err != nil {
			return nil, err
		}
		args := append([]string{"--bind", host, "--port", port, "--dir", dir, "--save", "",
			"--maxclients", "5000"}, persistence...)
		r := &redis{addr: addr}
		r.process, err = startProcess("redis-server", exec.Command(program, args...), syscall.SIGKILL)
		if err != nil {
			return nil, err
		}
		client := goredis.NewClient(&goredis.Options{Addr: r.addr})
		defer client.Close()
		err = r.process.ready(ctx, func(ctx context.Context) error {
			info, err := client.Info(ctx, "server").Result()
			for line := range strings.Lines(info) {
				if release, found := strings.CutPrefix(line, "redis_version:"); found {
					r.release = strings.TrimSpace(release)
				}
			}
			return err
		})
		if err != nil {
			r.stop()
			return nil, err
		}
		return r, nil
	}
}

func (r *redis) address() string { return r.addr }
func (r *redis) version() string { return "Redis " + r.release }
func (r *redis) pids() []int     { return []int{r.process.cmd.Process.Pid} }
func (r *redis) stop()           { r.process.stop(syscall.SIGTERM) }
