// Package tests has the words in which the library is tested from outside, in virtual time.
// The tests are in the packages below, by area, which run beside each other:
//
//	mutex     what a Mutex, its calls, contexts, errors and hooks say
//	queue     who gets in when: the local queue, etcd's line, long lines, WithHandoff and WithLinger
//	watching  how waiters and holders watch, and what that costs
//	lease     renewals, trust, audits, stray keys, revocation
//	kinds     RWMutex, Semaphore, LockAll
//	holders   what others do about a holder: they recall it, watch it, succeed it
//	outages   etcd is away, slow, set back or split; Mutexes while much goes wrong at random
//	          (package sim has all kinds)
//	docs      what the pages say
//
// A test runs in a bubble of testing/synctest, with package fake as its etcd, which answers at
// once unless the test says otherwise. So durations are exact, and a goroutine that is left
// behind makes the bubble panic. Tests that need what is not exported are in internal/hold.
package tests

import (
	"fmt"
	"os"
	"testing"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/race"
)

// Main is the TestMain of each area.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run runs tests in virtual time, and checks that no goroutine of the library is left in the
// end. It returns the status of the process.
func Run(m *testing.M) (status int) {
	race.InBubbles()
	status = m.Run()
	if !contract.Poll(func() bool { return contract.LibraryGoroutines() == 0 }) {
		fmt.Fprintln(os.Stderr, contract.LibraryGoroutines(), "goroutines of the library are left")
		return 1
	}
	return status
}
