package etcdtest

import (
	"strings"
	"testing"

	"github.com/etcdlock/etcdlock/internal/contract"
)

// VerifyNoLeaks makes t fail unless all goroutines that it has started have ended with it.
// Call it first, so that it checks last, when clusters and clients are closed.
func VerifyNoLeaks(t testing.TB) {
	t.Helper()
	mark := contract.Mark(t)
	t.Cleanup(func() {
		t.Helper()
		var left []string
		if !contract.Poll(func() bool { left = mark.Goroutines(); return len(left) == 0 }) {
			t.Errorf("etcdtest: goroutines left behind after %v:\n%s", contract.Patience,
				strings.Join(left, "\n\n"))
		}
	})
}
