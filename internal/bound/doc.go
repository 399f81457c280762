// Package bound requires that what runs under a mutex of the library is bounded.
//
// Under its mutex a Session ends holds, begins holds, and learns of everything. So a goroutine that
// has it for long keeps all others from all of that. How long must not depend on how many there
// are: a call makes the same steps beside 10 others and beside 100,000, and what concerns many
// makes a constant number of steps for each, and gives the mutex up between pieces of some hundred.
//
// The tests count steps, not time, so they say the same on any machine. The library that they test
// is built with an overlay (go build -overlay), as those of package mutants are. In it each
// function, each turn of a loop, and whatever a call of another package goes through calls package
// steps, and each mutex is one of package steps, which knows what was counted from its Lock to its
// Unlock. The sources stay as they are.
//
//	go run ./internal/bound/counted ./internal/bound                       all, as CI does
//	go run ./internal/bound/counted -run 'TestBound/names' ./internal/bound
//
// The tests have the build tag bound. The table has companies (companies_test.go): many others, in
// a certain state. Beside each the tests make calls (calls_test.go), and let things happen
// (events_test.go), once beside few others and once beside many.
//
// A goroutine that waits for a mutex of package steps waits at a channel. So in a bubble of
// testing/synctest time goes on meanwhile, and a test may hold the mutex of a Session for as long
// as it likes: those of the root do, to show that a hold ends all the same.
package bound
