package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/cells"
	"github.com/etcdlock/etcdlock/internal/quote"
)

// Owners is how many styles there are for owners, from Owner on.
const Owners = 6

// Remember takes what the lanes show besides the picture.
func (v *View) Remember(h board.History) {
	if v.paused && v.past != nil {
		return
	}
	v.history, v.past = h, make(map[string][]board.Past)
	for _, p := range h.Past {
		v.past[p.Lock] = append(v.past[p.Lock], p)
	}
}

// Lanes reports whether lanes are on the screen.
func (v *View) Lanes() bool { return v.lanes && v.mode == list }

// period is the time that lanes show: longer than what is known, up to ten minutes.
func (v *View) period() time.Duration {
	for _, period := range []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute} {
		if v.shown.Now.Sub(v.history.Since) <= period {
			return period
		}
	}
	return board.Memory
}

// laneColumns are the widths of name and holder. The lane has the rest: half of the screen or more.
func (v *View) laneColumns() (name, holder, lane int) {
	for _, r := range v.visible() {
		name = max(name, cells.Width(quote.Text(r.Name)))
		holder = max(holder, cells.Width(holderOf(r)))
	}
	rest := max(0, v.Width-2)
	name = min(max(name, len("LOCK")), rest*3/10)
	holder = min(max(holder, len("HELD BY")), rest/5)
	return name, holder, max(1, rest-name-holder)
}

func (v *View) laneLines() []Line {
	name, holder, lane := v.laneColumns()
	head := cells.Pad("LOCK", name) + " " + cells.Pad("HELD BY", holder) + " " + v.axis(lane)
	lines := []Line{v.ends(), v.legend(), {{cells.Pad(head, v.Width), Head}}}
	for i, r := range v.visible() {
		bars := v.lane(r.Lock, lane)
		_, style := noteOf(r)
		if v.offset+i == v.cursor {
			style = style.selected()
		}
		of := style
		if r.Holder != nil {
			of = v.styleOf(r.Holder.Whose())
		}
		lines = append(lines, append(Line{{cells.Name(quote.Text(r.Name), name) + " ", style},
			{holderIn(r, holder), of}, {" ", Plain}}, bars...))
	}
	return lines
}

// axis says what the times of a lane of n characters are: "|" stands where a time is.
func (v *View) axis(n int) string {
	line := []rune(strings.Repeat(" ", n))
	put := func(at int, text string) {
		from, to := max(0, at-2), min(n, at+len(text)+2)
		if at >= 0 && at+len(text) <= n && strings.TrimSpace(string(line[from:to])) == "" {
			copy(line[at:], []rune(text))
		}
	}
	period := v.period()
	put(n-len("now|"), "now|")
	put(0, "|"+ago(period)+" ago")
	each := max(period/5, 15*time.Second)
	for t := period - each; t > 0; t -= each {
		put(n-int(time.Duration(n)*t/period), "|"+ago(t))
	}
	return string(line)
}

// ago is a time of an axis.
func ago(d time.Duration) string {
	if d%time.Minute == 0 {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return short(d)
}

// ends say which holds ended badly in the time that lanes show, the newest first, as many as there
// is room for.
func (v *View) ends() (line Line) {
	from := v.shown.Now.Add(-v.period())
	var said []string
	for _, p := range slices.Backward(v.history.Past) {
		if !p.Holds || p.End == board.Released || p.Gone.Before(from) {
			continue
		}
		what := "an operator broke "
		if p.End == board.Lost {
			what = p.Owner + " lost "
		}
		said = append(said, what+quote.Text(p.Lock)+" "+short(v.shown.Now.Sub(p.Gone))+" ago")
	}
	if len(said) == 0 {
		known := min(v.period(), v.shown.Now.Sub(v.history.Since))
		return Line{{"no hold was lost or broken in the last " + short(known), Faint}}
	}
	for i, text := range said {
		more := ""
		if i+1 < len(said) {
			more = fmt.Sprintf(", and %d more", len(said)-i-1)
		}
		if i > 0 {
			text = ", " + text
		}
		if i > 0 && line.width()+cells.Width(text+more) > v.Width {
			return append(line, Piece{fmt.Sprintf(", and %d more", len(said)-i), Bad})
		}
		line = append(line, Piece{text, Bad})
	}
	return line
}

// legends are what the marks of a lane mean, in more and in fewer words.
var legends = [][7]string{
	{"held, in the colour of its owner", "for a part of that time", "nobody held it",
		"lost: its lease ended", "broken by an operator", "recalled: asked to give it back",
		"unknown: top did not run, or etcd was away"},
	{"held, in its owner's colour", "partly", "free", "lost", "broken", "recalled", "unknown"},
	{"held", "partly", "free", "lost", "broken", "recalled", "unknown"},
	{"held", "partly", "", "lost", "broken", "recalled", "unknown"},
}

// legend says what the lanes show, in as many words as there is room for.
func (v *View) legend() (line Line) {
	heights := blocks
	if v.ASCII {
		heights = bars
	}
	full, half := string(heights[len(heights)-1]), string(heights[len(heights)/2])
	marks := Line{{full, Owner}, {half, Owner}, {"gap", Faint}, {"x", Bad}, {"b", Bad}, {"r", Warn},
		{"/", Faint}}
	for _, words := range legends {
		line = nil
		for i, mark := range marks {
			if words[i] == "" {
				continue
			}
			if line != nil {
				line = append(line, Piece{gap, Plain})
			}
			line = append(line, mark, Piece{" " + words[i], Plain})
		}
		if line.width() <= v.Width {
			break
		}
	}
	return line
}

// A slice is the part of a lane that one character shows.
type slice struct {
	held  time.Duration
	owner string // that held for the longest time
	most  time.Duration
	mark  rune // 0 if there is none
}

// lane is the last minutes of a lock in n characters: each as high as the part of its time in which
// it was held, in the style of its owner.
func (v *View) lane(l *board.Lock, n int) (pieces Line) {
	now, each := v.shown.Now, v.period()/time.Duration(n)
	from := now.Add(-each * time.Duration(n))
	at := func(t time.Time) int { return max(0, min(n-1, int(t.Sub(from)/each))) }
	parts := make([]slice, n)
	mark := func(t time.Time, is bool, m rune) {
		if is && t.After(from) {
			parts[at(t)].mark = m
		}
	}
	holds := v.past[l.Name]
	for _, p := range l.Places {
		if !p.Holds {
			continue
		}
		holds = append(holds[:len(holds):len(holds)], board.Past{Owner: p.Whose(), Seen: p.Seen,
			Holds: p.Holds, Held: p.Held, Recalled: recalledAt(p), Gone: now})
	}
	for _, p := range holds {
		begin := p.Held
		if begin.IsZero() {
			begin = p.Seen
		}
		if !p.Holds || p.Gone.Before(from) {
			continue
		}
		for i := at(begin); i <= at(p.Gone); i++ {
			s, start := &parts[i], from.Add(each*time.Duration(i))
			held := max(1, earlier(p.Gone, start.Add(each)).Sub(later(begin, start)))
			if s.held += held; held >= s.most {
				s.owner, s.most = p.Owner, held
			}
		}
		mark(p.Recalled, true, 'r')
		mark(p.Gone, p.End == board.Lost, 'x')
		mark(p.Gone, p.End == board.Broken, 'b')
	}
	for i, s := range parts {
		piece := v.character(s, each, v.unknown(from.Add(each*time.Duration(i)), each))
		if last := len(pieces) - 1; last >= 0 && pieces[last].Style == piece.Style {
			pieces[last].Text += piece.Text
		} else {
			pieces = append(pieces, piece)
		}
	}
	return pieces
}

// character shows a slice that lasts a time.
func (v *View) character(s slice, each time.Duration, unknown bool) Piece {
	heights := blocks
	if v.ASCII {
		heights = bars
	}
	switch full := len(heights) - 1; {
	case s.mark == 'r':
		return Piece{"r", Warn}
	case s.mark != 0:
		return Piece{string(s.mark), Bad}
	case s.held > 0:
		part := min(full, max(1, int(s.held*time.Duration(full)/each)))
		return Piece{string(heights[part]), v.styleOf(s.owner)}
	case unknown:
		return Piece{"/", Faint}
	}
	return Piece{" ", Plain}
}

// unknown reports whether nothing is known of a part of a time.
func (v *View) unknown(start time.Time, each time.Duration) bool {
	end := start.Add(each)
	if start.Before(v.history.Since) || v.shown.Trouble != "" && end.After(v.shown.Known) {
		return true
	}
	for _, b := range v.history.Blind {
		if start.Before(b.To) && end.After(b.From) {
			return true
		}
	}
	return false
}

// mostOwners is how many owners a View remembers the styles of.
const mostOwners = 5000

// styleOf is the style of an owner: the same in all lanes, and that of each sixth.
func (v *View) styleOf(owner string) Style {
	n, is := v.owners[owner]
	if !is {
		if v.owners == nil || len(v.owners) >= mostOwners {
			v.owners = make(map[string]int)
		}
		n = len(v.owners)
		v.owners[owner] = n
	}
	return Owner + Style(n%Owners)
}

func recalledAt(p *board.Place) time.Time {
	if p.Recall == nil {
		return time.Time{}
	}
	return p.Recall.Asked
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
