// Package contract has the tests of what the lock promises wherever it runs, and the parts
// that they are made of. The tests are written once, as a table that runs over a world. The
// world is an etcd: lock_test.go at the root has one in memory, package proof/contract has
// etcd's own servers.
//
// # The words of the tests
//
// Stories of several clients are told in the same words here, in the fault table
// (internal/faults) and in the matrix (internal/matrix). Package side says whose lock it
// is: this library's or etcd's own.
//
//	trial              one run of a story, about one lock
//	party              a contender with a client of its own, by this library
//	guest              a contender in the same line, by a library of etcd's
//	locks, unlocks     a call that must succeed; tries: a call that may say no
//	waits              begins a Lock, and returns a wait when the party stands in line
//	getsIn, fails      how a wait ends; goesOnWaiting, stillWaits: it does not
//	stillHolds         the lock says so, and so does etcd by another client
//	loses              the party learns in time that it no longer holds
//	unlockSaysLost     and Unlock tells it so
//	mends, heals       mends notes what ends the faults of a party's network; heals does it
//	lineIs             this many stand in line; isEmptyWithin: none is left in time
//	believes           records a belief to hold the lock: no two may meet (Belief)
//	Eventually         waits for what no channel announces
package contract

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A World is where the table is run.
type World struct {
	// Start starts an etcd for one test. It ends with the test, and no other test uses it.
	Start func(t *testing.T) Etcd
	// Names is how many names count as many for one Session. With ten thousand, etcd
	// members that share two cores take so long that requests are given up, and leases with
	// them.
	Names int
	// Cycles is how often each of the goroutines that exclude each other goes through its
	// section.
	Cycles int
}

// An Etcd is what a test asks of its world.
type Etcd interface {
	// Client makes a client with connections of its own. It is closed when t ends.
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

// Rows returns the names of the table's tests.
func Rows() (names []string) {
	for _, row := range table {
		names = append(names, row.name)
	}
	return names
}

// table has each test of this package by its name.
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
	{"TestAFollowerIsToldTheInfoOfTheLeader", TestAFollowerIsToldTheInfoOfTheLeader},
	{"TestSeveralNamesChangeTheirInfoTogether", TestSeveralNamesChangeTheirInfoTogether},
	{"TestARecallTakesNothingAway", TestARecallTakesNothingAway},
	{"TestWaitersAndReadersAreRecalled", TestWaitersAndReadersAreRecalled},
	{"TestAShortHoldKeepsItsName", TestAShortHoldKeepsItsName},
	{"TestAWaitAsksWhoHolds", TestAWaitAsksWhoHolds},
	{"TestManyWaitsAskEachHolderOnce", TestManyWaitsAskEachHolderOnce},
	{"TestSeveralNamesAreHeldTogetherOrNotAtAll", TestSeveralNamesAreHeldTogetherOrNotAtAll},
	{"TestSeveralNamesExcludeInWhateverOrder", TestSeveralNamesExcludeInWhateverOrder},
	{"TestPermitsAreHeldUpToTheLimit", TestPermitsAreHeldUpToTheLimit},
	{"TestPermitsAreWithinTheLimit", TestPermitsAreWithinTheLimit},
	{"TestPermitsInALongLine", TestPermitsInALongLine},
}
