package etcd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAPaceExpectsTheCallersThatComeBack(t *testing.T) {
	const took = 400 * time.Microsecond
	for name, tt := range map[string]struct {
		answers [][2]int // how many callers each answers, and how many come back at once
		expects int      // after one more to as many as the last
	}{
		"nothing is known":                {nil, 0},
		"one comes back":                  {[][2]int{{1, 1}}, 1},
		"all do":                          {[][2]int{{1, 1}, {7, 7}, {8, 8}}, 8},
		"none does":                       {[][2]int{{8, 0}, {8, 0}}, 0},
		"half of them do":                 {[][2]int{{8, 4}, {8, 4}, {8, 4}}, 4},
		"others come as well":             {[][2]int{{2, 9}}, 2},
		"one has left":                    {[][2]int{{8, 8}, {8, 8}, {8, 7}}, 7},
		"most have left":                  {[][2]int{{8, 8}, {8, 0}, {8, 0}}, 1},
		"what was long ago counts little": {[][2]int{{8, 0}, {8, 8}, {8, 8}, {8, 8}, {8, 8}}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			var p pace
			now := time.Unix(1e9, 0)
			for _, a := range tt.answers {
				p.lands(a[0], took, now)
				for range a[1] {
					p.comes(now.Add(took/2 - 1))
				}
				p.comes(now.Add(took / 2)) // too late to be waited for
				now = now.Add(time.Second)
			}
			last := 1
			if n := len(tt.answers); n > 0 {
				last = tt.answers[n-1][0]
			}
			p.lands(last, took, now)
			require.Equal(t, tt.expects, p.expected)
		})
	}
}

// A caller is waited for a part of the time that an answer takes, and never for long. Where answers
// take long, two transactions may be under way.
func TestAPaceGoesByWhatAnAnswerTakes(t *testing.T) {
	var p pace
	for took, want := range map[time.Duration]struct {
		patience time.Duration
		few      int
	}{
		100 * time.Microsecond: {50 * time.Microsecond, 1},
		longestWait - 1:        {mostPatience, 1},
		longestWait:            {mostPatience, 2},
		20 * time.Millisecond:  {mostPatience, 2},
	} {
		p.lands(1, took, time.Unix(1e9, 0))
		require.Equal(t, want.patience, p.patience)
		require.Equal(t, want.few, p.few)
	}
}
