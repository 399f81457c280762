package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each case of much at once, small.
var smallMass = []benchCase{
	renewalsCase(6, 2, 2*time.Second),
	beginCase(6),
	closeCase(150),
	auditCase(150, 2*time.Second),
	besideCase(3, 4),
}

func TestASmallMassIsMeasuredInEachWay(t *testing.T) {
	_, chapter, page := measured(t, smallMass)
	require.NotContains(t, page, "let two in")

	of := func(caseName, name string) row {
		found, ok := chapter.find(caseName, name)
		require.True(t, ok, "%s: nothing of %s", caseName, name)
		return found
	}
	paced, raw := of("fleet-renewals-6", library), of("fleet-renewals-6", onceEach)
	require.InDelta(t, 6*12, paced.ops, 12, "of six leases, in four TTLs")
	require.Greater(t, raw.ops, 10*paced.ops, "what renews as fast as it can")

	require.GreaterOrEqual(t, of("begin-6", library).per(of("begin-6", library).spent.RPCs), 1.)
	require.EqualValues(t, 3, of("close-150", library).spent.RPCs, "a revocation, and two reads")
	require.EqualValues(t, 1, of("close-150", baseline).spent.RPCs)

	audited := of("audit-150", library)
	require.InDelta(t, 2, audited.per(audited.spent.RPCs), 0.8, "a renewal and an audit")
	require.Positive(t, audited.value)
	require.Zero(t, of("audit-150", baseline).value)
	for _, name := range []string{library, singly, atOnce, baseline} {
		require.Positive(t, of("several-3-beside", name).ops)
	}
}
