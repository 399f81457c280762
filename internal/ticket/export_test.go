package ticket

import (
	"encoding/binary"
	"testing"
)

// What follows lets the exploration copy a world, and tell two apart.

// Reads has tickets read so many keys of those before them, until a test is over.
func Reads(t testing.TB, n int64) {
	before := nearest
	nearest = n
	t.Cleanup(func() { nearest = before })
}

// Copy is t in a copied world, with its slot there.
func (t *Ticket) Copy(slot func(*Slot) *Slot) Ticket {
	c := *t
	c.slot = slot(t.slot)
	return c
}

// Copy is s in a copied world, and where each slot is there, if it is one of these.
func (s *Slots) Copy() (c Slots, slot func(*Slot) (*Slot, bool)) {
	c.on = s.on
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

// Once is s, which is used once, in a copied world.
func (s *Slot) Once() *Slot {
	once := *s
	return &once
}

// Of is e for a copy of its ticket.
func (e Entering) Of(t *Ticket) Entering {
	e.t = t
	return e
}

// Of is r for copies of its tickets.
func (r Release) Of(t, next *Ticket) Release {
	r.t = t
	if r.next != nil {
		r.next = next
	}
	return r
}

// Append appends all that there is of t.
func (t *Ticket) Append(b []byte) []byte {
	b = append(b, byte(t.state), byte(t.taken), flags(t.doubt, t.lost))
	b = append(b, t.Key...)
	b = binary.AppendVarint(b, t.Lease)
	b = binary.AppendVarint(b, t.rev)
	b = binary.AppendVarint(b, t.floor)
	return t.slot.Append(b)
}

// Append appends all that there is of s.
func (s *Slot) Append(b []byte) []byte {
	b = append(b, flags(s.busy, false))
	b = append(b, s.key...)
	return binary.AppendVarint(b, s.floor)
}

// Append appends all that there is of s.
func (s *Slots) Append(b []byte) []byte {
	on, _ := s.on.(int64)
	for _, slot := range s.slots {
		b = slot.Append(b)
	}
	return binary.AppendVarint(append(b, 0xff), on)
}

// Append appends all that there is of e, but for its ticket.
func (e *Entering) Append(b []byte) []byte {
	b = binary.AppendVarint(append(b, flags(e.try, e.reads)), e.n)
	return binary.AppendVarint(b, e.seen)
}

// Append appends all that there is of r, but for its tickets.
func (r *Release) Append(b []byte) []byte {
	return append(b, flags(r.copies, r.missed), flags(r.reads, r.next != nil))
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
