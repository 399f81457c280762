package attempt

import (
	"cmp"
	"container/list"
	"slices"
	"time"
)

const (
	// fewRepeats and ManyRepeats are a client's largest credit of repeats, with one endpoint and
	// with several. (gRPC's own retry throttling uses 10, too.)
	fewRepeats, ManyRepeats = 1, 10

	// lively is how long after an answer etcd counts as answering.
	lively = 2 * time.Second

	// firstWindow is how many attempts may be under way in a window before it is known how fast
	// etcd is with them.
	firstWindow = 8

	// An answer that took less than brisk lets one more attempt be under way. One that took more
	// than slow halves how many may be, down to slowWindow: perhaps every answer takes long,
	// however few requests there are.
	brisk      = 200 * time.Millisecond
	slow       = 2 * time.Second
	slowWindow = 4
)

// A limiter says how much may be sent to an etcd, and how soon, by what it has answered so
// far. It is pure: it has no clock and no mutex of its own.
//
// Invariant: repeats are at most a tenth of what was answered, plus a credit that comes
// back in seconds. (Do not repeat without it: a slow etcd then gets more to do, not less,
// and is never heard again. TestACrowdOfSessionsGetsThroughASlowEtcd.)
//
// Invariant: a window grows only by answers to attempts that it has let begin. So answers of
// the other one, and answers to urgent attempts, do not count. (Do not have one for all: in a mass
// start it grows while cheap leases are granted, and then as many puts begin at once, for which
// etcd takes longer than the leases last. TestAMassStartSendsNoMoreThanEtcdAnswersSoon.)
type limiter struct {
	puts, others window

	latest  [4]time.Duration // what the last few answers took, in a ring
	answers int              // how many there were
	turn    time.Duration    // how long the last attempt waited for its turn
	heard   time.Time        // when etcd last answered anything
	spent   float64          // repeats that were sent, less what answers have paid back
	counted time.Time        // when spent was last brought up to date
}

// window is the window for attempts of a policy, nil for urgent ones. etcd's time for a put says
// little about anything else: a grant is cheap, but a put is committed and reads the end of a line.
func (m *limiter) window(p Policy) *window {
	if p == Put {
		return &m.puts
	}
	if p == Urgent {
		return nil
	}
	return &m.others
}

// rest forgets how fast etcd was, since there were no requests for a while.
func (m *limiter) rest() { m.puts.size, m.others.size = firstWindow, firstWindow }

// lets reports whether an attempt may begin in w, and counts it there.
func (m *limiter) lets(w *window) bool {
	if w.under >= w.size {
		return false
	}
	w.under++
	m.turn = 0
	return true
}

// answered notes that at now etcd has answered a request sent at sent, of an attempt that w has let
// begin, or none if w is nil.
func (m *limiter) answered(w *window, sent, now time.Time) {
	took := now.Sub(sent)
	m.latest[m.answers%len(m.latest)] = took
	m.answers++
	m.spent = max(m.spent-0.1, 0)
	m.heard = now
	switch {
	case took > slow:
		w = cmp.Or(w, &m.others)
		w.halve(sent, now, min(w.size, slowWindow))
	case w != nil && took < brisk && 2*w.under >= w.size: // else nothing is known of more
		w.size++
	}
}

// overloaded notes that etcd is overloaded, by an attempt of whatever policy: at now etcd
// said so about a request sent at sent, or had not answered that request at all.
func (m *limiter) overloaded(sent, now time.Time) {
	m.puts.halve(sent, now, 1)
	m.others.halve(sent, now, 1)
}

// took is how long answers take of late: the second longest of the last few. One delayed answer
// says nothing about the next, and would keep a request to a dead endpoint from being repeated.
// Two mean that etcd is slow. Until there are a few, each one counts.
func (m *limiter) took() time.Duration {
	sorted := m.latest
	slices.Sort(sorted[:])
	if m.answers < len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[len(sorted)-2]
}

// usual is how long an answer may take without being late. It is at least first.
func (m *limiter) usual(first time.Duration) time.Duration { return max(first, 3*m.took()) }

// seldom is how often to do something whose normal period is period. It is longer than
// period if answers take long, or if attempts wait long for their turn: a periodic request
// must wait longer than that.
func (m *limiter) seldom(period time.Duration) time.Duration {
	return max(period, 4*(m.took()+m.turn))
}

// spend takes n repeats off the credit, or as many as are left. What was spent comes back by
// itself, too, sooner if etcd answers: by another endpoint perhaps, so that a repeat is worth it.
func (m *limiter) spend(now time.Time, n int, several bool) (granted int) {
	credit, back := fewRepeats, 15*time.Second
	if several {
		credit = ManyRepeats
		if now.Sub(m.heard) < lively {
			back /= 4
		}
	}
	// What was spent from a greater credit is no debt: some credit comes back soon anyway.
	m.spent = min(m.spent, float64(credit))
	m.spent = max(m.spent-float64(credit)*float64(now.Sub(m.counted))/float64(back), 0)
	m.counted = now
	for granted < n && m.spent+1 <= float64(credit) {
		m.spent++
		granted++
	}
	return granted
}

// repaid pays n repeats of an attempt back, of which one was answered while the first request was
// not: they were worth it, as when one endpoint of several is dead.
func (m *limiter) repaid(n int) { m.spent = max(m.spent-float64(n), 0) }

// A window says how many attempts a client may have under way at once. While etcd answers them
// briskly it doubles in the time of an answer. It is halved when etcd is slow or says that it is
// overloaded, much as TCP probes a network.
//
// Invariant: no more attempts begin than lets allows, except urgent ones. (Do not send
// everything at once: etcd works through what it has accepted, even if the caller has given it
// up. Every answer is then late, and every retry makes the next one later, until leases expire
// before their keys are put. TestAMassStartSendsNoMoreThanEtcdAnswersSoon.)
type window struct {
	size   int // how many may be under way
	under  int // how many are under way
	halved time.Time
	queue  list.List // of chan struct{}: attempts that wait, in order
}

// halve halves the window. A request sent before the last halving says nothing about the window
// now.
func (w *window) halve(sent, now time.Time, least int) {
	if sent.After(w.halved) {
		w.size, w.halved = max(w.size/2, least), now
	}
}

// end counts an attempt that is over, and lets the next ones begin.
func (w *window) end() {
	w.under--
	for w.queue.Len() > 0 && w.under < w.size {
		w.under++
		w.queue.Remove(w.queue.Front()).(chan struct{}) <- struct{}{}
	}
}
