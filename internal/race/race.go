// Package race tells tests whether the race detector watches, under which everything takes
// about ten times as long. It looks for races, which the first few rounds have as well as the
// thousandth: CI runs all rounds without it.
package race

// Fewer is n, or less with the race detector.
func Fewer(n, less int) int {
	if Enabled {
		return less
	}
	return n
}
