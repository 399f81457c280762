package child

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Server is a program that can be stopped and started again. Its output goes into a file.
// Its methods are safe for concurrent use.
type Server struct {
	Command func() *exec.Cmd // makes the command to start
	Log     string           // file

	mu  sync.Mutex
	cmd *exec.Cmd // nil while it does not run
}

// Start starts the program, as the function Start does.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	cmd := s.Command()
	cmd.Stdout, cmd.Stderr = log, log
	if err := Start(cmd, syscall.SIGKILL); err != nil {
		return err
	}
	s.cmd = cmd
	return nil
}

// Stop ends the program by a signal, if it runs. If it still runs after patience, Stop
// kills it.
func (s *Server) Stop(sig syscall.Signal, patience time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	process := s.cmd.Process
	late := time.AfterFunc(patience, func() { _ = process.Kill() })
	defer late.Stop()
	_ = process.Signal(sig)
	_ = s.cmd.Wait() // says only how it was stopped
	s.cmd = nil
}

// Process calls f with the program's process, if it runs.
func (s *Server) Process(f func(*os.Process)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		f(s.cmd.Process)
	}
}

// Said returns the last lines of the program's output, each cut to a readable length.
func (s *Server) Said(lines int) string {
	log, err := os.ReadFile(s.Log)
	if err != nil {
		return err.Error()
	}
	last := strings.Split(strings.TrimSpace(string(log)), "\n")
	last = last[max(0, len(last)-lines):]
	for i, line := range last {
		last[i] = line[:min(len(line), 300)]
	}
	return strings.Join(last, "\n")
}
