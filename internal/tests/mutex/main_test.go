// Package mutex tests what a Mutex says: its calls, the contexts of its holds, its errors, the
// hooks.
package mutex

import (
	"testing"

	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestMain(m *testing.M) { tests.Main(m) }
