package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyARunWithoutFailuresAndSkipsPasses(t *testing.T) {
	const (
		passing = `{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
`
		skipping = `{"Action":"output","Package":"p","Test":"TestB","Output":"no time\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
`
		failing = `{"Action":"output","Package":"p","Test":"TestC","Output":"no luck\n"}
{"Action":"fail","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Output":"exit status 1\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
`
		closing = `{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`
		empty = `{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}
{"Action":"skip","Package":"q"}
`
		crashing = `{"Action":"output","Package":"q","Test":"TestE","Output":"elsewhere\n"}
{"Action":"output","Package":"p","Test":"TestD","Output":"=== RUN   TestD\n"}
{"Action":"output","Package":"p","Test":"TestD","Output":"SIGSEGV\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
`
		broken = `{"ImportPath":"p","Action":"build-output","Output":"a.go:1:1: no sense\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","FailedBuild":"p"}
`
	)
	for name, run := range map[string]struct{ in, out, err string }{
		"passed": {
			passing + closing + empty,
			"ok  \tp\t0.1s\n?   \tq\t[no test files]\n1 passed, 0 failed, 0 skipped\n", "",
		},
		"skipped": {
			passing + skipping + closing,
			"no time\nok  \tp\t0.1s\nskipped: p TestB\n1 passed, 0 failed, 1 skipped\n",
			"tests were skipped",
		},
		"failed": {
			passing + failing,
			"no luck\nFAIL\tp\t0.1s\nexit status 1\nfailed:  p TestC\nfailed:  p\n1 passed, 2 failed, 0 skipped\n", "tests failed",
		},
		"crashed": {
			passing + crashing,
			"FAIL\tp\t0.1s\n=== RUN   TestD\nSIGSEGV\nfailed:  p\nfailed:  p TestD\n1 passed, 2 failed, 0 skipped\n",
			"tests failed",
		},
		"not built": {
			broken,
			"a.go:1:1: no sense\nFAIL\tp [build failed]\nfailed:  p\n0 passed, 1 failed, 0 skipped\n",
			"tests failed",
		},
		"nothing": {empty, "?   \tq\t[no test files]\n0 passed, 0 failed, 0 skipped\n", "no test ran"},
		"cut off": {passing + `{"Action":`, "", "read the events of go test: EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := report(strings.NewReader(run.in), &out)
			require.Equal(t, run.out, out.String())
			if run.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, run.err)
			}
		})
	}
}
