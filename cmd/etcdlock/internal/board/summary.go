package board

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// A Row is a lock in a list, with what people look for.
type Row struct {
	*Lock
	Holder  *Place        // the first in line; nil if none is
	Held    time.Duration // how long the first has held, at most
	Waiting int
	Longest time.Duration // that one of them has waited
	Lease   Lease         // of the holder: the least that is left of several
	Late    bool          // the lease of a holder
	Kept    time.Duration // how long the lock stays taken though its hold is over
	Asked   *Recall       // of a holder
	Cycle   *Cycle        // that its waits are in, a deadlock rather than another; or nil
	Turns   int           // hand-overs in the last minute
}

// Rows is the locks of a picture.
func (p *Picture) Rows(cycles []Cycle) []Row {
	inCycle := make(map[string]*Cycle)
	for i := range slices.Backward(cycles) { // deadlocks are the first
		for _, w := range cycles[i].Waits {
			inCycle[w.Lock] = &cycles[i]
		}
	}
	rows := make([]Row, len(p.Locks))
	for i, l := range p.Locks {
		rows[i] = p.row(l)
		rows[i].Cycle = inCycle[l.Name]
	}
	return rows
}

func (p *Picture) row(l *Lock) Row {
	r := Row{Lock: l, Waiting: len(l.Places) - l.Holding, Turns: PerMinute(l.Turns)}
	for i, place := range l.Places {
		if !place.Holds {
			r.Longest = max(r.Longest, place.InLine(p.Now))
			continue
		}
		lease := p.Leases[place.Lease]
		if i == 0 {
			r.Holder, r.Lease = place, lease
			r.Held = place.HeldFor(p.Now)
			r.Kept = max(0, place.Until.Sub(p.Now))
		}
		if lease.Late() && (!r.Late || lease.Left < r.Lease.Left) {
			r.Late, r.Lease = true, lease
		}
		if place.Recall != nil {
			r.Asked = place.Recall
		}
	}
	return r
}

// HeldFor is how long a place has held at a time. It has held for less if Held is zero.
func (p *Place) HeldFor(now time.Time) time.Duration {
	if !p.Held.IsZero() {
		return max(0, now.Sub(p.Held))
	}
	return p.InLine(now)
}

// An Order is by what rows are sorted.
type Order int

// The orders. All but ByName have the most first. ByTrouble begins with what needs attention: a
// cycle, a late lease, a recall, and then the longest wait.
const (
	ByTrouble Order = iota
	ByWaiting
	ByHeld
	ByLongest
	ByTurns
	ByLease // the least that is left
	ByName
	orders
)

// String is the head of the column.
func (o Order) String() string {
	return [...]string{"NOTE", "WAIT", "HELD", "LONGEST", "TURNS", "LEASE", "LOCK"}[o]
}

// Next is the order n further on.
func (o Order) Next(n int) Order { return (o + Order(n) + orders) % orders }

// Sort sorts rows. Equal ones are in the order of their names.
func Sort(rows []Row, o Order) {
	slices.SortFunc(rows, func(a, b Row) int {
		by := 0
		switch o {
		case ByTrouble:
			by = cmp.Or(cmp.Compare(b.trouble(), a.trouble()), cmp.Compare(b.Longest, a.Longest))
		case ByWaiting:
			by = cmp.Compare(b.Waiting, a.Waiting)
		case ByHeld:
			by = cmp.Compare(b.Held, a.Held)
		case ByLongest:
			by = cmp.Compare(b.Longest, a.Longest)
		case ByTurns:
			by = cmp.Compare(b.Turns, a.Turns)
		case ByLease:
			by = cmp.Compare(part(a.Lease), part(b.Lease))
		}
		return cmp.Or(by, cmp.Compare(a.Name, b.Name))
	})
}

// trouble is how much a lock needs attention.
func (r Row) trouble() int {
	switch {
	case r.Cycle != nil:
		return 3
	case r.Late:
		return 2
	case r.Asked != nil:
		return 1
	}
	return 0
}

// part is how much of a lease is left: all of one that is not known.
func part(l Lease) float64 {
	if l.Granted == 0 {
		return 1
	}
	return float64(l.Left) / float64(l.Granted)
}

// Matches reports whether a row is one that a filter shows: the text is in its name or in an owner,
// host or info of its line, or it is one of the words late, recalled, kept, waiting.
func (r Row) Matches(filter string) bool {
	switch filter {
	case "", strings.Repeat(" ", len(filter)):
		return true
	case "late":
		return r.Late
	case "recalled":
		return r.Asked != nil
	case "kept":
		return r.Kept > 0
	case "waiting":
		return r.Waiting > 0
	}
	if strings.Contains(r.Name, filter) {
		return true
	}
	return slices.ContainsFunc(r.Places, func(p *Place) bool {
		return strings.Contains(p.Owner, filter) || strings.Contains(p.Host, filter) ||
			strings.Contains(p.Info, filter)
	})
}
