//go:build race

package race

// enabled says whether the race detector watches.
const enabled = true
