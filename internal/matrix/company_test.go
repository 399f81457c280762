package matrix

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/child"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/matrix/door"
	"github.com/etcdlock/etcdlock/internal/proof/v3lock"
	"github.com/etcdlock/etcdlock/internal/side"
)

const (
	briefly = 3 * time.Second // TTL of those that crash
	// An expired lease is revoked half a second later at the latest. An election, or a busy
	// machine, takes longer.
	expiry = briefly + soon
)

// A guest is another kind of contender that may stand in the same line.
type guest struct {
	name  string
	comes func(*trial, *visit, time.Duration) error
}

// visits makes a guest of this kind queue.
func (g guest) visits(tr *trial, which string, ttl time.Duration) *visit {
	return tr.visits(g.name+" "+which, g.comes, ttl)
}

// guests use names as they are in etcd.
var guests = []guest{
	{"etcdctl lock", etcdctl},
	{"v3lock", service},
	{"concurrency.Mutex", library},
}

// A visit is one hold of a guest, from its queuing on.
type visit struct {
	tr   *trial
	who  string
	told chan struct{} // if not nil, closed once it knows that it stands in line
	in   chan struct{} // closed once it holds
	out  chan error    // gets its last error

	leave  func() // asks it to release
	cancel func() // asks it to wait no longer
	crash  func() // ends it, and whatever renews its lease
}

// visits makes a guest queue. It returns when the guest stands in line, and knows that if
// that matters: a concurrency.Mutex whose context ends before the answer to its put leaves
// its key behind.
func (tr *trial) visits(
	who string, comes func(*trial, *visit, time.Duration) error, ttl time.Duration,
) *visit {
	line := tr.line()
	v := &visit{tr: tr, who: who, in: make(chan struct{}), out: make(chan error, 1)}
	err := comes(tr, v, ttl)
	tr.must(err == nil, "%s: %v", who, err)
	queues := contract.Eventually(soon, func() bool {
		if len(v.out) > 0 {
			return true
		}
		return len(tr.line()) == len(line)+1
	})
	tr.must(queues, "%s does not stand in line after %v", who, soon)
	if len(v.out) > 0 {
		tr.must(false, "%s: %v", who, <-v.out)
	}
	if v.told != nil {
		select {
		case <-v.told:
		case <-time.After(soon):
			tr.must(false, "%s has no answer after %v", who, soon)
		}
	}
	return v
}

// entered records that the guest holds.
func (v *visit) entered() {
	v.tr.belief.Enter(v.who, 0)
	close(v.in)
}

func (v *visit) stillWaits() {
	select {
	case <-v.in:
		v.tr.must(false, "%s does not wait", v.who)
	default:
	}
}

func (v *visit) getsIn(d time.Duration) {
	select {
	case <-v.in:
	case err := <-v.out:
		v.tr.must(false, "%s has ended: %v", v.who, err)
	case <-time.After(d):
		v.tr.must(false, "%s does not get in after %v", v.who, d)
	}
}

// leaves makes the guest release. That must succeed.
func (v *visit) leaves() {
	v.tr.belief.Leave(v.who)
	v.leave()
	err := v.ends()
	v.tr.must(err == nil, "%s left: %v", v.who, err)
}

// givesUp makes the guest wait no longer.
func (v *visit) givesUp() {
	v.cancel()
	_ = v.ends() // each guest has its own words for it
	v.stillWaits()
}

// ends waits for the guest's last error.
func (v *visit) ends() error {
	select {
	case err := <-v.out:
		return err
	case <-time.After(soon):
		v.tr.must(false, "%s does not end after %v", v.who, soon)
		return nil
	}
}

// crashes ends the guest. Its key stays until its lease has run out.
func (v *visit) crashes() {
	v.tr.belief.Leave(v.who)
	v.crash()
}

// outside is the door without its namespace, for guests. Simple tokens stay with one
// member: another member may not know a guest's token yet, and the guest does not repeat
// some of its requests then.
func (tr *trial) outside() door.Door {
	d := tr.door
	d.Namespace = ""
	if tr.setup.token == "simple" {
		d.Endpoints = d.Endpoints[:1]
	}
	return d
}

// etcdctl runs etcdctl lock, which prints its key when it holds, and holds until it is
// interrupted.
func etcdctl(tr *trial, v *visit, ttl time.Duration) error {
	seconds := strconv.Itoa(int(ttl / time.Second))
	cmd := exec.Command(tr.version.program(tr.t, "etcdctl"),
		append(tr.outside().Args(), "lock", "--ttl", seconds, tr.full())...)
	return v.runs(cmd)
}

// process runs the library as a process of its own.
func process(tr *trial, v *visit, ttl time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	how, err := json.Marshal(holder{tr.door, tr.name, ttl})
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), holderEnv+"="+string(how))
	return v.runs(cmd)
}

// runs starts a program that prints a line when it holds.
func (v *visit) runs(cmd *exec.Cmd) error {
	var said bytes.Buffer
	cmd.Stderr = &said
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(cmd, syscall.SIGKILL); err != nil {
		return err
	}
	over := make(chan struct{})
	go func() { // ends with the program
		defer close(over)
		for first, lines := true, bufio.NewScanner(lines); lines.Scan(); first = false {
			if first {
				v.entered()
			}
		}
		err := cmd.Wait()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(said.Bytes()))
		}
		v.out <- err
	}()
	v.leave = func() { _ = cmd.Process.Signal(os.Interrupt) }
	v.cancel = v.leave
	v.crash = func() { _ = cmd.Process.Kill() }
	v.tr.cleanup(func() {
		v.crash()
		<-over
	})
	return nil
}

// service makes the server take the lock for its caller, who renews the lease.
func service(tr *trial, v *visit, ttl time.Duration) error {
	client, err := tr.outside().Dial()
	if err != nil {
		return err
	}
	tr.cleanup(func() { client.Close() })
	mu, err := v3lock.New(tr.bounded(soon), client, tr.full(), ttl)
	if err != nil {
		return err
	}
	v.holds(client, mu)
	return nil
}

// library is etcd's own concurrency.Mutex.
func library(tr *trial, v *visit, ttl time.Duration) error {
	v.told = make(chan struct{})
	told := sync.OnceFunc(func() { close(v.told) })
	put := func(
		ctx context.Context, method string, req, reply any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if err == nil && method == pb.KV_Txn_FullMethodName {
			told()
		}
		return err
	}
	client, err := tr.outside().Dial(grpc.WithChainUnaryInterceptor(put))
	if err != nil {
		return err
	}
	tr.cleanup(func() { client.Close() })
	session, err := side.Theirs.Open(client, ttl)
	if err != nil {
		return err
	}
	mu, err := session.Mutex(tr.full())
	if err != nil {
		return err
	}
	v.holds(client, mu)
	return nil
}

// A mutex is what etcd's own lock and its lock service have in common.
type mutex interface {
	Lock(context.Context) error
	Unlock(context.Context) error
}

// holds locks, and unlocks when it is asked to leave.
func (v *visit) holds(client *clientv3.Client, mu mutex) {
	ctx := v.tr.bounded(patience)
	waiting, cancel := context.WithCancel(ctx)
	left := make(chan struct{})
	go func() { // ends with ctx at the latest
		if err := mu.Lock(waiting); err != nil {
			v.out <- err
			return
		}
		v.entered()
		select {
		case <-left:
			v.out <- mu.Unlock(ctx)
		case <-ctx.Done():
			v.out <- ctx.Err()
		}
	}()
	v.leave, v.cancel = sync.OnceFunc(func() { close(left) }), cancel
	v.crash = func() { client.Close() }
}

// A holder says what a process holds, and how.
type holder struct {
	Door door.Door
	Name string
	TTL  time.Duration
}

// holderEnv makes this binary a holder. Its value is the holder as JSON.
const holderEnv = "ETCDLOCK_MATRIX_HOLDER"

// hold locks, prints a line, and waits to be killed.
func hold(how string, out io.Writer) error {
	var h holder
	if err := json.Unmarshal([]byte(how), &h); err != nil {
		return err
	}
	client, err := h.Door.Dial()
	if err != nil {
		return err
	}
	mu, err := ours(client, h.Name, h.TTL, exclusive)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, mu.Token())
	<-ctx.Done()
	return errors.New("nobody has killed the holder")
}

// companyStories are about one lock for which the library and a guest contend.
func companyStories() (all []story) {
	for _, guest := range append(guests[:len(guests):len(guests)], oldClients...) {
		come := guest.visits
		all = append(all,
			// a locks, a guest waits, b waits, another guest waits | each gets in when its
			// turn comes, and c's TryLock does not while the first guest is in.
			story{name: guest.name + ": first come, first served", tell: func(tr *trial) {
				a, b, c := tr.party("a", lasting), tr.party("b", lasting), tr.party("c", lasting)
				a.locks()
				second := come(tr, "2", lasting)
				third := b.waits()
				fourth := come(tr, "4", lasting)
				second.stillWaits()
				a.unlocks()
				second.getsIn(soon)
				err := c.TryLock(tr.bounded(soon))
				tr.must(err != nil, "c's TryLock got what %s holds", second.who)
				third.stillWaits()
				second.leaves()
				third.getsIn(soon)
				fourth.stillWaits()
				b.unlocks()
				fourth.getsIn(soon)
				fourth.leaves()
			}},
			// a locks, a guest waits for longer than a token lives | a unlocks, the guest gets in.
			story{name: guest.name + ": a wait longer than the token", tell: func(tr *trial) {
				a := tr.party("a", lasting)
				a.locks()
				next := come(tr, "2", lasting)
				time.Sleep(tokenLife + slack)
				next.stillWaits()
				a.unlocks()
				next.getsIn(soon)
				next.leaves()
			}},
			// Waiters that gave up let those behind them in, either way.
			story{name: guest.name + ": waits that are cancelled", tell: func(tr *trial) {
				a, b := tr.party("a", lasting), tr.party("b", lasting)
				a.locks()
				second := come(tr, "2", lasting)
				third := b.waits()
				second.givesUp()
				tr.lineIs(2)
				third.stillWaits()
				a.unlocks()
				third.getsIn(soon)

				second = come(tr, "5", lasting)
				cancelled := a.waits()
				fourth := come(tr, "6", lasting)
				b.unlocks()
				second.getsIn(soon)
				cancelled.givesUp()
				tr.lineIs(2)
				fourth.stillWaits()
				second.leaves()
				fourth.getsIn(soon)
				fourth.leaves()
			}},
			// Processes that crash, holding or waiting, let those behind them in once their
			// lease has run out, either way.
			story{name: guest.name + ": crashes", tell: func(tr *trial) {
				a, b := tr.party("a", lasting), tr.party("b", lasting)
				first := come(tr, "1", briefly)
				first.getsIn(soon)
				next := a.waits()
				first.crashes()
				next.getsIn(soon)

				second := come(tr, "2", briefly)
				next = b.waits()
				second.crashes()
				a.unlocks()
				next.getsIn(soon)
				b.unlocks()

				of := tr.visits("a process of the library", process, briefly)
				of.getsIn(soon)
				last := come(tr, "3", lasting)
				of.crashes()
				last.getsIn(expiry)
				last.leaves()
			}},
		)
	}
	return all
}
