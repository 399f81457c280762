package etcd

import (
	"cmp"
	"sync"
)

const (
	// manyKeys is how many keys are read in one transaction: etcd allows 128 operations by
	// default.
	manyKeys = 100

	// maxUnreadable is how many keys that the user may not read one call of ReadKeys skips.
	maxUnreadable = 10
)

// The limits of a Conn are what etcd has refused. Each is told once.
type limits struct {
	mu         sync.Mutex
	keys       int  // how many etcd lets one transaction read, as far as is known; 0 for manyKeys
	unreadable bool // there is a key that the user may not read
}

// most is how many keys may be read in one transaction.
func (l *limits) most() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.keys, manyKeys)
}

// limit notes that etcd takes no more keys than most. It returns how many may be read.
func (l *limits) limit(most int, to Listener) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == 0 {
		to.Limited(most)
		l.keys = most
	}
	l.keys = min(l.keys, most)
	return l.keys
}

// refuse notes that the user may not read a key.
func (l *limits) refuse(key string, err error, to Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.unreadable {
		l.unreadable = true
		to.Unreadable(key, err)
	}
}
