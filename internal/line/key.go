package line

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Prefix is the prefix of all keys in the line for the lock name. Not every key with this
// prefix is a contender; see Entry.StandsIn.
func Prefix(name string) string { return name + "/" }

// End is behind all keys with the Prefix, as the end of a range of them.
func End(name string) string { return name + string('/'+1) }

// Key is the key of a contender for the lock name, as this library puts it.
func Key(name string, id uuid.UUID) string { return Prefix(name) + id.String() }

// ParseKey splits what Key has put together. ok is false for any other key.
func ParseKey(key string) (name string, id uuid.UUID, ok bool) {
	name, tail := cut(key)
	if !isUUID(tail) {
		return "", uuid.UUID{}, false
	}
	id, err := uuid.Parse(tail)
	return name, id, err == nil
}

// StandsIn reports whether e stands in line for the lock name: whether the rest of its key is a
// canonical UUID in lower case, of whatever version, as this library puts it, or its own lease in
// hexadecimal, as concurrency.Mutex, etcdctl lock and the server's lock service put it. See Kind
// for the versions. Other keys block no contender: keys without a lease, keys of nested names, and
// whatever else people keep below the prefix.
func (e Entry) StandsIn(name string) bool {
	tail, below := strings.CutPrefix(e.Key, name)
	return below && e.Lease != 0 && tail != "" && tail[0] == '/' &&
		(isUUID(tail[1:]) || tail[1:] == strconv.FormatInt(e.Lease, 16))
}

// MayStandIn reports whether e, whose lease is unknown, could stand in line for the lock
// name. (A range that reads only keys returns no lease.) It is true for every contender.
func (e Entry) MayStandIn(name string) bool {
	tail, below := strings.CutPrefix(e.Key, Prefix(name))
	return below && (isUUID(tail) || leaseIn(tail) != 0)
}

// LeaseByKey is the lease with which e would stand in line, for an e that may. It is the
// lease that the key tells, or 0 if any lease will do.
func (e Entry) LeaseByKey() int64 {
	_, tail := cut(e.Key)
	return leaseIn(tail)
}

// leaseIn is the lease that tail writes in hexadecimal, or 0 if it writes none.
func leaseIn(tail string) int64 {
	lease, err := strconv.ParseInt(tail, 16, 64)
	if err != nil || strconv.FormatInt(lease, 16) != tail {
		return 0
	}
	return lease
}

// Name is the lock in whose line e stands. ok is false if it stands in none.
func (e Entry) Name() (name string, ok bool) {
	name, _ = cut(e.Key)
	if name == "" || !e.StandsIn(name) {
		return "", false
	}
	return name, true
}

// cut cuts a key at its last "/".
func cut(key string) (name, tail string) {
	slash := strings.LastIndexByte(key, '/')
	return key[:max(slash, 0)], key[slash+1:]
}

// isUUID reports whether tail is a UUID as this library puts it: canonical, in lower case.
func isUUID(tail string) bool {
	if len(tail) != 36 {
		return false
	}
	for i := range len(tail) {
		switch c := tail[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case c < '0' || c > 'f' || c > '9' && c < 'a':
			return false
		}
	}
	return true
}

// Kind is the kind of e.
func (e Entry) Kind() Kind { return ShapeOf(e.Key).Kind }

// Shape is the shape of e.
func (e Entry) Shape() Shape { return ShapeOf(e.Key) }
