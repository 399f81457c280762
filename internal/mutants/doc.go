// Package mutants plants wrong versions of the library, one at a time, and asks that the
// project's tests see each of them. What a test has never seen fail, it may not test.
//
// A mutant is a design that somebody would be tempted by, as textual replacements in the
// library's source. The sources stay as they are: the test binaries that are to kill mutants
// are built with other text laid over them (go build -overlay). One binary of a package holds
// all mutants that change no more than what is inside functions, and a variable of the
// environment chooses one of them when the binary is run.
//
//	go test ./internal/mutants                             two of them
//	go test ./internal/mutants -mutants                    all, which takes minutes
//	go test ./internal/mutants -mutant 'safety margin'     those with that in their name
//	go test ./internal/mutants -explored                   those of the cores, by explorations alone
//	go test ./internal/mutants -mutants -killers waiting   all, by the killers that need real time
//	go test ./internal/mutants -mutants -killers computing all, by those that compute
//
// CI runs the last two. What is left then are the killers that try random schedules, each of a
// mutant that has others; they take as long as all else.
//
// In each of these it is asked of all that every replacement finds its place, and that
// what comes of it compiles.
package mutants
