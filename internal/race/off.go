//go:build !race

package race

// enabled is whether the race detector watches.
const enabled = false
