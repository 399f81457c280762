// Package top is what etcdlock top shows, and what its keys do. A View makes lines of styled text
// of a picture of the board. It has no terminal and no clock.
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

// A Style is how a piece of text looks. Without colours a terminal still has bold and reverse.
type Style int

// The styles.
const (
	Plain Style = iota
	Bold
	Head     // of columns
	Selected // the row under the cursor, and the two below of what is Warn or Bad in it
	SelectedWarn
	SelectedBad
	Good
	Warn
	Bad
	Faint
	Owner // the first of Owners styles, that differ in colour
)

// selected is how a style looks in the row under the cursor: trouble stays in sight.
func (s Style) selected() Style {
	switch s {
	case Bad:
		return SelectedBad
	case Warn:
		return SelectedWarn
	}
	return Selected
}

// A Piece is text of one style, without characters that a terminal interprets.
type Piece struct {
	Text  string
	Style Style
}

// A Line is a line of the screen. Its end is filled with the style of its last piece.
type Line []Piece

func (l Line) width() (n int) {
	for _, piece := range l {
		n += cells.Width(piece.Text)
	}
	return n
}

// A Target is a place that is to be recalled, or broken.
type Target struct {
	Lock  string
	Place *board.Place
	Break bool
}

// A mode is what the screen shows.
type mode int

const (
	list   mode = iota
	detail      // one lock, with its line
	waits       // which Session waits for which
	help
)

// A View is the state of the screen.
type View struct {
	Prefix        string
	ASCII         bool // the terminal shows no blocks
	Recall, Break bool // what is allowed

	Width, Height int
	Message       string // what became of a recall or a break

	mode     mode
	order    board.Order
	filter   string
	typing   bool // the filter
	paused   bool
	shown    *board.Picture
	rows     []board.Row
	cursor   int
	offset   int
	selected string // the lock under the cursor, or the one in detail
	place    int    // the one under the cursor, in detail
	cycles   []board.Cycle
	waiting  []board.Wait
	asks     *Target // a question is open
	answer   string

	lanes   bool // instead of columns
	history board.History
	past    map[string][]board.Past // by lock
	owners  map[string]int          // number of the style
}

// Show takes a newer picture.
func (v *View) Show(p *board.Picture) {
	if v.paused && v.shown != nil {
		return
	}
	v.shown = p
	v.waiting = board.Waits(p.Locks)
	v.cycles = board.Cycles(p.Locks, v.waiting)
	v.sort()
}

// sort makes the rows anew. The cursor stays on its lock.
func (v *View) sort() {
	if v.shown == nil {
		return
	}
	v.rows = slices.DeleteFunc(v.shown.Rows(v.cycles), func(r board.Row) bool {
		return !r.Matches(v.filter)
	})
	board.Sort(v.rows, v.order)
	if i := slices.IndexFunc(v.rows, func(r board.Row) bool { return r.Name == v.selected }); i >= 0 {
		v.cursor = i
	}
	v.move(0)
}

// move moves the cursor of the list.
func (v *View) move(by int) {
	v.cursor = max(0, min(v.cursor+by, len(v.rows)-1))
	if v.mode == list && len(v.rows) > 0 {
		v.selected = v.rows[v.cursor].Name
	}
	v.offset = max(0, min(v.offset, v.cursor), v.cursor-v.body()+1)
}

// body is how many rows the list has room for.
func (v *View) body() int {
	if v.lanes {
		return max(1, v.Height-6) // below what went wrong, and their legend
	}
	return max(1, v.Height-4)
}

// Looks is the locks on the screen, whose leases are of interest.
func (v *View) Looks() (looks []*board.Lock) {
	if v.mode == detail {
		if l := v.lock(); l != nil {
			return []*board.Lock{l}
		}
	}
	for _, r := range v.visible() {
		looks = append(looks, r.Lock)
	}
	return looks
}

func (v *View) visible() []board.Row {
	from := min(v.offset, len(v.rows))
	return v.rows[from:min(from+v.body(), len(v.rows))]
}

// lock is the lock under the cursor, or in detail; nil if it is gone.
func (v *View) lock() *board.Lock {
	if v.shown == nil {
		return nil
	}
	for _, l := range v.shown.Locks {
		if l.Name == v.selected {
			return l
		}
	}
	return nil
}

// Lines is the screen: Height lines.
func (v *View) Lines() []Line {
	if v.shown == nil {
		return v.fill([]Line{{{"etcdlock top", Bold}}, {}, {{"reads the locks ...", Plain}}})
	}
	if v.shown.Revision == 0 && v.mode != help {
		lines := []Line{{{"etcdlock top", Bold}}, {}}
		for _, part := range cells.Wrap(v.shown.Trouble, v.Width) {
			lines = append(lines, Line{{part, Bad}})
		}
		return v.fill(append(lines, Line{},
			Line{{"No lock has been read yet. It goes on trying; q quits.", Plain}}))
	}
	switch v.mode {
	case detail:
		return v.detailLines()
	case waits:
		return v.waitLines()
	case help:
		return v.helpLines()
	}
	lines := v.headLines()
	if v.lanes {
		lines = append(lines, v.laneLines()...)
	} else {
		lines = append(lines, v.rowLines()...)
	}
	if len(v.rows) == 0 {
		lines = append(lines, Line{{v.nothing(), Faint}})
	}
	return v.fill(lines, v.footer()...)
}

// old says for how long nothing is known.
func (v *View) old() string {
	return "nothing is heard of etcd for " + short(v.shown.Now.Sub(v.shown.Known))
}

func (v *View) nothing() string {
	switch {
	case v.shown.Trouble != "":
		return v.old()
	case v.filter != "":
		return fmt.Sprintf("no lock matches %s", quote.Text(v.filter))
	case v.Prefix != "":
		return fmt.Sprintf("nobody holds a lock whose name begins with %s", quote.Text(v.Prefix))
	}
	return "nobody holds a lock"
}

// fill makes lines as many as the screen has, and cuts them to its width.
func (v *View) fill(lines []Line, last ...Line) []Line {
	above := max(0, v.Height-len(last))
	lines = lines[:min(len(lines), above)]
	for len(lines) < above {
		lines = append(lines, Line{})
	}
	lines = append(lines, last...)
	for i, line := range lines {
		left := v.Width
		for j, piece := range line {
			line[j].Text = cells.Cut(piece.Text, left)
			left -= cells.Width(line[j].Text)
		}
		lines[i] = line
	}
	return lines
}

// headLines say what all locks do, and what is wrong.
func (v *View) headLines() []Line {
	held, waiting := 0, 0
	for _, l := range v.shown.Locks {
		if l.Holding > 0 {
			held++
		}
		waiting += len(l.Places) - l.Holding
	}
	title := "etcdlock top"
	if v.Prefix != "" {
		title += " " + quote.Text(v.Prefix)
	}
	first := Line{{title, Bold}, {fmt.Sprintf("  %s, %d held, %d waiting  ",
		count(len(v.shown.Locks), "lock"), held, waiting), Plain}}
	first = append(first, v.locked(v.shown.Turns, v.Width-first.width())...)
	second := v.alarms(0)
	for shorter := 1; shorter < 3 && second.width() > v.Width; shorter++ {
		second = v.alarms(shorter)
	}
	return []Line{first, second}
}

// gap is what stands between what is said in one line.
const gap = "  "

// locked is the curve of the holds that began, with its scale if there is room for both.
func (v *View) locked(turns []int, width int) Line {
	said := fmt.Sprintf("locked %d/min", board.PerMinute(turns))
	scale := fmt.Sprintf(", up to %d in 5s", slices.Max(append([]int{0}, turns...)))
	if len(turns) > 0 && len(said+scale)+1+len(turns) <= width {
		said += scale
	}
	said += " "
	return Line{{said, Plain}, {v.curve(turns, width-len(said)), Good}}
}

// alarms say what is wrong now, in the fewer words the higher shorter is, up to 2.
func (v *View) alarms(shorter int) (line Line) {
	say := func(s Style, text string) {
		if line != nil {
			text = gap + text
		}
		line = append(line, Piece{text, s})
	}
	late, asked := 0, []board.Row(nil)
	for _, r := range v.rows {
		if r.Late {
			late++
		}
		if r.Asked != nil {
			asked = append(asked, r)
		}
	}
	if v.Message != "" {
		say(Plain, v.Message)
	}
	if v.shown.Trouble != "" {
		say(Bad, v.old()+": "+v.shown.Trouble)
	}
	switch {
	case len(v.cycles) > 0 && shorter == 2:
		say(Bad, deadlock(v.cycles[0])+" (w)")
	case len(v.cycles) > 0:
		say(Bad, fmt.Sprintf("%s of %s (w shows it)", deadlock(v.cycles[0]),
			count(v.cycles[0].Sessions(), "Session")))
	}
	switch {
	case late > 0 && shorter == 0:
		say(Warn, count(late, "late lease"))
	case late > 0:
		say(Warn, fmt.Sprintf("%d late", late))
	}
	switch {
	case len(asked) == 1 && shorter == 0:
		say(Warn, quote.Text(asked[0].Asked.By)+" recalls "+quote.Text(asked[0].Name))
	case len(asked) == 1 && shorter == 1:
		say(Warn, "1 recalled by "+quote.Text(asked[0].Asked.By))
	case len(asked) > 0:
		say(Warn, fmt.Sprintf("%d recalled", len(asked)))
	}
	if v.paused {
		say(Warn, "paused")
	}
	return line
}

// columns is how wide the columns are, each without the space before it. They are as wide as what
// they show. Name and holder share the rest: what one does not need is the other's. A column of no
// width is not shown.
type columns struct{ name, holder, held, wait, long, kind, lease, note int }

// leastNames is the room of name and holder below which other columns give way.
const leastNames = 24

func (v *View) columns() columns {
	c := columns{0, len("HELD BY"), len(v.head(board.ByHeld)), len(v.head(board.ByWaiting)),
		len(v.head(board.ByLongest)), len("KIND"), len(v.head(board.ByLease)),
		len(v.head(board.ByTrouble))}
	c.name = len(v.head(board.ByName))
	for _, r := range v.visible() {
		note, _ := noteOf(r)
		c.name = max(c.name, cells.Width(quote.Text(r.Name)))
		c.holder = max(c.holder, cells.Width(holderOf(r)))
		c.held = max(c.held, len(v.heldOf(r)))
		c.wait = max(c.wait, len(number(r.Waiting)))
		c.kind = max(c.kind, cells.Width(kind(r.Lock)))
		c.lease = max(c.lease, len(leaseText(r.Lease)))
		c.note = max(c.note, len(note))
	}
	rest := v.Width - c.held - c.wait - c.long - c.kind - c.lease - c.note - 7
	for _, column := range []*int{&c.kind, &c.long} {
		if rest < leastNames {
			rest += *column + 1
			*column = 0
		}
	}
	rest = max(18, rest)
	share := rest - rest*9/20
	c.name = max(min(c.name, share), min(max(c.name, share), rest-c.holder))
	c.holder = rest - c.name
	return c
}

func (v *View) rowLines() []Line {
	c := v.columns()
	lines := []Line{v.headLine(c)}
	for i, r := range v.visible() {
		lines = append(lines, v.rowLine(r, c, v.offset+i == v.cursor))
	}
	return lines
}

// head is the head of a column, with a mark if rows are in its order.
func (v *View) head(o board.Order) string {
	if o == v.order {
		return o.String() + "*"
	}
	return o.String()
}

func (v *View) headLine(c columns) Line {
	text := cells.Pad(v.head(board.ByName), c.name) + " " + cells.Pad("HELD BY", c.holder) +
		c.middle(v.head(board.ByHeld), v.head(board.ByWaiting), v.head(board.ByLongest), "KIND") +
		cells.Right(v.head(board.ByLease), c.lease+1) + " " + v.head(board.ByTrouble)
	return Line{{cells.Pad(text, v.Width), Head}}
}

// middle is the columns between the holder and the lease.
func (c columns) middle(held, wait, long, kind string) string {
	text := cells.Right(held, c.held+1) + cells.Right(wait, c.wait+1)
	if c.long > 0 {
		text += cells.Right(long, c.long+1)
	}
	if c.kind > 0 {
		text += " " + cells.Pad(kind, c.kind)
	}
	return text
}

func (v *View) rowLine(r board.Row, c columns, selected bool) Line {
	style := func(s Style) Style {
		if selected {
			return s.selected()
		}
		return s
	}
	main := cells.Name(quote.Text(r.Name), c.name) + " " + holderIn(r, c.holder) +
		c.middle(v.heldOf(r), number(r.Waiting), age(r.Longest, r.Waiting > 0), kind(r.Lock))
	lease := cells.Right(leaseText(r.Lease), c.lease+1)
	note, noted := noteOf(r)
	return Line{{main, style(Plain)}, {lease, style(worst(r.Late, Bad))},
		{cells.Pad(" "+note, v.Width-cells.Width(main+lease)), style(noted)}}
}

// heldOf is for how long the holder of a row holds.
func (v *View) heldOf(r board.Row) string {
	if r.Holder == nil {
		return ""
	}
	return heldText(r.Holder, v.shown.Now)
}

// holderOf says who holds a lock, and how many besides.
func holderOf(r board.Row) string {
	who, more := holders(r)
	return who + more
}

// holderIn is holderOf in n cells. How many more there are stays in sight.
func holderIn(r board.Row, n int) string {
	who, more := holders(r)
	if cells.Width(who+more) > n {
		more = strings.TrimSuffix(more, " more")
	}
	return cells.Pad(cells.Middle(who, max(1, n-len(more)))+more, n)
}

func holders(r board.Row) (who, more string) {
	switch {
	case r.Holder == nil:
		return "(free)", ""
	case r.Holding > 1:
		return r.Holder.Whose(), fmt.Sprintf(" +%d more", r.Holding-1)
	}
	return r.Holder.Whose(), ""
}

// noteOf is what is unusual about a lock.
func noteOf(r board.Row) (string, Style) {
	switch {
	case r.Cycle != nil && !r.Cycle.Deadlock:
		return "deadlock?", Bad
	case r.Cycle != nil:
		return "deadlock", Bad
	case r.Late:
		return "late", Bad
	case r.Asked != nil:
		return "recalled", Warn
	case r.Kept > 0:
		return "free in " + short(r.Kept), Warn
	case r.Holder == nil:
		return "free", Faint
	}
	return "", Plain
}

func worst(is bool, s Style) Style {
	if is {
		return s
	}
	return Plain
}

func (v *View) footer() (lines []Line) {
	if v.asks != nil {
		for _, part := range cells.Wrap(v.question(), v.Width) {
			lines = append(lines, Line{{part, Bad}})
		}
		return lines
	}
	if v.typing {
		return []Line{{{"filter: " + quote.Text(v.filter) + "_   (Enter keeps it, Esc drops it)", Bold}}}
	}
	text := "F1 help  / filter  < > order  Enter line  t time  w waits  Space pause  q quit"
	if v.mode != list {
		text = "Esc back  q quit"
	}
	if v.mode == detail {
		if v.Recall {
			text += "  r recall"
		}
		if v.Break {
			text += "  b break"
		}
	}
	if v.filter != "" {
		text = "filter: " + quote.Text(v.filter) + "  " + text
	}
	return []Line{{{text, Faint}}}
}

// detailLines show one lock, with its line.
func (v *View) detailLines() []Line {
	head := v.headLines()[1]
	l := v.lock()
	if l == nil {
		gone := Line{{"nobody holds it or waits", Faint}}
		if v.shown.Trouble != "" {
			gone = Line{{v.old(), Faint}}
		}
		return v.fill([]Line{{{quote.Text(v.selected), Bold}}, head, {}, gone}, v.footer()...)
	}
	v.place = max(0, min(v.place, len(l.Places)-1))
	owner, session := len("OWNER"), 0
	for _, p := range l.Places {
		owner = max(owner, cells.Width(p.Whose()))
	}
	if v.Width >= 100 {
		session = 16
	}
	owner = max(14, min(owner, v.Width-51-session))
	row := func(what, by, queued, held, lease, id, token, info string) string {
		text := cells.Pad(what, 8) + " " + cells.Name(by, owner) + cells.Right(queued, 8) +
			cells.Right(held, 8) + cells.Right(lease, 12)
		if session > 0 {
			text += "  " + cells.Pad(id, session)
		}
		return cells.Pad(text+cells.Right(token, 7)+" "+info, v.Width)
	}
	first := Line{{quote.Text(l.Name), Bold}, {"  " + kindInWords(l), Plain},
		{gap, Plain}}
	first = append(first, v.locked(l.Turns, v.Width-first.width())...)
	lines := []Line{first, head,
		{{row("PLACE", "OWNER", "QUEUED", "HELD", "LEASE", "SESSION", "TOKEN", "INFO"), Head}}}
	from := max(0, v.place-max(1, v.Height-10))
	for i := from; i < len(l.Places); i++ {
		p := l.Places[i]
		lease := v.shown.Leases[p.Lease]
		what, held := fmt.Sprintf("waits %d", i), ""
		if p.Holds {
			what, held = "holds", heldText(p, v.shown.Now)
			if !p.Until.IsZero() {
				what = "kept " + short(max(0, p.Until.Sub(v.shown.Now)))
			}
		}
		style := worst(lease.Late(), Bad)
		if i == v.place {
			style = style.selected()
		}
		queued := age(p.InLine(v.shown.Now), !p.Queued.IsZero())
		lines = append(lines, Line{{row(what, p.Whose(), queued, held, leaseText(lease), p.Session,
			fmt.Sprint(p.Token), quote.Text(p.Info)), style}})
		if p.Recall != nil {
			lines = append(lines, v.below(v.recalled(p), Warn)...)
		}
		if i == v.place {
			lines = append(lines, v.below(v.whole(p), Plain)...)
		}
	}
	return v.fill(lines, v.footer()...)
}

// below is text below a row, on as many lines as it needs.
func (v *View) below(text string, s Style) (lines []Line) {
	const indent = "         "
	for _, part := range cells.Wrap(text, v.Width-len(indent)) {
		lines = append(lines, Line{{indent + part, s}})
	}
	return lines
}

// whole is what the row of a place may cut, or does not say.
func (v *View) whole(p *board.Place) string {
	clock := func(t time.Time) string { return t.In(v.shown.Now.Location()).Format(time.DateTime) }
	text := p.Whose()
	if !p.Queued.IsZero() {
		text += ", queued " + clock(p.Queued)
	}
	switch {
	case p.Holds && !p.Held.IsZero():
		text += ", holds since " + clock(p.Held)
	case p.Holds && p.Waited:
		text += ", holds since some time after that"
	}
	if p.Holds && !p.Until.IsZero() {
		text += ", its hold is over, and the lock is free in " + short(max(0, p.Until.Sub(v.shown.Now)))
	}
	text += ", session " + p.Session
	if p.Info != "" {
		text += ", info " + quote.Text(p.Info)
	}
	return text
}

// recalled says what a place was asked, and how much of the grace is left.
func (v *View) recalled(p *board.Place) string {
	text := "recalled by " + quote.Text(p.Recall.By)
	if p.Recall.Reason != "" {
		text += " (" + quote.Text(p.Recall.Reason) + ")"
	}
	if p.Recall.Asked.IsZero() {
		return text + ", grace " + short(p.Recall.Grace)
	}
	over := p.Recall.Grace - v.shown.Now.Sub(p.Recall.Asked)
	return fmt.Sprintf("%s, %s of %s left", text, short(max(0, over)), short(p.Recall.Grace))
}

// waitLines show which Session waits for which, cycles first.
func (v *View) waitLines() []Line {
	lines := []Line{{{"Which Session waits for which", Bold}}}
	for _, cycle := range v.cycles {
		lines = append(lines, Line{}, Line{{deadlock(cycle) + ": these wait for each other", Bad}})
		for _, w := range cycle.Waits {
			lines = append(lines, Line{{waitText(w), Bad}})
		}
	}
	lines = append(lines, Line{})
	if len(v.waiting) == 0 {
		lines = append(lines, Line{{"no Session waits for another one", Faint}})
	}
	for _, w := range v.waiting[:min(len(v.waiting), v.Height)] {
		lines = append(lines, Line{{waitText(w), Plain}})
	}
	return v.fill(lines, v.footer()...)
}

// deadlock says what a cycle is.
func deadlock(c board.Cycle) string {
	if c.Deadlock {
		return "deadlock"
	}
	return "possible deadlock"
}

func waitText(w board.Wait) string {
	return fmt.Sprintf("  %s (%s) waits for %s (%s) at %s", quote.Text(w.Owner), w.Session,
		quote.Text(w.Holder), w.Behind, quote.Text(w.Lock))
}

func (v *View) helpLines() []Line {
	texts := []string{
		"etcdlock top shows each lock, live. It writes nothing unless --allow says so.", "",
		"HELD BY  +1 more: two hold together",
		"HELD     how long its holder holds; <25s: less than that, it has waited before",
		"WAIT     how many wait; LONGEST: how long the one that waits longest",
		"KIND     excl, read 3 (three hold together), permit 2/5 (two of at most five)",
		"LEASE    what is left of the holder's lease; red: renewals are late",
		"NOTE     deadlock (? possible), late, recalled, free, free in 20s (kept for so",
		"         long, though its hold is over); in its order trouble comes first", "",
		"Up Down PgUp PgDn Home End (k j g G)   move",
		"Enter  one lock with its line          Esc   back",
		"/ F4   filter: part of a name, owner, host or info;",
		"       late, recalled, kept, waiting",
		"< > F6 order                           w     which Session waits for which",
		"t      time: a lane of the last minutes, in the colour of the owner, lower where",
		"       the lock was held for a part of the time that a character stands for",
		"Space  pause                           q F10 quit",
		"r b    recall or break the holder, or in a line the place under the cursor",
		"       (--allow recall,break)",
	}
	var lines []Line
	for _, text := range texts {
		lines = append(lines, Line{{text, Plain}})
	}
	return v.fill(lines, v.footer()...)
}

// ---- texts

// blocks are the heights of a curve.
var blocks, bars = []rune(" ▁▂▃▄▅▆▇█"), []rune(" .,:;-=+#")

// curve is a curve of points in at most n characters: the newest, at its right end, are in sight.
func (v *View) curve(points []int, n int) string {
	points = points[max(0, len(points)-max(0, n)):]
	heights, most := blocks, max(1, slices.Max(append([]int{0}, points...)))
	if v.ASCII {
		heights = bars
	}
	text := make([]rune, len(points))
	for i, n := range points {
		text[i] = heights[(n*(len(heights)-1)+most-1)/most]
	}
	return string(text)
}

func kind(l *board.Lock) string {
	switch l.Kind {
	case "exclusive":
		return "excl"
	case "read":
		return fmt.Sprint("read ", l.Holding)
	case "permit":
		return fmt.Sprintf("permit %d/%d", weight(l), l.Limit)
	}
	return l.Kind
}

func kindInWords(l *board.Lock) string {
	switch l.Kind {
	case "read":
		return fmt.Sprintf("%s hold together", count(l.Holding, "reader"))
	case "permit":
		return fmt.Sprintf("%d permits of %d are held", weight(l), l.Limit)
	case "mixed":
		return "readers, permits or exclusive holders in one line"
	}
	return l.Kind
}

// weight is how many permits are held.
func weight(l *board.Lock) (sum int) {
	for _, p := range l.Places[:l.Holding] {
		sum += p.Weight
	}
	return sum
}

// heldText is empty until it is known for how long a place holds, or that it has waited before.
func heldText(p *board.Place, now time.Time) string {
	switch {
	case !p.Held.IsZero():
		return short(p.HeldFor(now))
	case p.Waited:
		return "<" + short(p.HeldFor(now))
	}
	return ""
}

func age(d time.Duration, is bool) string {
	if !is {
		return ""
	}
	return short(d)
}

// short is a time in two units at most.
func short(d time.Duration) string {
	s := int(d / time.Second)
	switch {
	case s < 100:
		return fmt.Sprintf("%ds", s)
	case s < 6000:
		return fmt.Sprintf("%dm%02d", s/60, s%60)
	case s < 360000:
		return fmt.Sprintf("%dh%02d", s/3600, s/60%60)
	case s > 9999*86400: // a year that somebody has written
		return ">9999d"
	}
	return fmt.Sprintf("%dd", s/86400)
}

func leaseText(l board.Lease) string {
	switch {
	case l.Granted == 0 && l.Left == 0:
		return ""
	case l.Left < 0:
		return "gone"
	}
	if l.Granted >= 1000 {
		return fmt.Sprintf("%d of %dm", l.Left/60, l.Granted/60)
	}
	return fmt.Sprintf("%d of %ds", l.Left, l.Granted)
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
