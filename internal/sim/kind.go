package sim

import (
	"regexp"
	"strconv"
)

// A kind is how a contender holds, and the judge's model of it. The judge applies it to
// beliefs (who may believe beside whom) and to the keys in line (who may hold while whom is
// before it). It knows no kind by name.
type kind interface {
	// mode names what holds of the kind have in common, whatever else they ask for.
	mode() string
	// beside reports whether one may hold beside all of the others, or behind all of them
	// in line.
	beside(others []kind) bool
	// shares reports whether several of one mode may hold at once. Their tokens then have
	// no order among themselves. Tokens of different modes always grow.
	shares() bool
	// joins reports whether several of one Session may share one key. They then have one
	// token, and the order in which they come to hold does not matter.
	joins() bool
}

// alone is the kind of a Mutex, of a writer, and of etcd's concurrency.Mutex.
type alone struct{}

func (alone) mode() string              { return "exclusive" }
func (alone) beside(others []kind) bool { return len(others) == 0 }
func (alone) shares() bool              { return false }
func (alone) joins() bool               { return false }

// read is the kind of a reader.
type read struct{}

func (read) mode() string { return "read" }
func (read) shares() bool { return true }
func (read) joins() bool  { return true }

func (read) beside(others []kind) bool {
	for _, other := range others {
		if other != (read{}) {
			return false
		}
	}
	return true
}

// A permit is the kind of a contender that wants some permits of a limit.
type permit struct{ weight, limit int }

func (permit) mode() string { return "permit" }
func (permit) shares() bool { return true }
func (permit) joins() bool  { return false }

// beside counts the least of all limits.
func (p permit) beside(others []kind) bool {
	sum, least := p.weight, p.limit
	for _, other := range others {
		o, is := other.(permit)
		if !is {
			return false
		}
		sum, least = sum+o.weight, min(least, o.limit)
	}
	return sum <= least
}

// readKey matches a reader's key. The judge knows it from the layout of the keys, and does
// not ask the library.
var readKey = regexp.MustCompile(
	`/ffffffff-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// permitKey likewise matches a key of permits, and finds the weight and the limit.
var permitKey = regexp.MustCompile(
	`/fffffffe-([0-9a-f]{4})-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-([0-9a-f]{4})[0-9a-f]{8}$`)

// kindOf is the kind that a key tells.
func kindOf(key string) kind {
	if readKey.MatchString(key) {
		return read{}
	}
	if told := permitKey.FindStringSubmatch(key); told != nil {
		weight, _ := strconv.ParseInt(told[1], 16, 32)
		limit, _ := strconv.ParseInt(told[2], 16, 32)
		return permit{int(weight), int(limit)}
	}
	return alone{}
}
