package fake

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A port is the way from a client to the server.
type port struct {
	s       *Server
	process string
	closed  <-chan struct{} // with the client
}

// A link carries a process's messages. Its fields are guarded by Server.mu.
type link struct {
	holds    int
	released chan struct{} // while holds > 0; closed by the last Release
	latency  time.Duration
	lose     int // how many of the next answers are lost
}

func (s *Server) linkLocked(process string) *link {
	if s.links[process] == nil {
		s.links[process] = &link{}
	}
	return s.links[process]
}

var (
	// errEnded is gRPC's error when the caller's context ends. clientv3 replaces it by that
	// context's own error.
	errEnded = status.Error(codes.Canceled, "context canceled")

	// errClosing is gRPC's error once the client is closed.
	errClosing = status.Error(codes.Canceled, "grpc: the client connection is closing")
)

// send takes a request through the network: apply carries it out.
//
// While ctx lives, send calls ctx.Err only to repeat a request that was answered with
// DeadlineExceeded or Canceled, as clientv3 does.
func send[R any](ctx context.Context, p *port, c Call, apply func() (R, error)) (R, error) {
	c.Process = p.process
	for {
		r, err := sendOnce(ctx, p, c, apply)
		code := status.Code(err)
		if code != codes.DeadlineExceeded && code != codes.Canceled || err == errClosing ||
			ctx.Err() != nil {
			return r, err
		}
	}
}

func sendOnce[R any](
	ctx context.Context, p *port, c Call, apply func() (R, error),
) (none R, _ error) {
	type result struct {
		reply R
		err   error
	}
	s := p.s
	select {
	case <-ctx.Done():
		return none, errEnded
	case <-p.closed:
		return none, errClosing
	default:
	}
	effect := s.arrive(c)
	if effect.Drop || s.cutOff(c.Process) {
		return none, p.wait(ctx, nil)
	}
	if effect.Before != nil && effect.Delay == 0 {
		return none, effect.Before
	}
	if err := p.passes(ctx); err != nil {
		return none, err
	}
	done := make(chan result, 1)
	carryOut := func() {
		if effect.Before != nil {
			done <- result{none, effect.Before}
			return
		}
		reply, err := apply()
		if effect.Again > 0 {
			time.AfterFunc(effect.Again, func() { _, _ = apply() })
		}
		done <- result{reply, err}
	}
	if delay := effect.Delay + p.latency(); delay > 0 {
		time.AfterFunc(delay, func() { s.UnlessFrozen(carryOut) })
	} else {
		s.UnlessFrozen(carryOut)
	}
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		return none, errEnded
	case <-p.closed:
		return none, errClosing
	}
	if effect.DelayReply > 0 {
		if err := p.wait(ctx, after(effect.DelayReply)); err != nil {
			return none, err
		}
	}
	if effect.DropReply || s.cutOff(c.Process) {
		return none, p.wait(ctx, nil)
	}
	if err := p.passes(ctx); err != nil {
		return none, err
	}
	if effect.After != nil {
		return none, effect.After
	}
	if c.Method != Watch && p.loses() {
		return none, Unavailable
	}
	if effect.Edit != nil && r.err == nil {
		effect.Edit(r.reply)
	}
	return r.reply, r.err
}

// wait waits until done is closed. A nil done is never closed.
func (p *port) wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errEnded
	case <-p.closed:
		return errClosing
	}
}

// after returns a channel that is closed after d.
func after(d time.Duration) <-chan struct{} {
	over := make(chan struct{})
	time.AfterFunc(d, func() { close(over) })
	return over
}

// passes waits while a Hold keeps back what p's process sends and receives.
func (p *port) passes(ctx context.Context) error {
	for {
		p.s.mu.Lock()
		released := p.s.linkLocked(p.process).released
		p.s.mu.Unlock()
		if released == nil {
			return nil
		}
		if err := p.wait(ctx, released); err != nil {
			return err
		}
	}
}

func (p *port) latency() time.Duration {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.s.linkLocked(p.process).latency
}

// loses reports whether the next answer is lost.
func (p *port) loses() bool {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	l := p.s.linkLocked(p.process)
	if l.lose <= 0 {
		return false
	}
	l.lose--
	return true
}

// arrive counts a call, and returns what becomes of it.
func (s *Server) arrive(c Call) Effect {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := [2]string{c.Process, c.Method}
	s.numbers[id]++
	c.N, c.At = s.numbers[id], time.Now()
	if !s.uncalled {
		s.calls = append(s.calls, c)
	}
	if use := s.origins[int64(c.Lease)]; use != nil && c.Method == Revoke {
		use.Revoked = true
	}
	if s.intercept == nil {
		return Effect{}
	}
	return s.intercept(c)
}

func (s *Server) cutOff(process string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut[process] != nil
}

// UnlessFrozen carries something out, or leaves that to Thaw.
func (s *Server) UnlessFrozen(carryOut func()) {
	s.mu.Lock()
	frozen := s.frozen > 0
	if frozen {
		s.parked = append(s.parked, carryOut)
	}
	s.mu.Unlock()
	if !frozen {
		carryOut()
	}
}
