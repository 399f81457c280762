package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// goodRelay returns the journal of a work of four steps that moved once, and
// the recall.
func goodRelay() ([]note, []recallMade) {
	at := time.Now()
	after := func(ms int) time.Time { return at.Add(time.Duration(ms) * time.Millisecond) }
	return []note{
		{noteEnter, 1, 10, 0, after(-20)},
		{noteBegin, 1, 10, 1, after(-15)},
		{noteEnd, 1, 10, 1, after(-10)},
		{noteBegin, 1, 10, 2, after(-5)},
		{noteEnd, 1, 10, 2, after(2)},
		{noteNoticed, 1, 10, 0, after(3)},
		{noteLeave, 1, 10, 0, after(4)},
		{noteEnter, 2, 12, 0, after(6)},
		{noteBegin, 2, 12, 3, after(7)},
		{noteEnd, 2, 12, 3, after(12)},
		{noteBegin, 2, 12, 4, after(13)},
		{noteEnd, 2, 12, 4, after(18)},
		{noteLeave, 2, 12, 0, after(19)},
	}, []recallMade{{token: 10, at: at}}
}

func TestGoodRelayHasNoFaults(t *testing.T) {
	journal, made := goodRelay()
	v := judgeRelay(journal, 4, made)
	require.Empty(t, v.faults())
	require.Equal(t, 4, v.steps)
	require.Equal(t, 2, v.holds)
	require.Equal(t, []time.Duration{3 * time.Millisecond}, v.noticed)
	require.Equal(t, []time.Duration{7 * time.Millisecond}, v.moved)
}

func TestRelayJudgeFindsEachFault(t *testing.T) {
	const unfollowed = "1 recalls were not followed"
	for _, test := range []struct {
		name  string
		spoil func(journal []note) (spoiled []note, done int)
		want  []string
	}{
		{
			name: "two at once",
			spoil: func(j []note) ([]note, int) {
				j[6], j[7] = j[7], j[6]
				return j, 4
			},
			want: []string{"lines of the journal are of two"},
		},
		{
			name: "a late step of the one before",
			spoil: func(j []note) ([]note, int) {
				return slices.Insert(j, 9, note{What: noteNoticed, Worker: 1, Token: 10}), 4
			},
			want: []string{"lines of the journal are of two"},
		},
		{
			name:  "a step begun and not ended",
			spoil: func(j []note) ([]note, int) { return slices.Delete(j, 4, 5), 3 },
			want:  []string{"1 steps were lost"},
		},
		{
			name:  "a step that nobody began",
			spoil: func(j []note) ([]note, int) { return slices.Delete(j, 3, 5), 3 },
			want:  []string{"1 steps were lost"},
		},
		{
			name:  "a step that the file has lost",
			spoil: func(j []note) ([]note, int) { return j, 3 },
			want:  []string{"1 steps were lost"},
		},
		{
			name:  "a step that the journal has not",
			spoil: func(j []note) ([]note, int) { return j, 5 },
			want:  []string{"1 steps were done a second time"},
		},
		{
			name: "a step done twice",
			spoil: func(j []note) ([]note, int) {
				j[8].Step, j[9].Step, j[10].Step, j[11].Step = 2, 2, 3, 3
				return j, 3
			},
			want: []string{"1 steps were done a second time"},
		},
		{
			name: "a token that goes back",
			spoil: func(j []note) ([]note, int) {
				for i := 7; i < len(j); i++ {
					j[i].Token = 9
				}
				return j, 4
			},
			want: []string{"1 fencing tokens were not above the one before"},
		},
		{
			name:  "a recall that nobody noticed",
			spoil: func(j []note) ([]note, int) { return slices.Delete(j, 5, 6), 4 },
			want:  []string{unfollowed},
		},
		{
			name: "a recalled holder that takes over from itself",
			spoil: func(j []note) ([]note, int) {
				for i := 7; i < len(j); i++ {
					j[i].Worker = 1
				}
				return j, 4
			},
			want: []string{unfollowed},
		},
		{
			name: "a recall that nobody made",
			spoil: func(j []note) ([]note, int) {
				return slices.Insert(j, 12, note{What: noteNoticed, Worker: 2, Token: 12}), 4
			},
			want: []string{"1 hand-overs came without a recall"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			journal, made := goodRelay()
			journal, done := test.spoil(journal)
			faults := judgeRelay(journal, done, made).faults()
			t.Log(faults)
			all := strings.Join(faults, "\n")
			for _, want := range test.want {
				require.Contains(t, all, want)
			}
		})
	}
}
