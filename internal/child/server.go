package child

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Server is a program that is stopped and started again, and says what it says into a file. Its
// methods are safe for concurrent use.
type Server struct {
	Command func() *exec.Cmd // makes what is started
	Log     string           // file

	mu  sync.Mutex
	cmd *exec.Cmd // nil while it does not run
}

// Start starts the program, as Start does.
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

// Stop ends the program, if it runs, by a signal, and after patience at once.
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

// Said returns the last lines that the program has said, each cut to what can be read.
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
