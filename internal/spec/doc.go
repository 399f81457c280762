// Package spec tests that the library follows the specification in the directory spec at the top:
// paths through the specification drive the real tickets and the real trust. It has tests only.
// The other way round, runs of internal/sim follow the specification (TestTraces there).
package spec
