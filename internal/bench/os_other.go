//go:build !linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// The benchmark compiles everywhere, so that everybody sees a change that breaks it. Where
// it cannot run, the first of these says so.

var errLinuxOnly = errors.New(
	"the benchmark runs on Linux only: it ties its servers' lives to its own and reads /proc")

func inOwnGroup(*exec.Cmd)                 {}
func runAs(*exec.Cmd, uint32, uint32)      {}
func cpuTime([]int) (time.Duration, error) { return 0, errLinuxOnly }
func onTmpfs(string) (bool, error)         { return false, errLinuxOnly }
func freeze(*os.Process) error             { return errLinuxOnly }
func thaw(*os.Process) error               { return errLinuxOnly }
func shareOneCore([]int) (func(), error)   { return nil, errLinuxOnly }
func processor() string                    { return runtime.GOARCH }
func kernel() string                       { return runtime.GOOS }
func memory() int                          { return 0 }
func load() string                         { return "" }
