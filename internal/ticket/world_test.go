package ticket_test

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
	"github.com/etcdlock/etcdlock/internal/turn"
)

// name is the lock.
const name = "x"

// Faults, of each of which there are so many.
type fault int

const (
	silence  fault = iota // a call is given up without an answer; its request may come late, or not
	repeat                // a request is sent twice
	deletion              // an operator deletes a key
	loss                  // a Session's trust in its lease is over, and etcd ends the lease then
	leaving               // a claim gives up
	kinds
)

// A world is two Sessions, one of which has two goroutines, and etcd.
type world struct {
	etcd     etcd
	net      []message
	sessions [2]session
	claims   [3]claim
	entries  []*entry
	granted  int64      // leases
	faults   [kinds]int // left of each kind
	left     int        // faults of all kinds

	token  int64  // of the latest hold, for the judge
	broken string // the promise that was broken
}

// may reports whether a fault may still happen.
func (w *world) may(f fault) bool { return w.left > 0 && w.faults[f] > 0 }

// fails notes that a fault happens.
func (w *world) fails(f fault) {
	w.faults[f]--
	w.left--
}

// home is the Session of a claim.
func home(claim int) int { return claim / 2 }

// newWorld is a world before anything has happened. Strays are keys that are no contenders.
func newWorld(rounds, faults int, each [kinds]int, strays int) *world {
	w := &world{etcd: etcd{history: [][]*stored{nil, nil}}, faults: each, left: faults}
	for i := range strays {
		stray := &stored{key: fmt.Sprintf("%sconfig%d", line.Prefix(name), i), rev: w.etcd.rev() + 1}
		w.etcd.set(append(slices.Clone(w.etcd.now()), stray))
	}
	for i := range w.claims {
		w.claims[i] = claim{rounds: rounds, ticket: none}
		s := &w.sessions[home(i)]
		if s.waiters == nil {
			s.queue, s.waiters = &turn.Queue[int, int]{}, make([]*turn.Waiter[int], len(w.claims))
		}
		s.waiters[i] = &turn.Waiter[int]{Who: i}
	}
	return w
}

func (w *world) breaks(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
	}
}

func (w *world) sessionOf(e *entry) *session { return &w.sessions[home(e.claim)] }

// leaseOf is the lease of a ticket, as its Session knows it.
func (w *world) leaseOf(e *entry) *lease {
	s := w.sessionOf(e)
	return &s.leases[slices.IndexFunc(s.leases, func(l lease) bool { return l.id == e.ticket.Lease })]
}

// ---- what the library does, by what its cores say

// take is newPlaceLocked, with whatever lease it takes.
func (w *world) take(claim int) int {
	s := &w.sessions[home(claim)]
	if n := len(s.leases); n == 0 || s.leases[n-1].retired || s.leases[n-1].ended {
		w.granted++
		s.leases = append(s.leases, lease{id: w.granted})
	}
	l := s.leases[len(s.leases)-1]
	e := &entry{claim: claim, using: true, next: none, after: none, unqueued: none}
	e.ticket = ticket.New(name, l.id, s.slots.Free(l.id), func(string) string {
		s.drawn++
		return line.Key(name, uuid.UUID{15: byte(home(claim)<<4 | s.drawn)})
	})
	i := slices.Index(w.entries, nil)
	if i < 0 {
		i = len(w.entries)
		w.entries = append(w.entries, nil)
	}
	w.entries[i] = e
	return i
}

// comes is when the turn of a claim has come, with the ticket that was put for it, or none.
func (w *world) comes(claim, put int) {
	c := &w.claims[claim]
	c.standing, c.ticket, c.put = inLine, put, put != none
	if put != none {
		w.entries[put].phase = waiting
		return
	}
	c.ticket = w.take(claim)
	e := w.entries[c.ticket]
	e.entering = e.ticket.Enter(false, false)
	w.send(c.ticket)
}

// pass is passLocked.
func (w *world) pass(s *session, put int) {
	if next, ok := s.queue.Pass(); ok {
		w.comes(next, put)
	} else if put != none {
		w.abandon(put, false)
	}
}

// txn is what the ticket says is to be sent.
func (w *world) txn(i int) ticket.Txn {
	e := w.entries[i]
	switch e.phase {
	case entering:
		return e.entering.Txn("")
	case releasing:
		return e.release.Txn("")
	default:
		return e.ticket.Removal(false, line.Nobody)
	}
}

// send begins a call.
func (w *world) send(i int) {
	w.entries[i].copies = false
	w.net = append(w.net, message{wireOf(w.txn(i), false), i})
}

// abandon is abandonLocked.
func (w *world) abandon(i int, unsure bool) {
	e := w.entries[i]
	e.ticket.Leave()
	if e.ticket.State() == ticket.Removed {
		w.forget(i)
		return
	}
	e.using, e.phase, e.ahead = false, removing, line.Nobody
	e.whole, e.taken, e.operated, e.ambiguous, e.sure = false, false, false, false, false
	e.entering, e.release, e.next = ticket.Entering{}, ticket.Release{}, none
	e.unqueued = none
	if unsure {
		w.leaseOf(e).retired = true
	}
	w.forgetCalls(i)
	if e.after == none {
		w.send(i)
	}
}

// forgetCalls has nobody wait for an answer to the requests of a ticket any more.
func (w *world) forgetCalls(i int) {
	for m := range w.net {
		if w.net[m].to == i {
			w.net[m].to = none
		}
	}
}

// forget is when a ticket is Removed. Whose removal waits for that begins.
func (w *world) forget(i int) {
	w.forgetCalls(i)
	w.entries[i] = nil
	for j, e := range w.entries {
		if e != nil && e.after == i {
			if e.after = none; e.phase == removing {
				w.send(j)
			}
		}
	}
}

// anew is what errQueueAnew leads to.
func (w *world) anew(i int) {
	claim := w.entries[i].claim
	w.abandon(i, false)
	w.comes(claim, none)
}

// answered has the ticket judge an answer, and does what it says.
func (w *world) answered(i int, a ticket.Answer, noLease, final bool) {
	e := w.entries[i]
	a.Copies = e.copies
	l := w.leaseOf(e)
	w.forgetCalls(i)
	switch e.phase {
	case entering:
		is, ahead := e.entering.Judge(a)
		l.retired = l.retired || a.Doubtful()
		l.ended = l.ended || noLease
		switch {
		case is == ticket.Queued:
			e.phase, e.ahead, e.entering = waiting, ahead, ticket.Entering{}
		case is == ticket.Useless, l.ended:
			w.anew(i)
		default:
			w.send(i)
		}
	case releasing:
		w.released(i, a, noLease, final)
	case removing:
		if a.Outcome == ticket.Answered {
			e.ticket.RemovedBy(a, line.Nobody)
			w.forget(i)
			return
		}
		l.retired = true
		w.send(i)
	}
}

// released is place.release, and what hold.release does after it.
func (w *world) released(i int, a ticket.Answer, noLease, final bool) {
	e := w.entries[i]
	l, s := w.leaseOf(e), w.sessionOf(e)
	e.ambiguous = e.ambiguous || a.Copies
	if a.Outcome == ticket.Answered && !a.Succeeded && !e.ambiguous {
		e.sure = e.sure || !w.etcd.has(&e.ticket)
	}
	if e.next != none && noLease {
		w.leaseOf(w.entries[e.next]).ended = true
	}
	f := e.release.Judge(a, ticket.Now{Certain: !l.ended, Final: final})
	e.ambiguous = e.ambiguous || a.Outcome == ticket.Unknown
	put := none
	if next := e.next; next != none { // it went together
		e.next, e.unqueued = none, next
		if f.Queued {
			w.entries[next].ahead = f.Ahead
			put, e.unqueued = next, none
		}
	}
	switch f.Verdict {
	case ticket.Again, ticket.AgainAlone:
		w.send(i)
		return
	case ticket.Done:
		if e.taken && (!e.ambiguous || e.sure || !e.operated) {
			w.breaks("Unlock said nil, and the key was taken away before")
		}
	case ticket.Lost:
		if !e.taken {
			w.breaks("Unlock said %v, and nobody had taken the key away", f.Reason)
		}
	}
	unqueued := e.unqueued
	claim, unsure := e.claim, f.Verdict == ticket.Unconfirmed
	if e.ticket.State() == ticket.Removed {
		w.forget(i)
	} else {
		w.abandon(i, unsure && f.Doubt == ticket.Silence)
		if unqueued != none {
			w.entries[unqueued].after = i
		}
	}
	if unqueued != none {
		w.abandon(unqueued, unsure)
	}
	w.leaves(claim)
	w.pass(s, put)
}

// leaves ends a round of a claim.
func (w *world) leaves(claim int) {
	c := &w.claims[claim]
	c.ticket, c.put, c.standing = none, false, idle
	if c.rounds--; c.rounds == 0 {
		c.standing = done
	}
}

// ---- steps

// A verb is what may happen next.
type verb byte

const (
	enters   verb = iota // claim
	delivers             // message
	looks                // claim, at a revision
	hears                // claim: that one of those before it is gone
	begins               // claim
	unlocks              // claim
	audits               // ticket
	expires              // session, lease
	revokes              // session, lease
	progress             // all before need no fault
	silent               // ticket; 1: its request is lost; 2: and no other attempt is possible
	repeats              // ticket; 1: by clientv3, without Again; 2, 3: the first answer is lost
	deletes              // a key
	loses                // session
	gives                // claim
)

func (v verb) String() string {
	return [...]string{
		"enters", "message arrives", "looks", "hears", "begins", "unlocks", "is audited", "lease expires",
		"lease is revoked", "", "has no answer", "is sent twice", "key is deleted",
		"loses its lease", "gives up",
	}[v]
}

// A step is one thing that happens.
type step struct {
	verb verb
	a, b int
}

func (s step) String() string { return fmt.Sprintf("%d %v (%d)", s.a, s.verb, s.b) }

// steps are all that may happen next, those without a fault first.
func (w *world) steps() []step {
	var steps []step
	add := func(v verb, a, b int) { steps = append(steps, step{v, a, b}) }
	sent := make([]bool, len(w.entries))
	for m := range w.net {
		if i := slices.IndexFunc(w.net, func(o message) bool {
			return o.to == w.net[m].to && o.text == w.net[m].text
		}); i == m { // the same twice is the same
			add(delivers, m, 0)
		}
		if to := w.net[m].to; to != none {
			sent[to] = true
		}
	}
	for i, c := range w.claims {
		switch {
		case c.standing == idle:
			add(enters, i, 0)
		case c.standing == inLine && w.entries[c.ticket].phase == waiting:
			e := w.entries[c.ticket]
			if e.ahead.Clear() || w.leaseOf(e).ended || e.ticket.Lost() {
				add(begins, i, 0)
			} else {
				for j, before := range e.ahead.Last {
					s := w.etcd.find(before.Key)
					if e.ahead.Whole && (s == nil || s.rev != before.Rev) {
						add(hears, i, j)
					}
				}
				for at := w.etcd.rev(); at >= e.ticket.Rev(); at-- {
					add(looks, i, int(at))
				}
			}
		case c.standing == inLine && w.entries[c.ticket].phase == holding:
			add(unlocks, i, 0)
		}
	}
	for i, e := range w.entries {
		waitsOrHolds := e != nil && (e.phase == waiting || e.phase == holding)
		if waitsOrHolds && !e.ticket.Lost() && !w.etcd.has(&e.ticket) {
			add(audits, i, 0)
		}
	}
	for i := range w.sessions {
		for j, l := range w.sessions[i].leases {
			switch {
			case l.dead:
			case l.ended:
				add(expires, i, j)
			case l.retired && !w.used(l):
				add(revokes, i, j)
			}
		}
	}
	add(progress, 0, 0)
	for i, e := range w.entries {
		if e == nil || !sent[i] {
			continue
		}
		if w.may(silence) {
			for how := range 4 {
				if how < 2 || e.phase == releasing {
					add(silent, i, how)
				}
			}
		}
		if w.may(repeat) && !e.copies {
			for how := range 4 {
				add(repeats, i, how)
			}
		}
	}
	if w.may(deletion) {
		for _, s := range w.etcd.now() {
			if s.lease != 0 {
				add(deletes, int(s.rev), 0)
			}
		}
	}
	for i := range w.sessions {
		if n := len(w.sessions[i].leases); w.may(loss) && n > 0 && !w.sessions[i].leases[n-1].ended {
			add(loses, i, n-1)
		}
	}
	for i, c := range w.claims {
		waits := c.standing == atHome || c.standing == inLine && w.entries[c.ticket].phase <= waiting
		if w.may(leaving) && waits {
			add(gives, i, 0)
		}
	}
	return steps
}

// used reports whether a Session still uses its lease.
func (w *world) used(l lease) bool {
	return slices.ContainsFunc(w.entries, func(e *entry) bool {
		return e != nil && e.using && e.ticket.Lease == l.id
	})
}

// do does a step.
func (w *world) do(s step) {
	switch s.verb {
	case enters:
		se := &w.sessions[home(s.a)]
		if se.queue.Enter(se.waiters[s.a]) {
			w.comes(s.a, none)
		} else {
			w.claims[s.a].standing = atHome
		}
	case delivers:
		m := w.net[s.a]
		w.net = slices.Delete(w.net, s.a, s.a+1)
		a, noLease := w.etcd.carryOut(m.in)
		if m.to != none {
			w.answered(m.to, a, noLease, false)
		}
	case looks:
		e := w.entries[w.claims[s.a].ticket]
		for look := e.ticket.Look(int64(s.b) < w.etcd.rev()); ; { // of the past: a deletion has told it
			ahead, there := look.Judge(w.etcd.look(&look, int64(s.b)))
			if !there {
				e.ticket.Lose()
				return
			}
			if ticket.Tells(ahead) {
				e.ahead = ahead
				return
			}
		}
	case hears: // what the view of a short line does
		e := w.entries[w.claims[s.a].ticket]
		e.ahead.Last = slices.Delete(slices.Clone(e.ahead.Last), s.b, s.b+1)
	case begins:
		w.begin(s.a)
	case unlocks:
		w.unlock(s.a)
	case audits:
		e := w.entries[s.a]
		e.ticket.Lose()
		e.whole = false
	case expires, revokes:
		w.endLease(s.a, s.b)
	case silent:
		w.fails(silence)
		if s.b&1 != 0 {
			w.net = slices.DeleteFunc(w.net, func(m message) bool { return m.to == s.a })
		}
		w.answered(s.a, ticket.Answer{Outcome: ticket.Unknown}, false, s.b >= 2)
	case repeats:
		w.fails(repeat)
		w.entries[s.a].copies = true
		if s.b >= 2 {
			w.forgetCalls(s.a)
		}
		w.net = append(w.net, message{wireOf(w.txn(s.a), s.b&1 == 0), s.a})
	case deletes:
		w.fails(deletion)
		w.takeAway(func(e *entry) bool { return e.ticket.Rev() == int64(s.a) }, true)
		w.etcd.set(w.etcd.without(func(k *stored) bool { return k.rev == int64(s.a) }))
	case loses:
		w.fails(loss)
		l := &w.sessions[s.a].leases[s.b]
		l.ended = true
		for _, e := range w.entries {
			if e != nil && e.ticket.Lease == l.id {
				e.whole = false
			}
		}
	case gives:
		w.fails(leaving)
		w.give(s.a)
	}
}

// takeAway notes that keys are taken away, which are there.
func (w *world) takeAway(which func(*entry) bool, byOperator bool) {
	for _, e := range w.entries {
		if e == nil || !which(e) || e.phase == removing {
			continue
		}
		if w.etcd.has(&e.ticket) {
			e.taken, e.operated = true, byOperator
		}
	}
}

// begin is beginLocked.
func (w *world) begin(claim int) {
	e := w.entries[w.claims[claim].ticket]
	if w.leaseOf(e).ended || e.ticket.Lost() {
		w.anew(w.claims[claim].ticket)
		return
	}
	for _, o := range w.entries {
		if o == nil || o.phase != holding {
			continue
		}
		switch {
		case home(o.claim) == home(claim):
			w.breaks("two of a Session hold")
		case o.whole && !o.operated && !e.operated:
			w.breaks("two hold")
		}
	}
	if e.ticket.Rev() <= w.token && !e.operated {
		w.breaks("token %d after %d", e.ticket.Rev(), w.token)
	}
	w.token = max(w.token, e.ticket.Rev())
	e.ticket.Hold()
	e.phase, e.whole, e.ahead = holding, true, line.Nobody
}

// unlock is what Unlock does before it sends anything.
func (w *world) unlock(claim int) {
	i := w.claims[claim].ticket
	e, s := w.entries[i], &w.sessions[home(claim)]
	if !e.whole { // clear
		w.abandon(i, false)
		w.leaves(claim)
		w.pass(s, none)
		return
	}
	var next *ticket.Ticket
	l := s.leases[len(s.leases)-1]
	if waits, ok := s.queue.Choose(); ok && !l.retired && !l.ended {
		e.next = w.take(waits)
		w.entries[e.next].phase = putting
		next = &w.entries[e.next].ticket
	}
	e.phase = releasing
	e.release = e.ticket.Release(next)
	w.send(i)
}

// endLease ends a lease in etcd.
func (w *world) endLease(in, at int) {
	l := &w.sessions[in].leases[at]
	of := func(e *entry) bool { return e.ticket.Lease == l.id }
	w.takeAway(of, false)
	l.ended, l.dead = true, true
	w.etcd.end(l.id)
	for i, e := range w.entries {
		if e != nil && of(e) && e.phase == removing {
			e.ticket.Remove(0)
			w.forget(i)
		}
	}
}

// give is what a Lock does whose context ends.
func (w *world) give(claim int) {
	c, s := &w.claims[claim], &w.sessions[home(claim)]
	if c.standing == atHome {
		s.queue.Leave(s.waiters[claim])
		c.standing, c.rounds = done, 0 // what was chosen may have it in its hands still
		return
	}
	i := c.ticket
	if e := w.entries[i]; e.phase == entering { // its last attempt has no answer
		e.entering.Judge(ticket.Answer{Outcome: ticket.Unknown, Copies: e.copies})
		w.leaseOf(e).retired = true
	}
	w.abandon(i, false)
	w.leaves(claim)
	w.pass(s, none)
}

// over says what is wrong with a world in which nothing happens any more without a fault.
func (w *world) over() string {
	for i, c := range w.claims {
		if c.standing != done {
			return fmt.Sprintf("claim %d waits for ever", i)
		}
	}
	for _, e := range w.entries {
		if e != nil {
			return fmt.Sprintf("ticket %s is %v for ever", e.ticket.Key, e.phase)
		}
	}
	for _, s := range w.etcd.now() {
		if s.lease != 0 {
			return fmt.Sprintf("key %s stays for ever", s.key)
		}
	}
	for i := range w.sessions {
		if state := w.sessions[i].queue.State(); state != turn.Free {
			return fmt.Sprintf("the queue of Session %d is %v for ever", i, state)
		}
	}
	return ""
}
