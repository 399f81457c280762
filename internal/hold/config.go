package hold

import (
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// minMargin is the least default safety margin.
const minMargin = 100 * time.Millisecond

// A Config is what the options say, checked. It is set once and then only read.
type Config struct {
	// For the Session.
	TTL    time.Duration // whole seconds, as on the wire
	Margin time.Duration // 0: the default, which depends on the granted TTL

	RestoreDelay time.Duration // see delay.go of internal/queue

	// For package concurrency.
	Adopt      clientv3.LeaseID // to be the first lease; NoLease: one is granted
	Opened     func(*Session)   // is given the Session
	SlashNames bool             // names may end with a slash

	// For the lock. A Session passes its own on as defaults.
	Owner          string
	Reentrant      bool
	MaxHold        time.Duration // 0: none
	MinHold        time.Duration // 0: none
	MustNotNest    bool          // MinHold is not a Session's default
	AcquireTimeout time.Duration // 0: none
	Info           string        // for programs that watch
	Handoff        int           // 0: strict order
	Linger         time.Duration // 0: none
	Recall         time.Duration // the longest grace; 0: holds do not listen
	Ask            *line.Recall  // what a wait asks of a holder; nil: nothing
	Logger         *slog.Logger  // nil: silence
	Hooks          *Hooks

	Texts [line.Kinds]line.Text // of the values of keys, by their kind
}

// Option makes an option for a Session of the API, an etcdlock.SessionOption, of what it does to
// the Config. The API sets it, for package concurrency.
var Option func(set func(*Config)) any

// SetTexts sets the values of keys by all else that is set. An error is about the owner.
func (c *Config) SetTexts() error {
	v := c.value()
	v.Recallable = c.Recall > 0
	for k := range c.Texts {
		text, err := line.NewText(v, line.Kind(k))
		if err != nil {
			return err
		}
		c.Texts[k] = text
	}
	return nil
}

// value is what keys tell of their contenders.
func (c *Config) value() line.Value {
	host, pid := Identity()
	return line.Value{Owner: c.Owner, Host: host, PID: pid, Info: c.Info}
}

// MarginOf is the safety margin for a lease of the granted TTL.
func (c *Config) MarginOf(granted time.Duration) time.Duration {
	if c.Margin > 0 {
		return c.Margin
	}
	return max(granted/8, minMargin)
}

// Identity tells this process from other ones. It is read once, because every key's
// value needs it.
var Identity = sync.OnceValues(func() (host string, pid int) {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return strings.ToValidUTF8(host, "?"), os.Getpid()
})
