package line

import (
	"encoding/binary"
	"strings"

	"github.com/google/uuid"
)

// A Kind is how a contender holds: alone, or beside other contenders.
//
// The key shows the kind, since the event of a deletion has no value. A key never changes
// its kind. UUIDs of version 8 are reserved for kinds other than Exclusive, with a block
// for each. A block is a range of keys that begin alike, so that a compare or a watch may
// leave a kind out. A key in a block that is not written as its kind requires is Exclusive.
// So is a key in a block that this version does not know.
type Kind uint8

// The kinds.
const (
	Exclusive Kind = iota // holds alone
	Read                  // holds beside other readers
	Permit                // holds beside other permits, as long as their weights are within a limit
)

// Kinds is the number of kinds.
const Kinds = 3

// String is the word for people.
func (k Kind) String() string { return [...]string{"exclusive", "read", "permit"}[k] }

// readBlock is how the tails of readers begin. Without the hyphen it would include leases
// whose hexadecimal begins like that.
const readBlock = "ffffffff-"

// permitBlock is how the tails of permits begin. fffffffe-WWWW-8RRR-VRRR-LLLLRRRRRRRR has
// the weight WWWW and the limit LLLL, both in hexadecimal.
const permitBlock = "fffffffe-"

// A Shape is all that a key shows of how its contender holds.
type Shape struct {
	Kind Kind

	// Of a permit: 1 to 65,535, and Weight <= Limit. Otherwise 0.
	Weight, Limit uint16
}

// shapeOf is the shape that the tail of a contender's key tells.
func shapeOf(tail string) Shape {
	const version, variant = 14, 19 // their places in the tail
	if !isUUID(tail) || tail[version] != '8' || strings.IndexByte("89ab", tail[variant]) < 0 {
		return Shape{}
	}
	switch {
	case strings.HasPrefix(tail, readBlock):
		return Shape{Kind: Read}
	case strings.HasPrefix(tail, permitBlock):
		weight, limit := hex16(tail[9:13]), hex16(tail[24:28])
		if 0 < weight && weight <= limit {
			return Shape{Permit, weight, limit}
		}
	}
	return Shape{}
}

// hex16 is the value of four hexadecimal digits of a UUID.
func hex16(digits string) (n uint16) {
	for i := range len(digits) {
		digit := digits[i] - '0'
		if digits[i] >= 'a' {
			digit = digits[i] - 'a' + 10
		}
		n = n<<4 | uint16(digit)
	}
	return n
}

// ShapeOf is the shape of the contender to which a key belongs. A key of no contender is Exclusive.
func ShapeOf(key string) Shape {
	_, tail := cut(key)
	return shapeOf(tail)
}

// Draw makes id one of a shape. ok is false if id cannot be used, and the caller has to
// draw another: a random one that happens to lie in a block is Exclusive, but a range that
// leaves the block out does not show it.
func Draw(id uuid.UUID, s Shape) (of uuid.UUID, ok bool) {
	switch s.Kind {
	case Read:
		copy(id[:4], "\xff\xff\xff\xff")
	case Permit:
		copy(id[:4], "\xff\xff\xff\xfe")
		binary.BigEndian.PutUint16(id[4:], s.Weight)
		binary.BigEndian.PutUint16(id[10:], s.Limit)
	default:
		text := id.String()
		return id, !strings.HasPrefix(text, readBlock) && !strings.HasPrefix(text, permitBlock)
	}
	id[6] = 0x80 | id[6]&0x0f
	id[8] = 0x80 | id[8]&0x3f
	return id, true
}

// Told is how many of id's first bytes say what it is, or tell it from other ids. The rest is
// free, except for the bits of the variant.
func Told(id uuid.UUID) int {
	if shapeOf(id.String()).Kind == Permit {
		return 12
	}
	return 8
}

// A Range is the keys from one key up to another.
type Range struct{ From, To string }

// OfReads is the index of the readers' range in Ranges.
const OfReads = 1

// Permits is the range of the permits' keys below the name of a lock. Any other key is in
// it by chance.
func Permits(name string) Range { return within(name, permitBlock) }

// Ranges are three ranges that together make up all keys below the name of a lock. The
// middle one has the readers. Any other key is in it by chance.
func Ranges(name string) [3]Range {
	reads := within(name, readBlock)
	return [3]Range{{Prefix(name), reads.From}, reads, {reads.To, Whole(name).To}}
}

// within is the range of a block below the name of a lock.
func within(name, block string) Range {
	from, last := Prefix(name)+block, len(block)-1
	return Range{from, Prefix(name) + block[:last] + string(block[last]+1)}
}
