package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// The invariants, as a violation names them.
const (
	overlap   = "two believe to hold a lock"
	expired   = "a key went while its holder believed"
	notFirst  = "Lock returned, but its key is not first in line"
	tokens    = "tokens do not grow"
	overtook  = "a goroutine overtook another of its Session"
	untruth   = "Unlock did not tell the truth"
	harm      = "something of another's was removed"
	renewal   = "a lease was renewed after its loss"
	wrote     = "a TryLock wrote, and found the lock taken"
	noticed   = "a loss was not noticed in time"
	lostIt    = "a hold ended, and nothing was wrong"
	lateCall  = "a call did not return with its context"
	gaveUp    = "a call gave up"
	foundBack = "a set-back was found where there was none"
	stuck     = "a waiter does not get in"
	left      = "something was left behind"
	late      = "a newcomer got in past one that had waited"
	tooSoon   = "a goroutine got in before another of its Session had unlocked"
	worn      = "one joined by a key whose lease is not renewed in time"
	mistaken  = "a hold has the key of another kind"
	noGrace   = "a recalled hold did not have its grace"
	untold    = "SetInfo did not tell the truth, or a key does not"
	noReason  = "a wait asked a contender that holds nothing, does not listen, or was asked before"
	early     = "a name was free before the least time of its hold"
	astray    = "a follower was led astray"
	measured  = "a hold did not end with its longest time"
)

const (
	// soon is the time in which a call returns after its context has ended.
	soon = 100 * time.Millisecond

	// noticeable is the time in which a holder notices a loss by an operator's hand, while
	// there are no faults.
	noticeable = 1500 * time.Millisecond

	// known is the time in which all Sessions learn who stands in etcd's line, while there
	// are no faults and answers are not slow: one event.
	known = 100 * time.Millisecond
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
	names   []string
	cluster *Cluster
	trace   *tracer     // nil if nothing is written down
	faulty  func() bool // there are faults, or were a moment ago

	calm      bool          // nothing goes wrong
	goesBack  bool          // etcd is set back
	mayGoBack bool          // or a key may be deleted
	peaceful  bool          // no hold may be lost
	asking    bool          // waits may ask the holder to give way
	strict    bool          // an operator is the only fault
	sharing   bool          // the holds of a Session may share a key
	slow      time.Duration // how much longer an answer takes than the network needs
	stale     time.Duration // how long after a loss a renewal may still come; 0 if it may come late

	mu         sync.Mutex
	violations []violation
	log        []string
	keys       map[string]*keyLife // by key: the last one
	lives      map[place]*keyLife  // all of them
	past       []*keyLife          // those that a set-back has undone
	beliefs    map[string][]*belief
	peers      map[string]bool             // processes that are not judged, while others are
	newest     map[string]map[string]grant // the greatest token, by name and mode
	inside     map[string][]*belief        // those that have not unlocked, by local line
	waiting    map[string][]*call
	asked      map[string][]*call   // calls under way, by process and lock
	put        map[string]time.Time // when the last key was put, by process and lock
	below      map[string]time.Time // when the last key of a name below it changed, by name
	holds      int
	modes      map[string]int // holds by mode
	beside     int            // holds that began beside others
	several    int            // holds of several names
	recalls    int            // holds that a recall has ended
	heeded     int            // holds whose holder has unlocked because of one
	terms      int            // of leaders that have led
	over       bool           // the judge judges no more

	graces map[int64][]time.Duration // that recalls have asked for, by token
	infos  map[string]*infoCall      // the calls of SetInfo, by the info
	told   int                       // of them, that have returned nil
	grace  time.Duration             // that waits ask for
	wrote  int                       // requests that waits have written

	longest int // holds that their longest time has ended
	seen    int // changes that followers have seen

	kept      map[string][]*keyLife // those that must stay though their hold has ended, by name
	outlasted int                   // holds whose key stayed for the rest of their least time

	noticed map[string]time.Time // when a process last noticed a set-back
	knew    map[string]int64     // by process: the highest token that it has had since
	delayed time.Time            // until when no hold need begin
	excused int                  // holds that began beside one that a set-back has ended
}

// A place is a lock's name and a create revision. One transaction puts one key of a name,
// or one of each of several names.
type place struct {
	name string
	rev  int64
}

func placeOf(kv *mvccpb.KeyValue) place { return place{nameOf(string(kv.Key)), kv.CreateRevision} }
func (life *keyLife) place() place      { return place{nameOf(life.key), life.rev} }

// A keyLife is what became of one key, from its put to its deletion.
type keyLife struct {
	key       string
	owner     string // process
	rev       int64  // create revision
	put       time.Time
	shared    int       // beliefs that it has carried
	begun     time.Time // when the first of them began
	open      int       // those of them that have not unlocked
	unsure    bool      // the Unlock of one of them did not learn whether it released the key
	barred    bool      // when it went, another before it was in its way: its turn never came
	lease     int64
	removedBy string // "" while it is there
	removed   time.Time
	revoked   bool       // with its lease
	revived   bool       // it was removed, or moved, and a set-back has undone that
	undone    *setBackOf // that has removed it, nil if none has
	values    [][]byte   // that it has had; the first one was put with it
	asked     bool       // a wait has asked its holder to give way

	ending   *ending   // what may move it to a lease of its own, nil once that has
	goes     time.Time // when that lease is over at the latest
	until    time.Time // until when it must stay, by what a call has promised
	promised *ending   // of until
}

// A belief is a hold, as its holder sees it.
type belief struct {
	who   *worker
	name  string
	kind  kind
	hold  *hold
	life  *keyLife
	began time.Time
	heard time.Time // when its holder learned of a recall
	lost  time.Time // when hold ended by itself
	left  bool      // Unlock was called
	when  time.Time // that was
	over  bool      // Unlock has returned

	ending *ending // nil if its key goes with it

	others []*belief // beliefs of the other names that are held with it

	excused bool // it began beside one that a set-back has ended
}

// whole reports whether the holder still believes.
func (b *belief) whole() bool {
	return !b.left && !b.who.p.isDead() && b.hold.ctx.Err() == nil
}

// ceded reports whether the hold has ended by a recall, or is that of a leader who was
// asked to end. The key stays its holder's until the holder has unlocked, or its lease is
// gone. Nobody else gets in before.
func (b *belief) ceded() bool {
	return !b.left && !b.who.p.isDead() && b.asked() && !b.outlived(known)
}

// timedOut reports whether its longest time has ended the hold.
func (b *belief) timedOut() bool {
	return errors.Is(context.Cause(b.hold.ctx), etcdlock.ErrMaxHold)
}

// ended reports whether the hold has ended with all that share its key.
func (b *belief) ended() bool { return b.hold.ctx.Err() != nil && !b.timedOut() }

// outlived reports whether the longest time of the hold is over, or will be in a while. Then the
// Session releases its key, whatever has ended the hold.
func (b *belief) outlived(while time.Duration) bool {
	return b.who.longest > 0 && time.Since(b.began)+while >= b.who.longest
}

// asked reports whether the hold was not lost, but its holder was asked to come to an end.
func (b *belief) asked() bool {
	why := context.Cause(b.hold.ctx)
	return errors.Is(why, etcdlock.ErrRecalled) || errors.Is(why, errResigned)
}

// errResigned is the cause with which a leader ends that was told to resign.
var errResigned = errors.New("sim: resigned")

// A grant is a token that a local line was given.
type grant struct {
	token int64
	line  string
}

// A call is a call that waits for a lock.
type call struct {
	kind  kind
	ctx   context.Context
	try   bool
	began time.Time
	alone bool // no other worker of its process asks for that lock, or holds it, meanwhile
}

func newJudge(side Side, cluster *Cluster) *judge {
	j := &judge{
		began:   time.Now(),
		side:    side,
		names:   side.names,
		peers:   make(map[string]bool),
		inside:  make(map[string][]*belief),
		cluster: cluster,
		keys:    make(map[string]*keyLife),
		lives:   make(map[place]*keyLife),
		beliefs: make(map[string][]*belief),
		modes:   make(map[string]int),
		newest:  make(map[string]map[string]grant),
		waiting: make(map[string][]*call),
		asked:   make(map[string][]*call),
		put:     make(map[string]time.Time),
		below:   make(map[string]time.Time),
		graces:  make(map[int64][]time.Duration),
		infos:   make(map[string]*infoCall),

		kept:    make(map[string][]*keyLife),
		noticed: make(map[string]time.Time),
		knew:    make(map[string]int64),
	}
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	cluster.audit, cluster.renewed, cluster.wentBack = j.changed, j.leaseRenewed, j.wentBack
	return j
}

// leavesOut makes the judge blame nothing on a process. It is for the one process that uses
// the peer while others do not.
func (j *judge) leavesOut(process string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.peers[process] = true
}

// judges reports whether a process uses a library that promises all that the judge looks
// for, and the judge counts what it does.
func (j *judge) judges(process string) bool { return j.side.judged && j.counts(process) }
func (j *judge) counts(process string) bool { return !j.peers[process] }

// note writes into the log of the run.
func (j *judge) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.noteLocked(format, args...)
}

func (j *judge) noteLocked(format string, args ...any) {
	j.log = append(j.log, fmt.Sprintf("%10.4fs  ", time.Since(j.began).Seconds())+
		fmt.Sprintf(format, args...))
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
		if life := j.keys[string(event.Kv.Key)]; event.Type == clientv3.EventTypeDelete {
			life.barred = barred(life, j.lives)
		}
	}
	for _, event := range change.Events {
		key, rev := string(event.Kv.Key), event.Kv.ModRevision
		life := j.keys[key]
		for _, name := range j.names {
			if strings.HasPrefix(nameOf(key), name+"/") {
				j.below[name] = time.Now()
			}
		}
		if event.Type == clientv3.EventTypePut {
			j.noteLocked("etcd: %s put %s at %d", change.By, key, rev)
			if event.Kv.Version > 1 {
				if event.Kv.Lease != life.lease {
					j.movedLocked(change.By, life, event.Kv)
				} else {
					j.putOver(life, event.Kv, change.By)
				}
				continue
			}
			if life == nil { // and not a late copy of the request that put a key that is gone
				j.put[change.By+" "+nameOf(key)] = time.Now()
			}
			life = &keyLife{key: key, owner: change.By, rev: rev, put: time.Now(), lease: event.Kv.Lease,
				values: [][]byte{event.Kv.Value}}
			j.keys[key], j.lives[life.place()] = life, life
			continue
		}
		j.noteLocked("etcd: %s of %d removed by %s at %d", key, life.rev, change.By, rev)
		life.removedBy, life.removed, life.revoked = change.By, time.Now(), change.Ended != 0
		j.removedLocked(key, life, change)
	}
}

// barred reports whether a key that is about to go has another before it, among the lives,
// that it may not hold beside. No key is ever put before another, so its turn has not come
// earlier either.
func barred(life *keyLife, lives map[place]*keyLife) bool {
	var before []kind
	name := nameOf(life.key)
	for p, other := range lives {
		if p.name == name && p.rev < life.rev && other.removedBy == "" && !other.revived {
			before = append(before, kindOf(other.key))
		}
	}
	return !life.revived && !kindOf(life.key).beside(before)
}

// removedLocked judges the removal of a key.
func (j *judge) removedLocked(key string, life *keyLife, change Change) {
	if change.By != byExpiry && change.By != byOperator && change.By != life.owner && j.side.judged {
		j.violatedLocked(harm, "%s removed %s of %s, put at %d", change.By, key, life.owner, life.rev)
	}
	if change.By != byOperator && life.removed.Before(life.until) {
		j.tooEarlyLocked(life, life.promised)
	}
	for _, b := range j.beliefs[nameOf(key)] {
		// In other runs the lease may have been lost since.
		if b.life == life && j.peaceful && b.ceded() && change.By == life.owner && change.Ended == 0 {
			j.violatedLocked(expired, "%s, token %d of %s, which was asked to end, by %s", key, life.rev,
				b.who, change.By)
		}
		if b.life != life || !b.whole() || !j.counts(b.who.p.name) {
			continue
		}
		if change.By == byOperator {
			j.mustNotice(b)
			continue
		}
		j.violatedLocked(expired, "%s, token %d of %s, by %s", key, life.rev, b.who, change.By)
	}
}

// wentBack judges a set-back of etcd, whose members are all down. Cluster.mu is held. Some
// keys that were there are gone, as by an operator's hand, and some keys that were gone are
// back. Tokens begin anew.
func (j *judge) wentBack(another bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	back := &setBackOf{time.Now(), another, maps.Clone(j.knew)}
	j.noteLocked("etcd was set back to %d", j.cluster.store.Rev())
	before := j.lives
	for _, life := range before {
		if life.removedBy == "" {
			life.barred = barred(life, before) // if it goes
		}
	}
	j.keys, j.lives = make(map[string]*keyLife), make(map[place]*keyLife)
	for _, kv := range readAll(j.cluster.store.Now(), "") {
		life := before[placeOf(kv)]
		if back := j.backLocked(life, kv); back != nil {
			life = back
		} else if life.removedBy != "" {
			life.removedBy, life.revoked, life.revived, life.undone = "", false, true, nil
		}
		life.barred, life.asked = false, false
		j.keys[life.key], j.lives[life.place()] = life, life
	}
	for p, life := range before {
		if j.lives[p] == life {
			continue
		}
		if life.removedBy == "" {
			life.removedBy, life.undone = byOperator, back
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
}

// lifeLocked returns the life of the key by which a worker holds.
func (j *judge) lifeLocked(w *worker, name string, token int64) *keyLife {
	isIt := func(life *keyLife) bool {
		return life != nil && life.rev == token && life.owner == w.p.name && nameOf(life.key) == name
	}
	if life := j.lives[place{name, token}]; isIt(life) {
		return life
	}
	for _, life := range slices.Backward(j.past) {
		if isIt(life) {
			return life
		}
	}
	return nil
}

// together records that beliefs belong to one hold.
func (j *judge) together(all []*belief) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, b := range all {
		b.others = slices.Concat(all[:i], all[i+1:])
	}
	j.several++
}

// mustNotice makes sure that a hold whose key was taken away ends soon.
func (j *judge) mustNotice(b *belief) {
	if !j.judges(b.who.p.name) {
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

// leads records that a leader begins to lead.
func (j *judge) leads() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.terms++
}

// leaseRenewed judges a renewal. Cluster.mu is held. A renewal that was sent before the
// loss may arrive later, for as long as its attempt lives.
func (j *judge) leaseRenewed(_ context.Context, id int64) {
	if !j.side.judged || j.stale == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, beliefs := range j.beliefs {
		for _, b := range beliefs {
			late := !b.lost.IsZero() && time.Since(b.lost) > j.stale
			if late && b.life.lease == id && j.counts(b.who.p.name) {
				j.violatedLocked(renewal, "%x, %v after %s lost %s, token %d", id, time.Since(b.lost), b.who,
					name, b.hold.token)
			}
		}
	}
}

// watchTurns judges from now on that each in line who has nobody in its way holds, or soon
// does.
func (j *judge) watchTurns(most time.Duration) {
	if !j.side.judged {
		return
	}
	since := make(map[place]time.Time) // when its turn was seen, and no holder
	var look func()
	look = func() {
		j.cluster.Now(func(v fake.View) {
			j.mu.Lock()
			defer j.mu.Unlock()
			if j.over {
				return
			}
			for _, name := range j.names {
				j.turnsLocked(v, name, since, most)
			}
			time.AfterFunc(most/8, look)
		})
	}
	look()
}

func (j *judge) turnsLocked(
	v fake.View, name string, since map[place]time.Time, most time.Duration,
) {
	line := contenders(v, name)
	for i, kv := range line {
		k, rev, at := kindOf(string(kv.Key)), kv.CreateRevision, placeOf(kv)
		mayLinger := j.sharing && len(line) == 1 && !k.shares() && rev <= j.newest[name][k.mode()].token
		// What is being released has got in, and waits no more. With a silent member that may take as
		// long as a look at turns; in a hold that is short the judge may not have looked.
		held := slices.ContainsFunc(j.beliefs[name], func(b *belief) bool {
			return b.hold.token == rev && (b.whole() || b.ceded() || b.left && !b.over)
		})
		switch {
		case held, mayLinger, time.Now().Before(j.delayed), j.lives[at].stays(),
			!k.beside(kindsIn(line[:i])), j.waitsElsewhere(v, at),
			!j.counts(j.lives[at].owner):
			delete(since, at)
		case since[at].IsZero():
			since[at] = time.Now()
		case time.Since(since[at]) > most:
			j.violatedLocked(stuck, "nobody has been in the way of %s for %s for %v, and it does not hold",
				kv.Key, name, time.Since(since[at]))
			since[at] = time.Now()
		}
	}
}

// waitsElsewhere reports whether a key was put together with a key of another name that has
// to wait there.
func (j *judge) waitsElsewhere(v fake.View, at place) bool {
	return slices.ContainsFunc(j.names, func(name string) bool {
		line := contenders(v, name)
		i := slices.IndexFunc(line, func(kv *mvccpb.KeyValue) bool { return kv.CreateRevision == at.rev })
		return name != at.name && i > 0
	})
}

// kindsIn returns the kinds of the keys in a line.
func kindsIn(line []*mvccpb.KeyValue) (kinds []kind) {
	for _, kv := range line {
		kinds = append(kinds, kindOf(string(kv.Key)))
	}
	return kinds
}

// nameOf returns the name of the lock that a key belongs to.
func nameOf(key string) string { return key[:strings.LastIndexByte(key, '/')] }

// ---- what the workers see

// asks records that a worker calls Lock, in the order of the local line.
func (j *judge) asks(w *worker, name string, k kind, ctx context.Context, try bool) *call {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := &call{kind: k, ctx: ctx, try: try, began: time.Now()}
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

// asksAgain records that a leader will stand in line anew, after a pause of its own.
// Whoever comes before it does so has not overtaken it.
func (j *judge) asksAgain(w *worker, name string, ctx context.Context) *call {
	c := j.asks(w, name, alone{}, ctx, false)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waiting[w.line(name)] = slices.DeleteFunc(j.waiting[w.line(name)], func(other *call) bool {
		return other == c
	})
	return c
}

// failed records that a call is over without a hold.
func (j *judge) failed(w *worker, name string, c *call, err error) {
	j.trace.failed(w.p.name)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.goneLocked(w, name, c)
	j.noteLocked("%s does not get %s: %v", w, name, err)
	said := outcomeOf(err)
	judged := j.judges(w.p.name)
	// Beside permits, and keys of nested names, that come and go it may have to put its key to see
	// who is before it.
	_, ofPermits := c.kind.(permit)
	quiet := !ofPermits && j.below[name].Before(c.began)
	if judged && j.peaceful && c.try && c.alone && quiet && said == locked &&
		!j.put[w.p.name+" "+name].Before(c.began) {
		j.violatedLocked(wrote, "%s, for %s", w, name)
	}
	// While there are faults etcd may be doubted: a member that was frozen does not know a lease, and
	// no other one answers.
	text := err.Error()
	if judged && !j.mayGoBack && (strings.Contains(text, "etcd was set back") ||
		j.peaceful && strings.Contains(text, "etcd may have been set back")) {
		j.violatedLocked(gaveUp, "%s: etcd was not set back: %v", w, err)
	}
	if judged && !w.p.isDead() && (said == failed || said == ended && c.ctx.Err() == nil) {
		j.violatedLocked(gaveUp, "%s: %v", w, err)
	}
}

func (j *judge) goneLocked(w *worker, name string, c *call) {
	of, line := w.p.name+" "+name, w.line(name)
	same := func(other *call) bool { return other == c }
	j.asked[of] = slices.DeleteFunc(j.asked[of], same)
	j.waiting[line] = slices.DeleteFunc(j.waiting[line], same)
}

// enters judges a lock that a worker was given.
func (j *judge) enters(w *worker, name string, h *hold, c *call) *belief {
	b := &belief{who: w, name: name, kind: c.kind, hold: h, began: time.Now()}
	j.trace.enters(w.p.name, h)
	deadline := h.status().Deadline
	quiet := !j.faulty() && w.p.w.scenario != silent
	j.cluster.Now(func(v fake.View) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.noteLocked("%s holds %s, %s, token %d", w, name, c.kind.mode(), h.token)
		j.goneLocked(w, name, c)
		if w.p.isDead() {
			return
		}
		j.holds++
		j.modes[c.kind.mode()]++
		b.life = j.lifeLocked(w, name, h.token)
		if b.life != nil {
			if b.life.shared++; b.life.shared == 1 {
				b.life.begun = time.Now()
			}
			b.life.open++
		}
		j.besideLocked(b)
		j.knowsLocked(b)
		j.ownInfoLocked(b)
		if j.judges(w.p.name) {
			j.firstLocked(b, v)
			j.pastKeptLocked(b)
			j.inTurnLocked(b, c)
			j.afterUnlockLocked(b)
			// Three renewals fit into a TTL. Holders that called before the first of them began
			// begin with it: the answer to its put may be late. (The others may have learned of a
			// recall since one has joined.)
			joined := b.life != nil && b.life.shared > 1 && c.kind.joins() && c.began.After(b.life.begun)
			if left := time.Until(deadline); joined && !h.recalled() && !deadline.IsZero() &&
				left < w.p.w.grantedAtLeast()/3 {
				j.violatedLocked(worn, "%s with token %d of %s, certain for %v", w, h.token, name, left)
			}
			if quiet {
				j.pastNobodyLocked(b, c, v)
			}
		}
		if !j.taken(b) && h.token > j.newest[name][c.kind.mode()].token {
			if j.newest[name] == nil {
				j.newest[name] = make(map[string]grant)
			}
			j.newest[name][c.kind.mode()] = grant{h.token, w.line(name)}
		}
		j.beliefs[name] = append(j.beliefs[name], b)
		j.inside[w.line(name)] = append(j.inside[w.line(name)], b)
	})
	return b
}

// passes records that a worker has a hold for a moment, in which it does not work.
func (j *judge) passes(w *worker, name string, token int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.noteLocked("%s had a hold of %s, token %d, and no time", w, name, token)
	if life := j.lifeLocked(w, name, token); life != nil {
		life.unsure = true // the others do not know when it is gone
	}
}

// besideLocked judges that nobody believes to hold whom b may not hold beside. What the
// peer believes counts only while nothing goes wrong.
func (j *judge) besideLocked(b *belief) {
	var others []*belief
	var kinds []kind
	for _, other := range j.beliefs[b.name] {
		if !other.whole() && !j.stays(other) || j.excusedLocked(b, other) ||
			!j.counts(other.who.p.name) && (!j.peaceful || j.dropped(other)) {
			continue
		}
		others, kinds = append(others, other), append(kinds, other.kind)
	}
	if len(others) > 0 {
		j.beside++
	}
	if (j.counts(b.who.p.name) || j.peaceful && !j.dropped(b)) && !b.kind.beside(kinds) {
		var who strings.Builder
		for _, other := range others {
			fmt.Fprintf(&who, "%s with token %d (%s), ", other.who, other.hold.token, other.kind.mode())
		}
		j.violatedLocked(overlap, "%s of %s, and %s with token %d (%s)", who.String(), b.name, b.who,
			b.hold.token, b.kind.mode())
	}
	j.beliefs[b.name] = slices.DeleteFunc(j.beliefs[b.name], func(other *belief) bool {
		return !other.whole() && !j.stays(other)
	})
}

// stays reports whether a hold was recalled and its key is still there.
func (j *judge) stays(b *belief) bool {
	return b.ceded() && b.life != nil && b.life.removedBy == "" && !b.life.revived
}

// taken reports whether an operator took away the key of a belief, or a key that is held
// with it. The holder may take a moment to notice.
func (j *judge) taken(b *belief) bool {
	return b.life != nil && b.life.removedBy == byOperator ||
		slices.ContainsFunc(b.others, func(o *belief) bool {
			return o.life != nil && o.life.removedBy == byOperator
		})
}

// dropped reports whether the process of a belief has removed its key itself. The peer may believe
// all the same: its session has one key for a name, and a late deletion by a call whose context has
// ended takes the key of the next call.
func (j *judge) dropped(b *belief) bool { return b.life != nil && b.life.removedBy == b.life.owner }

// firstLocked judges that b's key is there, first in line, and newer than all before.
func (j *judge) firstLocked(b *belief, v fake.View) {
	if b.life != nil && b.life.barred {
		j.violatedLocked(notFirst, "%s with token %d of %s, whose key went before its turn came", b.who,
			b.hold.token, b.name)
	}
	if j.taken(b) {
		j.mustNotice(b)
		return
	}
	if b.hold.token == 0 && b.hold.ctx.Err() != nil {
		return // lost before its holder could look
	}
	if b.life == nil {
		j.violatedLocked(notFirst, "%s: no key of %s was ever put at %d", b.who, b.name, b.hold.token)
		return
	}
	if kindOf(b.life.key) != b.kind {
		j.violatedLocked(mistaken, "%s, which is %s, with %s", b.who, b.kind.mode(), b.life.key)
	}
	// The holder has seen these keys go. A set-back has revived them since.
	kvs := slices.DeleteFunc(contenders(v, b.name), func(kv *mvccpb.KeyValue) bool {
		return kv.CreateRevision != b.hold.token && j.lives[placeOf(kv)].revived
	})
	own := slices.IndexFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		return kv.CreateRevision == b.hold.token
	})
	switch {
	case own < 0:
		j.violatedLocked(notFirst, "%s: no key of %s is there, not %d", b.who, b.name, b.hold.token)
	case !b.kind.beside(kindsIn(kvs[:own])):
		j.violatedLocked(notFirst, "%s with token %d of %s, behind %s of %d", b.who, b.hold.token, b.name,
			kvs[0].Key, kvs[0].CreateRevision)
	}
	for mode, last := range j.newest[b.name] {
		same := mode == b.kind.mode()
		handedOn := same && b.hold.token == last.token && j.sharing && b.who.line(b.name) == last.line
		if b.hold.token <= last.token && !(same && b.kind.shares()) && !handedOn {
			j.violatedLocked(tokens, "%s with %d (%s) of %s, after %d (%s)", b.who, b.hold.token,
				b.kind.mode(), b.name, last.token, mode)
		}
	}
}

// afterUnlockLocked judges that every other hold of b's Session has unlocked. Even a hold
// that has ended counts, since its holder may not have seen that. Those that share one
// whole hold come and go, and the longest time of one of them ends no other.
//
// The holds of one key end one after another, in several critical sections. So b may have joined
// before others of its key ended that are seen to have ended now. Then it ends, too, without a
// pause.
func (j *judge) afterUnlockLocked(b *belief) {
	var before, ended []*belief
	for _, other := range j.inside[b.who.line(b.name)] {
		switch beside := b.kind.shares() && other.kind.mode() == b.kind.mode(); {
		case beside && !b.kind.joins():
		case !beside, other.hold.token != b.hold.token:
			before = append(before, other)
		case other.ended():
			ended = append(ended, other)
		}
	}
	if b.hold.ctx.Err() != nil { // asked last: it may have ended just now
		return
	}
	for _, other := range before {
		j.getsInTooSoonLocked(b, other)
	}
	for _, other := range ended {
		time.AfterFunc(time.Millisecond, func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			if !j.over && b.hold.ctx.Err() == nil {
				j.getsInTooSoonLocked(b, other)
			}
		})
	}
}

func (j *judge) getsInTooSoonLocked(b, other *belief) {
	j.violatedLocked(tooSoon, "%s with token %d of %s, before %s with %d", b.who, b.hold.token,
		b.name, other.who, other.hold.token)
}

// pastNobodyLocked judges a belief b that shares a hold. If its Session knew, when b
// called, of a contender that b may not hold beside, that one must not stand behind the key
// that b has got. Else b has joined others past it.
func (j *judge) pastNobodyLocked(b *belief, c *call, v fake.View) {
	if !b.kind.shares() {
		return // one that is handed on is bounded by the library's options
	}
	for _, kv := range contenders(v, b.name) {
		life := j.lives[placeOf(kv)]
		waited := c.began.Sub(life.put)
		if life.rev > b.hold.token && !life.revived && waited > known+j.slow &&
			!b.kind.beside([]kind{kindOf(life.key)}) {
			j.violatedLocked(late, "%s with token %d of %s, past %s, which had been there for %v", b.who,
				b.hold.token, b.name, life.key, waited)
		}
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

// contenders returns the keys of a lock by create revision.
func contenders(v fake.View, name string) []*mvccpb.KeyValue {
	kvs := slices.DeleteFunc(readAll(v, name+"/"), func(kv *mvccpb.KeyValue) bool {
		return nameOf(string(kv.Key)) != name
	})
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		return int(a.CreateRevision - b.CreateRevision)
	})
	return kvs
}

// inTurnLocked judges that no goroutine of the Session asked earlier and still waits. Those
// that share a key get it at the same instant.
func (j *judge) inTurnLocked(b *belief, c *call) {
	for _, other := range j.waiting[b.who.line(b.name)] {
		together := c.kind.joins() && other.kind.mode() == c.kind.mode()
		if other.began.Before(c.began) && other.ctx.Err() == nil && !together {
			j.violatedLocked(overtook, "%s of %s, who asked %v later", b.who, b.name,
				c.began.Sub(other.began))
		}
	}
}

// leaves records that a worker is about to unlock. It reports whether the worker still believes.
func (j *judge) leaves(b *belief) (whole bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	whole = b.whole()
	j.trace.unlocks(b.who.p.name, b.hold, whole)
	if whole && b.outlived(-known) && j.judges(b.who.p.name) {
		j.violatedLocked(measured, "%s believes to hold %s, token %d, after %v of %v", b.who, b.name,
			b.hold.token, time.Since(b.began), b.who.longest)
	}
	b.left, b.when = true, time.Now()
	j.outlastsLocked(b)
	line := b.who.line(b.name)
	j.inside[line] = slices.DeleteFunc(j.inside[line], func(other *belief) bool { return other == b })
	return whole
}

// unlocked judges what Unlock said.
func (j *judge) unlocked(b *belief, whole, certain bool, err error) {
	late := known
	if j.faulty() {
		late = b.who.p.w.ttl
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	b.over = true
	j.trace.unlocked(b.who.p.name, err)
	if b.life != nil {
		b.life.open--
	}
	j.noteLocked("%s unlocked %s, token %d, believing %v: %v", b.who, b.name, b.hold.token, whole, err)
	if !j.judges(b.who.p.name) || b.who.p.isDead() || b.life == nil {
		return
	}
	// The Session may keep the key. Unlock then asks etcd nothing.
	kept := j.sharing && !b.kind.shares() && b.ending == nil || b.life.shared > 1
	said := outcomeOf(err)
	b.life.unsure = b.life.unsure || said != done
	if said == done && !whole && !b.asked() {
		j.violatedLocked(untruth, "%s: nil for token %d of %s, but the hold had ended: %v", b.who,
			b.hold.token, b.name, context.Cause(b.hold.ctx))
	}
	switch life := b.life; {
	case life.revived: // it was released before
	case j.keptLocked(b, said):
	case said == done && b.kind.joins() && life.removedBy == "":
		j.mustGo(b) // others that came to share the key at this very instant may not have told yet
	case said == done && kept && life.removedBy == "":
	case said == done && life.removedBy == "":
		j.violatedLocked(untruth, "%s: nil for token %d of %s, but its key is there", b.who,
			life.rev, b.name)
	case said == done && b.takenBefore(late) && !kept:
		j.violatedLocked(untruth, "%s: nil for token %d of %s, but its key was removed by %s", b.who,
			life.rev, b.name, life.removedBy)
	case said == done && (life.removedBy != life.owner || life.revoked) && !j.taken(b):
		j.violatedLocked(untruth, "%s: nil for token %d of %s, but its key was removed by %s", b.who,
			life.rev, b.name, life.removedBy)
	case said == lost && whole && certain && !j.taken(b):
		j.violatedLocked(untruth, "%s: %v, but the hold was whole", b.who, err)
	case said != done && said != lost && said != unconfirmed:
		j.violatedLocked(untruth, "%s: %v", b.who, err)
	}
}

// takenBefore reports whether an operator took b's key away before Unlock was called, by more
// than a while: the time of an event. While there are faults the watch may be late by as long as
// the holder hears nothing from etcd, and still believes.
func (b *belief) takenBefore(while time.Duration) bool {
	life := b.life
	return life.removedBy == byOperator && life.undone == nil &&
		life.removed.Before(b.when.Add(-while))
}

// mustGo makes sure that a shared key goes after the last one that shared it has unlocked.
func (j *judge) mustGo(b *belief) {
	time.AfterFunc(soon, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if b.life.open == 0 && !b.life.unsure && b.life.removedBy == "" && !b.life.revived &&
			!b.who.p.isDead() && !j.over {
			j.violatedLocked(untruth,
				"%s: nil for token %d of %s, and nobody shares its key, which is there", b.who,
				b.life.rev, b.name)
		}
	})
}

// ends judges that a hold ended by itself.
func (j *judge) ends(b *belief) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if b.left || b.who.p.isDead() || j.over {
		return
	}
	j.trace.lost(b.who.p.name)
	j.noteLocked("%s lost %s, token %d: %v", b.who, b.name, b.hold.token, context.Cause(b.hold.ctx))
	if b.asked() {
		if errors.Is(context.Cause(b.hold.ctx), etcdlock.ErrRecalled) {
			j.recalls++
			j.recalledLocked(b)
		}
		return
	}
	if b.timedOut() {
		j.longest++
		if !b.outlived(soon) {
			j.violatedLocked(measured, "%s with token %d of %s, after %v of %v", b.who, b.hold.token, b.name,
				time.Since(b.began), b.who.longest)
		}
		return
	}
	b.lost = time.Now()
	if j.judges(b.who.p.name) && j.peaceful {
		j.violatedLocked(lostIt, "%s with token %d of %s: %v", b.who, b.hold.token, b.name,
			context.Cause(b.hold.ctx))
	}
}

// took judges how long a bounded call took.
func (j *judge) took(w *worker, what string, began time.Time, bound time.Duration) {
	if took := time.Since(began); took > bound+soon && !w.p.isDead() && j.counts(w.p.name) {
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
			j.violated(left, "%s: %s of %s, put at %d", when, kv.Key, j.keys[string(kv.Key)].owner,
				kv.CreateRevision)
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

// rest ends all judging.
func (j *judge) rest() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.over = true
}
