package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/hold"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/queue"
	"github.com/etcdlock/etcdlock/internal/quote"
)

const (
	defaultTTL = 15 * time.Second

	// leastTTL is below any TTL that works: etcd's least is a second, and often two. What a program
	// asks below it is a slip of the unit.
	leastTTL = 100 * time.Millisecond

	// maxTTL is etcd's own limit (lease.MaxLeaseTTL).
	maxTTL = 9_000_000_000 * time.Second

	// maxNameLen bounds names and owner labels, in bytes. etcd refuses requests above 1.5 MiB; a
	// kibibyte keeps keys readable.
	maxNameLen = 1024

	// maxNames is the most names of a LockAll. Its put has three operations for each, and etcd
	// allows 128 in a transaction by default.
	maxNames = 32

	// mostPermits is the highest limit of a Semaphore: a key has two bytes for it.
	mostPermits = math.MaxUint16
)

// A SessionOption is an option of [NewMutex], [NewRWMutex], [NewSemaphore] and [NewSession]. The
// order of options does not matter, except that the last of two of the same kind counts.
//
// A constructor refuses a nil option, an invalid value, and an option that it cannot use, as
// [WithHandoff] for a Semaphore. The error says which. As a default of a [Session] such an option
// counts only where it can be used. Durations below a millisecond are invalid: WithMaxHold(15) is
// 15 ns, and not 15 s.
type SessionOption interface {
	applyTo(c *hold.Config, to use) error
}

// An Option is a [SessionOption] that [Session.Mutex], [Session.RWMutex] and [Session.Semaphore]
// take, too. There it replaces the Session's.
type Option interface {
	SessionOption
	ofLocks()
}

// A setting is what an option does.
type setting struct {
	name string // of the option
	not  use    // what has no use for it
	set  func(*hold.Config) error
}

// applyTo changes the config of what the option is given to.
func (s *setting) applyTo(c *hold.Config, to use) error {
	if s.not&to != 0 {
		return fmt.Errorf("etcdlock: %s is not for %v", s.name, to)
	}
	return s.set(c)
}

// A lockSetting is a setting that is an Option.
type lockSetting struct{ *setting }

func (lockSetting) ofLocks() {}

// option makes an Option, for which some have no use.
func option(name string, not use, set func(*hold.Config) error) Option {
	return lockSetting{&setting{name, not, set}}
}

// sessionOption makes a SessionOption.
func sessionOption(name string, set func(*hold.Config) error) SessionOption {
	return &setting{name, 0, set}
}

func init() {
	hold.Option = func(set func(*hold.Config)) any {
		return sessionOption("", func(c *hold.Config) error {
			set(c)
			return nil
		})
	}
}

// joined are options that are one. (Do not make it a slice: a program may compare options, or have
// them as keys of a map, which then panics. TestOptionsCanBeCompared.)
type joined struct{ opts []Option }

func (j *joined) applyTo(c *hold.Config, to use) error {
	return apply("JoinOptions: ", c, to, j.opts)
}

func (*joined) ofLocks() {}

// JoinOptions returns one Option that does what all of opts do, in their order. A constructor that
// refuses one of opts refuses the result.
func JoinOptions(opts ...Option) Option { return &joined{slices.Clone(opts)} }

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

// WithTTL sets the time to live of the lease: how long a crashed holder blocks other contenders,
// and within what time a hold must be renewed. The default is 15 s. Below 100 ms it is
// an error; otherwise it is rounded up to whole seconds. etcd may grant more (2 s at least, by
// default), and the granted TTL counts.
func WithTTL(d time.Duration) SessionOption {
	return sessionOption("WithTTL", func(c *hold.Config) error {
		c.TTL = d
		if d > maxTTL {
			return fmt.Errorf("etcdlock: WithTTL(%v): above etcd's limit of %v", d, maxTTL)
		}
		if d >= time.Millisecond && d < leastTTL {
			return fmt.Errorf("etcdlock: WithTTL(%v): below %v; the shortest TTL is 1s", d, leastTTL)
		}
		return checkDuration("WithTTL", d, leastTTL)
	})
}

// WithSafetyMargin sets how long before the lease may expire a hold ends. The margin covers clocks
// that run at different rates, and gives the critical section time to stop. It must be less than
// the TTL, and costs more renewals above a quarter of it. The default is an eighth of the granted
// TTL, but at least 100 ms.
func WithSafetyMargin(d time.Duration) SessionOption {
	return sessionOption("WithSafetyMargin", func(c *hold.Config) error {
		c.Margin = d
		return checkDuration("WithSafetyMargin", d, time.Millisecond)
	})
}

// WithRestoreDelay sets how long a Session that has noticed a restore or a wipe of etcd waits at
// least before its next hold at a new key, at names in whose line it had no exclusive place (for
// reads, nor a read's), or had not read all TTLs: the longest TTL of all processes. The default is
// a minute. It always waits for its own TTL, those of its client's leases, and those that it read.
// Not covered: a process that starts after the restore; a holder with a longer TTL that the Session
// never met; and, where the Session had no place in line, a revision that etcd could have reached
// by writing since the Session last heard from it.
func WithRestoreDelay(d time.Duration) SessionOption {
	return sessionOption("WithRestoreDelay", func(c *hold.Config) error {
		c.RestoreDelay = d
		return checkDuration("WithRestoreDelay", d, time.Millisecond)
	})
}

// WithOwner sets the label that other contenders and operators see. The default is "host:pid".
func WithOwner(label string) Option {
	return option("WithOwner", 0, func(c *hold.Config) error {
		c.Owner = label
		switch {
		case label == "":
			return errors.New(`etcdlock: WithOwner(""): empty label`)
		case len(label) > maxNameLen:
			return fmt.Errorf("etcdlock: WithOwner(%s): %d bytes, more than %d",
				quote.Excerpt(label, 32), len(label), maxNameLen)
		case !utf8.ValidString(label):
			return fmt.Errorf("etcdlock: WithOwner(%s): not valid UTF-8", quote.Excerpt(label, 32))
		}
		return nil
	})
}

// WithInfo sets a text that is stored with the key, for other programs to read as Contender.Info:
// an address, a version. It is valid UTF-8 of at most 1 KiB. [Mutex.SetInfo] and [Hold.SetInfo]
// change it for one hold.
func WithInfo(info string) Option {
	return option("WithInfo", 0, func(c *hold.Config) error {
		c.Info = info
		return checkInfo("WithInfo", info)
	})
}

// checkInfo returns an error if info, which was given to something, cannot be stored.
func checkInfo(to, info string) error {
	if err := line.CheckInfo(info); err != nil {
		return fmt.Errorf("etcdlock: %s(%s): %w", to, quote.Excerpt(info, 32), err)
	}
	return nil
}

// WithReentrancy lets Lock, TryLock and Do nest in a hold of the same name in the same Session, if
// their context comes from that hold. Without it they return [ErrDeadlock]. Each nested Lock needs
// its own Unlock; the last Unlock releases. It is part of the hold around it, with the options of
// that: a WithMaxHold or WithRecall of its own does not count.
//
// In the same way RLock nests in a read. As a default of a Session it counts for its Mutexes, its
// RWMutexes, and [Session.Lock] and its like. It does not count for [Session.LockAll] and for
// Semaphores, for which it is an error.
func WithReentrancy() Option {
	return option("WithReentrancy", forSemaphore, func(c *hold.Config) error {
		c.Reentrant = true
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
	return option("WithMaxHold", 0, func(c *hold.Config) error {
		c.MaxHold = d
		return checkDuration("WithMaxHold", d, time.Millisecond)
	})
}

// WithMinHold keeps the name taken for at least d from its acquisition, even if Unlock is called
// earlier. It is for a job that many machines start by their own clocks: with [Session.TryDo] or a
// TryLock the job runs once, however short it is, if the clocks differ by less than d. (A Do or a
// Lock waits until d and runs the job again.)
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
// It counts for exclusive locks. For an RWMutex, a Semaphore, and a Lock
// that nests it is an error. As a default of a Session it does not count for these, nor for
// [Session.LockAll].
func WithMinHold(d time.Duration) Option {
	return option("WithMinHold", forRWMutex|forSemaphore, func(c *hold.Config) error {
		c.MinHold, c.MustNotNest = d, true
		if d > maxTTL {
			return fmt.Errorf("etcdlock: WithMinHold(%v): above etcd's limit of %v", d, maxTTL)
		}
		return checkDuration("WithMinHold", d, time.Millisecond)
	})
}

// WithAcquireTimeout bounds each wait for a lock (Lock, RLock, Acquire, LockAll and their like),
// without bounding the context of the hold. When the time is over the error is
// context.DeadlineExceeded, and says so.
func WithAcquireTimeout(d time.Duration) Option {
	return option("WithAcquireTimeout", 0, func(c *hold.Config) error {
		c.AcquireTimeout = d
		return checkDuration("WithAcquireTimeout", d, time.Millisecond)
	})
}

// WithHandoff lets up to n Unlocks in a row pass the hold on to the next goroutine of the Session
// that waits for the name, without a request to etcd. Then the key is released and other contenders
// get their turn. The default is 0: strict order of arrival.
//
// Another Session waits for up to n+1 critical sections at a time. Holds that are passed on have
// one key and Token: a resource that checks them cannot tell two goroutines of one Session apart.
// An Unlock that passes the hold on returns nil as long as the lease is renewed in time. If an
// operator deleted the key in the last second or so, the next holder learns it instead.
//
// Mutexes share a key if they have the same [WithOwner] and [WithInfo], and all or none have
// [WithRecall], unless [Mutex.SetInfo] was called. As a default of a Session it counts for its
// Mutexes, for the writers of its RWMutexes, and for [Session.Lock] and its like. It does not count
// for [Session.LockAll] and for Semaphores, for which it is an error.
func WithHandoff(n int) Option {
	return option("WithHandoff", forSemaphore, func(c *hold.Config) error {
		c.Handoff = n
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
// goroutine, and rare reads.
//
// See [WithHandoff] for what the nil of such an Unlock says, which Mutexes share the key and its
// Token, and where it counts as a default of a Session.
func WithLinger(d time.Duration) Option {
	return option("WithLinger", forSemaphore, func(c *hold.Config) error {
		c.Linger = d
		return checkDuration("WithLinger", d, time.Millisecond)
	})
}

// WithRecall makes holds listen to [Recall]. [RecallFrom] tells the holder of a request, and the
// hold ends after the grace of the request, or after most if that is less. By default holds cannot
// be recalled.
//
// It costs a watch and a read if contenders are behind a hold as it begins. A recalled key is not
// handed on and does not linger, and no reader joins it.
func WithRecall(most time.Duration) Option {
	return option("WithRecall", 0, func(c *hold.Config) error {
		c.Recall = most
		return checkDuration("WithRecall", most, time.Millisecond)
	})
}

// WithAsk makes the waits of Lock, RLock, Acquire, LockAll, Do, Lead and their like ask the holder
// to give way: a wait sends r, as [Recall] does, once to each holder ahead of it. It overtakes
// nobody, and gets in once the holder has unlocked.
//
// It asks those that hold when it queues, and later ones as they begin to hold: all of several
// readers or permits, up to 1,000. It asks a hold of the same Session without a request. It does
// not ask a contender that only waits (but a LockAll that is first in the line), nor a holder that
// does not listen (see [WithRecall]). TryLock and its like ask no contender.
//
// The requests are sent in the background, and end with the wait and with Close; a failure is
// logged at Warn. An r that [Recall] refuses is an invalid value.
func WithAsk(r RecallRequest) Option {
	return option("WithAsk", 0, func(c *hold.Config) error {
		request, err := r.line(uuid.NewString())
		if err != nil {
			return fmt.Errorf("etcdlock: WithAsk: %w", err)
		}
		c.Ask = &request
		return nil
	})
}

// WithLogger sets where the library reports what may need attention. The default is silence. At
// Info: a wait that lasts, with its holder, after 30 s and each time it has doubled. At Warn: an
// etcd that does not answer, losses, failures of Lead's function, late renewals, releases and
// removals that etcd does not confirm, and late requests that had to be undone. At Debug: leases
// that begin and end. Like the hooks of a [Trace], a handler that blocks does not hold up a lock.
func WithLogger(l *slog.Logger) Option {
	return option("WithLogger", 0, func(c *hold.Config) error {
		c.Logger = l
		if l == nil {
			return errors.New("etcdlock: WithLogger(nil)")
		}
		return nil
	})
}

// WithTrace sets the hooks of t; see [Trace]. Hooks that t gets later do not count.
func WithTrace(t *Trace) Option {
	return option("WithTrace", 0, func(c *hold.Config) error {
		if t == nil {
			return errors.New("etcdlock: WithTrace(nil)")
		}
		c.Hooks = hooksOf(t)
		return nil
	})
}

// checkDuration returns an error if d, the value of an option, is below least.
func checkDuration(option string, d, least time.Duration) error {
	if err := checkMeant(d, least); err != nil {
		return fmt.Errorf("etcdlock: %s(%v): %w", option, d, err)
	}
	return nil
}

// checkMeant returns an error if d is below least, which no program means. It guesses the unit that
// a plain number was meant in.
func checkMeant(d, least time.Duration) error {
	switch {
	case d <= 0:
		return errors.New("not positive")
	case d >= least:
		return nil
	}
	unit := "Second"
	if d >= 1000 {
		unit = "Millisecond"
	}
	return fmt.Errorf("below %v; a plain %d is nanoseconds: did you mean %d*time.%s?",
		least, int64(d), int64(d), unit)
}

// apply changes c by opts, which are given to something. of is the prefix of an error about one
// that is nil.
func apply[O SessionOption](of string, c *hold.Config, to use, opts []O) error {
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
func configure[O SessionOption](c hold.Config, to use, opts []O) (hold.Config, error) {
	if err := apply("", &c, to, opts); err != nil {
		return c, err
	}
	if to == forSession {
		c.MustNotNest = false
	}
	if c.Margin >= c.TTL {
		return c, fmt.Errorf("etcdlock: safety margin %v is not below the TTL %v", c.Margin, c.TTL)
	}
	c.TTL = etcd.WholeSeconds(c.TTL)
	if err := c.SetTexts(); err != nil {
		return c, fmt.Errorf("etcdlock: owner %s: %w", quote.Excerpt(c.Owner, 32), err)
	}
	return c, nil
}

// openSession returns the Session of something that is given opts.
func openSession(
	client *clientv3.Client, of use, opts []SessionOption,
) (*hold.Session, error) {
	if err := checkClient(client); err != nil {
		return nil, err
	}
	cfg, err := configure(defaultConfig(), of, opts)
	if err != nil {
		return nil, err
	}
	return hold.New(client, &cfg), nil
}

func defaultConfig() hold.Config {
	host, pid := hold.Identity()
	return hold.Config{
		TTL:          defaultTTL,
		RestoreDelay: queue.DefaultRestoreDelay,
		Hooks:        new(hold.Hooks),
		Owner:        fmt.Sprintf("%s:%d", host, pid),
	}
}

// checkName returns an error if name cannot be the name of a lock.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New(`etcdlock: name "" is empty`)
	case len(name) > maxNameLen:
		return fmt.Errorf("etcdlock: name %s has %d bytes, more than %d",
			quote.Excerpt(name, 32), len(name), maxNameLen)
	case !utf8.ValidString(name):
		return fmt.Errorf("etcdlock: name %q is not valid UTF-8", name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("etcdlock: name %q contains NUL", name)
	case strings.HasSuffix(name, "/"):
		return fmt.Errorf(`etcdlock: name %q ends with "/"`, name)
	}
	return nil
}

// checkNames returns an error if names cannot be the names of a LockAll.
func checkNames(names []string) error {
	switch n := len(names); {
	case n == 0:
		return errors.New("etcdlock: LockAll: no names")
	case n > maxNames:
		return fmt.Errorf("etcdlock: LockAll: %d names, more than %d", n, maxNames)
	}
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if err := checkName(name); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("etcdlock: LockAll: name %s twice", quote.Excerpt(name, maxNameLen))
		}
		seen[name] = true
	}
	return nil
}

// checkLimit returns an error if a Semaphore cannot have limit.
func checkLimit(name string, limit int) error {
	if limit < 1 || limit > mostPermits {
		return fmt.Errorf("etcdlock: semaphore %s: limit %d: must be 1 to %d",
			quote.Excerpt(name, maxNameLen), limit, mostPermits)
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
		return failed(op, name, errNilContext)
	}
	return nil
}
