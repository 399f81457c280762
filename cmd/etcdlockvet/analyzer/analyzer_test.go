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

func TestWhatIsReportedWithTheFlagLost(t *testing.T) {
	lost := analyzer.New(false)
	if err := lost.Flags.Set("lost", "true"); err != nil {
		t.Fatal(err)
	}
	analysistest.Run(t, analysistest.TestData(), lost, "lost")
}
