// Package board knows all locks below a prefix, live, for people who look at them. A Board is the
// model: it has no goroutine and no clock, and learns keys, events and leases from its Feed. Its
// readers take a Picture.
package board

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/quote"
)

// A Lock is the line of one name. It does not change: a newer one replaces it.
type Lock struct {
	Name    string    `json:"name"`
	Kind    string    `json:"kind"` // exclusive, read, permit, or mixed
	Limit   int       `json:"limit,omitempty"`
	Places  []*Place  `json:"places"` // in the order of the line
	Holding int       `json:"holding"`
	Turns   []int     `json:"turns,omitempty"` // hand-overs in each of the last spans, the newest last
	Freed   time.Time `json:"freed,omitzero"`  // nothing has stood in line since then
}

// A Place is a contender in line. It does not change either.
type Place struct {
	Key        string    `json:"key"`
	Token      int64     `json:"token"`
	Lease      int64     `json:"-"`
	Session    string    `json:"session"` // the lease in hexadecimal
	Owner      string    `json:"owner"`
	Host       string    `json:"host"`
	PID        int       `json:"pid"`
	Info       string    `json:"info,omitempty"`
	Mode       string    `json:"mode"`
	Weight     int       `json:"weight,omitempty"`
	Holds      bool      `json:"holds"`
	Queued     time.Time `json:"queued,omitzero"`  // by the owner's clock; zero of another program
	Seen       time.Time `json:"seen"`             // by the board
	Held       time.Time `json:"held,omitzero"`    // since when; zero if that is not known
	Waited     bool      `json:"waited,omitempty"` // etcd does not tell since when: after Queued
	Until      time.Time `json:"until,omitzero"`   // of a place that outlasts its hold
	Recallable bool      `json:"recallable,omitempty"`
	Recall     *Recall   `json:"recall,omitempty"`

	mod   int64        // revision of its value
	after int64        // the token of the hold within which it was asked for, 0 if it does not tell
	limit int          // of permits, as it asks for it
	asked *atomic.Bool // whether it began at once; the board's alone
}

// A Recall is what a holder was asked.
type Recall struct {
	By     string        `json:"by"`
	Reason string        `json:"reason,omitempty"`
	Grace  time.Duration `json:"grace"`
	Asked  time.Time     `json:"asked,omitzero"` // zero if that was before the board looked
}

// InLine is how long a place has stood in line at a time.
func (p *Place) InLine(now time.Time) time.Duration {
	from := p.Queued
	if from.IsZero() {
		from = p.Seen
	}
	return max(0, now.Sub(from))
}

// Whose is the owner of a place, with its process if the owner is called otherwise.
func (p *Place) Whose() string {
	return cmp.Or(quote.Owner(p.Owner, p.Host, p.PID), "(another program)")
}

// A Lease is what was last heard of one.
type Lease struct {
	Left    int64     `json:"left"` // seconds; negative if it has ended
	Granted int64     `json:"granted"`
	At      time.Time `json:"-"`
}

// Late reports whether renewals are overdue. This library and concurrency.Session renew each third
// of the TTL, so two thirds or more are left. etcd rounds down.
func (l Lease) Late() bool { return l.Granted > 0 && l.Left >= 0 && 2*(l.Left+1) <= l.Granted }

const (
	// Span is the time of one point of the curve of hand-overs, and Spans is how many there are.
	Span  = 5 * time.Second
	Spans = 24

	// freeFor is how long a lock shows after the last in its line has gone: others come and go at
	// each turn. mostFree is how many such locks are kept.
	freeFor  = 10 * time.Second
	mostFree = 1000
)

// A Board is what is known. Its methods may be called at any time.
type Board struct {
	mu       sync.Mutex
	locks    map[string]*lock
	leases   map[int64]*lease
	keys     int64 // below the prefix, with those that are in no line
	free     int   // of the locks
	revision int64
	trouble  string    // why the board may be old; empty if it is not
	known    time.Time // when etcd last answered
	begun    []hold    // places of the first look: since when each holds is to be asked
	version  uint64    // goes up with each change of a lock
	turns    curve
	gone     []gone // names that went, for readers that have older pictures
	history  history
	broken   map[string]bool // the keys that this command deletes

	search   sync.Mutex // for cycles; locked before mu
	cycles   []Cycle
	cyclesOf uint64 // the version that has them
}

// A hold is a place of a lock.
type hold struct{ lock, key string }

type gone struct {
	name string
	at   uint64
}

// mostGone is how many names that went are remembered.
const mostGone = 20_000

// A lock is what the board has of a Lock.
type lock struct {
	line    line.Line
	places  map[string]*Place // by key
	shown   *Lock             // nil if it is to be made anew
	changed uint64            // the board's version at the last change
	turns   curve
	freed   time.Time
}

// A lease is a Lease and how many places are on it.
type lease struct {
	Lease
	places int
	asked  time.Time
}

// New is a Board that knows nothing yet.
func New() *Board {
	return &Board{
		locks: make(map[string]*lock), leases: make(map[int64]*lease), broken: make(map[string]bool),
	}
}

// Read replaces all that is known by what was read at a revision. What is known of places that are
// still there stays.
func (b *Board) Read(now time.Time, revision int64, kvs []*mvccpb.KeyValue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.revision == 0
	b.history.reads(b.known, now)
	b.keys, b.revision, b.known = int64(len(kvs)), revision, now
	lines := line.ByName(kvs)
	for name := range b.locks {
		if _, is := lines[name]; !is {
			b.setLocked(now, name, nil, first)
		}
	}
	for name, l := range lines {
		b.setLocked(now, name, l, first)
	}
}

// Apply notes what a watch has told.
func (b *Board) Apply(now time.Time, revision int64, events []*clientv3.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revision, b.known = max(b.revision, revision), now
	for _, event := range events {
		line.DropLong(event.Kv)
		e := line.EntryOf(event.Kv)
		if event.Type == clientv3.EventTypeDelete {
			b.keys--
			name := e.Key[:max(0, strings.LastIndexByte(e.Key, '/'))]
			if l := b.locks[name]; l != nil && l.places[e.Key] != nil {
				b.setLocked(now, name, without(l.line, e.Key), false)
			}
			continue
		}
		if event.IsCreate() {
			b.keys++
		}
		name, stands := e.Name()
		if !stands {
			continue
		}
		var before line.Line
		if l := b.locks[name]; l != nil {
			before = without(l.line, e.Key)
		}
		at, _ := slices.BinarySearchFunc(before, e.Rev, func(o line.Entry, rev int64) int {
			return cmp.Compare(o.Rev, rev)
		})
		b.setLocked(now, name, slices.Insert(slices.Clip(before), at, e), false)
	}
}

func without(l line.Line, key string) line.Line {
	return slices.DeleteFunc(slices.Clone(l), func(e line.Entry) bool { return e.Key == key })
}

// setLocked replaces the line of a lock. first says that this is the board's first look: then it is
// not known since when places hold.
func (b *Board) setLocked(now time.Time, name string, to line.Line, first bool) {
	l := b.locks[name]
	if l == nil {
		l = &lock{places: make(map[string]*Place)}
		b.locks[name] = l
	}
	b.version++
	l.line, l.shown, l.changed = to, nil, b.version
	holding, places := len(to.Holding()), make(map[string]*Place, len(to))
	for i, e := range to {
		p := l.places[e.Key]
		same := p != nil && p.Token == e.Rev
		if same && p.Holds == (i < holding) && p.mod == e.Mod {
			places[e.Key] = p
			continue
		}
		next := placeOf(e, now)
		next.Holds = i < holding
		switch {
		case same:
			next.Seen, next.Held, next.Waited, next.asked = p.Seen, p.Held, p.Waited, p.asked
			if next.Recall != nil && p.Recall != nil {
				next.Recall.Asked = p.Recall.Asked
			}
		case first && next.Recall != nil:
			next.Recall.Asked = time.Time{}
		}
		if next.Holds && next.Held.IsZero() && !first && (!same || !p.Holds) {
			next.Held = now
			l.turns.add(now)
			b.turns.add(now)
		}
		if next.unsure() && !same {
			b.begun = append(b.begun, hold{name, e.Key})
		}
		places[e.Key] = next
	}
	for key, p := range l.places {
		if next := places[key]; next == nil || next.Token != p.Token {
			b.leavesLocked(now, name, p)
		}
	}
	b.countLocked(l.places, places)
	l.places = places
	switch free := len(to) == 0; {
	case free && l.freed.IsZero():
		l.freed = now
		b.free++
	case !free && !l.freed.IsZero():
		l.freed = time.Time{}
		b.free--
	}
}

// countLocked counts the places on each lease.
func (b *Board) countLocked(before, after map[string]*Place) {
	for _, p := range after {
		l := b.leases[p.Lease]
		if l == nil {
			l = new(lease)
			b.leases[p.Lease] = l
		}
		l.places++
	}
	for _, p := range before {
		if l := b.leases[p.Lease]; l.places > 1 {
			l.places--
		} else {
			delete(b.leases, p.Lease)
		}
	}
}

// Tick forgets the locks that have been free for some time.
func (b *Board) Tick(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.free == 0 {
		return
	}
	for name, l := range b.locks {
		if l.freed.IsZero() || b.free <= mostFree && now.Sub(l.freed) < freeFor {
			continue
		}
		delete(b.locks, name)
		b.free--
		b.version++
		b.gone = append(b.gone, gone{name, b.version})
	}
	if more := len(b.gone) - mostGone; more > 0 {
		b.gone = slices.Clone(b.gone[more:])
	}
}

// Began notes whether a place has held since it was put.
func (b *Board) Began(name, key string, token int64, atOnce bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.locks[name]
	if l == nil || l.places[key] == nil {
		return
	}
	if p := *l.places[key]; p.Token == token && p.Holds && p.Held.IsZero() {
		if p.Waited = !atOnce; atOnce {
			p.Held = p.Queued
		}
		b.version++
		l.places[key], l.shown, l.changed = &p, nil, b.version
	}
}

// Heard notes what etcd says of a lease.
func (b *Board) Heard(now time.Time, id, left, granted int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.leases[id]; l != nil {
		l.Lease = Lease{left, granted, now}
	}
}

// Trouble says why the board may be old, and "" that it is not: etcd has answered.
func (b *Board) Trouble(now time.Time, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.trouble = quote.Line(why); why == "" {
		b.known = now
	}
}

// placeOf is the place of a key that was read, or put, at a time.
func placeOf(e line.Entry, now time.Time) *Place {
	v, shape := e.Value(), e.Shape()
	p := &Place{
		Key: e.Key, Token: e.Rev, Lease: e.Lease, Session: hex(e.Lease), Owner: v.Owner, Host: v.Host,
		PID: v.PID, Info: v.Info, Mode: shape.Kind.String(), Weight: int(shape.Weight), Queued: v.Since,
		Seen: now, Until: v.Until, Recallable: v.Recallable, mod: e.Mod,
		after: v.After, limit: int(shape.Limit), asked: new(atomic.Bool),
	}
	if r, asked := e.Recall(); asked {
		p.Recall = &Recall{By: r.By, Reason: r.Reason, Grace: r.Grace, Asked: now}
	}
	return p
}

// show is l for its readers.
func (l *lock) show(name string, now time.Time) *Lock {
	if l.shown != nil && !l.turns.moved(now) {
		return l.shown
	}
	shown := &Lock{Name: name, Turns: l.turns.points(now), Freed: l.freed}
	for i, e := range l.line {
		p := l.places[e.Key]
		if p.Holds {
			shown.Holding++
		}
		if i == 0 {
			shown.Kind = p.Mode
		} else if p.Mode != shown.Kind {
			shown.Kind = "mixed"
		}
		if limit := int(e.Shape().Limit); limit > 0 && (shown.Limit == 0 || limit < shown.Limit) {
			shown.Limit = limit
		}
		shown.Places = append(shown.Places, p)
	}
	l.shown = shown
	return shown
}

// A Picture is what a board knew at a time.
type Picture struct {
	Now      time.Time
	Locks    []*Lock // by name
	Leases   map[int64]Lease
	Turns    []int // hand-overs of all locks in each of the last spans
	Revision int64
	Trouble  string
	Known    time.Time // when etcd last answered; zero if it never has
	Version  uint64
	Gone     []string // locks that went since the version that was asked for
	Whole    bool     // Locks are all, and not those that have changed since then
}

// Picture is all that is known, or what has changed since an earlier Version.
func (b *Board) Picture(now time.Time, since uint64) *Picture {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &Picture{
		Now: now, Leases: make(map[int64]Lease, len(b.leases)), Turns: b.turns.points(now),
		Revision: b.revision, Trouble: b.trouble, Known: b.known, Version: b.version,
		Whole: since == 0,
	}
	if len(b.gone) == mostGone && b.gone[0].at > since {
		p.Whole = true
	}
	for _, name := range slices.Sorted(maps.Keys(b.locks)) {
		l := b.locks[name]
		if p.Whole || l.changed > since {
			p.Locks = append(p.Locks, l.show(name, now))
		}
	}
	for _, g := range b.gone {
		if !p.Whole && g.at > since && b.locks[g.name] == nil {
			p.Gone = append(p.Gone, g.name)
		}
	}
	for id, l := range b.leases {
		p.Leases[id] = l.Lease
	}
	return p
}
