package line

import (
	"encoding/binary"
	"strings"

	"github.com/google/uuid"
)

// A Kind is how a contender holds: alone, or beside others.
//
// It stands in the key, since the event of a deletion has no value, and a key never changes its
// kind. UUIDs of version 8 are reserved for kinds other than Exclusive, in a block for each: a
// range of keys that begin alike, so that a compare or a watch may leave a kind out. A key of a
// block that is not written as its kind has it is Exclusive, and so is one of a block that this
// version does not know.
type Kind uint8

// The kinds.
const (
	Exclusive Kind = iota // holds alone
	Read                  // holds beside others that read
	Permit                // holds beside other permits, as long as their weights are within a limit
)

// Kinds is how many there are.
const Kinds = 3

// String is what people are told.
func (k Kind) String() string { return [...]string{"exclusive", "read", "permit"}[k] }

// readBlock is what the tails of those that read begin with. Without the hyphen it would take in
// leases whose hexadecimal begins with it.
const readBlock = "ffffffff-"

// permitBlock is that of permits: fffffffe-WWWW-8RRR-VRRR-LLLLRRRRRRRR has the weight WWWW and
// counts on the limit LLLL, both in hexadecimal.
const permitBlock = "fffffffe-"

// A Shape is all that a key tells of how its contender holds.
type Shape struct {
	Kind Kind

	// Of a permit: 1 to 65,535, and Weight <= Limit. Otherwise 0.
	Weight, Limit uint16
}

// shapeOf is the shape that the tail of a contender's key tells.
func shapeOf(tail string) Shape {
	const version, variant = 14, 19 // where they stand
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

// hex16 is the number that four hexadecimal digits of a UUID are.
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

// ShapeOf is the shape of the contender that a key is of. What is no contender's is Exclusive.
func ShapeOf(key string) Shape {
	_, tail := cut(key)
	return shapeOf(tail)
}

// KindOf is the kind of the contender that a key is of. What is no contender's is Exclusive.
func KindOf(key string) Kind { return ShapeOf(key).Kind }

// Kind is the kind of e.
func (e Entry) Kind() Kind { return KindOf(e.Key) }

// Shape is the shape of e.
func (e Entry) Shape() Shape { return ShapeOf(e.Key) }

// Draw is id as one of a shape. ok is false if it cannot be used, and another is to be drawn: a
// random one that happens to lie in a block is Exclusive, but a range that leaves the block out
// does not show it.
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

// Told is how many bytes of id, the first ones, tell what it is, or tell it from others. The rest
// is free, but for the bits of the variant.
func Told(id uuid.UUID) int {
	if shapeOf(id.String()).Kind == Permit {
		return 12
	}
	return 8
}

// A Range is the keys from one on up to another.
type Range struct{ From, To string }

// OfReads is which of the Ranges has those that read.
const OfReads = 1

// Permits is the keys below the name of a lock that permits have. What it has beside them is there
// by chance.
func Permits(name string) Range {
	block := Prefix(name) + permitBlock
	return Range{block, block[:len(block)-1] + string(block[len(block)-1]+1)}
}

// Ranges are three that make up all keys below the name of a lock: those that read are in the
// middle one, and what it has beside them is there by chance.
func Ranges(name string) [3]Range {
	prefix := Prefix(name)
	block := prefix + readBlock
	after := prefix + readBlock[:len(readBlock)-1] + string(readBlock[len(readBlock)-1]+1)
	return [3]Range{{prefix, block}, {block, after}, {after, End(name)}}
}
