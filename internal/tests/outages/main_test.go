// Package outages tests the library while etcd is away, slow, set back or split, and while much
// goes wrong at random.
package outages

import (
	"testing"

	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestMain(m *testing.M) { tests.Main(m) }
