package attempt

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const second = time.Second

func TestHowFastEtcdIsGoesByTheSecondLongestOfTheLastFourAnswers(t *testing.T) {
	for _, tt := range []struct {
		answers []time.Duration // in seconds
		took    time.Duration
	}{
		{nil, 0},
		{[]time.Duration{3}, 3},
		{[]time.Duration{3, 1}, 3},
		{[]time.Duration{1, 3, 2}, 3},
		{[]time.Duration{1, 9, 2, 3}, 3},       // one answer that was held up says nothing
		{[]time.Duration{9, 9, 2, 3}, 9},       // two late answers mean a slow etcd
		{[]time.Duration{9, 9, 1, 1, 1}, 1},    // etcd has become fast
		{[]time.Duration{1, 1, 1, 1, 9}, 1},    // one answer is late
		{[]time.Duration{1, 1, 1, 1, 9, 8}, 8}, // etcd has become slow
	} {
		var m limiter
		for _, after := range tt.answers {
			m.answered(Ordinary, time.Time{}, time.Time{}.Add(after*second))
		}
		require.Equal(t, max(second, 3*tt.took*second), m.usual(second), "%v", tt.answers)
		require.Equal(t, max(second, 4*tt.took*second), m.seldom(second), "%v", tt.answers)
	}
}

// At each step's time the test asks for repeats, or reports answers.
func TestRepeatsAreGrantedByCredit(t *testing.T) {
	type step struct {
		at      float64 // seconds
		asked   int
		credit  int
		granted int
		answers int  // after the repeats were asked for
		won     int  // repeats that were answered while what they repeated was not
		lost    int  // repeats that were of no use
		began   bool // requests begin again
	}
	const few, many = fewRepeats, ManyRepeats
	for name, steps := range map[string][]step{
		"one endpoint": {
			{asked: 2, credit: few, granted: 1}, {asked: 1, credit: few},
			{at: 14, asked: 1, credit: few}, {at: 15.1, asked: 1, credit: few, granted: 1},
		},
		"several endpoints": {
			{asked: 12, credit: many, granted: 10}, {asked: 1, credit: many},
			{at: 1.6, asked: 2, credit: many, granted: 1},
			{at: 16.6, asked: 20, credit: many, granted: 10},
		},
		"several endpoints, and etcd answers": {
			{asked: 12, credit: many, granted: 10, answers: 1},
			{at: 1, asked: 9, credit: many, granted: 2}, // 10 in 3.75 s, and a tenth
		},
		"ten answers pay for a repeat": {
			{asked: 1, credit: few, granted: 1, answers: 8}, {asked: 1, credit: few, answers: 3},
			{asked: 2, credit: few, granted: 1},
		},
		"repeats that win are paid back, and give credit": {
			{asked: 2, credit: many, granted: 2, won: 2}, {asked: 20, credit: many, granted: 12},
		},
		"those that do not take it away again": {
			{won: 4}, {lost: 1}, {asked: 20, credit: many, granted: 12},
		},
		"what was spent with more credit is no debt": {
			{won: 50}, {asked: 60, credit: many, granted: 60, lost: 60},
			{asked: 1, credit: many}, {at: 1.6, asked: 2, credit: many, granted: 1},
		},
		"an etcd that is away is listened to": {
			{asked: 1, credit: few, granted: 1, began: true}, {asked: 1, credit: few},
			{at: 21, asked: 9, credit: few, granted: 1}, // by time
			{at: 21, asked: 9, credit: few, granted: 1}, {at: 22, asked: 9, credit: few},
			{at: 22.6, asked: 9, credit: few, granted: 1}, {at: 22.7, asked: 9, credit: few},
		},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(1e9, 0)
			m := limiter{counted: start}
			for i, s := range steps {
				now := start.Add(time.Duration(s.at * float64(second)))
				if s.began {
					m.began(now)
				}
				if s.asked > 0 {
					if m.heard.IsZero() {
						m.heard = now.Add(-2 * lively) // it no longer answers, and is not away
					}
					require.Equal(t, s.granted, m.spend(now, s.asked, s.credit == many), "step %d", i)
				}
				for range s.answers {
					m.answered(Ordinary, now, now)
				}
				if s.won > 0 {
					m.repeated(s.won, true)
				}
				m.repeated(s.lost, false)
			}
		})
	}
}

func TestABackoffDoublesUpToHalfASecond(t *testing.T) {
	var b Backoff
	for _, want := range []time.Duration{20, 40, 80, 160, 320, 500, 500} {
		require.Equal(t, want*time.Millisecond, b.next())
	}
	b.Reset()
	require.Equal(t, 20*time.Millisecond, b.next())
}

func TestAnAttemptAfterOneWithoutAnAnswerMayTakeTwiceAsLong(t *testing.T) {
	var b Backoff
	for _, tt := range []struct {
		err  error
		want time.Duration
	}{
		{nil, 1}, {ErrNoAnswer, 2}, {ErrNoAnswer, 2}, {ErrUnreachable, 1}, {ErrNoAnswer, 2}, {nil, 1},
	} {
		b.note(tt.err, true)
		require.Equal(t, tt.want, b.bound(1), "%v", tt.err)
	}
}
