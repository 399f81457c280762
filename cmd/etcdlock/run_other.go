//go:build !linux && !darwin && !freebsd

package main

import (
	"errors"
	"os"
	"runtime"

	"github.com/spf13/cobra"
)

// run returns an error: without process groups it could not end everything that a command starts.
func (r *running) run(*app, string, []string) error {
	return ends(exitFailed,
		errors.New("there is no run on "+runtime.GOOS+"; the other commands work"))
}

// windowSize does not know the size.
func windowSize(*os.File) (rows, columns int, terminal bool) { return 0, 0, false }

// watchdogCommand is of no use without run.
func watchdogCommand() *cobra.Command { return &cobra.Command{Use: "watchdog", Hidden: true} }

// judge needs a clock that all processes of the machine share.
func (b *bench) judge(*app) error {
	return ends(exitFailed, errors.New("there is no bench --judge on "+runtime.GOOS))
}

// benchHolderCommand is of no use without that.
func (a *app) benchHolderCommand() *cobra.Command {
	return &cobra.Command{Use: "bench-holder", Hidden: true}
}
