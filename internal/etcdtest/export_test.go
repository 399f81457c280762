package etcdtest

import (
	"testing"
	"time"
)

// LosePatience makes waits short until t ends, for tests in which what is waited
// for must not come.
func LosePatience(t *testing.T) {
	before := patience
	patience = 50 * time.Millisecond
	t.Cleanup(func() { patience = before })
}
