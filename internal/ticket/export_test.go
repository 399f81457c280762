package ticket

import (
	"encoding/binary"
	"testing"

	"github.com/etcdlock/etcdlock/internal/line"
)

// These let the exploration copy a world, and tell two worlds apart.

// Reads makes tickets read n of the keys before them, until a test is over.
func Reads(t testing.TB, n int64) {
	before := nearest
	nearest = n
	t.Cleanup(func() { nearest = before })
}

// Copy returns t in a copied world. slot finds its slot there.
func (t *Ticket) Copy(slot func(*Slot) *Slot) Ticket {
	c := *t
	c.slot = slot(t.slot)
	return c
}

// Copy returns s in a copied world, and a function that finds a slot of s there.
func (s *Slots[D]) Copy() (c Slots[D], slot func(*Slot) (*Slot, bool)) {
	c.drawn = s.drawn
	for _, old := range s.slots {
		c.slots = append(c.slots, old.Once())
	}
	return c, func(old *Slot) (*Slot, bool) {
		for i := range s.slots {
			if s.slots[i] == old {
				return c.slots[i], true
			}
		}
		return nil, false
	}
}

// Once returns s in a copied world, for a slot that is used once.
func (s *Slot) Once() *Slot {
	once := *s
	return &once
}

// Of returns e for a copy of its ticket.
func (e Entering) Of(t *Ticket) Entering {
	e.t = t
	return e
}

// Judged is what follows from an answer, and what is ahead of the ticket then.
func (e *Entering) Judged(a Answer) (is Entrance, ahead line.Ahead) {
	e.Read(a)
	is = e.Judge(a)
	return is, e.ahead
}

// Says is what follows from an answer.
func (s Several) Says(a Answer) Entrance {
	s.Read(a)
	return s.Judge(a)
}

// Says is what follows from an answer.
func (r *Release) Says(a Answer, now Now) Finding {
	r.Read(a)
	return r.Judge(a, now)
}

// Awaits reports whether the next ticket's key may be there, or be put.
func (r *Release) Awaits() bool { return r.next != nil }

// Of returns r for copies of its tickets.
func (r Release) Of(t, next *Ticket) Release {
	r.t, r.all = t, []*Ticket{t}
	if r.next != nil {
		r.next = next
	}
	return r
}

// Append appends all that there is of t.
func (t *Ticket) Append(b []byte) []byte {
	b = append(b, byte(t.state), byte(t.loss), flags(t.doubt, t.lost))
	b = append(b, t.Key...)
	b = binary.AppendVarint(b, t.Lease)
	b = binary.AppendVarint(b, t.rev)
	return t.slot.Append(b)
}

// Append appends all that there is of s.
func (s *Slot) Append(b []byte) []byte {
	b = append(b, flags(s.busy, false))
	b = append(b, s.key...)
	return binary.AppendVarint(b, s.floor)
}

// Append appends all that there is of s.
func (s *Slots[D]) Append(b []byte) []byte {
	for _, slot := range s.slots {
		b = slot.Append(b)
	}
	b = append(b, 0xff)
	if drawn, ok := any(s.drawn).(Drawn); ok {
		b = binary.AppendVarint(binary.AppendVarint(b, drawn.Lease), int64(drawn.Epoch))
	}
	return b
}

// Drawn is on which lease, and in which epoch, the keys of a name were drawn.
type Drawn struct {
	Lease int64
	Epoch int
}

// Append appends all that there is of e, except its ticket.
func (e *Entering) Append(b []byte) []byte {
	b = binary.AppendVarint(append(b, flags(e.try != nil, e.reads)), e.n)
	return binary.AppendVarint(b, e.seen)
}

// Append appends all that there is of r, except its tickets.
func (r *Release) Append(b []byte) []byte {
	b = append(b, flags(r.copies, r.missed), flags(r.reads, r.next != nil), flags(r.there, r.alone))
	return binary.AppendVarint(binary.AppendVarint(b, r.moves), r.moved)
}

func flags(a, b bool) byte {
	var f byte
	if a {
		f |= 1
	}
	if b {
		f |= 2
	}
	return f
}

// VerdictTable returns what follows from each answer to a release that has not succeeded: a row for
// what it shows of the keys, a column for what is known besides.
func VerdictTable() (rows [][]string) {
	rows = append(rows, append([]string{""}, evidences[:]...))
	for s, name := range remainings {
		row := []string{name}
		for e := range evidences {
			v, d := verdictOf(remains(s), evidence(e))
			cell := v.String()
			if v == Unconfirmed {
				cell = d.String()
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return rows
}

var (
	remainings = [...]string{"carried", "unread", "whole", "some", "some moved", "none"}
	evidences  = [...]string{"no copy", "seen", "set back", "expired", "kept", "unseen"}
)
