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
// A nil option is an error of what it is given to, and so are an invalid value, which the error
// names, and an option that is given directly to what cannot use it, as [WithHandoff] to a
// Semaphore: the error names both. As a default of a [Session] it is ignored there.
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

// JoinOptions returns one Option that does what all of opts do, in their order. Use it for tables of
// options, and to hand a []Option on to [New], which takes each [SessionOption]. An error in opts
// is one of what the result is given to.
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

// WithTTL sets the time to live of the lease: how long a crashed holder blocks other
// contenders, and within what time a hold must be renewed. It is rounded up to
// whole seconds. etcd may grant more (at least one and a half of its election
// timeouts, 2 s by default), and the granted TTL counts. The default is 15 s.
func WithTTL(d time.Duration) SessionOption {
	return sessionOption("WithTTL", func(c *config) error {
		c.ttl = d
		if d > maxTTL {
			return fmt.Errorf("etcdlock: WithTTL(%v): above etcd's limit of %v", d, maxTTL)
		}
		return positive("WithTTL", d)
	})
}

// WithSafetyMargin sets how long before the lease may expire a hold ends. The margin
// covers clocks that run at different rates, and it is the time in which the critical
// section has to stop. It must be less than the TTL. The default is an eighth of the
// granted TTL, but at least 100 ms. With a margin above a quarter of the TTL the lease
// is renewed more often than every third of the TTL.
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
// an address, a version. It is valid UTF-8 of at most 1 KiB. Every etcd user with the right to read
// the key can read it. The default is none. [Mutex.SetInfo] and [Hold.SetInfo] change it for one
// hold.
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

// WithReentrancy makes Lock, TryLock and Do with a context that comes from a hold
// of the same name in the same Session nest in that hold, instead of returning
// [ErrDeadlock]. Each nested Lock needs its own Unlock; the last Unlock releases. In the
// same way RLock nests in a read. Lock never nests in a read, nor RLock in a write, nor
// [Session.LockAll] in anything.
func WithReentrancy() Option {
	return option("WithReentrancy", forSemaphore, func(c *config) error {
		c.reentrant = true
		return nil
	})
}

// WithMaxHold ends and releases a hold at the latest d after it began, even if it is
// renewed. The hold's context then ends with the cause [ErrMaxHold], and Unlock
// returns an error that is both ErrLost and ErrMaxHold.
//
// Unlike the end of a lease this has no safety margin: the next contender may get in one
// round trip after d. So the critical section must stop by itself, or the token must
// guard it. Other goroutines of this Session get in after the Unlock only; see [Mutex.Lock].
func WithMaxHold(d time.Duration) Option {
	return option("WithMaxHold", 0, func(c *config) error {
		c.maxHold = d
		return positive("WithMaxHold", d)
	})
}

// WithMinHold keeps the name taken for d at least from the moment at which it was acquired, even if
// Unlock is called earlier. It is for jobs that may be shorter than the clocks of the machines that
// start them differ: the job runs once, however short it is.
//
// An Unlock before d ends the hold, as ever, and leaves its key in line for the rest of d, on a
// lease of its own that is not renewed. Unlock returns nil once etcd has confirmed that. From then
// on it does not matter whether the process lives on. The Session revokes the lease at d, and the
// next contender gets in; if the process is gone, or the Session is closed, the key expires within
// about 3 s after d. Others see until when in [Contender.Until]. A Lock of the same Session waits
// like any other one.
//
// A hold that lasts longer than d costs nothing more. A shorter one costs the grant of a lease with
// its Unlock, and a timer of the Session. The TTL of etcd is in whole seconds, 2 s at least by
// default.
//
// What is kept is a hold that its own Unlock has ended whole. A lost one keeps nothing, nor does
// one that Close ends. If the process dies before Unlock, the key goes with the lease of the
// Session, within [WithTTL]: a TTL of at least d covers that, too. If etcd does not answer an
// Unlock, which then returns [ErrUnconfirmed], the key goes at d, or with the lease of the Session.
// An Unlock is ErrUnconfirmed, too, if a request of it had no answer and then the key is gone
// before d, or was put over: that may have been before the hold ended, or after. It counts from the
// return of Lock, by the clock of this process, and by etcd's if the process is gone. While the
// rest of d lasts the hold is not handed on and does not linger; see [WithHandoff], [WithLinger].
//
// It is for a [Mutex], [Session.Lock] and [Session.Do], and is an error for RWMutex and Semaphore.
// As a default of a Session it does not count for these, nor for [Session.LockAll].
func WithMinHold(d time.Duration) Option {
	return option("WithMinHold", forRWMutex|forSemaphore, func(c *config) error {
		c.minHold, c.mustNotNest = d, true
		if d > maxTTL {
			return fmt.Errorf("etcdlock: WithMinHold(%v): above etcd's limit of %v", d, maxTTL)
		}
		return positive("WithMinHold", d)
	})
}

// WithAcquireTimeout bounds each wait for a lock (Lock, RLock, Acquire, LockAll and their
// like), without bounding the context of the hold. When the time is over the error is
// context.DeadlineExceeded. Below 250 ms it does not tell whether etcd was away (see
// [ErrUnavailable]).
func WithAcquireTimeout(d time.Duration) Option {
	return option("WithAcquireTimeout", 0, func(c *config) error {
		c.acquireTimeout = d
		return positive("WithAcquireTimeout", d)
	})
}

// WithHandoff lets up to n Unlocks in a row pass the hold on to the next goroutine of the
// Session that waits for the name, without a request to etcd. Then the key is released
// and other contenders get their turn. The default is 0: strict order of arrival.
//
// It trades order and waiting time for speed: another Session waits for up to n+1 critical
// sections at a time. Holds that are passed on have the same key and Token, which still
// grows from one Session to the next. So a resource that refuses older tokens, or checks
// IsOwner, cannot tell two goroutines of one Session apart. An Unlock that passes the hold
// on returns nil as long as the hold is certain. If an operator deleted the key in the last
// second or so, the next holder learns it instead. The key goes on saying the same of its holder.
// So a hold is passed on only between Mutexes with the same [WithOwner] and [WithInfo], both with
// [WithRecall] or both without, and not once [Mutex.SetInfo] was called.
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
// the Session may lock again without a request to etcd. The key goes as soon as another
// contender queues, when the lease is at risk or retired, when the line cannot be watched,
// at Close, and when d is over. The default is to release at once.
//
// The trade-off: the first wait of another contender needs an event and one more commit, and its
// TryLock returns [ErrLocked] while the key lingers. So it suits locks that one process
// takes again and again. A lingering key costs a watch of the name, a goroutine, and a read
// every 1.5 s at first and once in a TTL and a third in the end. The holds of one key have
// the same Token and the same IsOwner. An Unlock that leaves the key lingering returns nil
// as long as the hold is certain. If an operator deleted the key in the last second or so,
// that is noticed later. A lingering key is for Mutexes with the same [WithOwner] and
// [WithInfo], all with [WithRecall] or all without. Any other Mutex of the Session puts a key
// of its own. A key does not linger once [Mutex.SetInfo] was called for it.
func WithLinger(d time.Duration) Option {
	return option("WithLinger", forSemaphore, func(c *config) error {
		c.linger = d
		return positive("WithLinger", d)
	})
}

// WithLogger sets where the library reports what may need attention. At Warn: an etcd that
// does not answer, losses, failed or late renewals, releases and removals that etcd does not
// confirm, and late requests that had to be undone. At Debug: leases that begin and end. The
// default is silence. Like the hooks of a [Trace], the logger is called from a goroutine of its
// own, and a handler that blocks does not hold up a lock.
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

// value is the value of a key of a kind that is put now, with a lease of a TTL.
func (c *config) value(k line.Kind, ttl time.Duration) string {
	return c.texts[k].Since(time.Now(), ttl)
}

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
