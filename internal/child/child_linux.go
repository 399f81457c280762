package child

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

// Start starts a process that gets the signal death when this one ends. The kernel ties
// that signal to the thread that started the process, not to this process.
func Start(cmd *exec.Cmd, death syscall.Signal) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = death
	s := spawn{cmd, make(chan error, 1)}
	spawns() <- s
	return <-s.result
}
