package attempt

import (
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

const (
	// firstWindow is how many attempts of a kind may be under way before it is known how fast
	// etcd is with them.
	firstWindow = 8

	// An answer that took less than brisk lets one more attempt be under way. One that took more
	// than slow halves how many may be, down to slowWindow: perhaps every answer takes long,
	// however few requests there are.
	brisk      = 200 * time.Millisecond
	slow       = 2 * time.Second
	slowWindow = 4
)

// The kinds of attempts. etcd's time for one kind says little about another: a grant is
// cheap, but a put is committed and reads the end of a line.
const (
	putting = iota // a key into a line
	asking         // all else: grants, reads, revocations
	kinds
)

// windows are a client's windows, one for each kind of attempts.
//
// Invariant: a window grows only by answers to attempts that it has let begin. So answers of
// another kind, and answers to urgent attempts, do not count. (Do not have one for all: in a mass
// start it grows while cheap leases are granted, and then as many puts begin at once, for which
// etcd takes longer than the leases last. TestAMassStartSendsNoMoreThanEtcdAnswersSoon.)
type windows [kinds]window

// rest forgets how fast etcd was, since there were no requests for a while.
func (w *windows) rest() {
	for kind := range w {
		w[kind].size = 0
	}
}

// overloaded notes that etcd is overloaded, by an attempt of whatever kind: at now etcd
// said so about a request sent at sent, or had not answered that request at all.
func (w *windows) overloaded(sent, now time.Time) {
	for kind := range w {
		w[kind].halve(sent, now, 1)
	}
}

// A window says how many attempts of a kind a client may have under way at once. While etcd
// answers them briskly it doubles in the time of an answer. It is halved when etcd is slow or says
// that it is overloaded, much as TCP probes a network. It is pure: it has no clock and no mutex of
// its own.
//
// Invariant: no more attempts begin while full reports true, except urgent ones. (Do not send
// everything at once: etcd works through what it has accepted, even if the caller has given it
// up. Every answer is then late, and every retry makes the next one later, until leases expire
// before their keys are put. TestAMassStartSendsNoMoreThanEtcdAnswersSoon.)
type window struct {
	size   int // how many may be under way, 0 for firstWindow
	under  int // how many are under way
	halved time.Time
}

func (w *window) limit() int {
	if w.size == 0 {
		return firstWindow
	}
	return w.size
}

// full reports whether no more may begin.
func (w *window) full() bool { return w.under >= w.limit() }

// answered notes that at now etcd has answered a request sent at sent. let says whether the
// window has let it begin.
func (w *window) answered(sent, now time.Time, let bool) {
	switch took := now.Sub(sent); {
	case took > slow:
		w.halve(sent, now, min(w.limit(), slowWindow))
	case let && took < brisk && 2*w.under >= w.limit(): // else nothing is known of more
		w.size = w.limit() + 1
	}
}

// halve halves the window. A request sent before the last halving says nothing about the window
// now.
func (w *window) halve(sent, now time.Time, least int) {
	if sent.After(w.halved) {
		w.size, w.halved = max(w.limit()/2, least), now
	}
}

// Overloaded reports whether err says that etcd is overloaded, as far as is known: etcd turns
// the request away, or its own time for the request runs out, or all the time of the attempt does.
func Overloaded(err error) bool {
	return err == ErrNoAnswer || Is(err, rpctypes.ErrTooManyRequests) || Is(err, rpctypes.ErrTimeout)
}
