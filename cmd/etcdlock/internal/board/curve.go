package board

import (
	"strconv"
	"time"
)

// A curve counts hand-overs in each of the last spans.
type curve struct {
	counts [Spans]uint32
	newest int64 // number of the newest span
}

// add counts one.
func (c *curve) add(now time.Time) {
	c.move(now)
	c.counts[c.newest%Spans]++
}

// move drops the spans that are over.
func (c *curve) move(now time.Time) {
	to := now.UnixNano() / int64(Span)
	for n := max(c.newest+1, to-Spans+1); n <= to; n++ {
		c.counts[n%Spans] = 0
	}
	c.newest = max(c.newest, to)
}

// moved reports whether a span of the curve is over that is not empty.
func (c *curve) moved(now time.Time) bool {
	return c.newest != now.UnixNano()/int64(Span) && c.counts != [Spans]uint32{}
}

// points is the curve, the newest span last; nil if nothing is in it.
func (c *curve) points(now time.Time) (points []int) {
	c.move(now)
	if c.counts == [Spans]uint32{} {
		return nil
	}
	for n := c.newest - Spans + 1; n <= c.newest; n++ {
		points = append(points, int(c.counts[n%Spans]))
	}
	return points
}

// PerMinute is how many hand-overs a curve has in the last minute.
func PerMinute(points []int) (sum int) {
	for _, n := range points[max(0, len(points)-int(time.Minute/Span)):] {
		sum += n
	}
	return sum
}

func hex(lease int64) string { return strconv.FormatInt(lease, 16) }
