//go:build linux || darwin || freebsd

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// forwarded are the signals that run passes on to the command.
var forwarded = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// catch sends signals to a channel, except HUP and INT if this process was started with them
// ignored, as nohup does it. (Go catches the others in any case.) The command starts with the
// default action for the caught ones.
//
// It also catches PIPE and drops it. Otherwise a write to a stderr without a reader would end this
// process. So the write fails, and the wait or the hold goes on. (Do not ignore PIPE: the command
// would inherit that. TestAStderrWithoutAReaderEndsNoRun.)
func catch() <-chan os.Signal {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signals := make(chan os.Signal, 16)
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	return signals
}

// A holding is a run that has the lock.
type holding struct {
	*running
	app     *app
	signals <-chan os.Signal
	mu      lock
	guard   atomic.Pointer[watchdog]
	alone   sync.Once                 // reports once that the watchdog has ended
	trusted atomic.Pointer[time.Time] // until when, as of the last renewal
	granted atomic.Int64              // TTL of the last lease
	holds   chan struct{}             // gets one when the hold began, after granted is set
	recalls chan error                // gets one for the first recall
	asked   bool                      // the command was ended by a recall
	hurried bool                      // a signal or a recall came
	why     reason
	silent  sync.Once // reports once that etcd does not answer
	within  *outer    // the hold of a run around this one, in whose place this one takes none
}

func (r *running) run(a *app, name string, argv []string) error {
	signals := catch()
	cfg, err := a.etcd.config()
	if err != nil {
		return err
	}
	cmd, err := prepare(argv)
	if err != nil {
		return err
	}
	h := &holding{running: r, app: a, signals: signals, holds: make(chan struct{}, 1),
		recalls: make(chan error, 1)}
	client, err := h.acquire(cfg, name)
	if client != nil {
		defer client.Close()
	}
	if err != nil {
		return err
	}
	if h.within != nil {
		return h.become(cmd, h.within)
	}
	return h.carryOut(cmd)
}

// prepare finds the command before the wait for the lock begins.
func prepare(argv []string) (*exec.Cmd, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	if errors.Is(cmd.Err, exec.ErrDot) {
		cmd.Err = nil // found in the current directory, as PATH says
	}
	if cmd.Err != nil {
		return nil, notStarted(cmd.Err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd, nil
}

// notStarted is how run ends if its command does not start.
func notStarted(err error) error {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return ends(exitNotFound, err)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return ends(exitFailed, err)
	}
	return ends(exitNotRun, err)
}

// ---- the wait

// A signalled is the cause if a signal ended the wait.
type signalled struct{ syscall.Signal }

func (s signalled) Error() string { return "ended by a signal: " + s.Signal.String() }

// acquire waits for the lock, as long as it may. Whatever it returns, the caller closes the client.
func (h *holding) acquire(cfg clientv3.Config, name string) (client *clientv3.Client, err error) {
	ctx, end := context.WithCancelCause(context.Background())
	defer end(nil)
	if bound := h.bound(); bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, bound, context.DeadlineExceeded)
		defer cancel()
	}
	acquired, watched := make(chan struct{}), make(chan struct{})
	go func() { // ends with acquire, which waits for it
		defer close(watched)
		select {
		case s := <-h.signals:
			end(signalled{s.(syscall.Signal)})
		case <-acquired:
		}
	}()
	tell := time.AfterFunc(sayWhyAfter, func() {
		h.app.say("run has waited %v for lock %q: %s", sayWhyAfter, name, h.why.String())
	})
	client, err = h.connect(ctx, cfg)
	if err == nil {
		h.within = h.around(ctx, client, name)
		switch {
		case h.within == nil:
			err = h.lock(ctx, client, name)
		case !h.nested:
			err = misused("lock %q is held by a run around this one, which would wait for ever: "+
				"--nested runs the command without it", name)
		}
	}
	tell.Stop()
	close(acquired)
	<-watched
	if s, ok := errors.AsType[signalled](context.Cause(ctx)); ok && err == nil {
		err = s // it came together with the lock
	}
	if err == nil && h.within == nil {
		<-h.holds
		err = h.running.granted(time.Duration(h.granted.Load()))
	}
	if err != nil {
		h.leave(err)
		return client, h.refusal(ctx, err)
	}
	return client, nil
}

// tryBound is how long etcd may take to answer a run that does not wait. It leaves half a second
// of the five that such a run may take in all.
const tryBound = 4500 * time.Millisecond

// errNoAnswer is the error of a login that etcd did not answer.
var errNoAnswer = errors.New("no answer from etcd")

// bound is how long a wait may take, 0 for ever.
func (h *holding) bound() time.Duration {
	if h.now {
		return tryBound
	}
	return h.wait
}

// retryEvery is the pause between two tries to reach etcd.
const retryEvery = 500 * time.Millisecond

// connect makes a client, and retries the login as often as it takes.
func (h *holding) connect(ctx context.Context, cfg clientv3.Config) (*clientv3.Client, error) {
	why := errNoAnswer
	for {
		var cancel context.CancelFunc
		cfg.Context, cancel = context.WithCancel(context.Background()) // of the client's life
		stop := context.AfterFunc(ctx, cancel)
		client, err := clientv3.New(cfg)
		if err == nil && stop() {
			context.AfterFunc(client.Ctx(), cancel)
			return client, nil
		}
		if err == nil {
			client.Close()
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", why, context.Cause(ctx))
		case !away(err):
			return nil, err
		}
		why = fmt.Errorf("%w: %w", errNoAnswer, err)
		h.why.set(why.Error())
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

// lock locks, with hooks that record what the wait is for.
func (h *holding) lock(ctx context.Context, client *clientv3.Client, name string) (err error) {
	trace := &etcdlock.Trace{
		Queued: func(_ context.Context, e etcdlock.QueuedEvent) {
			held, since := "held", ""
			if until := e.Holder.Until; !until.IsZero() {
				held = "kept until " + until.Format(time.RFC3339)
			}
			if !e.Holder.Since.IsZero() {
				since = ", in line since " + e.Holder.Since.Local().Format(time.DateTime)
			}
			h.why.set(fmt.Sprintf("%s by %s%s; %d before it in line", held, ownerOf(e.Holder), since,
				e.Ahead))
		},
		Unavailable: func(_ context.Context, e etcdlock.UnavailableEvent) {
			h.why.set(e.Err.Error())
			if h.bound() == 0 { // otherwise the error comes soon enough
				// Not in the hook: a reader that is stuck would keep the news of renewals back.
				h.silent.Do(func() { go h.app.say("lock %q: waits for etcd: %v", name, e.Err) })
			}
		},
		LeaseGranted: func(_ context.Context, e etcdlock.LeaseGrantedEvent) {
			h.granted.Store(int64(e.TTL))
		},
		LeaseRenewed: func(_ context.Context, _ etcdlock.LeaseRenewedEvent) { h.renewed() },
		Acquired: func(_ context.Context, _ etcdlock.AcquiredEvent) {
			h.renewed()
			h.holds <- struct{}{}
		},
		Recalled: func(_ context.Context, e etcdlock.RecalledEvent) {
			select {
			case h.recalls <- &etcdlock.RecalledError{Name: e.Name, Token: e.Token, By: e.Request.By,
				Reason: e.Request.Reason}:
			default: // one that ends it sooner
			}
		},
	}
	opts := []etcdlock.SessionOption{etcdlock.WithTTL(h.ttl), etcdlock.WithTrace(trace)}
	if h.owner != "" {
		opts = append(opts, etcdlock.WithOwner(h.owner))
	}
	if h.info != "" {
		opts = append(opts, etcdlock.WithInfo(h.info))
	}
	if h.atLeast > 0 {
		opts = append(opts, etcdlock.WithMinHold(h.atLeast))
	}
	if h.recall > 0 {
		opts = append(opts, etcdlock.WithRecall(h.recall))
	}
	h.mu, err = h.open(client, name, append(opts, etcdlock.WithSafetyMargin(h.margin()))...)
	if err != nil {
		return ends(exitUsage, err)
	}
	if h.now {
		err = h.mu.TryLock(ctx)
	} else {
		err = h.mu.Lock(ctx)
	}
	h.renewed()
	return err
}

// renewed notes how long the hold can be trusted now, and tells the watchdog.
func (h *holding) renewed() {
	if until := h.mu.Status().Deadline; !until.IsZero() {
		h.trusted.Store(&until)
	}
	if guard := h.guard.Load(); guard != nil {
		h.told(guard.trusts(*h.trusted.Load(), h.killAfter))
	}
}

// told reports once that the watchdog is gone: run goes on without.
func (h *holding) told(err error) {
	if err != nil && !errors.Is(err, os.ErrClosed) {
		h.alone.Do(func() { go h.app.say("the watchdog has ended: it ends no command of a stopped run") })
	}
}

// refusal is how a run without the lock ends.
func (h *holding) refusal(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*ending](err); ok {
		return e
	}
	if s, ok := errors.AsType[signalled](context.Cause(ctx)); ok {
		return ends(exitSignal+int(s.Signal), err)
	}
	if errors.Is(err, etcdlock.ErrLocked) && !errors.Is(err, etcdlock.ErrUnavailable) {
		return ends(h.conflict, h.over(err))
	}
	return ends(exitFailed, h.over(err))
}

// over is the error of a wait, with how long it was if it took as long as it may.
func (h *holding) over(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	text := plainly(err)
	if silent := errNoAnswer.Error(); strings.Contains(text, silent) {
		did := fmt.Sprintf("etcd did not answer in %v", h.bound())
		return errors.New(strings.Replace(text, silent, did, 1))
	}
	return fmt.Errorf("%s; waited for %v", text, h.bound())
}

// leaveBound is how long run waits for etcd to confirm that nothing of run is left. Keys that are
// not removed by then go with their lease.
const leaveBound = 2 * time.Second

// leave gives up the place in line and the lease. If err says that etcd does not answer, there is
// nothing to wait for: Close still sends what it must.
func (h *holding) leave(err error) {
	if h.mu == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveBound)
	defer cancel()
	if errors.Is(err, etcdlock.ErrUnavailable) || errors.Is(err, etcdlock.ErrUnconfirmed) {
		cancel()
	}
	_ = h.mu.Close(ctx)
}

// ---- the command

// carryOut runs the command under the lock, and releases it.
func (h *holding) carryOut(cmd *exec.Cmd) error {
	own := outer{h.mu.Key(), h.mu.Token()}
	cmd.Env = h.environ(h.mu.Name(), own, append(outers(), own))
	hold := h.mu.Context(context.Background())
	select {
	case <-etcdlock.RecallFrom(hold): // while it waited
		h.asked, h.hurried = true, true
		return h.finish(hold, 0)
	default:
	}
	if hold.Err() != nil { // otherwise key and token are this hold's, and its trust is known
		h.leave(nil)
		return ends(exitLost, context.Cause(hold))
	}
	guard, tree, err := h.start(cmd)
	if err != nil {
		h.leave(nil)
		return err
	}
	ended := h.watch(tree, hold)
	guard.dismiss()
	return h.finish(hold, ended)
}

// start starts the command, and before it the watchdog.
func (h *holding) start(cmd *exec.Cmd) (*watchdog, *tree, error) {
	guard, err := startWatchdog()
	if err != nil {
		return nil, nil, ends(exitFailed, fmt.Errorf("start a watchdog: %w", err))
	}
	h.guard.Store(guard)
	h.renewed()
	others, err := adopt()
	if err != nil {
		guard.dismiss()
		return nil, nil, ends(exitFailed, err)
	}
	h.told(guard.guards(others, 0))
	tree, err := start(cmd, others)
	if err != nil {
		guard.dismiss()
		return nil, nil, notStarted(err)
	}
	h.told(guard.guards(others, tree.pid))
	return guard, tree, nil
}

// watch waits until no process of the command is left.
//
// Invariant: when it returns no process of the command is left; nothing that frees the lock is
// called before. (Do not release when the command has ended.
// TestWhatStaysInTheBackgroundEndsBeforeTheRelease.)
func (h *holding) watch(tree *tree, hold context.Context) (ended syscall.WaitStatus) {
	var killAt time.Time
	kill := time.NewTimer(time.Hour)
	kill.Stop()
	killBy := func(at time.Time) {
		if killAt.IsZero() || at.Before(killAt) {
			killAt = at
			kill.Reset(time.Until(at))
		}
	}
	exited, lost := tree.exited, hold.Done()
	recalled := etcdlock.RecallFrom(hold)
	for {
		select {
		case s := <-h.signals:
			h.hurried = true
			tree.forward(s.(syscall.Signal))
		case <-recalled: // KILL comes with the end of the hold
			recalled = nil
			h.hurried, h.asked = true, exited != nil
			tree.terminate()
		case <-lost:
			lost = nil
			if errors.Is(context.Cause(hold), etcdlock.ErrRecalled) { // the grace is over
				h.asked = h.asked || recalled != nil && exited != nil
				killBy(time.Now())
			}
			// Reported at the end: the reader of stderr may block now, and hold up the KILL.
			expired := errors.Is(context.Cause(hold), etcdlock.ErrExpired)
			killBy(h.killAt(time.Now(), *h.trusted.Load(), expired))
			tree.terminate()
			h.told(h.guard.Load().terminated(killAt))
		case <-exited:
			exited, ended = nil, tree.status
			tree.terminal.giveBack()
			killBy(time.Now().Add(h.killAfter))
			tree.terminate()
		case <-kill.C:
			tree.kill()
			kill.Reset(killAgain) // for processes started meanwhile
		case <-tree.gone:
			if exited != nil {
				ended = tree.status
				tree.terminal.giveBack()
			}
			return ended
		}
	}
}

// killAgain is how long a KILL may take before run looks for processes that it has missed.
const killAgain = 20 * time.Millisecond

// finish releases the lock after the command has ended, and returns how run ends.
func (h *holding) finish(hold context.Context, ended syscall.WaitStatus) error {
	err := h.release(hold)
	h.leave(err)
	switch {
	case errors.Is(err, etcdlock.ErrLost):
		return ends(exitLost, err)
	case err != nil:
		h.app.say("%v; it is free once its lease has run out", err)
	}
	if h.asked {
		return ends(exitRecalled, h.request())
	}
	if ended.Signaled() {
		return ends(exitSignal+int(ended.Signal()), nil)
	}
	return ends(ended.ExitStatus(), nil)
}

// request is the recall that has ended the command. Its hook is called soon after the command
// was told.
func (h *holding) request() error {
	soon := time.NewTimer(time.Second)
	defer soon.Stop()
	select {
	case recalled := <-h.recalls:
		return recalled
	case <-soon.C:
		return &etcdlock.RecalledError{Name: h.mu.Name()}
	}
}

// release gives the lock to the next, or keeps it taken for --at-least. A Close keeps nothing, and
// does not say that the hold was lost.
func (h *holding) release(hold context.Context) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseBound)
	defer cancel()
	if h.hurried && h.atLeast > 0 && !errors.Is(context.Cause(hold), etcdlock.ErrLost) {
		return h.mu.Close(ctx)
	}
	return h.mu.Unlock(ctx)
}

// releaseBound is how long run waits for its release to be confirmed.
const releaseBound = 5 * time.Second
