package sim

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/queue"
)

// A process that has noticed a set-back lets nobody in beside a hold from before. One that began
// after it cannot know of such a hold. Neither can one that hears from etcd only once that has
// passed all that the process knows, in the same cluster.

// A setBackOf is one set-back of etcd.
type setBackOf struct {
	at      time.Time
	another bool             // it is another cluster since
	knew    map[string]int64 // by process: the highest token that it had had
}

// watchesSetBacks has a Session of a process tell the judge of set-backs, and of signs of one that
// are no proof. Where etcd was not set back none comes up. (But a process that learns by its lease
// that an operator has revoked it, and asks a history that was compacted, cannot tell.)
func (j *judge) watchesSetBacks(process string) []etcdlock.SessionOption {
	trace := &etcdlock.Trace{
		SetBack: func(_ context.Context, e etcdlock.SetBackEvent) {
			j.mu.Lock()
			defer j.mu.Unlock()
			if j.counts(process) && !j.goesBack {
				j.violatedLocked(foundBack, "%s", process)
			}
			j.noteLocked("%s has noticed that etcd was set back: no new hold until %.4fs", process,
				e.Until.Sub(j.began).Seconds())
			j.noticed[process] = time.Now()
			delete(j.knew, process)
			if e.Until.After(j.delayed) {
				j.delayed = e.Until
			}
		},
	}
	logger := slog.New(doubts{told: func(r slog.Record) {
		j.mu.Lock()
		defer j.mu.Unlock()
		var why []string
		r.Attrs(func(a slog.Attr) bool {
			why = append(why, a.String())
			return true
		})
		j.noteLocked("%s: %s: %v", process, r.Message, why)
		if j.counts(process) && !j.goesBack && !(j.mayGoBack && j.cluster.compacted.Load()) {
			j.violatedLocked(foundBack, "%s: %s: %v", process, r.Message, why)
		}
	}})
	return []etcdlock.SessionOption{etcdlock.WithTrace(trace), etcdlock.WithLogger(logger)}
}

// doubts is a slog.Handler of those lines that say that etcd may have been set back.
type doubts struct {
	slog.Handler // nil: the rest is not asked
	told         func(slog.Record)
}

func (d doubts) Enabled(_ context.Context, level slog.Level) bool { return level == slog.LevelWarn }

func (d doubts) Handle(_ context.Context, r slog.Record) error {
	if strings.HasSuffix(r.Message, "etcd may have been set back") {
		d.told(r)
	}
	return nil
}

func (d doubts) WithAttrs([]slog.Attr) slog.Handler { return d }
func (d doubts) WithGroup(string) slog.Handler      { return d }

// mayNotKnowLocked reports whether the process of b, which began to hold after a set-back, need not
// have noticed that.
func (j *judge) mayNotKnowLocked(b *belief, back *setBackOf) bool {
	process := b.who.p.name
	knew, before := back.knew[process]
	switch {
	case !j.noticed[process].Before(back.at):
		return false
	case before && b.life != nil && b.life.put.After(back.at):
		// The answer to the put of its key has told it.
		return !back.another && b.life.rev > knew
	default:
		return true
	}
}

// knowsLocked records that the process of b knows a revision: that of its key.
func (j *judge) knowsLocked(b *belief) {
	process := b.who.p.name
	j.knew[process] = max(j.knew[process], b.hold.token)
}

// undone is the set-back that has taken away the key of a belief, or a key that is held with it,
// nil if none has.
func (b *belief) undone() *setBackOf {
	if b.life != nil && b.life.undone != nil {
		return b.life.undone
	}
	for _, o := range b.others {
		if o.life != nil && o.life.undone != nil {
			return o.life.undone
		}
	}
	return nil
}

// excusedLocked reports whether b, which begins to hold, and other may both believe to hold: the
// key of one was taken away, and its holder need not know yet. After a set-back the later one must
// let the other end, unless its process cannot know: that is b, or other if b is from before the
// set-back and its call returns late.
func (j *judge) excusedLocked(b, other *belief) bool {
	if !j.taken(b) && !j.taken(other) {
		return false
	}
	later, back := b, other.undone()
	if own := b.undone(); own != nil && (back == nil || own.at.After(back.at)) {
		later, back = other, own
	}
	if back == nil || !b.whole() {
		return true
	}
	if !later.excused && !j.mayNotKnowLocked(later, back) {
		return false
	}
	if !later.excused && !b.kind.beside([]kind{other.kind}) {
		j.excused++
		later.excused = true
	}
	return true
}

// lockDelay is the longest time for which no hold begins after a Session has noticed a set-back.
func (w *world) lockDelay() time.Duration {
	if w.scenario != setBack && w.bug != staleReads {
		return 0
	}
	return max(queue.DefaultRestoreDelay, w.mostTTL)
}

// grantedAtLeast is the shortest TTL that etcd grants a Session of the world.
func (w *world) grantedAtLeast() time.Duration {
	if w.mostTTL == w.ttl {
		return w.ttl
	}
	return minTTL * time.Second // to a Session that asks for a second
}

// ttls are options of a Session of a process: its TTL, and how long it waits for a hold that it
// cannot know of. (No hold with a longer TTL is met by none: that is not promised.)
func (w *world) ttls(r *rand.Rand) (opts []etcdlock.SessionOption) {
	if w.mostTTL == w.ttl {
		return nil
	}
	if w.mostTTL > queue.DefaultRestoreDelay {
		opts = append(opts, etcdlock.WithRestoreDelay(w.mostTTL))
	}
	switch r.IntN(3) {
	case 0:
		opts = append(opts, etcdlock.WithTTL(time.Second))
	case 1:
		opts = append(opts, etcdlock.WithTTL(w.mostTTL))
	}
	return opts
}

// unlocks is how long an Unlock takes at most if its context has ended.
func (w *world) unlocks() time.Duration { return max(w.ttl, min(w.mostTTL, 5*time.Second)) }
