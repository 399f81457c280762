package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/line"
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

// A SessionOption is an option of [New], [NewRWMutex], [NewSemaphore] and [NewSession]. The order
// of options does not matter, except that the last of two of the same kind counts.
//
// A constructor refuses a nil option, an invalid value, and an option that it cannot use, as
// [WithHandoff] for a Semaphore. The error says which. As a default of a [Session] such an option
// does not count there.
type SessionOption interface {
	applyTo(c *config, to use) error
}

// An Option is a [SessionOption] that is also one of [Session.Mutex], [Session.RWMutex] and
// [Session.Semaphore], where it takes the place of the Session's.
type Option interface {
	SessionOption
	ofLocks()
}

// A setting is what an option does.
type setting struct {
	name string // of the option
	not  use    // what has no use for it
	set  func(*config) error
}

// applyTo changes the config of what the option is given to.
func (s *setting) applyTo(c *config, to use) error {
	if s.not&to != 0 {
		return fmt.Errorf("etcdlock: %s is not for %v", s.name, to)
	}
	return s.set(c)
}

// A lockSetting is a setting that is an Option.
type lockSetting struct{ *setting }

func (lockSetting) ofLocks() {}

// option makes an Option, for which some have no use.
func option(name string, not use, set func(*config) error) Option {
	return lockSetting{&setting{name, not, set}}
}

// sessionOption makes a SessionOption.
func sessionOption(name string, set func(*config) error) SessionOption {
	return &setting{name, 0, set}
}

// joined are options that are one.
type joined []Option

func (j joined) applyTo(c *config, to use) error { return apply("JoinOptions: ", c, to, j) }

func (joined) ofLocks() {}

// JoinOptions returns one Option that does what all of opts do, in their order. Use it for tables
// of options, and to hand a []Option on to [New], which takes each [SessionOption]. What is given
// the result refuses what it would refuse of opts.
func JoinOptions(opts ...Option) Option { return joined(slices.Clone(opts)) }

// A use is what options are given to; several, where it says which of them have no use for one.
type use uint8

const (
	forMutex use = 1 << iota
	forRWMutex
	forSemaphore
	forSession use = 0 // which uses all, or has them as defaults
)

// String is for messages.
func (u use) String() string {
	return map[use]string{
		forMutex: "a Mutex", forRWMutex: "an RWMutex", forSemaphore: "a Semaphore",
	}[u]
}

// config is what options change. It is set once and then only read.
type config struct {
	// For the Session.
	ttl    time.Duration // whole seconds, as on the wire
	margin time.Duration // 0: the default, which depends on the granted TTL

	// For the Mutex. A Session passes its own on as defaults.
	owner          string
	reentrant      bool
	maxHold        time.Duration // 0: none
	minHold        time.Duration // 0: none
	mustNotNest    bool          // minHold is not a Session's default
	acquireTimeout time.Duration // 0: none
	info           string        // for programs that watch
	handoff        int           // 0: strict order
	linger         time.Duration // 0: none
	recall         time.Duration // the longest grace; 0: holds do not listen
	ask            *line.Recall  // what a wait asks of a holder; nil: nothing
	logger         *slog.Logger  // nil: silence
	trace          *Trace

	texts [line.Kinds]line.Text // of the values of keys, by their kind
}

// WithTTL sets the time to live of the lease: how long a crashed holder blocks other contenders,
// and within what time a hold must be renewed. The default is 15 s. It is rounded up to whole
// seconds. etcd may grant more (2 s at least, by default), and the granted TTL counts.
func WithTTL(d time.Duration) SessionOption {
	return sessionOption("WithTTL", func(c *config) error {
		c.ttl = d
		if d > maxTTL {
			return fmt.Errorf("etcdlock: WithTTL(%v): above etcd's limit of %v", d, maxTTL)
		}
		return positive("WithTTL", d)
	})
}

// WithSafetyMargin sets how long before the lease may expire a hold ends. The margin covers clocks
// that run at different rates, and gives the critical section time to stop. It must be less than
// the TTL, and costs more renewals above a quarter of it. The default is an eighth of the granted
// TTL, but at least 100 ms.
func WithSafetyMargin(d time.Duration) SessionOption {
	return sessionOption("WithSafetyMargin", func(c *config) error {
		c.margin = d
		return positive("WithSafetyMargin", d)
	})
}

// WithOwner sets the label that other contenders and operators see. The default
// is the host name and the process ID, "host:pid".
func WithOwner(label string) Option {
	return option("WithOwner", 0, func(c *config) error {
		c.owner = label
		switch {
		case label == "":
			return errors.New(`etcdlock: WithOwner(""): empty label`)
		case len(label) > maxNameLen:
			return fmt.Errorf("etcdlock: WithOwner(%s): %d bytes, more than %d",
				excerpt(label, 32), len(label), maxNameLen)
		case !utf8.ValidString(label):
			return fmt.Errorf("etcdlock: WithOwner(%s): not valid UTF-8", excerpt(label, 32))
		}
		return nil
	})
}

// WithInfo sets a text that is stored with the key, for other programs to read as Contender.Info:
// an address, a version. It is valid UTF-8 of at most 1 KiB, and every etcd user who may read the
// key can read it. The default is none. [Mutex.SetInfo] and [Hold.SetInfo] change it for one hold.
func WithInfo(info string) Option {
	return option("WithInfo", 0, func(c *config) error {
		c.info = info
		return checkInfo("WithInfo", info)
	})
}

// checkInfo returns an error if info, which was given to something, cannot be stored.
func checkInfo(to, info string) error {
	if err := line.CheckInfo(info); err != nil {
		return fmt.Errorf("etcdlock: %s(%s): %w", to, excerpt(info, 32), err)
	}
	return nil
}

// WithReentrancy makes Lock, TryLock and Do with a context that comes from a hold of the same name
// in the same Session nest in that hold, instead of returning [ErrDeadlock]. Each nested Lock needs
// its own Unlock; the last Unlock releases.
//
// In the same way RLock nests in a read. Lock never nests in a read, nor RLock in a write. As a
// default of a Session it counts for its Mutexes, its RWMutexes, and [Session.Lock] and its like.
// It does not count for [Session.LockAll] and for Semaphores, for which it is an error.
func WithReentrancy() Option {
	return option("WithReentrancy", forSemaphore, func(c *config) error {
		c.reentrant = true
		return nil
	})
}

// WithMaxHold ends and releases a hold at the latest d after it began, even if it is renewed. The
// hold's context then ends with the cause [ErrMaxHold], and Unlock returns an error that is both
// ErrLost and ErrMaxHold.
//
// There is no safety margin: the next contender may get in one round trip after d. So the critical
// section must stop by itself, or the token must guard it. Other goroutines of this Session get in
// after the Unlock only; see [Mutex.Lock].
func WithMaxHold(d time.Duration) Option {
	return option("WithMaxHold", 0, func(c *config) error {
		c.maxHold = d
		return positive("WithMaxHold", d)
	})
}

// WithMinHold keeps the name taken for at least d from its acquisition, even if Unlock is called
// earlier. It is for jobs that may be shorter than the clocks of the machines that start them
// differ: the job runs once, however short it is.
//
// An Unlock before d ends the hold, as ever, and leaves its key in line until d, on a lease of its
// own. After its nil it does not matter whether the process lives on. The next contender, also one
// of the same Session, gets in at d, or within about 3 s after that if the process is gone, or the
// Session closed. Others see until when in [Contender.Until].
//
// A hold that was lost, or that Close ends, keeps nothing. If the process dies before Unlock, the
// key goes with the lease of the Session: a [WithTTL] of at least d covers that, too. After
// [ErrUnconfirmed] the key goes at d, with the lease of the Session, or has gone before.
// docs/ttl.md has the costs.
//
// It is for a [Mutex], [Session.Lock] and [Session.Do]. For an RWMutex, a Semaphore, and a Lock
// that nests it is an error. As a default of a Session it does not count for these, nor for
// [Session.LockAll].
func WithMinHold(d time.Duration) Option {
	return option("WithMinHold", forRWMutex|forSemaphore, func(c *config) error {
		c.minHold, c.mustNotNest = d, true
		if d > maxTTL {
			return fmt.Errorf("etcdlock: WithMinHold(%v): above etcd's limit of %v", d, maxTTL)
		}
		return positive("WithMinHold", d)
	})
}

// WithAcquireTimeout bounds each wait for a lock (Lock, RLock, Acquire, LockAll and their like),
// without bounding the context of the hold. When the time is over the error is
// context.DeadlineExceeded, and says so. Below 250 ms it does not tell whether etcd was away (see
// [ErrUnavailable]).
func WithAcquireTimeout(d time.Duration) Option {
	return option("WithAcquireTimeout", 0, func(c *config) error {
		c.acquireTimeout = d
		return positive("WithAcquireTimeout", d)
	})
}

// WithHandoff lets up to n Unlocks in a row pass the hold on to the next goroutine of the Session
// that waits for the name, without a request to etcd. Then the key is released and other contenders
// get their turn. The default is 0: strict order of arrival.
//
// It trades order and waiting time for speed: another Session waits for up to n+1 critical sections
// at a time. Holds that are passed on have one key and Token: a resource that checks them cannot
// tell two goroutines of one Session apart. An Unlock that passes the hold on returns nil as long
// as the lease is renewed in time. If an operator deleted the key in the last second or so, the
// next holder learns it instead.
//
// Mutexes share a key if they have the same [WithOwner] and [WithInfo], and all or none have
// [WithRecall], unless [Mutex.SetInfo] was called. As a default of a Session it counts for its
// Mutexes, for the writers of its RWMutexes, and for [Session.Lock] and its like. It does not count
// for [Session.LockAll] and for Semaphores, for which it is an error.
func WithHandoff(n int) Option {
	return option("WithHandoff", forSemaphore, func(c *config) error {
		c.handoff = n
		if n < 0 {
			return fmt.Errorf("etcdlock: WithHandoff(%d): negative", n)
		}
		return nil
	})
}

// WithLinger keeps the key for up to d after an Unlock when no contender waits for it. Meanwhile
// the Session may lock again without a request to etcd. The default is to release at once.
//
// The key goes as soon as another contender queues, when the lease is at risk or retired, when the
// line cannot be watched, at Close, and when d is over. It suits locks that one process takes again
// and again: the first wait of another contender needs an event and one more commit, and its
// TryLock returns [ErrLocked] while the key lingers. A lingering key costs a watch of the name, a
// goroutine, and a read now and then.
//
// What nil says then, which Mutexes share the key and its Token, and for what it counts as a
// default of a Session is as for [WithHandoff].
func WithLinger(d time.Duration) Option {
	return option("WithLinger", forSemaphore, func(c *config) error {
		c.linger = d
		return positive("WithLinger", d)
	})
}

// WithLogger sets where the library reports what may need attention. The default is silence. At
// Warn: an etcd that does not answer, losses, late renewals, releases and removals that etcd does
// not confirm, and late requests that had to be undone. At Debug: leases that begin and end. Like
// the hooks of a [Trace], a handler that blocks does not hold up a lock.
func WithLogger(l *slog.Logger) Option {
	return option("WithLogger", 0, func(c *config) error {
		c.logger = l
		if l == nil {
			return errors.New("etcdlock: WithLogger(nil)")
		}
		return nil
	})
}

// WithTrace sets hooks that are called as things happen; see [Trace].
func WithTrace(t *Trace) Option {
	return option("WithTrace", 0, func(c *config) error {
		c.trace = t
		if t == nil {
			return errors.New("etcdlock: WithTrace(nil)")
		}
		return nil
	})
}

// positive returns an error if d, the value of an option, is not positive.
func positive(option string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("etcdlock: %s(%v): not positive", option, d)
	}
	return nil
}

// apply changes c by opts, which are given to something. of is the prefix of an error about one
// that is nil.
func apply[O SessionOption](of string, c *config, to use, opts []O) error {
	for i, opt := range opts {
		if any(opt) == nil {
			return fmt.Errorf("etcdlock: %soption %d is nil", of, i+1)
		}
		if err := opt.applyTo(c, to); err != nil {
			return err
		}
	}
	return nil
}

// configure returns c changed by opts, which are given to something, checked as a whole.
func configure[O SessionOption](c config, to use, opts []O) (config, error) {
	if err := apply("", &c, to, opts); err != nil {
		return c, err
	}
	if to == forSession {
		c.mustNotNest = false
	}
	if c.margin >= c.ttl {
		return c, fmt.Errorf("etcdlock: safety margin %v is not below the TTL %v", c.margin, c.ttl)
	}
	c.ttl = etcd.WholeSeconds(c.ttl)
	v := c.told()
	v.Recallable = c.recall > 0
	for k := range c.texts {
		text, err := line.NewText(v, line.Kind(k))
		if err != nil {
			return c, fmt.Errorf("etcdlock: owner %s: %w", excerpt(c.owner, 32), err)
		}
		c.texts[k] = text
	}
	return c, nil
}

// told is what keys tell of their contenders.
func (c *config) told() line.Value {
	host, pid := identity()
	return line.Value{Owner: c.owner, Host: host, PID: pid, Info: c.info}
}

func defaultConfig() config {
	host, pid := identity()
	return config{
		ttl:   defaultTTL,
		trace: new(Trace),
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

// identity tells this process from other ones. It is read once, because every key's
// value needs it.
var identity = sync.OnceValues(func() (host string, pid int) {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return strings.ToValidUTF8(host, "?"), os.Getpid()
})

// checkName returns an error if name cannot be the name of a lock.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New(`etcdlock: name "" is empty`)
	case len(name) > maxNameLen:
		return fmt.Errorf("etcdlock: name %s has %d bytes, more than %d",
			excerpt(name, 32), len(name), maxNameLen)
	case !utf8.ValidString(name):
		return fmt.Errorf("etcdlock: name %q is not valid UTF-8", name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("etcdlock: name %q contains NUL", name)
	case strings.HasSuffix(name, "/"):
		return fmt.Errorf(`etcdlock: name %q ends with "/"`, name)
	}
	return nil
}

// checkClient returns an error if client cannot be used.
func checkClient(client *clientv3.Client) error {
	if client == nil {
		return errors.New("etcdlock: nil client")
	}
	if client.KV == nil || client.Lease == nil || client.Watcher == nil {
		return errors.New("etcdlock: the client has no KV, Lease or Watcher; make it with clientv3.New")
	}
	return nil
}

// checkContext returns an error if call op on the lock name was given a nil ctx.
func checkContext(ctx context.Context, op, name string) error {
	if ctx == nil {
		return failed(op, name, errors.New("nil context"))
	}
	return nil
}

// excerpt is text, quoted, or its beginning if it is longer than most bytes.
func excerpt(text string, most int) string {
	if len(text) > most {
		return fmt.Sprintf("%q...", text[:32])
	}
	return fmt.Sprintf("%q", text)
}
