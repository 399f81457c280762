// Package lease tests the lease of a Session: its renewals and how long it is trusted, the audits
// of its keys, and how it is given back.
package lease

import (
	"testing"

	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestMain(m *testing.M) { tests.Main(m) }
