package line

import (
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
)

// Kinds is how many there are.
const Kinds = 2

// String is what people are told.
func (k Kind) String() string { return [...]string{"exclusive", "read"}[k] }

// readBlock is what the tails of those that read begin with. Without the hyphen it would take in
// leases whose hexadecimal begins with it.
const readBlock = "ffffffff-"

// permitBlock is that of a kind from the future.
const permitBlock = "fffffffe-"

// kindOf is the kind that the tail of a contender's key tells.
func kindOf(tail string) Kind {
	const version, variant = 14, 19 // where they stand
	if isUUID(tail) && strings.HasPrefix(tail, readBlock) && tail[version] == '8' &&
		strings.IndexByte("89ab", tail[variant]) >= 0 {
		return Read
	}
	return Exclusive
}

// KindOf is the kind of the contender that a key is of. What is no contender's is Exclusive.
func KindOf(key string) Kind {
	_, tail := cut(key)
	return kindOf(tail)
}

// Kind is the kind of e.
func (e Entry) Kind() Kind { return KindOf(e.Key) }

// Draw is id as one of a kind. ok is false if it cannot be used, and another is to be drawn: a
// random one that happens to lie in a block is Exclusive, but a range that leaves the block out
// does not show it.
func Draw(id uuid.UUID, k Kind) (of uuid.UUID, ok bool) {
	if k == Read {
		copy(id[:4], "\xff\xff\xff\xff")
		id[6] = 0x80 | id[6]&0x0f
		id[8] = 0x80 | id[8]&0x3f
		return id, true
	}
	text := id.String()
	return id, !strings.HasPrefix(text, readBlock) && !strings.HasPrefix(text, permitBlock)
}

// A Range is the keys from one on up to another.
type Range struct{ From, To string }

// OfReads is which of the Ranges has those that read.
const OfReads = 1

// Ranges are three that make up all keys below the name of a lock: those that read are in the
// middle one, and what it has beside them is there by chance.
func Ranges(name string) [3]Range {
	prefix := Prefix(name)
	block := prefix + readBlock
	after := prefix + readBlock[:len(readBlock)-1] + string(readBlock[len(readBlock)-1]+1)
	return [3]Range{{prefix, block}, {block, after}, {after, name + string('/'+1)}}
}
