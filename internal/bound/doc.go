// Package bound requires that what runs under a mutex of the library is bounded.
//
// All goroutines of a Session need its mutex. One that has it for long keeps the others waiting.
// How long that is must not depend on how many there are. A call makes the same steps beside 10
// others and beside 100,000. What concerns many makes a constant number of steps for each, and
// gives the mutex up between pieces of some hundred.
//
// The tests count steps, not time, so they say the same on any machine. They are built with an
// overlay (go build -overlay), as the tests of package mutants are, and the sources stay as they
// are. In the overlay each function and each turn of a loop of the library calls package steps, as
// does a call of another package that goes through a slice or a map. Each mutex is one of package
// steps, which knows what was counted from its Lock to its Unlock.
//
//	go run ./internal/bound/counted ./internal/bound                       all, as CI does
//	go run ./internal/bound/counted -run 'TestBound/names' ./internal/bound
//
// The tests have the build tag bound. A company is many others in a certain state
// (companies_test.go). Beside each company the tests make calls (calls_test.go) and let things
// happen (events_test.go): once beside few others, and once beside many.
//
// A goroutine that waits for a mutex of package steps waits at a channel. So in a bubble of
// testing/synctest time goes on meanwhile, and a test may hold the mutex of a Session for as long
// as it likes. The tests in internal/hold do, and show that a hold ends all the same.
package bound
