// Package contract is what the lock promises wherever it runs: tests that are written once,
// as a table over a world, and what they are made of. The world is an etcd: lock_test.go at
// the root has one in memory, package proof/contract clusters of etcd's own servers.
//
// # The words of the tests
//
// Stories of several clients are told in the same words here, in the fault table (internal/faults)
// and in the matrix (internal/matrix). Whose lock it is, this library's or etcd's own, says package
// side.
//
//	trial              one run of a story, about one lock
//	party              a client of its own that contends for the lock by the library
//	guest              another that stands in the same line, by a library of etcd's
//	locks, unlocks     what must go well; tries: a call that may say no
//	waits              begins a Lock, and returns a wait once the party stands in line
//	getsIn, fails      how a wait ends; goesOnWaiting, stillWaits: it does not
//	stillHolds         says the lock, and etcd by another client
//	loses              the party knows, in time, that it holds no more
//	unlockSaysLost     and is told so by Unlock
//	mends, heals       what ends the faults of a party's network; heals does it
//	lineIs             so many stand in line; isEmptyWithin: nobody does any more
//	believes           notes a belief to hold the lock: no two may meet (Belief)
//	Eventually         waits for what no channel announces
package contract

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A World is where the table is run.
type World struct {
	// Start starts an etcd for one test, which ends with it and has nobody else on it.
	Start func(t *testing.T) Etcd
	// Names is how many names are many for one Session. Ten thousand take members of etcd
	// that share two cores so long that requests are given up, and leases with them.
	Names int
	// Cycles is how often the goroutines that exclude each other go through their section.
	Cycles int
}

// An Etcd is what a test asks of its world.
type Etcd interface {
	// Client makes a client of its own, with its own connections, closed when t ends.
	Client(t testing.TB, opts ...ClientOption) *clientv3.Client
	// Revision returns the revision of the store.
	Revision(t testing.TB) int64
}

// Run runs the whole table in one world. Each test leaves no key, no lease and no goroutine.
func Run(t *testing.T, w World) {
	for _, row := range table {
		t.Run(row.name, func(t *testing.T) {
			world := w
			world.Start = func(t *testing.T) Etcd {
				etcd := w.Start(t)
				VerifyClean(t, etcd.Client(t), "")
				return etcd
			}
			row.test(t, world)
		})
	}
}

// table has each test of table.go and many.go, by its name.
var table = []struct {
	name string
	test func(t *testing.T, w World)
}{
	{
		"TestUncontendedLockAndUnlockAreOneRequestAndOneRevisionEach",
		TestUncontendedLockAndUnlockAreOneRequestAndOneRevisionEach,
	},
	{"TestThreeGoroutinesRunBesideAnyNumberOfHolds", TestThreeGoroutinesRunBesideAnyNumberOfHolds},
	{"TestTryLockOfATakenNameWritesNothing", TestTryLockOfATakenNameWritesNothing},
	{"TestTryLockInTheHoldersSessionAsksNobody", TestTryLockInTheHoldersSessionAsksNobody},
	{
		"TestAHandOverCostsAtMostOneReadAndNoneInAShortLine",
		TestAHandOverCostsAtMostOneReadAndNoneInAShortLine,
	},
	{
		"TestReleaseAndNextPlaceInASessionAreOneTransaction",
		TestReleaseAndNextPlaceInASessionAreOneTransaction,
	},
	{"TestGoroutinesExcludeEachOtherAsProcessesDo", TestGoroutinesExcludeEachOtherAsProcessesDo},
	{
		"TestTenThousandNamesAreOneLeaseAndNoGoroutineEach",
		TestTenThousandNamesAreOneLeaseAndNoGoroutineEach,
	},
	{"TestUnlockWorksWithAnEndedContext", TestUnlockWorksWithAnEndedContext},
	{"TestTheHoldsContextSaysWhyItEnded", TestTheHoldsContextSaysWhyItEnded},
	{"TestDoReleasesWhateverBecomesOfTheFunction", TestDoReleasesWhateverBecomesOfTheFunction},
	{"TestDoLeavesTheNextHoldOfItsMutexAlone", TestDoLeavesTheNextHoldOfItsMutexAlone},
	{"TestCloseOfAHeldMutexLetsTheNextOneIn", TestCloseOfAHeldMutexLetsTheNextOneIn},
	{"TestTraceTellsTheLifeOfALockAndHarmsNone", TestTraceTellsTheLifeOfALockAndHarmsNone},
	{"TestReadersShareAndWritersExclude", TestReadersShareAndWritersExclude},
	{"TestReadersAndWritersExcludeAsTheyShould", TestReadersAndWritersExcludeAsTheyShould},
	{"TestAFollowerIsToldWhoLeads", TestAFollowerIsToldWhoLeads},
	{"TestARecallTakesNothingAway", TestARecallTakesNothingAway},
	{"TestWaitersAndReadersAreRecalled", TestWaitersAndReadersAreRecalled},
	{"TestSeveralNamesAreHeldTogetherOrNotAtAll", TestSeveralNamesAreHeldTogetherOrNotAtAll},
	{"TestSeveralNamesExcludeInWhateverOrder", TestSeveralNamesExcludeInWhateverOrder},
	{"TestPermitsAreHeldUpToTheLimit", TestPermitsAreHeldUpToTheLimit},
	{"TestPermitsAreWithinTheLimit", TestPermitsAreWithinTheLimit},
	{"TestPermitsInALongLine", TestPermitsInALongLine},
}
