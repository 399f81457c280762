// Package mutants plants wrong versions of the library, one at a time, and requires the
// project's tests to see each of them. A test that nobody has ever seen fail may test
// nothing.
//
// A mutant is a tempting design, as a change of the library's source. It names declarations
// and places in their syntax trees (place_test.go), so that names and files may change. The
// sources stay as they are: the test binaries that must kill mutants are built with other
// text laid over them (go build -overlay). One binary of a package holds all mutants that
// change only the inside of functions. A variable of the environment chooses one of them
// when the binary runs.
//
//	go test ./internal/mutants                             two of them
//	go test ./internal/mutants -mutants                    all, which takes minutes
//	go test ./internal/mutants -mutant 'safety margin'     those with that in their name
//	go test ./internal/mutants -explored                   those of the cores, by explorations alone
//	go test ./internal/mutants -mutants -killers waiting   all, by the killers that need real time
//	go test ./internal/mutants -mutants -killers computing all, by those that compute
//
// CI runs the last two. That leaves out the killers that try random schedules. They take as
// long as all else, and each of their mutants has other killers.
//
// Each of these checks of all mutants that every step of a change finds its place, and that
// the result compiles.
package mutants
