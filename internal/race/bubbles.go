package race

import (
	"runtime"
	"strings"
)

// InBubbles makes the process fit for testing/synctest. Before Go 1.27 the race detector crashes
// when two timers of a bubble run at the same time (golang.org/issue/78156): there is one
// processor then, which all that is unordered shares as well as two.
func InBubbles() {
	if enabled && strings.HasPrefix(runtime.Version(), "go1.26") {
		runtime.GOMAXPROCS(1)
	}
}
