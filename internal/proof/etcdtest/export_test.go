//go:build timed

package etcdtest

import (
	"testing"
	"time"

	"github.com/etcdlock/etcdlock/internal/contract"
)

// LosePatience makes waits short until t ends. It is for tests that wait for what must not
// come.
func LosePatience(t *testing.T) {
	before := contract.Patience
	contract.Patience = 50 * time.Millisecond
	t.Cleanup(func() { contract.Patience = before })
}
