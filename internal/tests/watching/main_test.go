// Package watching tests how waiters and holders watch keys, and what a wait or a hold costs while
// nothing happens.
package watching

import (
	"testing"

	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestMain(m *testing.M) { tests.Main(m) }
