//go:build !linux && !darwin && !freebsd

package main

import (
	"errors"
	"os"
	"runtime"
)

// run returns an error: without process groups it could not end everything that a command starts.
func (r *running) run(*app, string, []string) error {
	return ends(exitFailed,
		errors.New("there is no run on "+runtime.GOOS+"; the other commands work"))
}

// windowSize does not know the size.
func windowSize(*os.File) (rows, columns int, terminal bool) { return 0, 0, false }
