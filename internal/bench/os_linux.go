package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// runAs makes cmd run as another user.
func runAs(cmd *exec.Cmd, uid, gid uint32) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
}

// inOwnGroup makes cmd a group of its own: Ctrl-C is for this program, which then stops
// its servers.
func inOwnGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

// userHz is in what parts of a second /proc counts. It is the same on all machines
// that Go runs on.
const userHz = 100

// cpuTime is the processor time that processes have used so far, with their
// children: PostgreSQL has one for each connection.
func cpuTime(pids []int) (time.Duration, error) {
	var ticks int64
	for _, pid := range pids {
		s, err := readStat(pid)
		if err != nil {
			return 0, err
		}
		ticks += s.own + s.waitedFor
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
		for child := range strings.FieldsSeq(string(children)) {
			pid, err := strconv.Atoi(child)
			if err != nil {
				return 0, err
			}
			if s, err := readStat(pid); err == nil { // it may have ended just now
				ticks += s.own
			}
		}
	}
	return time.Duration(ticks) * time.Second / userHz, nil
}

func readStat(pid int) (procStat, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(path)
	if err != nil {
		return procStat{}, err
	}
	s, err := parseStat(b)
	if err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// procStat is what is wanted of /proc/<pid>/stat; see proc_pid_stat(5).
type procStat struct {
	own, waitedFor int64 // clock ticks, user and system; its own, and of ended children
}

func parseStat(b []byte) (s procStat, err error) {
	// The second field is a name in parentheses, in which anything may stand.
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return s, fmt.Errorf("no name in %q", b)
	}
	fields := strings.Fields(string(b[end+1:])) // from the third on
	const utime, stime, cutime, cstime = 14 - 3, 15 - 3, 16 - 3, 17 - 3
	if len(fields) <= cstime {
		return s, fmt.Errorf("only %d fields", len(fields))
	}
	for _, f := range []struct {
		to    *int64
		field int
	}{{&s.own, utime}, {&s.own, stime}, {&s.waitedFor, cutime}, {&s.waitedFor, cstime}} {
		n, err := strconv.ParseInt(fields[f.field], 10, 64)
		if err != nil {
			return s, err
		}
		*f.to += n
	}
	return s, nil
}

// onTmpfs reports whether a directory is on a tmpfs.
func onTmpfs(dir string) (bool, error) {
	const tmpfsMagic = 0x01021994 // see statfs(2)
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	return fs.Type == tmpfsMagic, nil
}

// processor is the name of the machine's processor.
func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// kernel is the version of the operating system.
func kernel() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return "Linux " + strings.TrimSpace(string(release))
}

// memory is the machine's memory in GiB.
func memory() int {
	var info syscall.Sysinfo_t
	if syscall.Sysinfo(&info) != nil {
		return 0
	}
	return int((uint64(info.Totalram)*uint64(info.Unit) + 1<<29) >> 30)
}

// load is the machine's load average over the last minute: the figures of a machine
// that has other things to do tell little.
func load() string {
	average, _ := os.ReadFile("/proc/loadavg")
	minute, _, _ := strings.Cut(string(average), " ")
	return minute
}
