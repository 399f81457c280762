package race

import (
	"runtime"
	"strings"
)

// InBubbles makes the process fit for testing/synctest. Before Go 1.27 the race detector
// crashes when two timers of a bubble run at the same time (golang.org/issue/78156). So
// InBubbles leaves one processor. Goroutines that nothing orders interleave on one as well
// as on two.
func InBubbles() {
	if enabled && strings.HasPrefix(runtime.Version(), "go1.26") {
		runtime.GOMAXPROCS(1)
	}
}
