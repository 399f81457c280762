package attempt

import (
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

const (
	// firstWindow is how many attempts of a kind may be under way before anything is known of
	// how fast etcd is with them.
	firstWindow = 8

	// An answer that took less than brisk lets one more attempt be under way. One that took more
	// than slow halves how many may be, down to slowWindow: it may be that each answer takes long,
	// however few are asked for.
	brisk      = 200 * time.Millisecond
	slow       = 2 * time.Second
	slowWindow = 4
)

// The kinds of attempts. What etcd takes for one kind tells little of what it takes for another:
// a grant is cheap, a put is committed, and reads the end of a line.
const (
	putting = iota // a key into a line
	asking         // all else: grants, reads, revocations
	kinds
)

// windows are those of a client, for each kind of attempts.
//
// Invariant: a window grows only by answers to what it has let begin, and so by none of another
// kind, and by none that was urgent. (Do not have one for all: in a mass start it grows while
// cheap leases are granted, and then as many puts begin at once, for which etcd takes longer than
// the leases last. TestAMassStartSendsNoMoreThanEtcdAnswersSoon.)
type windows [kinds]window

// rest forgets how fast etcd was: nothing was asked for a while.
func (w *windows) rest() {
	for kind := range w {
		w[kind].size = 0
	}
}

// overloaded notes that etcd has too much to do, of whatever kind, as it said at now of what was
// sent at a time, or did not say at all.
func (w *windows) overloaded(sent, now time.Time) {
	for kind := range w {
		w[kind].halve(sent, now, 1)
	}
}

// A window says how many attempts of a kind a client may have under way at once. It grows while
// etcd answers them briskly, twofold in the time of an answer, and is halved when etcd is slow, or
// says that it has too much to do: as TCP finds out what a network takes. It is pure: it has no
// clock and no lock of its own.
//
// Invariant: no more attempts begin while full reports true, but those that give something back.
// (Do not send whatever is wanted at once: etcd works through what it has taken on, though nobody
// waits for it any more. Each answer is then late, and each try again makes the next one later,
// until leases expire before their keys are put. TestACrowdGetsThroughAnEtcdThatTimesOut.)
type window struct {
	size   int // how many may be under way, 0 for firstWindow
	under  int // how many are
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

// answered notes that etcd has answered at now what was sent at a time, and whether the window
// has let it begin.
func (w *window) answered(sent, now time.Time, let bool) {
	switch took := now.Sub(sent); {
	case took > slow:
		w.halve(sent, now, min(w.limit(), slowWindow))
	case let && took < brisk && 2*w.under >= w.limit(): // else nothing is known of more
		w.size = w.limit() + 1
	}
}

// halve halves the window. What was sent before it was halved last says nothing of what it is now.
func (w *window) halve(sent, now time.Time, least int) {
	if sent.After(w.halved) {
		w.size, w.halved = max(w.limit()/2, least), now
	}
}

// overloaded reports whether err says that etcd has too much to do, as far as one can tell: it
// turns the request away, or does not answer in the time that it takes for that itself, or in all
// the time that an attempt may take.
func overloaded(err error) bool {
	return err == ErrNoAnswer || Is(err, rpctypes.ErrTooManyRequests) || Is(err, rpctypes.ErrTimeout)
}
