package trust

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
)

// The model: a lease that is granted at 0, one change of leader, and the client's requests.
// Time goes in steps. A member that leads, or believes so, handles and answers a renewal.
const (
	step     = 100 * time.Millisecond // more than prompt, so that a later step is a late answer
	ttlSteps = 5
	election = 3 // the most steps for which a leader that is cut off goes on; etcd: TTL >= 1.5 of it
	horizon  = 11
	never    = 1000
)

// A request is a request of the client, and what becomes of it.
type request struct {
	sent     int
	member   int  // 1 led first, 2 leads after the election
	waits    int  // steps until it is handled
	late     bool // it reaches the member when it is handled, and not when it is sent
	answered int  // steps from then until the answer is there
}

// A history is one choice of all that may happen.
type history struct {
	elected  int // step at which 2 begins to lead
	deposed  int // step at which 1 notices that it no longer leads
	renewals []request
	read     request // linearizable; not sent if its step is never
	slow     bool    // the client's clock is slower than etcd's, by what the margin covers
}

// holds plays a history. It reports whether, by the model, the lease was there for as long
// as the client trusted it, and for how many steps longer than the grant alone was worth.
func (h *history) holds() (safe bool, beyond int) {
	start := time.Unix(1000, 0)
	tick, margin := step, time.Duration(0)
	if h.slow {
		tick, margin = step/ttlSteps*(ttlSteps-1), step
	}
	at := func(now int) time.Time { return start.Add(time.Duration(now) * tick) }
	t := New(at(0), ttlSteps*step, func(time.Duration) time.Duration { return margin })

	expiry := ttlSteps // where it counts: at member 1 until the election, at 2 after it
	alive := true
	epoch := new(int)
	var known uint64 // the newest term that the client knows
	attempts := make([]*Attempt, len(h.renewals))
	terms := make([]uint64, len(h.renewals))
	leads := func(now int) int { // the member that leads in truth
		if now >= h.elected {
			return 2
		}
		return 1
	}
	// termAt returns the newest term that a member knows.
	termAt := func(member, now int) uint64 {
		if now >= h.elected && (member == 2 || now >= h.deposed) {
			return 2
		}
		return 1
	}
	hear := func(term uint64) { known = max(known, term) }
	for now := range horizon {
		if now == h.elected && alive {
			expiry = now + ttlSteps + election
		}
		if now >= expiry {
			alive = false
		}
		for i, r := range h.renewals {
			if r.sent == now {
				attempts[i] = t.Sends(at(now), epoch)
			}
			comes := r.sent
			if r.late {
				comes = r.sent + r.waits
			}
			if comes == now {
				terms[i] = termAt(r.member, now)
			}
			// A member that believes to lead renews by itself. Any other member passes the
			// renewal on to the leader.
			believes := r.member == 1 && now < h.deposed
			if r.sent+r.waits == now && alive && (leads(now) == 1 || !believes) {
				expiry = now + ttlSteps
			}
		}
		for i, r := range h.renewals {
			if r.waits == never || r.sent+r.waits+r.answered != now || !alive {
				continue
			}
			// What the client knew so far says nothing about a later request: Answered
			// takes what was known before this answer.
			before := known
			hear(terms[i])
			if t.At(at(now)) == Whole {
				t.Answered(at(now), attempts[i], Confirmation{uint64(r.member), terms[i], ttlSteps * step, false},
					before)
			}
		}
		if r := h.read; r.sent+r.waits+r.answered == now && t.At(at(now)) == Whole {
			// The leader of that time has handled it. The member reports the term of when
			// it answered.
			handled := r.sent + r.waits
			term := termAt(leads(handled), handled)
			hear(term)
			t.Proved(at(r.sent), epoch, term)
		}
		if t.At(at(now)) == Whole {
			if now >= expiry {
				return false, 0
			}
			beyond = max(beyond, now-ttlSteps+1)
		}
	}
	return true, beyond
}

// each calls f with every request of a kind that the client may send at a step.
func each(members []int, sent, most int, f func(request)) {
	for _, member := range members {
		for waits := range most {
			for answered := range 2 {
				for _, late := range []bool{false, true} {
					if late && waits == 0 {
						continue // the same
					}
					f(request{sent: sent, member: member, waits: waits, late: late, answered: answered})
				}
			}
		}
		f(request{sent: sent, member: member, waits: never})
	}
}

// A change of leader may do anything to two or three renewals and a read. The client still
// trusts a lease for no longer than it lives: without a margin if all clocks run at one
// rate, and otherwise with a margin that covers the difference.
func TestExplorationOfAChangeOfLeader(t *testing.T) {
	histories, longest := 0, 0
	var h history
	try := func() {
		histories++
		safe, beyond := h.holds()
		if !safe {
			require.Fail(t, "trusted for longer than it lives", "%+v", h)
		}
		longest = max(longest, beyond)
	}
	elections := []int{1, 2, 3, 4, never}
	for _, h.elected = range elections[:race.Fewer(len(elections), 1)] { // there is only one goroutine
		for late := 0; late <= election; late++ {
			h.deposed = h.elected + late
			for first := 0; first <= 2; first++ {
				each([]int{1, 2}, first, 5, func(a request) {
					for second := first + 1; second <= 4; second++ {
						each([]int{1, 2}, second, 3, func(b request) {
							h.renewals = []request{a, b}
							h.read = request{sent: never}
							for _, h.slow = range []bool{true, false} {
								try()
							}
							for read := first; read <= second+2; read++ {
								for answered := range 4 {
									h.read = request{sent: read, answered: answered}
									try()
								}
							}
						})
					}
				})
			}
			if h.elected == never {
				break // the same
			}
		}
	}
	t.Logf("%d histories; trusted for up to %d steps more than the grant is worth", histories, longest)
	require.Greater(t, longest, 2, "nothing extends the trust")
}

func noMargin(time.Duration) time.Duration { return 0 }

// However long a machine sleeps, and whenever, it trusts no lease that may be over when it
// wakes, though its monotonic clock has stood still.
func TestExplorationOfASuspend(t *testing.T) {
	start, histories := time.Now(), 0
	for sent := range ttlSteps {
		for answered := sent; answered < horizon; answered++ {
			for asleep := range horizon {
				for wakes := asleep; wakes <= 2*horizon; wakes++ {
					histories++
					at := func(now int) time.Time {
						moved := start.Add(time.Duration(now) * step)
						if now > asleep { // from then on the clock stands still, until the machine wakes
							stood := time.Duration(min(now, wakes)-asleep) * step
							moved = fake.MoveMonotonic(moved, -stood)
						}
						return moved
					}
					expiry := ttlSteps
					trust := New(at(0), ttlSteps*step, noMargin)
					var a *Attempt
					for now := range 2 * horizon {
						if now > asleep && now < wakes {
							continue
						}
						whole := func() bool { return trust.At(at(now)) == Whole }
						if now >= sent && a == nil && whole() {
							a = trust.Sends(at(now), nil)
							expiry = now + ttlSteps
						}
						if now >= answered && a != nil && a.ended.IsZero() && whole() {
							trust.Answered(at(now), a, Confirmation{TTL: ttlSteps * step}, 0)
						}
						if whole() {
							require.Less(t, now, expiry, "sent %d, answered %d, asleep %d to %d",
								sent, answered, asleep, wakes)
						}
					}
				}
			}
		}
	}
	t.Logf("%d histories", histories)
}

// As long as etcd answers, no client loses the trust in a lease, whatever the margin. One
// attempt may get lost.
func TestExplorationOfSchedules(t *testing.T) {
	histories := 0
	for ttl := time.Second; ttl <= 30*time.Second; ttl += time.Second {
		for percent := 1; percent < 100; percent++ {
			margin := ttl / 100 * time.Duration(percent)
			if ttl-margin < 10*leastPeriod {
				continue
			}
			for lost := -1; lost < 4; lost++ {
				for quarters := range time.Duration(5) {
					histories++
					lasts(t, ttl, margin, lost, quarters)
				}
			}
		}
	}
	t.Logf("%d histories", histories)
}

// Whatever the TTL and the margin, many attempts that fail at once fit into what is left of a trust
// when the first of them is sent, however long jitter makes their pauses. They are not too many
// either, with a TTL of up to a minute, and there are few if each takes long to fail.
func TestExplorationOfErrorsThatComeBackAtOnce(t *testing.T) {
	fewest, most, slow := 1000, 0, 0
	for ttl := time.Second; ttl <= 10*time.Minute; ttl += time.Second {
		for percent := 1; percent < 100; percent++ {
			s := scheduleOf(ttl, ttl/100*time.Duration(percent))
			if s.Period < 30*leastPeriod {
				continue
			}
			count := func(took, quarters time.Duration) (attempts int) {
				for left := s.Span - s.Period; left > 0; left -= took + s.Again(attempts, took)/4*quarters {
					attempts++
				}
				return attempts
			}
			fewest = min(fewest, count(0, 5))
			if ttl <= time.Minute {
				most = max(most, count(0, 3))
				slow = max(slow, count(s.longest(), 3))
			}
		}
	}
	t.Logf("%d to %d attempts, %d slow ones", fewest, most, slow)
	require.GreaterOrEqual(t, fewest, 30)
	require.LessOrEqual(t, most, 100)
	require.LessOrEqual(t, slow, 24)
}

// lasts plays some renewals. Each is answered after the given quarters of the time within
// which it is not late, except for one that is lost.
func lasts(t *testing.T, ttl, margin time.Duration, lost int, quarters time.Duration) {
	now := time.Unix(1000, 0)
	trust := New(now, ttl, func(time.Duration) time.Duration { return margin })
	s := trust.Schedule()
	rtt := s.Late() / 4 * quarters
	now = now.Add(s.Next(0))
	for i := range 6 {
		if trust.At(now) != Whole {
			require.Fail(t, "the trust is over", "TTL %v, margin %v, attempt %d, %d is lost, RTT %v",
				ttl, margin, i, lost, rtt)
		}
		a := trust.Sends(now, nil)
		if i == lost {
			now = now.Add(s.Late())
			continue
		}
		answered := now.Add(rtt)
		if trust.At(answered) != Whole {
			require.Fail(t, "the trust is over", "TTL %v, margin %v, answer %d, %d is lost, RTT %v",
				ttl, margin, i, lost, rtt)
		}
		if trust.Answered(answered, a, Confirmation{TTL: ttl}, 0) {
			trust.Proved(answered, nil, 0)
		}
		now = now.Add(max(s.Next(rtt), rtt))
	}
}
