// Package race tells tests how much to do: all rounds, or the first few. The race detector, under
// which everything takes about ten times as long, looks for races, which the first few have as well
// as the thousandth; and whoever works on the code wants an answer soon. CI runs all rounds.
package race

import "os"

// WholeEnv is the environment variable that asks for all rounds, by any value.
const WholeEnv = "ETCDLOCK_WHOLE"

// Whole is whether all rounds are wanted, and the race detector does not watch.
var Whole = !enabled && os.Getenv(WholeEnv) != ""

// Fewer is n, or less unless all rounds are wanted.
func Fewer(n, less int) int {
	if Whole {
		return n
	}
	return less
}
