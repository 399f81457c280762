package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// The invariants, as a violation names them.
const (
	overlap  = "two believe to hold a lock"
	expired  = "a key went while its holder believed"
	notFirst = "Lock returned, but its key is not first in line"
	tokens   = "tokens do not grow"
	overtook = "a goroutine overtook another of its Session"
	untruth  = "Unlock did not tell the truth"
	harm     = "something of another's was removed"
	renewal  = "a lease was renewed after its loss"
	wrote    = "a TryLock wrote, and found the lock taken"
	noticed  = "a loss was not noticed in time"
	lostIt   = "a hold ended, and nothing was wrong"
	lateCall = "a call did not return with its context"
	gaveUp   = "a call gave up"
	stuck    = "a waiter does not get in"
	left     = "something was left behind"
)

const (
	// soon is the time in which a call returns after its context has ended.
	soon = 100 * time.Millisecond

	// noticeable is the time in which a loss by an operator's hand is noticed, while
	// there are no faults.
	noticeable = 1500 * time.Millisecond
)

// violationMark marks a violation in the log.
const violationMark = "VIOLATION: "

// A violation is one invariant that was broken.
type violation struct {
	invariant string
	text      string
}

// A judge sees every entry of the store, and every belief, and compares them. It is
// called with Cluster.mu held, or takes it first.
type judge struct {
	began   time.Time
	side    Side
	cluster *Cluster
	faulty  func() bool // there are faults, or were a moment ago

	peaceful bool          // no hold may be lost
	strict   bool          // an operator is all that there is to fear
	sharing  bool          // the holds of a Session may share a key
	stale    time.Duration // after a loss no renewal is sent any more; 0 if it may be late

	mu         sync.Mutex
	violations []violation
	log        []string
	keys       map[string]*keyLife // by key: the last one
	lives      map[int64]*keyLife  // all of them, by create revision: a transaction puts one key
	past       []*keyLife          // those that a set-back has undone
	beliefs    map[string][]*belief
	newest     map[string]int64  // the greatest token, by name
	newestOf   map[string]string // the local line that it was given to
	waiting    map[string][]*call
	asked      map[string][]*call   // under way, by process and lock
	put        map[string]time.Time // the last key, likewise
	holds      int
	over       bool // nobody is judged any more
}

// A keyLife is what became of one key, from its put to its deletion.
type keyLife struct {
	key       string
	owner     string // process
	rev       int64  // create revision
	lease     int64
	removedBy string // "" while it is there
	revoked   bool   // with its lease
	revived   bool   // it was removed, and a set-back has undone that
}

// A belief is a hold, as its holder sees it.
type belief struct {
	who   *worker
	name  string
	hold  *hold
	life  *keyLife
	began time.Time
	lost  time.Time // when hold ended by itself
	left  bool      // Unlock was called
	over  bool      // and has returned
}

// whole reports whether the holder believes.
func (b *belief) whole() bool {
	return !b.left && !b.who.p.isDead() && b.hold.ctx.Err() == nil
}

// A call is one that waits for a lock.
type call struct {
	ctx   context.Context
	try   bool
	began time.Time
	alone bool // nobody else of its process asks for that lock, or holds it, meanwhile
}

func newJudge(side Side, cluster *Cluster) *judge {
	j := &judge{
		began:    time.Now(),
		side:     side,
		cluster:  cluster,
		keys:     make(map[string]*keyLife),
		lives:    make(map[int64]*keyLife),
		beliefs:  make(map[string][]*belief),
		newest:   make(map[string]int64),
		newestOf: make(map[string]string),
		waiting:  make(map[string][]*call),
		asked:    make(map[string][]*call),
		put:      make(map[string]time.Time),
	}
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	cluster.audit, cluster.renewed, cluster.wentBack = j.changed, j.leaseRenewed, j.wentBack
	return j
}

// note writes into the log of the run.
func (j *judge) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.noteLocked(format, args...)
}

func (j *judge) noteLocked(format string, args ...any) {
	j.log = append(j.log, fmt.Sprintf("%10.4fs  ", time.Since(j.began).Seconds())+fmt.Sprintf(format, args...))
}

func (j *judge) violated(invariant, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.violatedLocked(invariant, format, args...)
}

func (j *judge) violatedLocked(invariant, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	j.noteLocked(violationMark+"%s: %s", invariant, text)
	j.violations = append(j.violations, violation{invariant, text})
}

// ---- what changes in etcd

// changed judges an entry. Cluster.mu is held.
func (j *judge) changed(change Change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if change.Ended != 0 {
		j.noteLocked("etcd: lease %x of %s ended by %s", change.Ended, change.Owner, change.By)
		if change.By != byExpiry && change.By != byOperator && change.By != change.Owner {
			j.violatedLocked(harm, "%s revoked lease %x of %s", change.By, change.Ended, change.Owner)
		}
	}
	for _, event := range change.Events {
		key, rev := string(event.Kv.Key), event.Kv.ModRevision
		life := j.keys[key]
		if event.Type == mvccpb.Event_PUT {
			j.noteLocked("etcd: %s put %s at %d", change.By, key, rev)
			if event.Kv.Version > 1 {
				j.violatedLocked(harm, "%s put over %s of %s", change.By, key, life.owner)
				continue
			}
			j.put[change.By+" "+nameOf(key)] = time.Now()
			life = &keyLife{key: key, owner: change.By, rev: rev, lease: event.Kv.Lease}
			j.keys[key], j.lives[rev] = life, life
			continue
		}
		j.noteLocked("etcd: %s of %d removed by %s at %d", key, life.rev, change.By, rev)
		life.removedBy, life.revoked = change.By, change.Ended != 0
		j.removedLocked(key, life, change)
	}
}

// removedLocked judges that a key went.
func (j *judge) removedLocked(key string, life *keyLife, change Change) {
	if change.By != byExpiry && change.By != byOperator && change.By != life.owner && j.side.judged {
		j.violatedLocked(harm, "%s removed %s of %s, put at %d", change.By, key, life.owner, life.rev)
	}
	for _, b := range j.beliefs[nameOf(key)] {
		if b.life != life || !b.whole() {
			continue
		}
		if change.By == byOperator {
			j.mustNotice(b)
			continue
		}
		j.violatedLocked(expired, "%s, token %d of %s, by %s", key, life.rev, b.who, change.By)
	}
}

// wentBack judges that etcd was set back, whose members are all down. Cluster.mu is held.
// Keys are gone that were there, as by an operator's hand, and keys are there that were
// gone; tokens begin anew.
func (j *judge) wentBack() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.noteLocked("etcd was set back to %d", j.cluster.store.Rev())
	before := j.lives
	j.keys, j.lives = make(map[string]*keyLife), make(map[int64]*keyLife)
	for _, kv := range readAll(j.cluster.store.Now(), "") {
		life := before[kv.CreateRevision]
		if life.removedBy != "" {
			life.removedBy, life.revoked, life.revived = "", false, true
		}
		j.keys[life.key], j.lives[life.rev] = life, life
	}
	for rev, life := range before {
		if j.lives[rev] != nil {
			continue
		}
		if life.removedBy == "" {
			life.removedBy = byOperator
		}
		j.past = append(j.past, life)
	}
	for _, beliefs := range j.beliefs {
		for _, b := range beliefs {
			if j.taken(b) {
				j.mustNotice(b)
			}
		}
	}
	clear(j.newest)
	clear(j.newestOf)
}

// lifeLocked is that of the key by which a worker holds.
func (j *judge) lifeLocked(w *worker, name string, token int64) *keyLife {
	isIt := func(life *keyLife) bool {
		return life != nil && life.rev == token && life.owner == w.p.name && nameOf(life.key) == name
	}
	if life := j.lives[token]; isIt(life) {
		return life
	}
	for _, life := range slices.Backward(j.past) {
		if isIt(life) {
			return life
		}
	}
	return nil
}

// mustNotice makes sure that a hold whose key was taken away ends soon.
func (j *judge) mustNotice(b *belief) {
	if !j.side.judged {
		return
	}
	time.AfterFunc(noticeable, func() {
		faulty := j.faulty()
		j.mu.Lock()
		defer j.mu.Unlock()
		switch {
		case j.over || !b.whole():
		case faulty:
			j.mustNotice(b) // as soon as it can
		default:
			j.violatedLocked(noticed, "%s still believes to hold %s, token %d", b.who, b.name, b.hold.token)
		}
	})
}

// leaseRenewed judges a renewal. Cluster.mu is held. One that was sent before the loss may
// arrive later, for as long as its attempt lives.
func (j *judge) leaseRenewed(id int64) {
	if !j.side.judged || j.stale == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, beliefs := range j.beliefs {
		for _, b := range beliefs {
			late := !b.lost.IsZero() && time.Since(b.lost) > j.stale
			if late && b.life.lease == id {
				j.violatedLocked(renewal, "%x, %v after %s lost %s, token %d", id, time.Since(b.lost), b.who, name, b.hold.token)
			}
		}
	}
}

// A turn is that a key is first in line, and its owner does not hold.
type turn struct {
	rev   int64
	since time.Time
}

// watchTurns judges from now on that whoever is first in line holds, or soon does.
func (j *judge) watchTurns(most time.Duration) {
	if !j.side.judged {
		return
	}
	turns := make(map[string]turn)
	var look func()
	look = func() {
		j.cluster.Now(func(v fake.View) {
			j.mu.Lock()
			defer j.mu.Unlock()
			if j.over {
				return
			}
			for _, name := range j.side.names {
				j.turnLocked(v, name, turns, most)
			}
			time.AfterFunc(most/8, look)
		})
	}
	look()
}

func (j *judge) turnLocked(v fake.View, name string, turns map[string]turn, most time.Duration) {
	line := contenders(v, name)
	mayLinger := j.sharing && len(line) == 1 && line[0].CreateRevision <= j.newest[name]
	if len(line) == 0 || mayLinger {
		delete(turns, name)
		return
	}
	rev := line[0].CreateRevision
	held := slices.ContainsFunc(j.beliefs[name], func(b *belief) bool { return b.hold.token == rev && b.whole() })
	if held || turns[name].rev != rev {
		turns[name] = turn{rev, time.Now()}
		return
	}
	if waits := time.Since(turns[name].since); waits > most {
		j.violatedLocked(stuck, "%s has been first in line for %s for %v, and does not hold", line[0].Key, name, waits)
		turns[name] = turn{rev, time.Now()}
	}
}

// nameOf is the lock of a key.
func nameOf(key string) string { return key[:strings.LastIndexByte(key, '/')] }

// ---- what the workers see

// asks notes that a worker calls Lock, in the order of the local line.
func (j *judge) asks(w *worker, name string, ctx context.Context, try bool) *call {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := &call{ctx: ctx, try: try, began: time.Now()}
	of := w.p.name + " " + name
	c.alone = len(j.asked[of]) == 0 &&
		!slices.ContainsFunc(j.beliefs[name], func(b *belief) bool { return b.who.p == w.p && !b.over })
	for _, other := range j.asked[of] {
		other.alone = false
	}
	j.asked[of] = append(j.asked[of], c)
	line := w.line(name)
	j.waiting[line] = append(j.waiting[line], c)
	return c
}

// failed notes that a call is over, without a hold.
func (j *judge) failed(w *worker, name string, c *call, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.goneLocked(w, name, c)
	j.noteLocked("%s does not get %s: %v", w, name, err)
	said := outcomeOf(err)
	if j.side.judged && j.peaceful && c.try && c.alone && said == locked && !j.put[w.p.name+" "+name].Before(c.began) {
		j.violatedLocked(wrote, "%s, for %s", w, name)
	}
	if j.side.judged && !w.p.isDead() && (said == failed || said == ended && c.ctx.Err() == nil) {
		j.violatedLocked(gaveUp, "%s: %v", w, err)
	}
}

func (j *judge) goneLocked(w *worker, name string, c *call) {
	of, line := w.p.name+" "+name, w.line(name)
	same := func(other *call) bool { return other == c }
	j.asked[of] = slices.DeleteFunc(j.asked[of], same)
	j.waiting[line] = slices.DeleteFunc(j.waiting[line], same)
}

// enters judges that a worker was given a lock.
func (j *judge) enters(w *worker, name string, h *hold, c *call) *belief {
	b := &belief{who: w, name: name, hold: h, began: time.Now()}
	j.cluster.Now(func(v fake.View) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.noteLocked("%s holds %s, token %d", w, name, h.token)
		j.goneLocked(w, name, c)
		if w.p.isDead() {
			return
		}
		j.holds++
		b.life = j.lifeLocked(w, name, h.token)
		j.aloneLocked(b)
		if j.side.judged {
			j.firstLocked(b, v)
			j.inTurnLocked(w, name, c)
		}
		if h.token > j.newest[name] && !j.taken(b) {
			j.newest[name], j.newestOf[name] = h.token, w.line(name)
		}
		j.beliefs[name] = append(j.beliefs[name], b)
	})
	return b
}

// aloneLocked judges that nobody else believes.
func (j *judge) aloneLocked(b *belief) {
	for _, other := range j.beliefs[b.name] {
		if !other.whole() || j.taken(other) || j.taken(b) {
			continue
		}
		j.violatedLocked(overlap, "%s with token %d of %s, %s with token %d", other.who, other.hold.token, b.name, b.who, b.hold.token)
	}
	j.beliefs[b.name] = slices.DeleteFunc(j.beliefs[b.name], func(other *belief) bool { return !other.whole() })
}

// taken reports whether an operator took the key of a belief away. The holder may take a
// moment to notice.
func (j *judge) taken(b *belief) bool { return b.life != nil && b.life.removedBy == byOperator }

// firstLocked judges that b's key is there, first in line, and newer than all before.
func (j *judge) firstLocked(b *belief, v fake.View) {
	if j.taken(b) {
		j.mustNotice(b)
		return
	}
	kvs := contenders(v, b.name)
	for len(kvs) > 1 && j.lives[kvs[0].CreateRevision].revived {
		kvs = kvs[1:] // b saw it go, before etcd was set back
	}
	switch {
	case b.life == nil:
		j.violatedLocked(notFirst, "%s: no key of %s was ever put at %d", b.who, b.name, b.hold.token)
	case len(kvs) == 0:
		j.violatedLocked(notFirst, "%s: no key of %s is there, not %d", b.who, b.name, b.hold.token)
	case kvs[0].CreateRevision != b.hold.token:
		j.violatedLocked(notFirst, "%s with token %d of %s, behind %s of %d", b.who, b.hold.token, b.name, kvs[0].Key, kvs[0].CreateRevision)
	}
	shared := j.sharing && b.hold.token == j.newest[b.name] && b.who.line(b.name) == j.newestOf[b.name]
	if b.hold.token <= j.newest[b.name] && !shared {
		j.violatedLocked(tokens, "%s with %d of %s, after %d", b.who, b.hold.token, b.name, j.newest[b.name])
	}
}

// readAll returns the keys with a prefix.
func readAll(v fake.View, prefix string) []*mvccpb.KeyValue {
	in := &pb.RangeRequest{Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix))}
	if prefix == "" {
		in.Key = []byte{0}
	}
	reply, err := v.Range(in)
	if err != nil {
		panic(err) // a read of the present
	}
	return reply.Kvs
}

// contenders are the keys of a lock by create revision.
func contenders(v fake.View, name string) []*mvccpb.KeyValue {
	kvs := slices.DeleteFunc(readAll(v, name+"/"), func(kv *mvccpb.KeyValue) bool { return nameOf(string(kv.Key)) != name })
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return int(a.CreateRevision - b.CreateRevision) })
	return kvs
}

// inTurnLocked judges that no goroutine of the Session asked earlier, and still waits.
func (j *judge) inTurnLocked(w *worker, name string, c *call) {
	for _, other := range j.waiting[w.line(name)] {
		if other.began.Before(c.began) && other.ctx.Err() == nil {
			j.violatedLocked(overtook, "%s of %s, who asked %v later", w, name, c.began.Sub(other.began))
		}
	}
}

// leaves notes that a worker is about to unlock, and reports whether it believes.
func (j *judge) leaves(b *belief) (whole bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	whole = b.whole()
	b.left = true
	return whole
}

// unlocked judges what Unlock said.
func (j *judge) unlocked(b *belief, whole, certain bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b.over = true
	j.noteLocked("%s unlocked %s, token %d, believing %v: %v", b.who, b.name, b.hold.token, whole, err)
	if !j.side.judged || b.who.p.isDead() || b.life == nil {
		return
	}
	said := outcomeOf(err)
	if said == done && !whole {
		j.violatedLocked(untruth, "%s: nil for token %d of %s, but the hold had ended: %v", b.who, b.hold.token, b.name, context.Cause(b.hold.ctx))
	}
	switch life := b.life; {
	case life.revived: // it was released before
	case said == done && j.sharing && life.removedBy == "": // its Session keeps it
	case said == done && life.removedBy == "":
		j.violatedLocked(untruth, "%s: nil for token %d of %s, but its key is there", b.who, life.rev, b.name)
	case said == done && life.removedBy != life.owner && j.strict && !j.sharing:
		// Elsewhere an answer may have been lost, and what it would have said with it.
		j.violatedLocked(untruth, "%s: nil for token %d of %s, but its key was removed by %s", b.who, life.rev, b.name, life.removedBy)
	case said == done && (life.removedBy != life.owner || life.revoked) && !j.taken(b):
		j.violatedLocked(untruth, "%s: nil for token %d of %s, but its key was removed by %s", b.who, life.rev, b.name, life.removedBy)
	case said == lost && whole && certain && !j.taken(b):
		j.violatedLocked(untruth, "%s: %v, but the hold was whole", b.who, err)
	case said != done && said != lost && said != unconfirmed:
		j.violatedLocked(untruth, "%s: %v", b.who, err)
	}
}

// ends judges that a hold ended by itself.
func (j *judge) ends(b *belief) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if b.left || b.who.p.isDead() || j.over {
		return
	}
	j.noteLocked("%s lost %s, token %d: %v", b.who, b.name, b.hold.token, context.Cause(b.hold.ctx))
	b.lost = time.Now()
	if j.side.judged && j.peaceful {
		j.violatedLocked(lostIt, "%s with token %d of %s: %v", b.who, b.hold.token, b.name, context.Cause(b.hold.ctx))
	}
}

// took judges how long a call took that was bounded.
func (j *judge) took(w *worker, what string, began time.Time, bound time.Duration) {
	if took := time.Since(began); took > bound+soon && !w.p.isDead() {
		j.violated(lateCall, "%s: %s took %v, bounded by %v", w, what, took, bound)
	}
}

// keysLeft is the number of keys.
func (j *judge) keysLeft() (n int) {
	j.cluster.Now(func(v fake.View) { n = len(readAll(v, "")) })
	return n
}

// noKeys judges that no key is left.
func (j *judge) noKeys(when string) {
	j.cluster.Now(func(v fake.View) {
		for _, kv := range readAll(v, "") {
			j.violated(left, "%s: %s of %s, put at %d", when, kv.Key, j.keys[string(kv.Key)].owner, kv.CreateRevision)
		}
	})
}

// noLeases judges that no lease is left.
func (j *judge) noLeases(when string) {
	j.cluster.Now(func(v fake.View) {
		for _, id := range v.Leases() {
			j.violated(left, "%s: lease %x of %s", when, id, j.cluster.grants[id])
		}
	})
}

// rest ends all judgement.
func (j *judge) rest() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.over = true
}
