// Package holders tests what others do about a holder: an operator recalls it, WatchHolder follows
// it, candidates of Lead succeed it.
package holders

import (
	"testing"

	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestMain(m *testing.M) { tests.Main(m) }
