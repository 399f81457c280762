package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain lets this binary be the servers and holders that a test starts.
func TestMain(m *testing.M) {
	playRole()
	os.Exit(m.Run())
}

func TestFlagsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"-case", "no such"}, {"-case", "("}, {"-setup", "5-disk"}, {"-rounds", "0"}, {"-slice", "1ms"}, {"-only", "["}, {"-name", "../x"}, {"what"}, {"-nonsense"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitUsage, run(context.Background(), args, &stdout, &stderr), "%q", args)
		require.Contains(t, stderr.String(), "Run it with -h", "%q", args)
		require.Empty(t, stdout.String())
	}
}

func TestAnOutputThatIsNoDirectoryIsToldBeforeTheMeasuring(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	var stdout, stderr bytes.Buffer
	status := run(context.Background(), []string{"-setup", "1-tmpfs", "-case", "^relock$", "-rounds",
		"1", "-slice", "50ms", "-out", file}, &stdout, &stderr)
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr.String(), file)
	require.Empty(t, stdout.String())
}

func TestAPageNeedsRecords(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitFailed, run(context.Background(), []string{"-render", "-out", t.TempDir()},
		&stdout, &stderr))
	require.Contains(t, stderr.String(), "no record of a run")
}

func TestHelpNamesAllCasesAndSetups(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitGood, run(context.Background(), []string{"-h"}, &stdout, &stderr))
	for _, name := range append(caseNames(), setupNames()...) {
		require.Contains(t, stdout.String(), name)
	}
}

// The report finds rows by these names, and a holder's process finds its alternative by
// them.
func TestNamesInTheTablesAreUnique(t *testing.T) {
	seen := make(map[string]bool)
	for _, a := range alternatives {
		require.False(t, seen[a.title()], "%s twice", a.title())
		seen[a.title()] = true
	}
	for _, name := range []string{library, baseline, floor} {
		require.True(t, seen[name], "%s is none", name)
	}
	for _, name := range caseNames() {
		require.False(t, seen[name], "%s twice", name)
		seen[name] = true
	}
}
