package keepalive

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A bankOf is a budget of leases with periods. wake notes which of them may repeat a renewal.
type bankOf struct {
	budget
	now    time.Time
	leases []*Sender
	woken  []int
}

func newBank(periods ...time.Duration) *bankOf {
	b := &bankOf{now: time.Unix(1e9, 0)}
	for i, period := range periods {
		s := &Sender{period: period, wake: func() { b.woken = append(b.woken, i) }}
		b.leases = append(b.leases, s)
		b.join(s, b.now)
	}
	return b
}

// ends is the time so many minutes from the beginning.
func ends(minutes int) time.Time { return time.Unix(1e9+60*int64(minutes), 0) }

// repeat has lease i ask for two repeats. Its trust ends in so many minutes from the beginning.
func (b *bankOf) repeat(i, until int) int { return b.take(b.leases[i], ends(until), 2, b.now) }

// drain spends what is saved up, by the last lease, whose trust ends last.
func (b *bankOf) drain() {
	last := len(b.leases) - 1
	for b.repeat(last, 1e6) > 0 {
	}
}

// The first repeats of a lease wait for nothing, whatever the others have spent.
func TestTheFirstRepeatsOfALeaseWaitForNothing(t *testing.T) {
	b := newBank(slices.Repeat([]time.Duration{5 * time.Second}, 100)...)
	require.Equal(t, 2, b.repeat(0, 1))
	b.drain()
	for i := 1; i < 50; i++ {
		for range urgent {
			require.Equal(t, 1, b.repeat(i, i+1))
		}
		require.Zero(t, b.repeat(i, i+1))
	}
	// A lease that was renewed has its first repeats again.
	b.rest(b.leases[1], b.now)
	require.Equal(t, 1, b.repeat(1, 2))
}

// The lease whose trust ends first is not bound by the budget. The others follow it in that order.
func TestTheLeaseThatEndsFirstIsRepeatedFirst(t *testing.T) {
	b := newBank(slices.Repeat([]time.Duration{10 * time.Second}, 6)...)
	b.repeat(0, 10)
	b.drain()
	for _, i := range []int{3, 1, 2, 4} {
		for b.repeat(i, 10+10*i) > 0 {
		}
	}
	for range 100 {
		require.Equal(t, 2, b.repeat(0, 10), "both at once")
	}
	require.Empty(t, b.woken)

	b.rest(b.leases[0], b.now) // it was renewed
	require.Equal(t, []int{1}, b.woken)
	require.Equal(t, 2, b.repeat(1, 20), "it is the first now")
	b.leave(b.leases[1], b.now)
	require.Equal(t, []int{1, 2}, b.woken)

	// The next ones in their order, as the bank has something again.
	for b.waiting > 0 {
		b.now = b.now.Add(b.next(b.now))
		b.pass(b.now)
	}
	require.Equal(t, time.Duration(never), b.next(b.now))
	require.Equal(t, []int{1, 2, 3, 4, 5}, b.woken)
	require.Equal(t, 1, b.repeat(3, 40), "one at a time")
	require.Zero(t, b.repeat(3, 40))
	b.rest(b.leases[2], b.now)
	require.Equal(t, []int{1, 2, 3, 4, 5, 3}, b.woken)
}

// A lease whose trust has ended is no longer the first, though nothing has told so.
func TestALeaseThatHasEndedHoldsUpNoOther(t *testing.T) {
	b := newBank(time.Hour, time.Hour, time.Hour)
	require.Equal(t, 2, b.repeat(0, 1))
	b.drain()
	for b.repeat(1, 2) > 0 {
	}
	require.Equal(t, ends(1), b.now.Add(b.next(b.now)))
	b.now = ends(1)
	b.pass(b.now)
	require.Equal(t, []int{1}, b.woken)
	require.Equal(t, 2, b.repeat(1, 2))
	b.now = ends(2)
	b.pass(b.now)
	require.Equal(t, []int{1, 2}, b.woken)
	require.Zero(t, b.repeat(1, 2), "its trust has ended")
	require.Equal(t, time.Duration(never), b.next(b.now), "nor does it wait")
}

// Whatever fails, whenever, and for which leases, what is sent stays within what the budget says.
// The lease whose trust ends first is never kept waiting, and neither are urgent repeats.
func TestTheBudgetIsKept(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		periods := make([]time.Duration, 1+r.IntN(60))
		rate := 0.0
		for i := range periods {
			periods[i] = time.Duration(1+r.IntN(60)) * time.Second
			rate += perPeriod / periods[i].Seconds()
		}
		b := newBank(periods...)
		began, bound := b.now, 0
		due := make([]time.Time, len(periods))
		waits := make([]bool, len(periods))
		until := func(i int) int { return 1e6 + i%7 }
		for b.now.Before(began.Add(time.Minute)) {
			b.now = b.now.Add(time.Duration(r.IntN(50)) * time.Millisecond)
			if b.waiting > 0 && b.next(b.now) == 1 {
				b.pass(b.now)
			}
			for _, i := range b.woken {
				waits[i] = false
			}
			b.woken = nil
			i := r.IntN(len(periods))
			s := b.leases[i]
			switch {
			case waits[i] || b.now.Before(due[i]):
			case s.fails && r.IntN(10) == 0:
				b.rest(s, b.now) // it was answered
				due[i] = b.now.Add(s.period)
			default:
				first, sent := !slices.ContainsFunc(b.failing, func(o *Sender) bool {
					return o != s && !o.until.After(ends(until(i)))
				}), s.sent
				n := b.repeat(i, until(i))
				if !first {
					bound += n
				}
				if first && n != 2 || n == 0 && sent < urgent {
					require.Fail(t, "kept waiting", "seed %d", seed)
				}
				waits[i] = n == 0
			}
			saved := max(leastBank, float64(len(periods))/4)
			most := saved + rate*b.now.Sub(began).Seconds() + float64(urgent*len(periods))
			if float64(bound) > most {
				require.Fail(t, "too many", "seed %d: %d, at most %.1f", seed, bound, most)
			}
		}
	}
}
