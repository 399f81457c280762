//go:build timed

package etcd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Session that ends is forgotten in about the same time, however many others of its client follow
// the connection: a Session that begins waits for that with its mutex held.
func TestASessionIsForgottenAsSoonBesideMany(t *testing.T) {
	each := func(sessions int) time.Duration {
		n := &connection{followers: make(map[*follower]struct{}), end: func() {}}
		all := make([]follower, sessions)
		for i := range all {
			n.followers[&all[i]] = struct{}{}
		}
		started := time.Now()
		for i := range all {
			n.forget(&all[i])
		}
		return time.Since(started) / time.Duration(sessions)
	}
	few, many := time.Hour, time.Hour
	for range 3 { // the least, because other work on the machine only adds
		few = min(few, each(500))
		many = min(many, each(8000))
	}
	t.Logf("%v beside 500, and %v beside 8,000", few, many)
	require.Less(t, many, 8*few)
}
