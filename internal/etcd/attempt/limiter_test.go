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
			m.answered(&m.others, time.Time{}, time.Time{}.Add(after*second))
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
		answers int // after the repeats were asked for
		won     int // repeats that were answered while what they repeated was not
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
		"repeats that win are paid back": {
			{asked: 2, credit: many, granted: 2, won: 2}, {asked: 20, credit: many, granted: 10},
		},
		"what was spent with more credit is no debt": {
			{asked: 20, credit: many, granted: 10}, {asked: 1, credit: few},
			{at: 15.1, asked: 2, credit: few, granted: 1},
		},
		"an etcd that is away gets a repeat now and then": {
			{asked: 20, credit: many, granted: 10}, {at: 1, asked: 9, credit: many},
			{at: 1.6, asked: 9, credit: many, granted: 1}, {at: 2.9, asked: 9, credit: many},
			{at: 3.1, asked: 9, credit: many, granted: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(1e9, 0)
			m := limiter{counted: start}
			for i, s := range steps {
				now := start.Add(time.Duration(s.at * float64(second)))
				if s.asked > 0 {
					if m.heard.IsZero() {
						m.heard = now.Add(-2 * lively) // it no longer answers
					}
					require.Equal(t, s.granted, m.spend(now, s.asked, s.credit == many), "step %d", i)
				}
				for range s.answers {
					m.answered(&m.others, now, now)
				}
				m.repaid(s.won)
			}
		})
	}
}

func TestAWindowGrowsWhileAnswersAreBriskAndItIsUsed(t *testing.T) {
	var m limiter
	m.rest()
	w := m.window(Put)
	now := time.Unix(1e9, 0)
	answered := func(took time.Duration) { m.answered(w, now.Add(-took), now) }
	require.Equal(t, firstWindow, w.size)

	for range firstWindow {
		require.True(t, m.lets(w, now))
	}
	require.False(t, m.lets(w, now))
	answered(brisk - 1)
	require.Equal(t, firstWindow+1, w.size)
	require.True(t, m.lets(w, now))
	require.False(t, m.lets(w, now))

	answered(brisk)
	answered(slow)
	require.Equal(t, firstWindow+1, w.size, "neither brisk nor slow")

	w.under = firstWindow / 2
	answered(0)
	require.Equal(t, firstWindow+1, w.size, "more than half is not used")

	w.under = w.size
	m.others.under = m.others.size
	m.answered(m.window(Urgent), now, now)
	require.Equal(t, firstWindow+1, w.size, "it has not let that begin")
	require.Equal(t, firstWindow, m.others.size, "it has not let that begin")
}

// Where a renewal takes much less than a put, it is the disk that is slow, and more puts take no
// longer. Until that is known, and where renewals take long, too, etcd may have too much to do.
func TestAWindowGrowsByWhatWaitsForASlowDisk(t *testing.T) {
	var m limiter
	m.rest()
	w, now := m.window(Put), time.Unix(1e9, 0)
	grows := func(took time.Duration) bool {
		before := w.size
		w.under = w.size
		m.answered(w, now.Add(-took), now)
		return w.size > before
	}
	light := func(took time.Duration, times int) {
		for range times {
			m.lightAnswered(took)
		}
	}
	require.False(t, grows(second), "nothing is known of the disk")
	light(0, 2)
	require.False(t, grows(second), "little is known of the disk")
	light(0, 10)
	require.True(t, grows(second))
	require.True(t, grows(synced-1))
	require.False(t, grows(synced), "the more there are the longer they take")
	light(second*2/3, 1)
	require.False(t, grows(second), "renewals take long, too")
	light(second/10, 3)
	require.True(t, grows(second))

	for _, w = range []*window{&m.leases, &m.removals} {
		require.True(t, grows(second))
	}
	w = &m.others
	require.False(t, grows(second), "reads share no write")
}

func TestAWindowIsHalvedOnceForWhatWasSentBefore(t *testing.T) {
	start := time.Unix(1e9, 0)
	at := func(seconds float64) time.Time {
		return start.Add(time.Duration(seconds * float64(second)))
	}
	m := limiter{puts: window{size: 100}, others: window{size: 10}}
	w := &m.puts
	m.answered(w, at(0), at(3))
	m.answered(w, at(2), at(4.5)) // sent before 3
	require.Equal(t, 50, w.size)
	require.Equal(t, 10, m.others.size, "another kind may be as brisk as ever")
	m.overloaded(at(2.9), at(5))
	require.Equal(t, 50, w.size)
	require.Equal(t, 5, m.others.size)
	m.overloaded(at(3.5), at(5))
	require.Equal(t, 25, w.size)
	require.Equal(t, 5, m.others.size)

	for i := range 10 {
		now := at(float64(10 + 3*i))
		m.answered(w, now, now.Add(2*slow))
	}
	require.Equal(t, slowWindow, w.size, "each answer may take long, however few are asked for")
	for i := range 10 {
		now := at(float64(100 + i))
		m.overloaded(now, now.Add(second/2))
	}
	require.Equal(t, 1, w.size, "one is left to find out that etcd is well again")
	m.answered(w, at(200), at(203))
	require.Equal(t, 1, w.size, "a slow answer does not let more begin")

	m.rest()
	require.Equal(t, firstWindow, w.size)
	require.Equal(t, firstWindow, m.others.size)
}

func TestAWindowGrowsBackAfterAStall(t *testing.T) {
	var m limiter
	m.rest()
	w, now := m.window(Put), time.Unix(1e9, 0)
	answered := func(took time.Duration) {
		now = now.Add(took)
		w.under = w.size
		m.answered(w, now.Add(-took), now)
	}
	for range 3 {
		answered(slow + 1)
	}
	require.Equal(t, slowWindow, w.size)
	answered(slow / 2)
	require.Equal(t, slowWindow, w.size, "etcd may have all that it can do")
	for range 2 * firstWindow {
		answered(brisk)
	}
	require.Equal(t, firstWindow, w.size, "no further than where it began")
}
