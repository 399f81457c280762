package etcdtest

import (
	"testing"
	"time"

	"github.com/etcdlock/etcdlock/internal/contract"
)

// LosePatience makes waits short until t ends, for tests in which what is waited
// for must not come.
func LosePatience(t *testing.T) {
	before := contract.Patience
	contract.Patience = 50 * time.Millisecond
	t.Cleanup(func() { contract.Patience = before })
}
