package matrix

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/matrix/door"
	"github.com/etcdlock/etcdlock/internal/side"
)

const (
	patience = 60 * time.Second // bounds what must come, far above what it takes
	soon     = 10 * time.Second // bounds what must come soon, on a busy machine
	slack    = 2 * time.Second  // for what has a bound of its own
	lasting  = 60 * time.Second // TTL of those that must not lose their lease
)

// A world is a running setup of a version.
type world struct {
	setup   setup
	version *version
	cluster *cluster
	door    door.Door        // of the library and of its company
	admin   *clientv3.Client // of root, who sees the names as they are in etcd
}

// A lock is a Mutex of the library with a Session of its own, or a stand-in for it.
type lock interface {
	side.Mutex
	Close(context.Context) error
}

// An opener opens a lock for a use.
type opener func(client *clientv3.Client, name string, ttl time.Duration, u use) (lock, error)

func ours(client *clientv3.Client, name string, ttl time.Duration, u use) (lock, error) {
	if u == exclusive {
		mu, err := etcdlock.NewMutex(client, name, etcdlock.WithTTL(ttl))
		return side.OurMutex{Mutex: mu}, err
	}
	return u.open(client, name, ttl)
}

// A trial is one run of a story, about one lock.
type trial struct {
	*world
	t    testing.TB // of the setup; a story that fails need not fail it
	name string     // of the lock, as the library's clients see it
	open opener

	belief *contract.Belief

	*report
}

// A report is about all names of a story.
type report struct {
	cleanups []func() // owned by the story

	mu  sync.Mutex
	why []string // what is wrong with the lock
}

// plays tells a story, and returns what was wrong, or nothing.
func (w *world) plays(t testing.TB, name string, st story, open opener) []string {
	tr := &trial{world: w, t: t, name: name, open: open, report: new(report)}
	tr.belief = contract.NewBelief(tr)
	over := make(chan struct{})
	go func() { // in a goroutine of its own, so that must can end it
		defer close(over)
		defer func() {
			for i := len(tr.cleanups) - 1; i >= 0; i-- {
				tr.cleanups[i]()
			}
		}()
		st.tell(tr)
		tr.lineIs(0)
	}()
	<-over
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.why
}

// second is the other name for those that want two at once.
func (tr *trial) second() *trial {
	other := &trial{world: tr.world, t: tr.t, name: second(tr.name), open: tr.open, report: tr.report}
	other.belief = contract.NewBelief(other)
	return other
}

func second(name string) string { return name + "-2" }

func (tr *trial) cleanup(f func()) { tr.cleanups = append(tr.cleanups, f) }

// bounded is a context that ends with the story at the latest.
func (tr *trial) bounded(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	tr.cleanup(cancel)
	return ctx
}

// Errorf records that something is wrong.
func (tr *trial) Errorf(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.why = append(tr.why, fmt.Sprintf(format, args...))
}

func (tr *trial) Helper() {}

// must ends the story unless all is well. The story's goroutine calls it.
func (tr *trial) must(ok bool, format string, args ...any) {
	if !ok {
		tr.Errorf(format, args...)
		runtime.Goexit()
	}
}

// full is the name as it is in etcd.
func (tr *trial) full() string { return tr.setup.namespace + tr.name }

// line returns the contenders in line, as root sees them.
func (tr *trial) line() (line []etcdlock.Contender) {
	var err error
	// an election, or a token that a member does not know yet
	answers := contract.Eventually(soon, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		line, err = etcdlock.Contenders(ctx, tr.admin, tr.full())
		return err == nil
	})
	tr.must(answers, "etcd does not answer root: %v", err)
	return line
}

// lineIs waits until n contenders hold and wait, and returns them.
func (tr *trial) lineIs(n int) (line []etcdlock.Contender) {
	is := contract.Eventually(soon, func() bool {
		line = tr.line()
		return len(line) == n
	})
	tr.must(is, "the line is %d and not %d long", len(line), n)
	return line
}

// A party is a contender by the library, with a client of its own.
type party struct {
	lock
	tr      *trial
	who     string
	use     use
	hold    context.Context // the last one
	refused atomic.Int32    // requests refused because of a token that is no longer valid
	writes  atomic.Int32    // requests that wrote a key
}

func (tr *trial) party(who string, ttl time.Duration) *party {
	return tr.partyFor(exclusive, who, ttl)
}

func (tr *trial) partyFor(u use, who string, ttl time.Duration) *party {
	p := &party{tr: tr, who: who, use: u}
	client, err := tr.door.Dial(grpc.WithChainUnaryInterceptor(p.counts))
	tr.must(err == nil, "%s: dial: %v", who, err)
	tr.cleanup(func() { client.Close() })
	p.lock, err = tr.open(client, tr.name, ttl, u)
	tr.must(err == nil, "%s: open the lock: %v", who, err)
	tr.cleanup(func() { p.lock.Close(tr.bounded(soon)) })
	return p
}

// counts stands below the client's own interceptor, which asks for a new token and tries
// again.
func (p *party) counts(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if errors.Is(rpctypes.Error(err), rpctypes.ErrInvalidAuthToken) {
		p.refused.Add(1)
	}
	if txn, is := reply.(*pb.TxnResponse); is && err == nil &&
		slices.ContainsFunc(txn.Responses, hasPut) {
		p.writes.Add(1)
	}
	return err
}

func hasPut(r *pb.ResponseOp) bool { return r.GetResponsePut() != nil }

// locks gets the lock at once: nobody has it.
func (p *party) locks() {
	err := p.Lock(p.tr.bounded(soon))
	p.tr.must(err == nil, "%s: Lock: %v", p.who, err)
	p.believes()
}

// believes records the hold that has begun.
func (p *party) believes() {
	p.hold = p.Hold()
	enter := p.tr.belief.EnterUntil
	if p.use.shares() {
		enter = p.tr.belief.ReadUntil
	}
	enter(p.hold, p.who, p.Token())
}

// unlocks releases what was held without a break.
func (p *party) unlocks() {
	p.tr.belief.Leave(p.who)
	err := p.Unlock(p.tr.bounded(soon))
	p.tr.must(err == nil, "%s: Unlock: %v", p.who, err)
}

// unlockSaysLost unlocks what was lost.
func (p *party) unlockSaysLost() {
	p.tr.belief.Leave(p.who)
	err := p.Unlock(p.tr.bounded(soon))
	p.tr.must(errors.Is(err, etcdlock.ErrLost), "%s: Unlock of what was lost: %v", p.who, err)
}

// isRefused makes the party try to get the lock while contenders hold or wait for it. Each
// of them is in its way, and its try leaves nothing behind.
func (p *party) isRefused() {
	line, writes := p.tr.line(), p.writes.Load()
	err := p.TryLock(p.tr.bounded(soon))
	_, is := errors.AsType[*etcdlock.LockedError](err)
	p.tr.must(errors.Is(err, etcdlock.ErrLocked) && is, "%s: TryLock of what is taken: %v", p.who, err)
	p.tr.must(p.writes.Load() == writes, "%s: a TryLock of what is taken has written", p.who)
	p.tr.lineIs(len(line))
}

// A wait is a call of Lock under way.
type wait struct {
	p      *party
	cancel context.CancelFunc
	done   chan error
}

// ends waits until the party knows that its hold is over, and why.
func (p *party) ends(why error) {
	select {
	case <-p.hold.Done():
		cause := context.Cause(p.hold)
		p.tr.must(errors.Is(cause, why), "%s: the hold's context ended by %v", p.who, cause)
	case <-time.After(soon):
		p.tr.must(false, "%s: the hold has not ended after %v", p.who, soon)
	}
}

// lineStays checks that n contenders hold and wait for longer than a release would take.
func (tr *trial) lineStays(n int) {
	changes := contract.Eventually(time.Second, func() bool { return len(tr.line()) != n })
	tr.must(!changes, "the line does not stay %d long", n)
}

// waits makes the party queue, and returns when it stands in line.
func (p *party) waits() *wait {
	line := p.tr.line()
	w := p.begins()
	queues := contract.Eventually(soon, func() bool {
		return len(w.done) > 0 || len(p.tr.line()) == len(line)+1
	})
	w.stillWaits()
	p.tr.must(queues, "%s does not stand in line after %v", p.who, soon)
	return w
}

// begins makes the party call Lock.
func (p *party) begins() *wait {
	ctx, cancel := context.WithCancel(p.tr.bounded(patience))
	w := &wait{p, cancel, make(chan error, 1)}
	go func() { // ends with ctx at the latest
		err := p.Lock(ctx)
		if err == nil {
			p.believes()
		}
		w.done <- err
	}()
	return w
}

func (w *wait) stillWaits() {
	select {
	case err := <-w.done:
		w.p.tr.must(false, "%s does not wait: Lock: %v", w.p.who, err)
	default:
	}
}

func (w *wait) getsIn(d time.Duration) {
	select {
	case err := <-w.done:
		w.p.tr.must(err == nil, "%s waited: Lock: %v", w.p.who, err)
	case <-time.After(d):
		w.p.tr.must(false, "%s does not get in after %v", w.p.who, d)
	}
}

// givesUp ends the wait.
func (w *wait) givesUp() {
	w.cancel()
	select {
	case err := <-w.done:
		w.p.tr.must(errors.Is(err, context.Canceled), "%s gave up: Lock: %v", w.p.who, err)
	case <-time.After(soon):
		w.p.tr.must(false, "%s gave up: Lock has not returned after %v", w.p.who, soon)
	}
}
