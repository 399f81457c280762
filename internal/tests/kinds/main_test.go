// Package kinds tests the locks that are no Mutex: RWMutex, Semaphore, LockAll.
package kinds

import (
	"testing"

	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestMain(m *testing.M) { tests.Main(m) }
