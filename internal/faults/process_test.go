package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/child"
	"github.com/etcdlock/etcdlock/internal/side"
)

// ---- the parent's side

// A process is a party that is a process of its own. It can be frozen and killed.
type process struct {
	tr     *trial
	who    string
	use    use
	cmd    *exec.Cmd
	orders io.WriteCloser
	over   chan struct{} // closed when it has ended

	mu     sync.Mutex
	events []event
	more   chan struct{} // closed and made anew with each event
}

// An order is a line to a process.
type order struct {
	Do     string        // lock, unlock, write, run, visit, add
	Bound  time.Duration // of a call, or of a run
	Store  string        // to write to: a URL
	Seed   uint64        // of a run: its seed
	Set    string        // to add to, in an add or a run: a key
	Guards bool          // its writes to the set have a guard
	Stops  bool          // it is frozen between the read and the write of the set
}

// An event is a line from a process.
type event struct {
	// locked, looked, ended, unlocked, failed, renewing, done, closed, stopped, added, refused
	What  string
	At    time.Duration // on the monotonic clock
	Since time.Duration // when the call or the question began, in an event about one
	Token int64         `json:",omitempty"`
	Err   string        `json:",omitempty"`
	Lost  bool          `json:",omitempty"` // the error says that the lock was lost
	Value string        `json:",omitempty"`
}

// process starts a party that reaches etcd at these endpoints.
func (tr *trial) process(who string, ttl time.Duration, endpoints ...string) *process {
	tr.Helper()
	return tr.processFor(exclusive, who, ttl, endpoints...)
}

func (tr *trial) processFor(u use, who string, ttl time.Duration, endpoints ...string) *process {
	tr.Helper()
	self, err := os.Executable()
	require.NoError(tr, err)
	p := &process{tr: tr, who: who, use: u, over: make(chan struct{}), more: make(chan struct{})}
	p.cmd = exec.Command(self, tr.side.Name, tr.name, who, ttl.String(), strings.Join(endpoints, ","),
		string(u))
	halt := 1 // so that a race in the library ends the story
	if tr.side.Name == side.Theirs.Name {
		halt = 0
	}
	p.cmd.Env = append(os.Environ(), roleEnv+"=party", fmt.Sprintf("GORACE=halt_on_error=%d", halt))
	p.cmd.Stderr = tr.Output()
	p.orders, err = p.cmd.StdinPipe()
	require.NoError(tr, err)
	events, err := p.cmd.StdoutPipe()
	require.NoError(tr, err)
	require.NoError(tr, child.Start(p.cmd, syscall.SIGKILL))
	go func() { // ends with the process
		defer close(p.over)
		lines := bufio.NewScanner(events)
		for lines.Scan() {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				p.note(e)
			}
		}
	}()
	tr.Cleanup(p.kill)
	return p
}

func (p *process) note(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
	close(p.more)
	p.more = make(chan struct{})
}

func (p *process) order(o order) {
	p.tr.Helper()
	line, err := json.Marshal(o)
	require.NoError(p.tr, err)
	_, err = p.orders.Write(append(line, '\n'))
	require.NoError(p.tr, err)
}

// said returns the events so far.
func (p *process) said() []event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.events[:len(p.events):len(p.events)]
}

// says waits for an event at or after a time, and returns it.
func (p *process) says(what string, since time.Duration, d time.Duration) (event, bool) {
	deadline := time.After(d)
	next := 0
	for {
		p.mu.Lock()
		events, more := p.events, p.more
		p.mu.Unlock()
		for ; next < len(events); next++ {
			if e := events[next]; e.What == what && e.At >= since {
				return e, true
			}
		}
		select {
		case <-more:
		case <-deadline:
			return event{}, false
		}
	}
}

// locks makes the process lock and work on it: each millisecond it looks whether it holds.
func (p *process) locks() event {
	p.tr.Helper()
	asked := now()
	p.starts()
	e, ok := p.says("locked", asked, patience)
	p.tr.must(ok, "%s has not got in after %v", p.who, patience)
	return e
}

// starts makes the process begin to lock. What it then believes is judged when the trial
// ends.
func (p *process) starts() {
	p.tr.Helper()
	asked := now()
	p.order(order{Do: "lock", Bound: patience})
	p.tr.Cleanup(func() { p.believed(asked) })
}

// believed records the belief of the hold that the process was asked for. It lasts until
// Unlock is called or, if the lock was lost, until the last question that had the answer
// yes: a frozen process cannot know of a loss.
func (p *process) believed(asked time.Duration) {
	var belief *span
	var lastYes time.Duration
	for _, e := range p.said() {
		switch {
		case e.At < asked:
		case belief == nil && e.What == "locked":
			belief, lastYes = p.tr.beginsTo(p.use, p.who, e.Token, e.At), e.At
		case belief == nil:
		case e.What == "looked":
			lastYes = e.Since
		case e.What == "ended":
			p.tr.ends(belief, lastYes, true)
		case e.What == "unlocked":
			p.tr.ends(belief, e.Since, false)
			return
		}
	}
	if belief != nil {
		p.tr.ends(belief, lastYes, false)
	}
}

// releases makes the process unlock, and returns what Unlock said.
func (p *process) releases() event {
	p.tr.Helper()
	asked := now()
	p.order(order{Do: "unlock", Bound: patience})
	e, ok := p.says("unlocked", asked, patience+slack)
	p.tr.must(ok, "%s: Unlock has not returned after %v", p.who, patience+slack)
	return e
}

// writes makes the process write to a store with the token of its hold. It no longer asks
// whether it still holds.
func (p *process) writes(s *store) {
	p.tr.Helper()
	p.order(order{Do: "write", Store: s.url})
}

func (p *process) freeze() { freeze(p.cmd.Process) }
func (p *process) thaw()   { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// freeze stops a process of ours, and returns once it stands still.
func freeze(p *os.Process) {
	_ = p.Signal(syscall.SIGSTOP) // fails if it has ended
	_ = unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
}

// kill ends the process at once, if it runs, and waits until all that it said has come.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.over
	_ = p.cmd.Wait() // says only that it was killed
}

// looks returns the times, from one on, at which the process asked and the answer was that
// it holds. Each is a unit of work that may begin.
func (p *process) looks(from time.Duration) (asked []time.Duration) {
	for _, e := range p.said() {
		if e.What == "looked" && e.Since >= from {
			asked = append(asked, e.Since)
		}
	}
	return asked
}

// firstLook is when the process first asked after it was thawed, or went on with a question
// in which it was frozen.
func (p *process) firstLook(thawed time.Duration) time.Duration {
	for _, e := range p.said() {
		if (e.What == "looked" || e.What == "ended") && e.At >= thawed {
			return max(e.Since, thawed)
		}
	}
	return thawed
}

// ---- the child's side

// beParty carries out orders until there are no more.
func beParty(orders io.Reader, events io.Writer) error {
	if len(os.Args) != 7 {
		return fmt.Errorf("%d arguments instead of 6: side, name, who, ttl, endpoints, use",
			len(os.Args)-1)
	}
	s, name, who := sideNamed(os.Args[1]), os.Args[2], os.Args[3]
	ttl, err := time.ParseDuration(os.Args[4])
	if err != nil {
		return err
	}
	w := &worker{side: s, who: who, out: json.NewEncoder(events)}
	w.client, err = clientv3.New(clientv3.Config{
		Endpoints:   strings.Split(os.Args[5], ","),
		Logger:      zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(w.tellsRenewals)},
	})
	if err != nil {
		return err
	}
	if w.lock, err = opensFor(use(os.Args[6]), s, w.client, name, who, ttl); err != nil {
		return err
	}
	for in := json.NewDecoder(orders); ; {
		var o order
		if err := in.Decode(&o); err != nil {
			return nil // the parent is gone
		}
		switch o.Do {
		case "lock":
			if w.enters(w.lock.Lock, o.Bound) {
				w.leave, w.left = make(chan struct{}), make(chan struct{})
				go w.works() // ends with rests, or with the process
			}
		case "unlock":
			w.unlocks(o.Bound)
		case "write":
			w.rests()
			go w.writes(o.Store, w.lock.Token()) // ends with the process
		case "run":
			w.runs(o)
		case "visit":
			w.visits(o.Bound)
		case "add":
			w.adds(o, o.Stops)
		}
	}
}

type worker struct {
	side   side.Side
	lock   *lock
	client *clientv3.Client
	who    string

	leave, left chan struct{} // of works, nil while it does not run
	ended       bool          // the hold has ended; owned by whoever asks

	mu  sync.Mutex
	out *json.Encoder
}

func (w *worker) tell(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.At == 0 {
		e.At = now()
	}
	_ = w.out.Encode(e) // fails only if the parent is gone
}

// enters calls Lock or TryLock, and reports whether it said nil.
func (w *worker) enters(call func(context.Context) error, bound time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	since := now()
	err := call(ctx)
	if err != nil {
		w.tell(event{What: "failed", Since: since, Err: err.Error()})
		return false
	}
	w.ended = false
	w.tell(event{What: "locked", Since: since, Token: w.lock.Token()})
	return true
}

// works asks each millisecond whether it holds the lock.
func (w *worker) works() {
	defer close(w.left)
	for {
		w.asks()
		select {
		case <-w.leave:
			return
		default:
		}
		// It sleeps in the kernel, so it may look before any timer of this process has run.
		_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(time.Millisecond)}, nil)
	}
}

// asks asks whether the lock is held, and reports a yes: a unit of work begins. It reports
// the first no, too.
func (w *worker) asks() (holds bool) {
	e := event{What: "looked", Since: now()}
	holds = w.lock.Holds()
	e.At = now()
	switch {
	case holds:
		w.tell(e)
	case !w.ended:
		w.ended, e.What = true, "ended"
		w.tell(e)
	}
	return holds
}

// rests ends works, if it runs.
func (w *worker) rests() {
	if w.leave != nil {
		close(w.leave)
		<-w.left
		w.leave = nil
	}
}

// writes writes to a store. It no longer asks whether the lock is held.
func (w *worker) writes(store string, token int64) {
	for {
		write := url.Values{"who": {w.who}, "token": {fmt.Sprint(token)}}
		if resp, err := http.PostForm(store, write); err == nil {
			resp.Body.Close() // the parent judges what the store says
		}
		time.Sleep(time.Millisecond)
	}
}

// tellsRenewals reports each request to renew a lease. (What opens a stream sends a second message
// at once, which asks for no lease.)
func (w *worker) tellsRenewals(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || !strings.HasSuffix(method, "/LeaseKeepAlive") {
		return s, err
	}
	return renewals{s, w}, nil
}

type renewals struct {
	grpc.ClientStream
	w *worker
}

func (r renewals) SendMsg(m any) error {
	err := r.ClientStream.SendMsg(m)
	if m.(*pb.LeaseKeepAliveRequest).ID > 0 {
		r.w.tell(event{What: "renewing"})
	}
	return err
}

func (w *worker) unlocks(bound time.Duration) error {
	w.rests()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	since := now()
	err := w.lock.Unlock(ctx)
	e := event{What: "unlocked", Since: since}
	if err != nil {
		e.Err, e.Lost = err.Error(), w.side.Lost(err)
	}
	w.tell(e)
	return err
}
