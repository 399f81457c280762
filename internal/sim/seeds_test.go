//go:build !race

package sim

// defaultSeeds is how many schedules a run of all tests has.
const defaultSeeds = 1000
