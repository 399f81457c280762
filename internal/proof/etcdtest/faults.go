package etcdtest

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/etcdlock/etcdlock/internal/contract"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A Fault is what happens to calls of one method. It is a value: Times and When return a
// changed copy. Methods have their short names, such as "Txn", "Range", "LeaseGrant",
// "LeaseKeepAlive" and "Watch"; "*" is every method. A fault of a name that etcd does not
// have panics.
//
// On the streams, LeaseKeepAlive and Watch, a fault strikes single messages. Where a unary
// call would return an error, the stream ends with it.
type Fault struct {
	kind   kind
	method string
	code   codes.Code
	delay  time.Duration
	times  int // 0: without a limit
	when   []Match
}

type kind int

const (
	dropRequest kind = iota
	swallowRequest
	holdRequest
	delayRequest
	lateRequest
	dropReply
	swallowReply
	holdReply
	delayReply
)

var kindNames = [...]string{
	"DropRequest", "SwallowRequest", "HoldRequest", "Delay", "LateRequest",
	"DropReply", "SwallowReply", "HoldReply", "DelayReply",
}

func (k kind) onRequest() bool { return k <= lateRequest }

// DropRequest fails the call; it never reaches the server.
func DropRequest(method string, code codes.Code) Fault {
	return fault(Fault{kind: dropRequest, method: method, code: code})
}

// SwallowRequest makes the call vanish. It never reaches the server, and its caller waits
// until its context ends. After Heal the call fails as Unavailable instead, as on a
// connection that turned out to be dead. (A message to a stream is lost without a sign.)
func SwallowRequest(method string) Fault {
	return fault(Fault{kind: swallowRequest, method: method})
}

// HoldRequest keeps the call back until Heal. If its context ends before, the call never
// reaches the server.
func HoldRequest(method string) Fault {
	return fault(Fault{kind: holdRequest, method: method})
}

// Delay sends the call d later, unless its context ends before.
func Delay(method string, d time.Duration) Fault {
	return fault(Fault{kind: delayRequest, method: method, delay: d})
}

// LateRequest fails the call at once, but the request is still on its way: it reaches the
// server at Heal, and Heal waits for it. It is for unary calls only.
func LateRequest(method string, code codes.Code) Fault {
	if contract.IsStream(method) {
		panic("etcdtest: LateRequest of the stream " + method)
	}
	return fault(Fault{kind: lateRequest, method: method, code: code})
}

// DropReply runs the call on the server and then fails it: the answer is lost after the
// commit.
func DropReply(method string, code codes.Code) Fault {
	return fault(Fault{kind: dropReply, method: method, code: code})
}

// SwallowReply runs the call on the server and never answers. The caller waits until its
// context ends, or fails as Unavailable after Heal. (A message from a stream is lost
// without a sign, and the next one comes through.)
func SwallowReply(method string) Fault {
	return fault(Fault{kind: swallowReply, method: method})
}

// HoldReply runs the call on the server and keeps the answer back until Heal.
func HoldReply(method string) Fault {
	return fault(Fault{kind: holdReply, method: method})
}

// DelayReply runs the call on the server and hands over the answer d later.
func DelayReply(method string, d time.Duration) Fault {
	return fault(Fault{kind: delayReply, method: method, delay: d})
}

// Times limits the fault to the first n calls or messages that match.
func (f Fault) Times(n int) Fault {
	if n <= 0 {
		panic(fmt.Sprintf("etcdtest: a fault %d times", n))
	}
	f.times = n
	return f
}

// When limits the fault to calls or messages that m accepts too.
func (f Fault) When(m Match) Fault {
	f.when = append(slices.Clip(f.when), m)
	return f
}

// String writes the fault as the code made it: DropReply(Txn,
// Unavailable).When(puts).Times(1).
func (f Fault) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s(%s", kindNames[f.kind], f.method)
	if f.code != codes.OK {
		fmt.Fprintf(&b, ", %v", f.code)
	}
	if f.delay != 0 {
		fmt.Fprintf(&b, ", %v", f.delay)
	}
	b.WriteString(")")
	for _, m := range f.when {
		fmt.Fprintf(&b, ".When(%s)", m.Name)
	}
	if f.times != 0 {
		fmt.Fprintf(&b, ".Times(%d)", f.times)
	}
	return b.String()
}

// A Match picks calls by their request, and messages on streams by themselves.
type Match struct {
	Name string
	OK   func(msg any) bool
}

var (
	// Puts matches a Put, and a Txn with a put in either branch.
	Puts = Match{"puts", func(msg any) bool {
		_, put := msg.(*pb.PutRequest)
		return put || hasOp(msg, func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil })
	}}

	// Deletes matches a DeleteRange, and a Txn with a delete in either branch.
	Deletes = Match{"deletes", func(msg any) bool {
		_, del := msg.(*pb.DeleteRangeRequest)
		return del || hasOp(msg, func(op *pb.RequestOp) bool { return op.GetRequestDeleteRange() != nil })
	}}

	// Events matches a message of a watch that carries events, unlike the notices of its
	// creation, cancellation or progress.
	Events = Match{"events", func(msg any) bool {
		resp, ok := msg.(*pb.WatchResponse)
		return ok && len(resp.Events) > 0
	}}
)

func hasOp(msg any, match func(*pb.RequestOp) bool) bool {
	txn, ok := msg.(*pb.TxnRequest)
	return ok && (slices.ContainsFunc(txn.Success, match) || slices.ContainsFunc(txn.Failure, match))
}

// Faults are the faults of the clients that were made With them. Any goroutine may inject
// and heal them at any time.
type Faults struct {
	t testing.TB

	mu         sync.Mutex
	injections []*Injection // those not healed, oldest first
}

// NewFaults returns Faults without a fault. They heal when t ends.
func NewFaults(t testing.TB) *Faults {
	f := &Faults{t: t}
	t.Cleanup(f.Heal)
	return f
}

// An Injection is a fault at work.
type Injection struct {
	fault  Fault
	faults *Faults
	struck chan struct{}
	healed chan struct{}

	mu      sync.Mutex
	over    bool // healed: no strike any more
	strikes int
	late    sync.WaitGroup // requests owed to the server; grows under mu until over
}

// Inject sets a fault to work. If several faults match, the oldest comes first, and each
// goes to work on what the one before left of the call.
func (f *Faults) Inject(fault Fault) *Injection {
	i := &Injection{fault: fault, faults: f, struck: make(chan struct{}), healed: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.injections = append(f.injections, i)
	return i
}

// Heal ends all faults: nothing new is struck, and what is held goes on.
func (f *Faults) Heal() {
	f.mu.Lock()
	injections := slices.Clone(f.injections)
	f.mu.Unlock()
	for _, i := range injections {
		i.Heal()
	}
}

// Heal ends this one fault. When it returns, late requests have been answered.
func (i *Injection) Heal() {
	f := i.faults
	f.mu.Lock()
	f.injections = slices.DeleteFunc(f.injections, func(other *Injection) bool { return other == i })
	f.mu.Unlock()

	i.mu.Lock()
	if !i.over {
		i.over = true
		close(i.healed)
	}
	i.mu.Unlock()
	i.late.Wait()
}

// Struck is closed once the fault has struck for the first time: a dropped,
// swallowed or held reply is then already an effect on the server.
func (i *Injection) Struck() <-chan struct{} { return i.struck }

// Strikes returns how often the fault has struck.
func (i *Injection) Strikes() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.strikes
}

// Await waits until the fault has struck n times, and fails the test if it does not.
func (i *Injection) Await(n int) {
	i.faults.t.Helper()
	eventually(i.faults.t, fmt.Sprintf("%v to strike %d times", i, n), func() bool {
		return i.Strikes() >= n
	})
}

// String returns the fault and how often it struck.
func (i *Injection) String() string {
	return fmt.Sprintf("%v (struck %d times)", i.fault, i.Strikes())
}

// strike reports whether the fault hits this message. If so, it counts that.
func (i *Injection) strike(onRequest bool, method string, msg any) bool {
	f := i.fault
	if f.kind.onRequest() != onRequest || f.method != "*" && f.method != path.Base(method) {
		return false
	}
	if f.kind == lateRequest && contract.IsStream(path.Base(method)) {
		return false
	}
	for _, m := range f.when {
		if !m.OK(msg) {
			return false
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over || f.times != 0 && i.strikes == f.times {
		return false
	}
	i.strikes++
	if f.kind == lateRequest {
		i.late.Add(1)
	}
	if i.strikes == 1 {
		close(i.struck)
	}
	return true
}

// wait returns nil when d is over (for a d of 0: when the fault is healed). If the context
// ends before, it returns that end as a call's error. Heal also cuts a delay short.
func (i *Injection) wait(ctx context.Context, d time.Duration) error {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
		return nil
	case <-i.healed:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (i *Injection) error(code codes.Code) error {
	return status.Errorf(code, "etcdtest: %v", i.fault)
}

// striking yields the faults that hit a message, in turn. It asks the next one only after
// the caller is done with the one before.
func (f *Faults) striking(
	onRequest bool, method string, msg any,
) func(yield func(*Injection) bool) {
	return func(yield func(*Injection) bool) {
		f.mu.Lock()
		injections := slices.Clone(f.injections)
		f.mu.Unlock()
		for _, i := range injections {
			if i.strike(onRequest, method, msg) && !yield(i) {
				return
			}
		}
	}
}

func (f *Faults) Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	for i := range f.striking(true, method, req) {
		switch i.fault.kind {
		case dropRequest:
			return i.error(i.fault.code)
		case swallowRequest:
			if err := i.wait(ctx, 0); err != nil {
				return err
			}
			return i.error(codes.Unavailable)
		case holdRequest, delayRequest:
			if err := i.wait(ctx, i.fault.delay); err != nil {
				return err
			}
		case lateRequest:
			go func() { // ended by Heal, which waits for it
				defer i.late.Done()
				<-i.healed
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), contract.Patience)
				defer cancel()
				// The caller is gone: nobody reads the answer, good or bad.
				unread := reply.(proto.Message).ProtoReflect().New().Interface()
				_ = invoke(ctx, method, req, unread, cc)
			}()
			return i.error(i.fault.code)
		}
	}
	if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
		return err
	}
	for i := range f.striking(false, method, req) {
		switch i.fault.kind {
		case dropReply:
			return i.error(i.fault.code)
		case swallowReply:
			if err := i.wait(ctx, 0); err != nil {
				return err
			}
			return i.error(codes.Unavailable)
		case holdReply, delayReply:
			if err := i.wait(ctx, i.fault.delay); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Faults) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
	method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &faultyStream{ClientStream: s, faults: f, method: method, cancel: cancel}, nil
}

// A faultyStream is a stream whose messages pass the faults.
type faultyStream struct {
	grpc.ClientStream
	faults *Faults
	method string
	cancel context.CancelFunc // ends the stream below; called before the last RecvMsg returns

	mu     sync.Mutex
	broken error // what a fault ended the stream with
}

func (s *faultyStream) SendMsg(msg any) error {
	for i := range s.faults.striking(true, s.method, msg) {
		switch i.fault.kind {
		case dropRequest:
			s.end(i.error(i.fault.code))
			return nil // as gRPC does; RecvMsg has the error
		case swallowRequest:
			return nil
		case holdRequest, delayRequest:
			if i.wait(s.Context(), i.fault.delay) != nil {
				return nil // the stream has ended; RecvMsg has the error
			}
		}
	}
	return s.ClientStream.SendMsg(msg)
}

func (s *faultyStream) RecvMsg(msg any) error {
	for {
		if err := s.ClientStream.RecvMsg(msg); err != nil {
			return s.end(err)
		}
		swallowed, err := s.receive(msg)
		if err != nil {
			return s.end(err)
		}
		if !swallowed {
			return nil
		}
	}
}

// receive applies the faults to a message that arrived.
func (s *faultyStream) receive(msg any) (swallowed bool, err error) {
	for i := range s.faults.striking(false, s.method, msg) {
		switch i.fault.kind {
		case dropReply:
			return false, i.error(i.fault.code)
		case swallowReply:
			return true, nil
		case holdReply, delayReply:
			if err := i.wait(s.Context(), i.fault.delay); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// end ends the stream and returns the first error that did so.
func (s *faultyStream) end(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = err
	}
	s.cancel()
	return s.broken
}

func fault(f Fault) Fault {
	contract.MustKnow(f.method)
	return f
}
