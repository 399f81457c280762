package hold_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/hold"
)

func TestOrdinalsAreEnglish(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for n, want := range map[int]string{
		1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 5: "5th", 9: "9th",
		10: "10th", 11: "11th", 12: "12th", 13: "13th", 14: "14th", 19: "19th",
		20: "20th", 21: "21st", 22: "22nd", 23: "23rd", 24: "24th",
		100: "100th", 101: "101st", 102: "102nd", 103: "103rd", 111: "111th", 112: "112th", 113: "113th",
		121: "121st", 1000: "1000th", 1001: "1001st", 1011: "1011th", 1012: "1012th", 1013: "1013th",
		1022: "1022nd",
	} {
		err := hold.TheErrors().WaitFailed(ctx, "x", &hold.Busy{Ahead: n - 1}, nil, nil)
		require.ErrorContains(t, err, ": "+want+" in line, ")
	}
}
