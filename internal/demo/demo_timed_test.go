//go:build timed

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// It waits for the end of a lease of two seconds.
func TestCrashedHolderBlocksTheOthersForAboutTheTTL(t *testing.T) {
	stdout := demoEnds(t, exitGood, "-crash", "-workers", "2", "-requests", "30", "-stock", "20")
	require.Regexp(t, `\ncrashed holder blocked the others for \d\.\d\ds \(TTL 2s\)\n`, stdout)
	require.Regexp(t, `\nworker \d \(pid \d+\) .* killed\n`, stdout)
	requireRow(t, stdout, "sold", "20")
	requireRow(t, stdout, "refused", "10")
	requireRow(t, stdout, "keys left in etcd", "0")
}

// It waits for a second, in which the sale goes on.
func TestAnInterruptEndsTheSaleAndClearsUp(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, interrupt := context.WithCancelCause(t.Context())
	stdout := onText{text: "requests answered", do: func() { interrupt(errors.New("enough")) }}
	var stderr strings.Builder
	status := run(ctx, []string{"-requests", "10000", "-stock", "10000"}, &stdout, &stderr)
	require.Equal(t, exitInterrupted, status)
	require.Contains(t, stderr.String(), "enough, ")
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

// onText is a writer that calls do when text first passes through it.
type onText struct {
	text string
	do   func()
	once sync.Once
}

var _ io.Writer = (*onText)(nil)

func (w *onText) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.text) {
		w.once.Do(w.do)
	}
	return len(p), nil
}
