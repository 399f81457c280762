package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	defaultTTL = 15 * time.Second

	// minMargin is the least default safety margin.
	minMargin = 100 * time.Millisecond

	// maxTTL is etcd's own limit (lease.MaxLeaseTTL).
	maxTTL = 9_000_000_000 * time.Second

	// maxNameLen bounds names and owner labels, in bytes. etcd refuses requests
	// above 1.5 MiB; a kibibyte keeps keys readable.
	maxNameLen = 1024
)

// An Option changes how [New], [NewSession] or [Session.Mutex] build what they
// return. The order of options does not matter, except that of two of the same
// kind the last one counts. A value that makes no sense is an error of the
// constructor, which names it.
type Option func(*config) error

// config is what options change. It is set once and then only read.
type config struct {
	// of the Session
	ttl    time.Duration // whole seconds, as on the wire
	margin time.Duration // 0: the default, which depends on the granted TTL

	// of the Mutex; a Session hands its own down as defaults
	owner          string
	reentrant      bool
	maxHold        time.Duration // 0: none
	acquireTimeout time.Duration // 0: none
	logger         *slog.Logger  // nil: silence
	trace          *Trace

	// leaseOption names an option that only New and NewSession take, if one
	// was given.
	leaseOption string
}

// WithTTL sets the time to live of the lease: how long a crashed holder blocks
// the others, and within which a hold must be renewed. It is rounded up to whole
// seconds, and etcd may grant more (at least one and a half of its election
// timeouts, 2 s by default); the granted one counts. The default is 15 s.
// For New and NewSession.
func WithTTL(d time.Duration) Option {
	return func(c *config) error {
		c.ttl, c.leaseOption = d, "WithTTL"
		if d > maxTTL {
			return fmt.Errorf("etcdlock: WithTTL(%v): above etcd's limit of %v", d, maxTTL)
		}
		return positive("WithTTL", d)
	}
}

// WithSafetyMargin sets how long before the lease may expire a hold ends. It pays
// for clocks that run at different rates, and is the time that the critical
// section has to stop in. It must be less than the TTL. The default is an eighth
// of the granted TTL, but at least 100 ms. For New and NewSession.
func WithSafetyMargin(d time.Duration) Option {
	return func(c *config) error {
		c.margin, c.leaseOption = d, "WithSafetyMargin"
		return positive("WithSafetyMargin", d)
	}
}

// WithOwner sets the label that other contenders and operators see. The default
// is the host's name and the process's number, "host:pid".
func WithOwner(label string) Option {
	return func(c *config) error {
		c.owner = label
		switch {
		case label == "":
			return errors.New(`etcdlock: WithOwner(""): empty label`)
		case len(label) > maxNameLen:
			return fmt.Errorf("etcdlock: WithOwner(%s): %d bytes, more than %d", excerpt(label, 32), len(label), maxNameLen)
		case !utf8.ValidString(label):
			return fmt.Errorf("etcdlock: WithOwner(%s): not valid UTF-8", excerpt(label, 32))
		}
		return nil
	}
}

// WithReentrancy makes Lock, TryLock and Do with a context that comes from a hold
// of the same name in the same Session nest in that hold, instead of returning
// [ErrDeadlock]. Each nested Lock takes its own Unlock; the last one releases.
func WithReentrancy() Option {
	return func(c *config) error { c.reentrant = true; return nil }
}

// WithMaxHold ends a hold, and releases it, at the latest d after it began, even
// if it is renewed. The hold's context then ends with the cause [ErrMaxHold], and
// Unlock returns an error that is ErrLost and ErrMaxHold.
func WithMaxHold(d time.Duration) Option {
	return func(c *config) error { c.maxHold = d; return positive("WithMaxHold", d) }
}

// WithAcquireTimeout bounds each wait of Lock, TryLock, Do and TryDo, without bounding
// the context of the hold. When it runs out the error is context.DeadlineExceeded.
func WithAcquireTimeout(d time.Duration) Option {
	return func(c *config) error { c.acquireTimeout = d; return positive("WithAcquireTimeout", d) }
}

// WithLogger sets where the library reports what somebody may have to look at:
// losses, renewals that fail, releases and removals that etcd does not confirm, and
// late requests that had to be undone (Warn); leases that begin and end (Debug). The
// default is silence. Like the hooks of a [Trace] it is called from a goroutine of its
// own, and a handler that blocks holds up no lock.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		c.logger = l
		if l == nil {
			return errors.New("etcdlock: WithLogger(nil)")
		}
		return nil
	}
}

// WithTrace sets hooks that are called as things happen; see [Trace].
func WithTrace(t *Trace) Option {
	return func(c *config) error {
		c.trace = t
		if t == nil {
			return errors.New("etcdlock: WithTrace(nil)")
		}
		return nil
	}
}

// A Trace is a set of hooks, any of which may be nil, in the manner of
// net/http/httptrace. Each is called from a goroutine of the Session, one at a
// time and in the order of the events, some time after the event: a hook that
// blocks or panics holds up or skips other hooks, never a lock. While hooks are
// blocked, at most 16,384 events are kept; later ones are dropped.
//
// The lease hooks are those of the Session's Trace (of New's, for a Mutex with a
// lease of its own); the others are those of the Mutex.
type Trace struct {
	// Queued: a wait began, with ahead contenders before it, behind holder.
	Queued func(name string, ahead int, holder Contender)
	// Acquired: a hold began, after a wait behind ahead contenders when queued.
	Acquired func(name string, token int64, waited time.Duration, ahead int)
	// Released: a hold was given up, and etcd confirmed it.
	Released func(name string, token int64, held time.Duration)
	// Lost: a hold ended without its release, for the reason given.
	Lost func(name string, token int64, held time.Duration, reason error)

	// LeaseGranted: the Session has a lease.
	LeaseGranted func(lease clientv3.LeaseID, ttl time.Duration)
	// LeaseRenewed: etcd acknowledged a renewal.
	LeaseRenewed func(lease clientv3.LeaseID, roundTrip time.Duration)
	// RenewalFailed: an attempt to renew failed; further ones follow.
	RenewalFailed func(lease clientv3.LeaseID, err error)
	// LeaseAtRisk: less than half of the time of certainty remains.
	LeaseAtRisk func(lease clientv3.LeaseID, remaining time.Duration)
	// LeaseReplaced: no new hold will use the lease old any more, because it was lost,
	// is in doubt, or is given back.
	LeaseReplaced func(old clientv3.LeaseID, reason error)

	// CleanupPending: a key must go, and is being removed in the background.
	CleanupPending func(key string)
	// CleanupDone: that key is gone for certain.
	CleanupDone func(key string)
}

// positive is the error of the option that was given a duration of zero or less.
func positive(option string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("etcdlock: %s(%v): not positive", option, d)
	}
	return nil
}

// apply returns c changed by opts and checked as a whole.
func (c config) apply(opts []Option) (config, error) {
	c.leaseOption = ""
	for i, opt := range opts {
		if opt == nil {
			return c, fmt.Errorf("etcdlock: option %d is nil", i+1)
		}
		if err := opt(&c); err != nil {
			return c, err
		}
	}
	if c.margin >= c.ttl {
		return c, fmt.Errorf("etcdlock: safety margin %v is not below the TTL %v", c.margin, c.ttl)
	}
	if part := c.ttl % time.Second; part > 0 {
		c.ttl += time.Second - part
	}
	return c, nil
}

func defaultConfig() config {
	host, pid := identity()
	return config{
		ttl:   defaultTTL,
		owner: fmt.Sprintf("%s:%d", host, pid),
	}
}

// marginOf is the safety margin for a lease of the granted TTL.
func (c *config) marginOf(granted time.Duration) time.Duration {
	if c.margin > 0 {
		return c.margin
	}
	return max(granted/8, minMargin)
}

// identity is what tells this process from others. It is read once, since every
// key's value needs it.
var identity = sync.OnceValues(func() (host string, pid int) {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return strings.ToValidUTF8(host, "?"), os.Getpid()
})

// stored is the value of a contender's key, for people and operators.
type stored struct {
	Owner string    `json:"owner"`
	Host  string    `json:"host"`
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
}

// value is the value of a key that is put now.
func (c *config) value() string {
	host, pid := identity()
	text, err := json.Marshal(stored{Owner: c.owner, Host: host, PID: pid, Since: time.Now().UTC()})
	if err != nil { // only a year above 9999 can make it fail
		return "{}"
	}
	return string(text)
}

// checkName is the error of a name that cannot be a lock's.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New(`etcdlock: name "" is empty`)
	case len(name) > maxNameLen:
		return fmt.Errorf("etcdlock: name %s has %d bytes, more than %d", excerpt(name, 32), len(name), maxNameLen)
	case !utf8.ValidString(name):
		return fmt.Errorf("etcdlock: name %q is not valid UTF-8", name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("etcdlock: name %q contains NUL", name)
	case strings.HasSuffix(name, "/"):
		return fmt.Errorf(`etcdlock: name %q ends with "/"`, name)
	}
	return nil
}

// checkClient is the error of a client that cannot be used.
func checkClient(client *clientv3.Client) error {
	if client == nil {
		return errors.New("etcdlock: nil client")
	}
	if client.KV == nil || client.Lease == nil || client.Watcher == nil {
		return errors.New("etcdlock: the client has no KV, Lease or Watcher; make it with clientv3.New")
	}
	return nil
}

// checkContext is the error of a nil ctx given to call op on the lock name.
func checkContext(ctx context.Context, op, name string) error {
	if ctx == nil {
		return failed(op, name, errors.New("nil context"))
	}
	return nil
}

// excerpt is text, quoted, or the beginning of one that is longer than most bytes.
func excerpt(text string, most int) string {
	if len(text) > most {
		return fmt.Sprintf("%q...", text[:32])
	}
	return fmt.Sprintf("%q", text)
}

// hooks runs the hooks of Traces: one at a time, in order, in a goroutine that is
// there only while there is something to run, so that no hook can harm a lock. The
// Session does not wait for it: it may be blocked in the user's code.
type hooks struct {
	mu      sync.Mutex
	pending []func()
	running bool
}

// maxPending bounds the events that wait for blocked hooks.
const maxPending = 16_384

func (h *hooks) run(hook func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pending) >= maxPending {
		return // the Trace's doc says so
	}
	h.pending = append(h.pending, hook)
	if !h.running {
		h.running = true
		go h.drain() // ends when nothing is pending
	}
}

func (h *hooks) drain() {
	drained := false
	defer func() {
		if !drained { // a hook has called runtime.Goexit
			go h.drain()
		}
	}()
	for {
		h.mu.Lock()
		if len(h.pending) == 0 {
			h.running = false
			h.mu.Unlock()
			drained = true
			return
		}
		hook := h.pending[0]
		h.pending = h.pending[1:]
		h.mu.Unlock()
		func() {
			defer func() { _ = recover() }() // a hook's panic is the hook's alone
			hook()
		}()
	}
}

// tell has a record logged, in the order of the hooks.
func (c *config) tell(h *hooks, level slog.Level, message string, args []any) {
	if logger := c.logger; logger != nil {
		h.run(func() { logger.Log(context.Background(), level, "etcdlock: "+message, args...) })
	}
}
