package analyzer_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/etcdlock/etcdlock/cmd/etcdlockvet/analyzer"
)

func TestWhatIsReported(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), analyzer.New(false), "outer", "unasked", "paths",
		"mistakes")
}

// Each flag adds what a package of its name has.
func TestWhatIsReportedWithAFlag(t *testing.T) {
	for _, flag := range []string{"lost", "guess"} {
		a := analyzer.New(false)
		if err := a.Flags.Set(flag, "true"); err != nil {
			t.Fatal(err)
		}
		analysistest.Run(t, analysistest.TestData(), a, flag)
	}
}
