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
	"unsafe"
)

// runAs makes cmd run as another user.
func runAs(cmd *exec.Cmd, uid, gid uint32) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
}

// inOwnGroup puts cmd into a process group of its own: Ctrl-C reaches only this program,
// which then stops its servers.
func inOwnGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

// freeze stops a process until thaw. The process does not notice.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }

// userHz is the number of /proc's clock ticks in a second. It is the same on all machines
// on which Go runs.
const userHz = 100

// cpuTime returns the processor time that processes have used so far, with their children:
// PostgreSQL has one child for each connection.
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

// procStat is what this program needs of /proc/<pid>/stat; see proc_pid_stat(5).
type procStat struct {
	own, waitedFor int64 // clock ticks, user and system; its own, and of ended children
}

func parseStat(b []byte) (s procStat, err error) {
	// The second field is a name in parentheses. Anything may stand in it.
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

// A cpuSet is a set of cores, in the form of sched_setaffinity(2).
type cpuSet [16]uint64

const (
	getAffinity = syscall.SYS_SCHED_GETAFFINITY
	setAffinity = syscall.SYS_SCHED_SETAFFINITY
)

// affinity gets or sets the cores that a thread may run on.
func (s *cpuSet) affinity(call uintptr, tid int) error {
	_, _, errno := syscall.RawSyscall(call, uintptr(tid), unsafe.Sizeof(*s),
		uintptr(unsafe.Pointer(s)))
	if errno != 0 {
		return errno
	}
	return nil
}

// first is the set of the first core in s.
func (s *cpuSet) first() (one cpuSet) {
	for i, word := range s {
		if word != 0 {
			one[i] = word & -word
			break
		}
	}
	return one
}

// shareOneCore makes processes run on the first core that this process may use, until
// release is called.
func shareOneCore(pids []int) (release func(), err error) {
	var before cpuSet
	if err := before.affinity(getAffinity, 0); err != nil {
		return nil, err
	}
	release = func() { _ = runOn(pids, before) } // fails for those that have ended
	if err := runOn(pids, before.first()); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// runOn sets the cores on which all threads of processes run. A new thread runs on the
// cores of the thread that started it. So runOn goes through the threads until there is no
// new one.
func runOn(pids []int, cores cpuSet) error {
	for _, pid := range pids {
		set := make(map[string]bool)
		for found := true; found; {
			found = false
			threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
			if err != nil {
				return err
			}
			for _, t := range threads {
				tid, err := strconv.Atoi(t.Name())
				if err != nil || set[t.Name()] {
					continue
				}
				set[t.Name()], found = true, true
				err = cores.affinity(setAffinity, tid)
				if err != nil && err != syscall.ESRCH { // it has ended just now
					return fmt.Errorf("run process %d on some cores only: %w", pid, err)
				}
			}
		}
	}
	return nil
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

// load returns the machine's load average over the last minute: the figures of a busy
// machine say little.
func load() string {
	average, _ := os.ReadFile("/proc/loadavg")
	minute, _, _ := strings.Cut(string(average), " ")
	return minute
}
