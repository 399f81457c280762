package main

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// percentile goes by nearest rank. It is 0 if there are no values.
func percentile[T cmp.Ordered](values []T, p int) (v T) {
	if len(values) == 0 {
		return v
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(1, (len(sorted)*p+99)/100)-1]
}

// median is the middle value, or the mean of the two in the middle. It is 0 if there are no
// values.
func median[T ~int64 | ~float64](values []T) (v T) {
	if len(values) == 0 {
		return v
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func maxOf[T cmp.Ordered](values []T) (most T) {
	if len(values) > 0 {
		most = slices.Max(values)
	}
	return most
}

// A spread is a median with the least and the greatest.
type spread struct{ Least, Median, Most float64 }

func (s spread) known() bool { return s.Median != 0 }

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	return spread{slices.Min(values), median(values), slices.Max(values)}
}

// inverse is the spread of 1/x.
func (s spread) inverse() spread {
	if !s.known() {
		return s
	}
	return spread{1 / s.Most, 1 / s.Median, 1 / s.Least}
}

// ratios divides the time of an operation of a by that of b, in each round that measured
// both. The rounds are pairs: what slowed down one has slowed down the other.
func ratios(a, b map[int]measure) (by []float64) {
	for round, m := range a {
		if other, ok := b[round]; ok && other.value > 0 {
			by = append(by, float64(m.value)/float64(other.value))
		}
	}
	slices.Sort(by)
	return by
}

// A summary is the result of the rounds of an alternative.
type summary struct {
	value      time.Duration // median of the rounds
	values     spread        // in seconds
	p50, p99   time.Duration // of all samples
	samples    int
	ops        int
	spent      counts // of all rounds
	in         int    // least of the rounds
	most       time.Duration
	goroutines int // the rest are medians, too
	busiest    float64
	heap       float64
	renewals   float64
	ttls       float64
	broken     string
}

func summarize(rounds map[int]measure) (s summary) {
	if len(rounds) == 0 {
		return s
	}
	var all []time.Duration
	s.in = math.MaxInt
	var values, busiest, heap, renewals, ttls, goroutines []float64
	for _, m := range rounds {
		all = append(all, m.samples...)
		values = append(values, m.value.Seconds())
		busiest = append(busiest, m.busiest)
		heap = append(heap, m.heap)
		renewals = append(renewals, m.renewals)
		ttls = append(ttls, m.ttls)
		goroutines = append(goroutines, float64(m.goroutines))
		s.ops += m.ops
		s.in = min(s.in, m.in)
		s.spent = s.spent.plus(m.spent)
		if m.broken != "" {
			s.broken = m.broken
		}
	}
	s.values = spreadOf(values)
	s.value = time.Duration(math.Round(s.values.Median * float64(time.Second)))
	s.most = maxOf(all)
	s.p50, s.p99, s.samples = percentile(all, 50), percentile(all, 99), len(all)
	s.goroutines = int(math.Round(median(goroutines)))
	s.busiest, s.heap, s.renewals, s.ttls = median(busiest), median(heap), median(renewals),
		median(ttls)
	return s
}

// per returns a count per operation.
func (s summary) per(count int64) float64 {
	if s.ops == 0 {
		return 0
	}
	return float64(count) / float64(s.ops)
}
