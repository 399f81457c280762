package matrix

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

type spawn struct {
	cmd    *exec.Cmd
	result chan error
}

// spawns goes to the one thread that starts processes.
var spawns = sync.OnceValue(func() chan<- spawn {
	ch := make(chan spawn)
	go func() { // lives as long as this process
		runtime.LockOSThread()
		for s := range ch {
			s.result <- s.cmd.Start()
		}
	}()
	return ch
})

// start starts a process that is killed when this one ends, however it ends. The
// kernel ties that to the thread that started the process, not to the process.
func start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s := spawn{cmd, make(chan error, 1)}
	spawns() <- s
	return <-s.result
}
