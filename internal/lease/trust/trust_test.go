package trust

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The worth of a renewal depends on other renewals that may have reached another leader. Each
// step comes 100 ms after the one before. The wanted value is the step from whose beginning
// the trust counts in the end.
func TestWhatARenewalIsWorth(t *testing.T) {
	const (
		step = 100 * time.Millisecond
		ttl  = 3 * time.Second
	)
	type steps []func(*renewals)
	late := func(n int, member, term uint64) func(*renewals) {
		return func(r *renewals) { r.answer(n, member, term) }
	}
	send := func(r *renewals) { r.send() }
	prompt := func(member, term uint64) func(*renewals) {
		return func(r *renewals) { r.answer(r.send(), member, term) }
	}
	ask := func(r *renewals) { r.asked, r.askedIn, r.askedKnown = r.now, r.epoch, r.known }
	told := func(term uint64) func(*renewals) {
		return func(r *renewals) {
			if r.known = max(r.known, term); term < r.askedKnown && r.known == r.askedKnown {
				r.known = term // as a Session does
			}
			r.trust.Proved(r.asked, r.askedIn, term)
		}
	}
	confirmed := steps{prompt(2, 2), ask, told(2)}
	twice := func(r *renewals) { r.send(); r.send() }
	setBack := func(r *renewals) { r.epoch, r.known = 2, 0 }

	for _, tt := range []struct {
		name  string
		steps steps
		want  int
	}{
		{"one after another, of one member", steps{prompt(1, 2), prompt(1, 2)}, 1},
		{"one after another, of two members", steps{prompt(1, 2), prompt(2, 2)}, 1},
		{"late, of one member", steps{send, late(0, 1, 2), prompt(1, 2)}, 2},
		{"under way at once, of one member", steps{send, send, late(0, 1, 2), late(1, 1, 2)}, 1},
		{"under way at once, of two members", steps{send, send, late(0, 1, 2), late(1, 2, 2)}, 0},
		{"under way at once, and the later one first", steps{send, send, late(1, 1, 2), late(0, 1, 2)}, 0},
		{"late, of another member", steps{send, late(0, 1, 2), prompt(2, 2)}, 0},
		{"late, and a read between them", steps{send, late(0, 1, 2), ask, told(2), prompt(2, 2)}, 4},
		{"late, and a read that was asked too soon", steps{send, ask, late(0, 1, 2), told(2), prompt(2, 2)}, 0},
		{"another one is under way", steps{send, prompt(2, 2)}, 0},
		{"another one is under way, and a read between them", steps{send, ask, told(2), prompt(2, 2)}, 0},
		{"another one is under way, and a read afterwards", steps{send, prompt(2, 2), ask, told(2)}, 1},
		{"another one is under way, and a read that was asked too soon", steps{send, ask, prompt(2, 2), told(2)}, 0},
		{"a read tells of a newer leader", steps{send, prompt(2, 2), ask, told(3)}, 0},
		{"the newer one answers, too", steps{send, prompt(2, 2), ask, told(3), prompt(3, 3), ask, told(3)}, 4},
		{"sent at once", steps{twice, late(1, 2, 2)}, 0},
		{"a member that does not know of the newer leader", steps{prompt(1, 3), prompt(2, 2)}, 0},
		{"nor does etcd any more", steps{prompt(1, 3), prompt(2, 2), ask, told(2)}, 1},
		{"nor does etcd any more, the next one", steps{prompt(1, 3), prompt(2, 2), ask, told(2), prompt(2, 2)}, 4},
		{"a read beside it", steps{ask, prompt(1, 3), told(3), prompt(2, 2)}, 1},
		{"of before a set-back", steps{send, prompt(1, 9), setBack, ask, told(2)}, 0},
		{"after a set-back", steps{prompt(1, 9), setBack, prompt(1, 2)}, 2},
		{"another one was under way 8 s ago", append(append(steps{send}, slices.Repeat(confirmed, 27)...), prompt(2, 2)), 79},
		{"another one was under way 10 s ago", append(append(steps{send}, slices.Repeat(confirmed, 33)...), prompt(2, 2)), 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Unix(1e9, 0)
			margin := func(time.Duration) time.Duration { return ttl / 8 }
			r := &renewals{epoch: 1, now: began, trust: New(began.Add(-time.Second), ttl, margin)}
			for _, do := range tt.steps {
				do(r)
				r.now = r.now.Add(step)
				require.Equal(t, Whole, r.trust.At(r.now))
			}
			require.Equal(t, time.Duration(tt.want)*step, r.trust.Until().Add(-ttl+ttl/8).Sub(began))
		})
	}
}

type renewals struct {
	now     time.Time
	trust   *Trust
	epoch   int
	known   uint64 // term
	sent    []*Attempt
	asked   time.Time
	askedIn int

	askedKnown uint64
}

func (r *renewals) send() int {
	r.sent = append(r.sent, r.trust.Sends(r.now, r.epoch))
	return len(r.sent) - 1
}

func (r *renewals) answer(n int, member, term uint64) {
	a, known := r.sent[n], r.known
	if a.epoch != r.epoch {
		known = 0
	} else {
		r.known = max(r.known, term)
	}
	r.trust.Answered(r.now, a, Confirmation{Member: member, Term: term, TTL: r.trust.ttl}, known)
}

// Each attempt counts from its sending, however late its answer is.
func TestTheTrustIsSentPlusTTLLessMargin(t *testing.T) {
	start := time.Unix(1e9, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	margin := func(granted time.Duration) time.Duration { return granted / 5 }
	trust := New(at(0), 10*time.Second, margin)
	require.Equal(t, at(8), trust.Until())
	require.Equal(t, 10*time.Second, trust.ttl)
	require.Equal(t, 5*time.Second, trust.Remaining(at(3)))
	for _, tt := range []struct {
		sent, answered, ttl, until int
	}{
		{1, 4, 10, 9},   // a slow answer adds nothing
		{5, 5, 10, 13},  //
		{6, 6, 5, 13},   // the trust never shrinks
		{7, 12, 20, 23}, // etcd may grant another TTL
	} {
		a := trust.Sends(at(tt.sent), nil)
		trust.Answered(at(tt.answered), a, Confirmation{TTL: time.Duration(tt.ttl) * time.Second}, 0)
		require.Equal(t, at(tt.until), trust.Until(), "%+v", tt)
	}
	require.Equal(t, Whole, trust.At(at(23).Add(-1)))
	require.Equal(t, Expired, trust.At(at(23)))
}

// A Trust remembers only attempts that may matter for other attempts.
func TestWhatARenewalLeavesBehind(t *testing.T) {
	start := time.Unix(1e9, 0)
	trust := New(start, 3*time.Second, func(time.Duration) time.Duration { return 0 })
	answer := Confirmation{Member: 1, Term: 1, TTL: 3 * time.Second}
	trust.Answered(start, trust.Sends(start, nil), answer, 0)
	require.Zero(t, trust.Doubts(), "answered at once")
	trust.Answered(start.Add(2*prompt), trust.Sends(start, nil), answer, 0)
	require.Equal(t, 1, trust.Doubts(), "answered late")
	trust.Drop(trust.Sends(start, nil))
	require.Equal(t, 1, trust.Doubts(), "not carried out")
	trust.Sends(start.Add(time.Second), nil)
	require.Equal(t, 2, trust.Doubts(), "not answered")
	trust.Proved(start.Add(prompt), nil, 1)
	require.Equal(t, 2, trust.Doubts(), "asked before the answer")
	trust.Proved(start.Add(2*prompt), nil, 1)
	require.Equal(t, 1, trust.Doubts(), "nobody has answered the last one")
	trust.Sends(start.Add(time.Minute), nil)
	require.Equal(t, 1, trust.Doubts(), "etcd has given it up")
}

// With the longest TTL that etcd grants, too, an attempt without an answer matters as long as etcd
// may carry it out.
func TestAnAttemptMattersHoweverLongTheTTL(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, ttl := range []time.Duration{time.Second, 7_000_000_000 * time.Second,
		9_000_000_000 * time.Second} {
		trust := New(start, ttl, func(time.Duration) time.Duration { return 0 })
		trust.Sends(start, nil)
		trust.Sends(start.Add(requestTimeout), nil)
		require.Equal(t, 2, trust.Doubts(), "TTL %v", ttl)
	}
}

func TestStatesHaveNames(t *testing.T) {
	require.Equal(t, "whole expired suspended", fmt.Sprint(Whole, Expired, Suspended))
}
