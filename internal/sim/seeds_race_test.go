//go:build race

package sim

// defaultSeeds is less under the race detector, which takes ten times as long.
const defaultSeeds = 60
