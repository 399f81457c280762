package ticket_test

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/home"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// name is the lock.
const name = "x"

// A fault is a kind of fault. A world has some of each.
type fault int

const (
	silence  fault = iota // a call is given up without an answer; its request may come late, or not
	repeat                // etcd gets a request twice
	deletion              // an operator deletes a key
	putOver               // a key is put over, without a lease or with another one
	loss                  // a Session's trust in its lease is over, and etcd ends the lease then
	leaving               // the context of a claim ends while it waits
	setBack               // etcd is restored from a snapshot, or wiped
	numFaults
)

// A setting is what there is in a world.
type setting struct {
	claims  []goroutine
	strays  int  // keys below the prefix that are no contenders
	crowd   bool // each look reads only keys first
	handoff int  // WithHandoff
	linger  bool // WithLinger
	least   bool // WithMinHold
	faults  int  // of all kinds
	each    [numFaults]int
}

// A goroutine wants some holds, in a Session, by Lock or TryLock.
type goroutine struct {
	home, rounds int
	try          bool
	reads        bool       // by RLock or TryRLock
	permit       line.Shape // by Acquire or TryAcquire, if it is of that kind
}

// A world is an etcd and some Sessions, each with goroutines.
type world struct {
	*setting
	etcd     etcd
	net      []message
	sessions []session
	claims   []claim
	entries  []*entry
	granted  int64          // leases
	lent     []int64        // those of them that are for keys that stay
	kept     []int64        // of these, those on which a key stays, as its Unlock has said
	faults   [numFaults]int // left of each kind
	left     int            // faults of all kinds

	token   int64  // the highest of a hold, for the judge
	written int64  // the highest of an exclusive hold
	broken  string // the promise that was broken
}

// may reports whether a fault may still happen.
func (w *world) may(f fault) bool { return w.left > 0 && w.faults[f] > 0 }

// fails records that a fault happens.
func (w *world) fails(f fault) {
	w.faults[f]--
	w.left--
}

// home returns the Session of a claim.
func (w *world) home(claim int) int { return w.setting.claims[claim].home }

// keyOf is an entry as a queue knows it. For a queue 0 means none.
func keyOf(entry int) int { return entry + 1 }

// newWorld is a world before anything has happened. The second one of the strays has a lease.
func newWorld(set *setting) *world {
	w := &world{setting: set, faults: set.each, left: set.faults}
	w.etcd = etcd{history: []moment{{nil, 1 << foreign}}, leases: 1 << foreign}
	for i := range set.strays {
		next := w.etcd.rev() + 1
		key := fmt.Sprintf("%sconfig%d", line.Prefix(name), i)
		stray := &stored{key: key, rev: next, mod: next, stray: true}
		if i == 1 {
			stray.lease = foreign
		}
		w.etcd.set(append(slices.Clone(w.etcd.now()), stray))
	}
	for i, g := range set.claims {
		w.claims = append(w.claims, claim{rounds: g.rounds, ticket: none})
		for len(w.sessions) <= g.home {
			w.sessions = append(w.sessions, session{
				queue: &home.Queue[int]{}, waiters: make([]*home.Waiter[int], len(set.claims)),
			})
		}
		w.sessions[g.home].waiters[i] = w.newWaiter(i)
	}
	return w
}

// newWaiter is a claim's waiter, which has not come yet.
func (w *world) newWaiter(claim int) *home.Waiter[int] {
	kind := w.kind(claim)
	return &home.Waiter[int]{
		Value: claim, Shares: kind == line.Read, Steps: kind == line.Permit,
		Try: w.setting.claims[claim].try,
	}
}

func (w *world) breaks(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
	}
}

func (w *world) sessionOf(e *entry) *session { return &w.sessions[w.home(e.claim)] }

// stale reports whether an entry was last read before etcd was set back, as its Session knows.
func (w *world) stale(e *entry) bool { return e.epoch != w.sessionOf(e).epoch }

// hear is what an answer tells that has just come: a Session learns that etcd was
// set back.
func (w *world) hear(home int) {
	if s := &w.sessions[home]; s.epoch != w.etcd.backs {
		s.epoch = w.etcd.backs
		w.giveWay(s)
	}
}

// retire makes a lease get no new keys.
func (w *world) retire(home int, l *lease) {
	l.retired = true
	s := &w.sessions[home]
	if k := s.kept; k != 0 && w.entries[k-1].ticket.Lease == l.id {
		w.giveWay(s)
	}
}

// end stands for lease.Lease.endLocked.
func (w *world) end(home int, l *lease) {
	l.ended = true
	for _, e := range w.entries {
		if e != nil && e.ticket.Lease == l.id {
			e.whole = false
		}
	}
	w.retire(home, l)
}

// giveWay gives up the key that lingers.
func (w *world) giveWay(s *session) {
	if k := s.kept; k != 0 {
		s.kept = 0
		w.abandon(k-1, false)
	}
}

// lasts reports whether a claim may join the holders at an entry, as far as its lease tells.
func (w *world) lasts(e *entry) bool {
	l := w.leaseOf(e)
	return !l.retired && !l.ended && !e.ticket.Lost() && !w.stale(e)
}

// leaseOf is the lease of a ticket, as its Session knows it.
func (w *world) leaseOf(e *entry) *lease {
	s := w.sessionOf(e)
	return &s.leases[slices.IndexFunc(s.leases, func(l lease) bool { return l.id == e.ticket.Lease })]
}

// ---- what the library does, as its cores say

// take takes a ticket for a claim, with whatever lease it takes.
func (w *world) take(claim int) int {
	s := &w.sessions[w.home(claim)]
	if n := len(s.leases); n == 0 || s.leases[n-1].retired || s.leases[n-1].ended {
		w.granted++
		s.leases = append(s.leases, lease{id: w.granted})
		w.etcd.leases |= 1 << w.granted
		w.hear(w.home(claim))
	}
	l := s.leases[len(s.leases)-1]
	e := &entry{claim: claim, using: true, next: none, after: none, unqueued: none}
	shape := w.shape(claim)
	slot := s.slots.Free(ticket.Drawn{Lease: l.id, Epoch: s.epoch}, shape)
	e.ticket = ticket.New(name, l.id, slot, func(string) string {
		s.drawn++
		id, _ := line.Draw(uuid.UUID{15: byte(w.home(claim)<<4 | s.drawn)}, shape)
		return line.Key(name, id)
	})
	s.queue.Gather()
	i := slices.Index(w.entries, nil)
	if i < 0 {
		i = len(w.entries)
		w.entries = append(w.entries, nil)
	}
	w.entries[i] = e
	return i
}

// comes does what follows when the turn of a claim has come, with the ticket that was put
// for it, or none.
func (w *world) comes(claim, put int) {
	c := &w.claims[claim]
	c.standing, c.ticket = inLine, put
	if put != none {
		w.entries[put].phase, w.entries[put].claim = waiting, claim
	}
	if c.ended {
		c.standing = called
	}
	if c.ended || put != none {
		return
	}
	c.ticket = w.take(claim)
	e := w.entries[c.ticket]
	e.entering = e.ticket.Enter(w.setting.claims[claim].try, false)
	w.send(c.ticket)
}

// endTurn carries out what home.Queue.End says, as a round of a claim is over. The claim leaves a
// ticket, or none.
func (w *world) endTurn(claim, left int) {
	s := &w.sessions[w.home(claim)]
	w.leaves(claim)
	first := s.queue.First()
	suits := left != none && first != nil && w.suits(left, first.Value)
	late := first != nil && first.Shares && first.Standing() != home.Next && !s.queue.Early(first)
	next, ends := s.queue.End(s.waiters[claim], suits)
	if late && ends == home.HandsOn {
		w.breaks("a read has a place that was put before it came")
	}
	if left != none && ends != home.HandsOn {
		w.abandon(left, false)
		left = none
	}
	switch ends {
	case home.Passes, home.HandsOn:
		w.comes(next, left)
	case home.Parts:
		if c := &w.claims[s.queue.Owner()]; c.ticket != none {
			c.standing = inLine
			w.entries[c.ticket].claim = s.queue.Owner()
		}
	}
}

// suits reports whether a ticket's key shows the shape for which a claim asks. All values are
// alike.
func (w *world) suits(i, claim int) bool {
	return w.shape(claim) == line.ShapeOf(w.entries[i].ticket.Key)
}

// key is what a Session knows of its owner's key, or of the one that lingers, for a decision about
// a claim, if a watch shows so much of the writers.
func (w *world) key(s *session, claim int, writers home.Writers) (k home.Key) {
	i := s.kept - 1
	if s.queue.State() != home.Free {
		owner := s.queue.Owner()
		i, k.Lost = w.claims[owner].ticket, s.waiters[owner].Standing() == home.Holder
	}
	if i == none { // of a hold, it was lost
		return k
	}
	e, l := w.entries[i], w.leaseOf(w.entries[i])
	k = home.Key{
		State: e.ticket.State(), Lost: e.ticket.Lost(), Waits: w.waitsBehind(e), Ended: l.ended,
	}
	if k.State == ticket.Held {
		k.Suits, k.Serves, k.Lasts = w.suits(i, claim), !l.retired && !l.ended, w.lasts(e)
		k.Begins, k.Writers = !l.ended && !k.Lost && !w.stale(e), writers
	}
	return k
}

// waitsBehind reports whether other contenders are known to be ahead of e.
func (w *world) waitsBehind(e *entry) bool {
	return e.phase == waiting && !w.stale(e) && !e.ticket.Lost() && len(e.ahead.Last) > 0
}

// admission is that of a claim, which is the first waiter of its Session.
func (w *world) admission(claim int, writers home.Writers) home.Admission {
	s := &w.sessions[w.home(claim)]
	return s.queue.Admission(s.waiters[claim], w.key(s, claim, writers))
}

// settle lets waiters of a Session in, or refuses them, as far as no watch has to tell anything.
func (w *world) settle(s *session) {
	for first := s.queue.Candidate(); first != nil; first = s.queue.Candidate() {
		switch w.admission(first.Value, home.Untold) {
		case home.Admitted:
			w.letIn(s)
		case home.MustQueue:
			if !w.refuseTries(s) {
				return
			}
		default:
			w.judgeTries(s)
			return
		}
	}
}

// letIn gives the first waiter of a Session the turn beside its owner.
func (w *world) letIn(s *session) {
	at := w.claims[s.queue.Owner()].ticket
	late := !s.queue.Early(s.queue.First())
	claim := s.queue.Admit()
	if s.waiters[claim].Steps {
		w.comes(claim, none)
		return
	}
	if e := w.entries[at]; w.leaseOf(e).ended || e.ticket.Lost() || late && !w.lasts(e) {
		w.breaks("a read joins a key that does not last")
	}
	w.claims[claim].standing, w.claims[claim].ticket = beside, at
}

// refuseTries ends the waits of a Session that wait for no other contender. It reports false if
// there are none.
func (w *world) refuseTries(s *session) (some bool) {
	for _, claim := range slices.Collect(s.queue.All()) {
		if x := s.waiters[claim]; x.Try && x.Standing() == home.Waiting {
			w.judgeRefusal(claim)
			s.queue.Leave(x)
			w.claims[claim].ended = false
			w.leaves(claim)
			some = true
		}
	}
	return some
}

// judgeRefusal judges that a claim, which only tries, was refused for what its Session knows.
func (w *world) judgeRefusal(claim int) {
	s := &w.sessions[w.home(claim)]
	for other := range s.queue.All() {
		if w.kind(other) != w.kind(claim) || w.kind(claim) == line.Exclusive {
			return
		}
	}
	i := w.claims[s.queue.Owner()].ticket
	if i == none {
		return
	}
	e := w.entries[i]
	if e.phase == holding && e.whole && w.lasts(e) && !w.etcd.others(e.ticket.Key) {
		w.breaks("a call that only tries is refused, and nothing is in its way")
	}
	if e.phase < waiting && e.ticket.State() == ticket.Unsent {
		w.breaks("a call that only tries is refused, and etcd was not asked")
	}
}

// judgeTries judges that no claim of a Session that only tries waits for another contender.
func (w *world) judgeTries(s *session) {
	owner := s.queue.Owner()
	i := w.claims[owner].ticket
	behind := i != none && w.waitsBehind(w.entries[i])
	if f := s.queue.First(); i != none && s.queue.Early(f) {
		if e := w.entries[i]; e.phase == holding && e.whole && w.lasts(e) {
			w.breaks("a read that came before the put waits, and the key is held")
		}
	}
	for claim := range s.queue.All() {
		x := s.waiters[claim]
		if x.Try && x.Standing() == home.Waiting && (behind || w.kind(owner) != w.kind(claim)) {
			w.breaks("a call that only tries waits for another contender")
		}
	}
}

// mayJoin reports whether the first waiter of a Session joins its holders if a watch shows no
// writer, which may be late.
func (w *world) mayJoin(claim int) bool {
	s := &w.sessions[w.home(claim)]
	return s.queue.Candidate() == s.waiters[claim] &&
		w.admission(claim, home.NoWriter) == home.Admitted
}

// mayRefuse reports whether claims that wait with the first waiter of a Session are refused if a
// watch shows the writer that stands in line.
func (w *world) mayRefuse(claim int) bool {
	s := &w.sessions[w.home(claim)]
	tries := func(i int) bool { return s.waiters[i].Try && s.waiters[i].Standing() == home.Waiting }
	writes := func(k *stored) bool { return k.standsIn() && !k.reads() }
	return s.queue.Candidate() == s.waiters[claim] && slices.ContainsFunc(w.etcd.now(), writes) &&
		slices.ContainsFunc(slices.Collect(s.queue.All()), tries) &&
		w.admission(claim, home.AWriter) == home.MustQueue
}

// kind returns the kind of a claim's holds.
func (w *world) kind(claim int) line.Kind { return w.shape(claim).Kind }

// shape returns the shape that a claim's keys have.
func (w *world) shape(claim int) line.Shape {
	if w.setting.claims[claim].reads {
		return line.Shape{Kind: line.Read}
	}
	return w.setting.claims[claim].permit
}

// txn returns the transaction that the ticket wants to send.
func (w *world) txn(i int) ticket.Txn {
	e := w.entries[i]
	switch e.phase {
	case entering:
		return e.entering.Txn("")
	case releasing:
		return e.release.Txn("")
	default:
		return e.ticket.Removal(false, line.None)
	}
}

// send begins a call.
func (w *world) send(i int) {
	e := w.entries[i]
	e.copies = false
	w.lend(e)
	w.net = append(w.net, message{wireOf(w.txn(i), false), i, w.sessionOf(e).epoch, e.late})
}

// lend grants the lease of a key that is to stay, unless that is there, or the time is over.
func (w *world) lend(e *entry) {
	if e.phase == releasing && e.moves != 0 && !e.late && !e.release.Moves() {
		w.etcd.leases |= 1 << e.moves
		w.hear(w.home(e.claim))
		e.release.MoveTo(e.moves)
	}
}

// abandon stands for queue.Place.AbandonLocked.
func (w *world) abandon(i int, unsure bool) {
	e := w.entries[i]
	if e.phase == holding && e.whole {
		w.breaks("a key is given up, and its holder believes in it")
	}
	e.ticket.Leave()
	if e.ticket.State() == ticket.Removed {
		w.forget(i)
		return
	}
	e.using, e.phase, e.ahead = false, removing, line.None
	e.whole, e.taken, e.operated, e.ambiguous, e.sure = false, false, false, false, false
	e.before, e.seen = false, false
	e.entering, e.release, e.next = ticket.Entering{}, ticket.Release{}, none
	e.unqueued, e.moves, e.late = none, 0, false
	e.handed, e.undone = 0, false
	if unsure {
		w.retire(w.home(e.claim), w.leaseOf(e))
	}
	w.forgetCalls(i)
	if e.after == none {
		w.send(i)
	}
}

// forgetCalls drops the answers to the requests of a ticket: no call waits for them any more.
func (w *world) forgetCalls(i int) {
	for m := range w.net {
		if w.net[m].to == i {
			w.net[m].to, w.net[m].epoch = none, 0
		}
	}
}

// forget does what follows when a ticket is Removed. A removal that waits for that begins.
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

// anew has the claim of a ticket queue anew.
func (w *world) anew(i int) {
	claim := w.entries[i].claim
	w.abandon(i, false)
	w.comes(claim, none)
}

// answered lets the ticket judge an answer, and does what it says.
func (w *world) answered(i, epoch int, a ticket.Answer, noLease, final, late bool) {
	e := w.entries[i]
	a.Copies = e.copies
	l, at := w.leaseOf(e), w.home(e.claim)
	w.forgetCalls(i)
	switch e.phase {
	case entering:
		compared := e.comparesNewer()
		is, ahead := e.entering.Judged(a)
		if a.Doubtful() {
			w.retire(at, l)
		}
		if noLease {
			w.end(at, l)
		}
		if e.ticket.State() == ticket.InLine {
			e.epoch = epoch
		}
		unhindered := w.left == w.setting.faults && w.strays == 0 && !w.etcd.others(e.ticket.Key) &&
			(e.ticket.Kind != line.Permit || !w.etcd.company(e.ticket.Key))
		if is == ticket.Unsure && a.Outcome == ticket.Answered && unhindered {
			w.breaks("a put is sent again, and nobody is in its way")
		}
		if is == ticket.Unsure && a.Outcome == ticket.Answered && compared && e.comparesNewer() {
			w.breaks("TryLock compares once more that there is nothing newer")
		}
		switch {
		case is == ticket.Taken:
			if !w.etcd.others(e.ticket.Key) {
				w.breaks("TryLock said that the lock is taken, and nobody else is there")
			}
			claim := e.claim
			w.abandon(i, false)
			w.endTurn(claim, none)
		case is == ticket.Queued:
			e.phase, e.ahead, e.entering = waiting, ahead, ticket.Entering{}
			w.refuse(i)
		case is == ticket.Useless, l.ended:
			w.anew(i)
		default:
			w.send(i)
		}
	case releasing:
		w.released(i, epoch, a, noLease, final, late)
	case removing:
		if a.Outcome == ticket.Answered {
			e.ticket.RemovedBy(a, line.None)
			w.forget(i)
			return
		}
		w.retire(at, l)
		w.send(i)
	}
}

// comparesNewer reports whether the next put compares that nothing newer is there than what the
// one before has seen.
func (e *entry) comparesNewer() bool {
	newer := func(c *pb.Compare) bool { return c.Target == pb.Compare_MOD }
	return slices.ContainsFunc(wireOf(e.entering.Txn(""), false).in.Compare, newer)
}

// refuse does what follows if a claim that only tries has found, after its put, that contenders
// are before it.
func (w *world) refuse(i int) {
	e := w.entries[i]
	if !w.setting.claims[e.claim].try || w.stale(e) || len(e.ahead.Last) == 0 {
		return
	}
	if !w.etcd.others(e.ticket.Key) {
		w.breaks("TryLock has put its key, and said that the lock is taken, and nobody else is there")
	}
	claim := e.claim
	w.abandon(i, false)
	w.endTurn(claim, none)
}

// released stands for hold.release.answered.
func (w *world) released(i, epoch int, a ticket.Answer, noLease, final, late bool) {
	e := w.entries[i]
	if noLease && e.moves != 0 {
		e.release.MoveTo(0)
	}
	l := w.leaseOf(e)
	e.ambiguous = e.ambiguous || a.Copies
	if a.Outcome == ticket.Answered && !a.Succeeded && !e.ambiguous {
		e.sure = e.sure || !w.etcd.has(&e.ticket)
	}
	if e.next != none && noLease { // it was to go together
		w.end(w.home(e.claim), w.leaseOf(w.entries[e.next]))
	}
	now := ticket.Now{
		Certain: !l.ended, Stale: w.stale(e), Final: final, Over: late, Witnessed: e.seen,
	}
	f := e.release.Says(a, now)
	e.ambiguous = e.ambiguous || a.Outcome == ticket.Unknown
	put := none
	if f.Queued {
		w.entries[e.next].ahead, w.entries[e.next].epoch = f.Ahead, epoch
		put, e.next = e.next, none
	}
	if e.next != none && !e.release.Awaits() {
		e.next, e.unqueued = none, e.next
	}
	switch f.Verdict {
	case ticket.Again, ticket.AgainAlone:
		w.send(i)
		return
	case ticket.Done:
		if e.release.Moves() {
			w.kept = append(slices.Clip(w.kept), e.moves)
		}
		// A late copy may put a key again, at the same revision, that was lost with a
		// restore.
		again := a.Succeeded && w.etcd.backs > 0
		stays := e.moves != 0 && !late // what the release did has left the key there
		if e.taken && !again && (e.before || !e.ambiguous || e.sure || !e.operated || e.undone || stays) {
			w.breaks("Unlock said nil, and the key was taken away before")
		}
	case ticket.Lost:
		if !e.taken {
			w.breaks("Unlock said %v, and nobody had taken the key away", f.Reason)
		}
	}
	unqueued := e.unqueued
	if e.next != none {
		unqueued = e.next
	}
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
	w.endTurn(claim, put)
}

// leaves ends a round of a claim.
func (w *world) leaves(claim int) {
	c := &w.claims[claim]
	c.ticket, c.standing = none, idle
	if c.rounds--; c.rounds == 0 {
		c.standing = done
	}
}

// ---- steps

// A verb is what may happen next.
type verb byte

const (
	enters   verb = iota // claim; 1: a watch shows no writer
	delivers             // message
	looks                // claim, at a revision
	hears                // claim: a predecessor is gone
	begins               // claim
	unlocks              // claim
	joins                // claim; 1: a watch shows a writer, and the claims that only try are refused
	gives                // claim: it runs after its context has ended
	audits               // ticket
	sweeps               // a key that no ticket accounts for
	yields               // session: it gives up what lingers
	expires              // session, lease
	revokes              // session, lease
	outlasts             // ticket: the least time of its hold is over before its release
	lapses               // the lease of a key that stays: it is given back, or expires
	progress             // the verbs before this need no fault
	silent               // ticket; 1: its request is lost; 2: and no other attempt is possible
	repeats              // ticket; 1: by clientv3, without Again; 2, 3: the first answer is lost
	deletes              // a key
	putsOver             // a key, with a lease
	setsBack             // to a revision
	loses                // session
	runsOut              // claim: its context ends
)

func (v verb) String() string {
	return [...]string{
		"enters", "message arrives", "looks", "hears", "begins", "unlocks", "joins", "gives up",
		"is audited",
		"is swept away", "gives way", "lease expires",
		"lease is revoked", "is late", "lease lapses", "", "has no answer", "is sent twice", "key is deleted",
		"key is put over", "etcd is set back", "loses its lease", "runs out of time",
	}[v]
}

// A step is one thing that happens.
type step struct {
	verb verb
	a, b int
}

func (s step) String() string { return fmt.Sprintf("%d %v (%d)", s.a, s.verb, s.b) }

// steps returns all that may happen next, steps without a fault first.
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
			add(enters, i, int(home.Untold))
			if w.joinsAtOnce(i) {
				add(enters, i, int(home.NoWriter))
			}
		case c.ended:
			add(gives, i, 0)
			if c.standing == atHome {
				w.seeks(i, add)
			}
		case c.standing == beside:
			add(unlocks, i, 0)
		case c.standing == atHome:
			w.seeks(i, add)
		case c.standing == inLine && w.entries[c.ticket].phase == waiting:
			w.waits(i, add)
		case c.standing == inLine && w.entries[c.ticket].phase == holding:
			add(unlocks, i, 0)
			if w.linger { // as far as the view shows
				add(unlocks, i, 1)
			}
			copies := w.each[silence]+w.each[repeat] > 0
			if copies && w.etcd.hasAsPut(&w.entries[c.ticket].ticket) {
				add(unlocks, i, 2) // a live watch has told nothing
			}
		}
	}
	for i, e := range w.entries {
		if e == nil || e.phase < waiting || e.phase > lingering || e.ticket.Lost() {
			continue
		}
		if !w.etcd.hasAsPut(&e.ticket) || e.phase == holding && w.stale(e) {
			add(audits, i, 0)
		}
	}
	for _, s := range w.etcd.now() {
		if w.isSwept(s) {
			add(sweeps, int(s.rev), 0)
		}
	}
	for i := range w.sessions {
		if w.sessions[i].kept != 0 {
			add(yields, i, 0)
		}
		for j, l := range w.sessions[i].leases {
			alive := w.etcd.alive(l.id)
			switch {
			case l.dead && !alive:
			case l.ended, !alive: // after a set-back it may be there again, or not any more
				add(expires, i, j)
			case l.retired && !w.used(l):
				add(revokes, i, j)
			}
		}
	}
	for _, lease := range w.lent {
		if !w.etcd.alive(lease) {
			continue
		}
		i := slices.IndexFunc(w.entries, func(e *entry) bool { return e != nil && e.moves == lease })
		if i < 0 || w.entries[i].late {
			add(lapses, int(lease), 0)
		} else {
			add(outlasts, i, 0)
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
			if s.standsIn() {
				add(deletes, int(s.rev), 0)
			}
		}
	}
	if w.may(putOver) {
		for _, e := range w.entries { // a key that was put over is no longer the ticket's
			if e != nil && e.ticket.Rev() != 0 && (w.etcd.hasAsPut(&e.ticket) || w.etcd.hasMoved(e)) {
				add(putsOver, int(e.ticket.Rev()), 0)
				add(putsOver, int(e.ticket.Rev()), foreign)
			}
		}
	}
	if now := int(w.etcd.rev()); w.may(setBack) {
		for to := max(now-2, 0); to < now; to++ {
			add(setsBack, to, 0)
		}
		if now > 2 {
			add(setsBack, 0, 0)
		}
	}
	for i := range w.sessions {
		if n := len(w.sessions[i].leases); w.may(loss) && n > 0 && !w.sessions[i].leases[n-1].ended {
			add(loses, i, n-1)
		}
	}
	for i, c := range w.claims {
		waits := c.standing == atHome || c.standing == inLine && w.entries[c.ticket].phase <= waiting
		if w.may(leaving) && waits && !c.ended {
			add(runsOut, i, 0)
		}
	}
	return steps
}

// seeks adds what a watch may tell a claim that waits in its Session.
func (w *world) seeks(claim int, add func(v verb, a, b int)) {
	if w.mayJoin(claim) {
		add(joins, claim, 0)
	}
	if w.mayRefuse(claim) {
		add(joins, claim, 1)
	}
}

// waits adds the steps of a claim that waits in line.
func (w *world) waits(claim int, add func(v verb, a, b int)) {
	e := w.entries[w.claims[claim].ticket]
	stale := w.stale(e)
	if e.ahead.Clear() && !stale || w.leaseOf(e).ended || e.ticket.Lost() {
		add(begins, claim, 0)
		return
	}
	if e.ahead.Reading == line.All && !stale && e.epoch == w.etcd.backs {
		for j, before := range e.ahead.Last {
			if s := w.etcd.find(before.Key); s == nil || s.rev != before.Rev {
				add(hears, claim, j)
			}
		}
	}
	now, oldest := w.etcd.rev(), e.ticket.Rev()
	if w.setting.claims[claim].try { // no event has told it anything
		oldest = now
	}
	for at := now; at == now || at >= oldest && !stale; at-- {
		add(looks, claim, int(at)<<1)
		if !stale && w.deletedBy(e, at) {
			add(looks, claim, int(at)<<1|1)
		}
	}
}

// deletedBy reports whether a predecessor of e was deleted by a revision, as far as etcd
// shows.
func (w *world) deletedBy(e *entry, at int64) bool {
	return slices.ContainsFunc(e.ahead.Last, func(before line.Entry) bool {
		return !slices.ContainsFunc(w.etcd.history[at].there, func(s *stored) bool {
			return s.key == before.Key && s.rev == before.Rev
		})
	})
}

// isPresent reports whether s needs no member that lags.
func (w *world) isPresent(s step) bool { return s.verb != looks || int64(s.b>>1) == w.etcd.rev() }

// isSwept reports whether a key is on a lease that a Session keeps, and belongs to none of
// its tickets. It is swept only after a set-back, so that the exploration sees what else
// leaves a key behind.
func (w *world) isSwept(s *stored) bool {
	if w.etcd.backs == 0 {
		return false
	}
	for i := range w.sessions {
		for _, l := range w.sessions[i].leases {
			if l.id == s.lease && !l.ended {
				return !slices.ContainsFunc(w.entries, func(e *entry) bool { // accountsForLocked
					return e != nil && e.ticket.Key == s.key &&
						(!e.ticket.Lost() || e.ticket.Rev() == s.rev)
				})
			}
		}
	}
	return false
}

// used reports whether a Session still uses its lease.
func (w *world) used(l lease) bool {
	return slices.ContainsFunc(w.entries, func(e *entry) bool {
		return e != nil && e.using && e.ticket.Lease == l.id
	})
}

// do does a step. A core that panics was asked for a transition that it does not have.
func (w *world) do(s step) {
	defer func() {
		if r := recover(); r != nil {
			w.breaks("panic: %v", r)
		}
	}()
	switch s.verb {
	case enters:
		w.enter(s.a, home.Writers(s.b))
	case delivers:
		m := w.net[s.a]
		w.net = slices.Delete(w.net, s.a, s.a+1)
		own, try := tries(m.in)
		others := try && w.etcd.others(own)
		stay := w.etcd.on(w.kept)
		a, noLease := w.etcd.carryOut(m.in)
		now := w.etcd.on(w.kept)
		// A set-back may undo the move. Then a late copy of it does it again.
		again := w.etcd.backs > 0 && now > stay && now <= len(w.kept)
		if now != stay && !again {
			w.breaks("a key that is to stay is removed, or another one put beside it")
		}
		if others && a.Succeeded && !noLease && w.etcd.backs == 0 { // what it had seen may be gone
			w.breaks("TryLock has put its key behind another")
		}
		if m.to != none {
			if !noLease {
				w.hear(w.home(w.entries[m.to].claim))
			}
			w.answered(m.to, m.epoch, a, noLease, false, m.late)
		}
	case looks:
		w.look(s.a, int64(s.b>>1), s.b&1 != 0)
	case hears: // what the view of a short line does
		e := w.entries[w.claims[s.a].ticket]
		gone := e.ahead.Last[s.b]
		e.ahead = e.ahead.Without(func(before line.Entry) bool { return before.Rev == gone.Rev })
	case begins:
		w.begin(s.a)
	case unlocks:
		w.unlock(s.a, s.b == 1, s.b == 2)
	case joins:
		if at := &w.sessions[w.home(s.a)]; s.b == 0 {
			w.letIn(at)
		} else {
			w.refuseTries(at)
		}
	case audits:
		w.audit(s.a)
	case sweeps:
		w.sweep(int64(s.a))
	case yields:
		w.giveWay(&w.sessions[s.a])
	case expires, revokes:
		w.endLease(s.a, s.b, s.verb == revokes)
	case outlasts:
		w.entries[s.a].late = true
	case lapses:
		w.etcd.end(int64(s.a))
	case silent:
		w.fails(silence)
		if s.b&1 != 0 {
			w.net = slices.DeleteFunc(w.net, func(m message) bool { return m.to == s.a })
		}
		w.answered(s.a, 0, ticket.Answer{Outcome: ticket.Unknown}, false, s.b >= 2, false)
	case repeats:
		w.fails(repeat)
		w.entries[s.a].copies = true
		if s.b >= 2 {
			w.forgetCalls(s.a)
		}
		e := w.entries[s.a]
		again := wireOf(w.txn(s.a), s.b&1 == 0)
		w.net = append(w.net, message{again, s.a, w.sessionOf(e).epoch, e.late})
	case deletes:
		w.fails(deletion)
		w.takeAway(func(e *entry) bool { return e.ticket.Rev() == int64(s.a) }, true)
		w.etcd.set(w.etcd.without(func(k *stored) bool { return k.rev == int64(s.a) }))
	case putsOver:
		w.fails(putOver)
		w.takeAway(func(e *entry) bool { return e.ticket.Rev() == int64(s.a) }, true)
		w.etcd.putOver(int64(s.a), int64(s.b))
	case setsBack:
		w.fails(setBack)
		w.setBack(int64(s.a))
	case loses:
		w.fails(loss)
		w.end(s.a, &w.sessions[s.a].leases[s.b])
	case gives:
		w.leave(s.a)
	case runsOut:
		w.fails(leaving)
		if c := &w.claims[s.a]; c.standing == atHome {
			c.ended = true
		} else {
			w.give(s.a)
		}
	}
	for i := range w.sessions {
		w.settle(&w.sessions[i])
	}
}

// takeAway records that some keys, which are there, are taken away.
func (w *world) takeAway(which func(*entry) bool, byOperator bool) {
	for _, e := range w.entries {
		if e == nil || !which(e) || e.phase == removing {
			continue
		}
		if w.etcd.has(&e.ticket) && !w.etcd.hasMoved(e) {
			e.taken, e.operated = true, byOperator
		}
	}
}

// setBack sets etcd back. What is gone with that was taken away. What is there again was
// not.
func (w *world) setBack(to int64) {
	before := w.etcd
	w.etcd.setBack(to)
	for _, e := range w.entries {
		if e == nil || e.phase == removing || e.ticket.Rev() == 0 {
			continue
		}
		switch {
		case w.etcd.hasAsPut(&e.ticket):
			e.taken, e.operated, e.undone, e.before = false, false, false, false
		case w.etcd.hasMoved(e):
		case before.has(&e.ticket):
			e.taken, e.operated, e.undone = true, true, true
		}
	}
	w.token, w.written = min(w.token, to), min(w.written, to)
}

// joinsAtOnce reports whether a claim that comes joins if a watch shows no writer.
func (w *world) joinsAtOnce(claim int) bool {
	s := &w.sessions[w.home(claim)]
	return s.queue.Way(w.newWaiter(claim), w.key(s, claim, home.NoWriter)) == home.Joins
}

// enter is what Lock and TryLock do first, if a watch shows so much of the writers.
func (w *world) enter(claim int, writers home.Writers) {
	s, c := &w.sessions[w.home(claim)], &w.claims[claim]
	x, key := w.newWaiter(claim), w.key(s, claim, writers)
	s.waiters[claim] = x
	if x.Try && s.queue.Refuses(x, key) {
		w.judgeRefusal(claim)
		w.leaves(claim)
		return
	}
	switch way := s.queue.Way(x, key); way {
	case home.Owns:
		w.giveWay(s)
		s.queue.Enter(x)
		w.comes(claim, none)
	case home.Waits:
		s.queue.Enter(x)
		c.standing = atHome
	case home.Steps, home.Joins:
		if s.queue.Waiting() > 0 {
			w.breaks("a claim that comes is let in before one that waits")
		}
		s.queue.Enter(x)
		w.letIn(s)
	case home.TakesOver:
		i := s.kept - 1
		s.kept = 0
		s.queue.Enter(x)
		c.standing, c.ticket = inLine, i
		w.entries[i].claim = claim
		w.begin(claim)
	}
}

// look stands for queue.Waiter.look, with an answer about a revision.
func (w *world) look(claim int, at int64, gone bool) {
	e := w.entries[w.claims[claim].ticket]
	epoch := w.sessionOf(e).epoch
	w.hear(w.home(claim))
	for look := e.ticket.Look(gone || w.setting.crowd); ; {
		ahead, own := look.Judge(w.etcd.look(&look, e.ticket.Kind, at)...)
		if e.ticket.Observe(own).IsLoss() {
			return
		}
		if ahead.Reading != line.Unread {
			e.ahead, e.epoch = ahead, epoch
			break
		}
	}
	defer w.refuse(w.claims[claim].ticket)
	if !slices.ContainsFunc(w.etcd.history[at].there, func(s *stored) bool {
		return s.key == e.ticket.Key && s.rev == e.ticket.Rev() && s.lease == e.ticket.Lease
	}) {
		w.breaks("a look took another key for its own")
	}
}

// audit stands for queue.Account.confirmMissing, for one key.
func (w *world) audit(i int) {
	e := w.entries[i]
	epoch, s := w.sessionOf(e).epoch, w.sessionOf(e)
	w.hear(w.home(e.claim))
	own := ticket.Observation{Entry: line.Entry{Key: e.ticket.Key}}
	if key := w.etcd.find(e.ticket.Key); key != nil {
		own.Rev, own.Lease = key.rev, key.lease
	}
	if !e.ticket.Observe(own).IsLoss() {
		if epoch == s.epoch {
			e.epoch = epoch
		}
		return
	}
	if e.phase == removing { // what lingered was given up
		return
	}
	e.whole = false
	if s.kept == keyOf(i) {
		w.giveWay(s)
	}
}

// sweep deletes a key that no ticket accounts for.
func (w *world) sweep(rev int64) {
	at := slices.IndexFunc(w.etcd.now(), func(s *stored) bool { return s.rev == rev })
	key := w.etcd.now()[at]
	for i := range w.sessions {
		for j := range w.sessions[i].leases {
			if l := &w.sessions[i].leases[j]; l.id == key.lease {
				w.hear(i)
				w.retire(i, l)
			}
		}
	}
	w.etcd.set(w.etcd.without(func(s *stored) bool { return s.rev == rev }))
}

// begin has a claim hold, if its place is not lost, and judges that.
func (w *world) begin(claim int) {
	e := w.entries[w.claims[claim].ticket]
	if w.leaseOf(e).ended || e.ticket.Lost() {
		w.anew(w.claims[claim].ticket)
		return
	}
	shape := w.shape(claim)
	sum, least := int(shape.Weight), shape.Limit
	for _, o := range w.entries {
		if o == nil || o.phase != holding {
			continue
		}
		switch {
		case o.ticket.Kind == line.Permit && e.ticket.Kind == line.Permit:
			if beside := w.shape(o.claim); o.whole && !o.operated {
				sum, least = sum+int(beside.Weight), min(least, beside.Limit)
			}
		case w.home(o.claim) == w.home(claim):
			w.breaks("two of a Session hold")
		case o.ticket.Kind == line.Read && e.ticket.Kind == line.Read:
		case o.whole && !o.operated && !e.operated:
			w.breaks("two hold")
		}
	}
	if sum > int(least) && !e.operated {
		w.breaks("permits of %d are held, of %d", sum, least)
	}
	if w.etcd.backs == 0 && w.etcd.hasAsPut(&e.ticket) && w.etcd.overtakes(&e.ticket) {
		w.breaks("it holds before one that came before it")
	}
	// put again by a late copy after a restore: this hold misses nothing
	if w.etcd.hasAsPut(&e.ticket) {
		e.taken, e.operated, e.undone = false, false, false
	}
	again := e.ticket.State() == ticket.Held && e.ticket.Rev() == w.token
	before := w.token
	if e.ticket.Kind != line.Exclusive {
		before = w.written
	}
	if e.ticket.Rev() <= before && !e.operated && !again {
		w.breaks("token %d after %d", e.ticket.Rev(), before)
	}
	if !e.operated { // a key that was gone belongs to a history that may be over
		w.token = max(w.token, e.ticket.Rev())
		if e.ticket.Kind == line.Exclusive {
			w.written = max(w.written, e.ticket.Rev())
		}
	}
	e.ticket.Hold()
	e.phase, e.whole, e.ahead = holding, true, line.None
	s := &w.sessions[w.home(claim)]
	s.queue.Hold(s.waiters[claim])
}

// unlock is what Unlock does before it sends anything. alone is what the view of the line shows,
// and seen that a live watch covers the key.
func (w *world) unlock(claim int, alone, seen bool) {
	i, s := w.claims[claim].ticket, &w.sessions[w.home(claim)]
	if i == none { // another claim that has lost it has unlocked before
		w.endTurn(claim, none)
		return
	}
	e := w.entries[i]
	if !e.whole { // clear
		for other := range s.queue.Having() {
			if other != claim && e.ticket.Kind == line.Read {
				w.claims[other].standing, w.claims[other].ticket = beside, none
			}
		}
		w.abandon(i, false)
		w.endTurn(claim, none)
		return
	}
	if s.queue.Sharing() > 0 && e.ticket.Kind == line.Read {
		w.endTurn(claim, none)
		return
	}
	if w.keeps(s, i, alone) {
		return
	}
	if w.least && e.ticket.Kind == line.Exclusive {
		w.granted++
		e.moves, w.lent = w.granted, append(slices.Clip(w.lent), w.granted)
	}
	var next *ticket.Ticket
	l := s.leases[len(s.leases)-1]
	if e.moves == 0 {
		if waits, ok := s.queue.Choose(); ok && !l.retired && !l.ended {
			e.next = w.take(waits)
			w.entries[e.next].phase = putting
			next = &w.entries[e.next].ticket
		}
	}
	e.phase, e.before, e.seen = releasing, e.taken, seen
	e.release = e.ticket.Release(next)
	w.send(i)
}

// keeps carries out the fate of a key that its last hold has left whole, unless that is released.
func (w *world) keeps(s *session, i int, alone bool) bool {
	e := w.entries[i]
	if e.ticket.Kind != line.Exclusive {
		return false
	}
	claim, next := e.claim, e.claim
	if first := s.queue.First(); first != nil {
		next = first.Value
	}
	switch s.queue.Fate(home.Left{
		Suits: w.suits(i, next), Lasts: w.lasts(e),
		Handed: e.handed, Handoff: w.handoff, Linger: w.linger,
	}) {
	case home.HandedOn:
		e.whole = false
		if e.handed++; e.handed > w.handoff {
			w.breaks("a key is handed on %d times in a row", e.handed)
		}
		w.endTurn(claim, i)
		return true
	case home.Lingers:
		if !alone {
			return false
		}
		e.whole = false
		w.endTurn(claim, none)
		s.kept = keyOf(i)
		e.phase, e.handed = lingering, 0
		return true
	default:
		return false
	}
}

// endLease ends a lease in etcd.
func (w *world) endLease(in, at int, revoked bool) {
	l := &w.sessions[in].leases[at]
	of := func(e *entry) bool { return e.ticket.Lease == l.id }
	w.takeAway(of, false)
	w.end(in, l)
	l.dead = true
	w.etcd.end(l.id)
	for i, e := range w.entries {
		outlives := e != nil && e.ticket.Lost() && !revoked // it may have been put over
		if e != nil && of(e) && e.phase == removing && !outlives {
			e.ticket.Remove(0)
			w.forget(i)
		}
	}
}

// leave carries out what home.Queue.Leave says of a claim whose context has ended at home. It may
// have been let in meanwhile.
func (w *world) leave(claim int) {
	c, s := &w.claims[claim], &w.sessions[w.home(claim)]
	c.ended = false
	switch s.queue.Leave(s.waiters[claim]) {
	case home.Waiting, home.Next:
		c.standing, c.rounds = done, 0 // a chosen claim may still have it in its hands
	case home.Owner:
		w.endTurn(claim, c.ticket)
	}
}

// give is what a Lock does when its context ends in etcd's line.
func (w *world) give(claim int) {
	i, s := w.claims[claim].ticket, &w.sessions[w.home(claim)]
	if e := w.entries[i]; e.phase == entering { // its last attempt has no answer
		e.entering.Judged(ticket.Answer{Outcome: ticket.Unknown, Copies: e.copies})
		w.retire(w.home(claim), w.leaseOf(e))
	}
	if s.queue.HandsDown(w.key(s, claim, home.Untold)) {
		w.endTurn(claim, i)
		return
	}
	w.abandon(i, false)
	w.endTurn(claim, none)
}

// over says what is wrong with a world in which nothing more can happen without a fault.
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
		if s.standsIn() {
			return fmt.Sprintf("key %s stays for ever", s.key)
		}
	}
	for i := range w.sessions {
		if state := w.sessions[i].queue.State(); state != home.Free {
			return fmt.Sprintf("the queue of Session %d is %v for ever", i, state)
		}
	}
	return ""
}
