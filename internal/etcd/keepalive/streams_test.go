package keepalive

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What becomes of the streams, step by step. In a step the renewal of that letter is sent:
// "a"; on a stream of its own: "a!"; at the same time as the one before: "a!!"; or
// elsewhere: "a@". Or etcd answers on its stream ("a ok"), or the stream ends ("a end"). Or
// it turns out that etcd itself reads the stream ("a yes"), or that it does not ("a no").
// "a is" stands for "a ok, a yes". A stream has the name of the renewal for which it was
// opened.
func TestWhichStreamARenewalGoesOn(t *testing.T) {
	for _, row := range []struct{ what, steps, want string }{
		{"the first one opens a stream", "a", "a opens"},
		{"the second one goes on it, once it is proven", "a, a is, b", "a opens, b on a"},
		{"so do all others", "a, a is, b, b ok, c, c ok, d", "a opens, b on a, c on a, d on a"},
		{"not on one that has never answered", "a, b", "a opens, b opens"},
		{"not on one that is not proven yet", "a, a ok, b", "a opens, b opens"},
		{
			"one that is proven late is left for one that was opened later",
			"a, a ok, b, b is, a yes, c", "a opens, b opens, a left, c on b",
		},
		{"not on one that leads to a proxy", "a, a ok, a no, b", "a opens, a left, b opens"},
		{
			"no other is kept then", "a, a ok, a no, b, b ok, c, c ok",
			"a opens, a left, b opens, b left, c opens, c left",
		},
		{"not on one whose answer is late", "a, a is, b, c!", "a opens, b on a, c opens"},
		{"not beside another", "a, a is, b, c", "a opens, b on a, c opens"},
		{"not on one that has ended", "a, a is, a end, b", "a opens, b opens"},
		{"not on one that leads elsewhere", "a, a is, b@", "a opens, b opens"},
		{
			"the one that answers takes the place of the silent one, whose answer counts, too",
			"a, a is, b, c!, c is, d, b ok, d ok, e",
			"a opens, b on a, c opens, d on c, a left, e on c",
		},
		{
			"one that is free is left when another has answered",
			"a, a is, b!, b is, c", "a opens, b opens, a left, c on b",
		},
		{
			"of two at once the first to answer is kept",
			"a, b!, c!!, c is, b is, d", "a opens, b opens, c opens, b left, d on c",
		},
		{
			"of two at once the first to be proven is kept",
			"a, b!, c!!, c ok, b ok, b yes, c yes, d",
			"a opens, b opens, c opens, c left, d on b",
		},
		{
			"a silent one that answers before the others is left for them",
			"a, a is, b, c!, b ok, c is, d", "a opens, b on a, c opens, a left, d on c",
		},
		{
			"a late answer brings no older stream back",
			"a, b!, b is, a is, c", "a opens, b opens, a left, c on b",
		},
		{
			"except if the newer one has ended meanwhile",
			"a, b!, b is, b end, a is, c", "a opens, b opens, c on a",
		},
		{
			"where no other answers the old one goes on",
			"a, a is, b!, b end, c", "a opens, b opens, c on a",
		},
	} {
		t.Run(row.what, func(t *testing.T) {
			var k streams
			var told []string
			now := time.Now()
			opened := map[string]*stream{} // by the renewal that opened it
			on := map[string]*stream{}     // by the renewal that was sent on it
			name := func(s *stream) string {
				for n, other := range opened {
					if s == other {
						return n
					}
				}
				return "?"
			}
			for step := range strings.SplitSeq(row.steps, ", ") {
				of, what, _ := strings.Cut(step, " ")
				who := of[:1]
				switch s := on[who]; what {
				case "ok", "end", "is":
					busy := s.busy
					require.Equal(t, busy, k.answered(s, what != "end"))
					require.False(t, s.busy)
					if what == "is" {
						k.proved(s, true)
					}
				case "yes", "no":
					k.proved(s, what == "yes")
				default:
					if !strings.HasSuffix(of, "!!") {
						now = now.Add(time.Second)
					}
					r := Renewal{Sent: now, Anew: strings.HasSuffix(of, "!")}
					if strings.HasSuffix(of, "@") {
						r.Where = "elsewhere"
					}
					s, open := k.take(r)
					require.True(t, s.busy)
					on[who] = s
					if open {
						told = append(told, who+" on "+name(s))
					} else {
						opened[who] = s
						told = append(told, who+" opens")
						s.end = func() {
							require.False(t, s.busy, "an answer is awaited")
							require.NotSame(t, k.current, s)
							told = append(told, who+" left")
						}
					}
				}
			}
			require.Equal(t, row.want, strings.Join(told, ", "))
		})
	}
}
