package etcdlockcaddy

import (
	"slices"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// name is the module's, and that of its loggers.
const name = "caddy.storage.etcdlock"

// A loggers has those of the configurations that share a Session. The last one counts, since Caddy
// closes the files of a configuration that has ended, and without any the one of Caddy itself.
type loggers struct {
	mu  sync.Mutex
	all []*zap.Logger
}

func (l *loggers) add(logger *zap.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, logger)
}

func (l *loggers) remove(logger *zap.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(other *zap.Logger) bool { return other == logger })
}

func (l *loggers) current() zapcore.Core {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return caddy.Log().Core()
	}
	return l.all[len(l.all)-1].Core()
}

// logger returns the one for what the configurations share.
func (l *loggers) logger() *zap.Logger { return zap.New(core{to: l}).Named(name) }

// A core writes each entry to the logger that counts at that time.
type core struct {
	to   *loggers
	with []zapcore.Field
}

func (c core) Enabled(l zapcore.Level) bool { return c.to.current().Enabled(l) }

func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{c.to, slices.Concat(c.with, fields)}
}

func (c core) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) {
		return checked
	}
	return checked.AddCore(e, c)
}

// Write asks the logger again: it may have filters that Enabled does not know.
func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if checked := c.to.current().Check(e, nil); checked != nil {
		checked.Write(slices.Concat(c.with, fields)...)
	}
	return nil
}

func (c core) Sync() error { return c.to.current().Sync() }
