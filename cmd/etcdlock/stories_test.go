//go:build linux || darwin || freebsd

package main

import (
	"errors"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/sim"
)

// The stories in testdata/script are sessions in a shell, each beside an etcd in memory at $ETCD.
func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			addr, server, err := sim.Serve()
			if err != nil {
				return err
			}
			env.Defer(server.Stop)
			env.Vars = append(env.Vars, "ETCD="+addr, race.QuickExit())
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits is a command of the stories: "exits 64 etcdlock who a b" runs a program and wants its
// status.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	status := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		failed, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		status = failed.ExitCode()
	}
	if strconv.Itoa(status) != args[0] {
		ts.Fatalf("status %d, not %s", status, args[0])
	}
}
