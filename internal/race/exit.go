package race

import "os"

// QuickExit is for the environment of a process that a test starts. With the race detector
// each process sleeps for a second at its end, so that its other threads may still report
// something.
func QuickExit() string {
	return "GORACE=" + os.Getenv("GORACE") + " atexit_sleep_ms=0"
}
