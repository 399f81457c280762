// Package race tells tests how much to do: all rounds, or the first few. Under the race
// detector everything takes about ten times as long. A race shows in the first rounds as
// well as in the thousandth, and a developer wants an answer soon. CI runs all rounds.
package race

import "os"

// WholeEnv is the environment variable that asks for all rounds, whatever its value.
const WholeEnv = "ETCDLOCK_WHOLE"

// Whole says whether to run all rounds: the environment asks for them, and the race
// detector does not watch.
var Whole = !enabled && os.Getenv(WholeEnv) != ""

// Watched returns less if the race detector watches and the environment does not ask for all
// rounds, and otherwise n. It is for what takes minutes with it, and has goroutines in the same
// places in each round.
func Watched(n, less int) int {
	if enabled && os.Getenv(WholeEnv) == "" {
		return less
	}
	return n
}

// Fewer returns n if all rounds are to run, and otherwise less.
func Fewer(n, less int) int {
	if Whole {
		return n
	}
	return less
}
