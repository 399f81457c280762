package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/etcdlock/etcdlock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	// lockPrefix is what the names of all locks begin with.
	lockPrefix = "stock/"

	// inFlight is how many requests a worker works on at once.
	inFlight = 8

	// endGrace is the time in which a worker must end by itself after its input has ended.
	endGrace = closeTimeout + 2*time.Second

	// dialTimeout bounds what the parent asks etcd.
	dialTimeout = 5 * time.Second
)

// A sale is the parent's side. The goroutine that calls run owns everything in it. The
// others only send on events.
type sale struct {
	cfg      config
	shop     shop
	endpoint string           // of etcd, "" without a lock
	client   *clientv3.Client // nil without a lock
	out      io.Writer

	workers []*process
	events  chan event // run receives from it until all workers have ended
	pending []int      // requests that no worker has, in order
	answers map[int]record

	crash         *crash // nil until a holder was killed
	began, ended  time.Time
	releaseErrors []string
	notes         []string // for the reader of the report
	faults        []string // what the judge cannot see
}

// A process is a worker as the parent sees it.
type process struct {
	number int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	send   *json.Encoder // to stdin

	ready, ended bool
	has          map[int]bool // requests sent and not answered
}

func (p *process) String() string {
	return fmt.Sprintf("worker %d (pid %d)", p.number, p.cmd.Process.Pid)
}

// An event is a message of a worker, or its end.
type event struct {
	from    *process
	message message
	ended   bool
}

// A crash is what is known about the holder that was killed.
type crash struct {
	victim *process
	token  int64
	ttl    time.Duration // granted by etcd, which may be more than asked for
	at     time.Time
}

// run starts the workers, hands out the requests until each is answered, and
// ends the workers, whatever happens.
func (s *sale) run(ctx context.Context) (err error) {
	defer s.end()
	for id := range s.cfg.requests {
		s.pending = append(s.pending, id+1)
	}
	for number := range s.cfg.workers {
		if err := s.start(number + 1); err != nil {
			return fmt.Errorf("starting worker %d: %w", number+1, err)
		}
	}

	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for len(s.answers) < s.cfg.requests {
		select {
		case ev := <-s.events:
			if err := s.handle(ctx, ev); err != nil {
				return err
			}
		case <-ticker.C:
			fmt.Fprintf(s.out, "%d of %d requests answered\n", len(s.answers), s.cfg.requests)
		case <-ctx.Done():
			return fmt.Errorf("%w, %d of %d requests answered",
				context.Cause(ctx), len(s.answers), s.cfg.requests)
		}
	}
	s.ended = time.Now()
	return nil
}

// start starts the program again as a worker.
func (s *sale) start(number int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p := &process{number: number, cmd: exec.Command(self), has: make(map[int]bool)}
	p.cmd.Env = append(os.Environ(), workerEnv+"=1")
	p.cmd.Stderr = os.Stderr // nothing, unless a worker panics
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	s.workers = append(s.workers, p)

	// It ends after the process has. end waits for it: it receives until then.
	go func() {
		messages := json.NewDecoder(stdout)
		for {
			var m message
			err := messages.Decode(&m)
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				break
			}
			if err != nil {
				s.events <- event{from: p, message: message{Error: "not a message: " + err.Error()}}
				_, _ = io.Copy(io.Discard, stdout)
				break
			}
			s.events <- event{from: p, message: m}
		}
		_ = p.cmd.Wait() // ProcessState says it all
		s.events <- event{from: p, ended: true}
	}()

	p.send = json.NewEncoder(p.stdin)
	return p.send.Encode(setup{
		Worker:   number,
		Dir:      s.shop.dir,
		Articles: s.shop.articles,
		Endpoint: s.endpoint,
		TTL:      s.cfg.ttl,
	})
}

// handle does what follows from an event. An error ends the sale.
func (s *sale) handle(ctx context.Context, ev event) error {
	p, m := ev.from, ev.message
	switch {
	case ev.ended:
		p.ended = true
		if s.crash == nil || s.crash.victim != p {
			s.notes = append(s.notes,
				fmt.Sprintf("%v ended early (%v); others took over", p, p.cmd.ProcessState))
		}
		if err := s.resolve(p); err != nil {
			return err
		}
		if len(s.answers) < s.cfg.requests && !s.anyAlive() {
			return fmt.Errorf("no worker is left, the last was %v: %v", p, p.cmd.ProcessState)
		}
	case m.Error != "":
		return fmt.Errorf("%v: %s", p, m.Error)
	case m.Ready:
		p.ready = true
	case m.Holding != 0:
		if s.crash == nil {
			return s.kill(ctx, p, m.Holding)
		}
	case m.Answer != nil:
		s.answers[m.Answer.Request] = *m.Answer
		delete(p.has, m.Answer.Request)
		if m.ReleaseError != "" {
			s.releaseErrors = append(s.releaseErrors, m.ReleaseError)
		}
	}
	s.handOut()
	return nil
}

// handOut gives the workers as much to do as they may have at once, in turn. It waits until
// all are there: the sale opens for everybody at the same time.
func (s *sale) handOut() {
	for _, p := range s.workers {
		if !p.ready && !p.ended {
			return
		}
	}
	if s.began.IsZero() {
		s.began = time.Now()
	}
	for gave := true; gave; {
		gave = false
		for _, p := range s.workers {
			if len(s.pending) == 0 || p.ended || len(p.has) == inFlight {
				continue
			}
			id := s.pending[0]
			s.pending = s.pending[1:]
			p.has[id] = true
			// The end of a worker that cannot read any more is an event of its own.
			_ = p.send.Encode(request{ID: id, Stall: s.crash == nil && id == s.stallAt()})
			gave = true
		}
	}
}

// stallAt is the request whose worker -crash kills, after about a third of the sale; 0
// means none.
func (s *sale) stallAt() int {
	if !s.cfg.crash {
		return 0
	}
	return max(1, min(s.cfg.requests, s.cfg.stock)/3)
}

// resolve decides what became of the requests that an ended worker had. The journal knows:
// with a record, the request is answered, even if the answer did not get here. Without a
// record it did not happen, and goes to the others.
func (s *sale) resolve(p *process) error {
	if len(p.has) == 0 {
		return nil
	}
	journal, err := s.shop.records()
	if err != nil {
		return err
	}
	for _, r := range journal {
		if p.has[r.Request] {
			s.answers[r.Request] = r
			delete(p.has, r.Request)
		}
	}
	s.pending = append(slices.Sorted(maps.Keys(p.has)), s.pending...)
	clear(p.has)
	return nil
}

// kill ends a worker that says that it holds the lock, if etcd says so too.
func (s *sale) kill(ctx context.Context, p *process, token int64) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	line, err := etcdlock.Contenders(ctx, s.client, lockOf(0))
	if err != nil {
		return err
	}
	if len(line) == 0 || line[0].Token != token {
		return nil // the hold is over; the worker tries again, and says so again
	}
	lease, err := s.client.TimeToLive(ctx, line[0].Lease)
	if err != nil {
		return err
	}

	s.crash = &crash{
		victim: p,
		token:  token,
		ttl:    time.Duration(lease.GrantedTTL) * time.Second,
		at:     time.Now(),
	}
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("killing %v: %w", p, err)
	}
	fmt.Fprintf(s.out, "%v holds the lock, has read the stock\n"+
		"and has not written it: killed. Processes in line behind it: %d.\n", p, len(line)-1)
	return nil
}

func (s *sale) anyAlive() bool {
	return slices.ContainsFunc(s.workers, func(p *process) bool { return !p.ended })
}

// end ends every worker that is still there, and returns when none is. It closes their
// input, and kills those that do not end by that.
func (s *sale) end() {
	for _, p := range s.workers {
		p.stdin.Close()
	}
	grace := time.After(endGrace)
	for s.anyAlive() {
		select {
		case ev := <-s.events:
			switch {
			case ev.ended:
				ev.from.ended = true
				if state := ev.from.cmd.ProcessState; !state.Success() {
					s.faults = append(s.faults, fmt.Sprintf("%v did not end by itself: %v", ev.from, state))
				}
			case ev.message.Error != "":
				s.faults = append(s.faults, fmt.Sprintf("%v: %s", ev.from, ev.message.Error))
			}
		case <-grace:
			for _, p := range s.workers {
				if !p.ended {
					_ = p.cmd.Process.Kill()
				}
			}
		}
	}
}

// connect returns a client of the run's own etcd.
func connect(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
}
