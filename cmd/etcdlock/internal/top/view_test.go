package top

import (
	"flag"
	"fmt"
	"html"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/cells"
	"github.com/etcdlock/etcdlock/internal/quote"
)

var update = flag.Bool("update", false, "write the golden screens and the picture anew")

var start = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// shop is the board of a shop, of each kind of lock with all that can be unusual.
func shop() *board.Board {
	b := board.New()
	rev := int64(0)
	put := func(lock, tail string, session int64, since int, more string) *clientv3.Event {
		rev++
		value := fmt.Sprintf(`{"owner":"api-%d:%d","host":"api-%[1]d","pid":%[2]d%s,"since":%q}`, session,
			1000+session, more, at(since).Format(time.RFC3339))
		if more == "none" {
			value = ""
		}
		return &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{
			Key: []byte(lock + "/" + tail), CreateRevision: rev, ModRevision: rev, Version: 1,
			Lease: session, Value: []byte(value)}}
	}
	n := 0
	excl := func() string {
		n++
		return fmt.Sprintf("%08x-0000-4000-8000-%012x", n, n)
	}
	read := func() string { n++; return fmt.Sprintf("ffffffff-0000-8000-8000-%012x", n) }
	permit := func() string { n++; return fmt.Sprintf("fffffffe-0001-8000-8000-0003%08x", n) }
	b.Read(at(-9000), 1, nil)
	// By the time at which each was put: the board's time does not go back.
	apply := func(since int, events ...*clientv3.Event) { b.Apply(at(since), rev, events) }
	apply(-8640, put("leader/billing", excl(), 1, -8640, `,"recallable":true,"info":"10.0.0.1:8080"`))
	apply(-8000, put("leader/billing", excl(), 2, -8000, `,"recallable":true`))
	apply(-7000, put("leader/billing", excl(), 3, -7000, "none"))
	apply(-300, put("orders/42", excl(), 7, -300, ""))
	for i := range 19 { // a busy lock
		busy := put("orders/1", excl(), 1, -100+5*i, "")
		for range 1 + i*7%5 {
			apply(-100+5*i, busy)
			apply(-100+5*i, &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: busy.Kv})
		}
	}
	apply(-40, put("nightly", excl(), 8, -40, `,"until":"2026-11-27T12:00:20Z"`))
	apply(-30, put("thumbnails", permit(), 3, -30, ""), put("thumbnails", permit(), 4, -29, ""))
	apply(-20, put("catalog", read(), 1, -20, ""))
	apply(-15, put("catalog", read(), 2, -15, ""), put("catalog", excl(), 4, -12, ""))
	apply(-5, put("orders/1", excl(), 1, -5, ""))
	apply(-3, put("stock/7", excl(), 5, -3, ""), put("stock/9", excl(), 6, -3, ""))
	apply(-2, put("stock/7", excl(), 6, -2, ""), put("stock/9", excl(), 5, -2, ""))
	apply(-1, put("names\x1b[2Jof evil", excl(), 9, -1, ""))
	asked := put("leader/billing", fmt.Sprintf("%08x-0000-4000-8000-%012x", 1, 1), 1, -8640,
		`,"recallable":true,"info":"10.0.0.1:8080","recall":{"id":"1","by":"ops@desk",`+
			`"reason":"rolling update","grace_ms":30000}`)
	asked.Kv.CreateRevision, asked.Kv.Version = 1, 2
	b.Apply(at(-10), rev, []*clientv3.Event{asked})
	for session := range int64(10) {
		b.Heard(at(0), session, 10+session%5, 15)
	}
	b.Heard(at(0), 7, 4, 15)
	return b
}

// view is a View of the shop after some keys.
func view(width, height int, keys ...Key) *View {
	v := &View{Width: width, Height: height, Recall: true, Break: true}
	v.Show(shop().Picture(start, 0))
	for _, k := range keys {
		v.Press(k)
	}
	return v
}

// lanes is a View of what some locks did in the last minutes: a hand-over, a job that runs now and
// then, a recall, a loss, a break, and a time in which etcd did not answer.
func lanes(width int, keys ...Key) *View {
	b, rev := board.New(), int64(1)
	b.Read(at(-290), rev, nil)
	put := func(seconds int, lock string, session int) *mvccpb.KeyValue {
		rev++
		kv := &mvccpb.KeyValue{CreateRevision: rev, ModRevision: rev, Version: 1, Lease: int64(session),
			Key:   fmt.Appendf(nil, "%s/%08x-0000-4000-8000-%012[2]x", lock, rev),
			Value: fmt.Appendf(nil, `{"owner":"api-%d"}`, session)}
		b.Apply(at(seconds), rev, []*clientv3.Event{{Type: clientv3.EventTypePut, Kv: kv}})
		return kv
	}
	goes := func(seconds int, kv *mvccpb.KeyValue) {
		rev++
		b.Apply(at(seconds), rev, []*clientv3.Event{{Type: clientv3.EventTypeDelete, Kv: kv}})
	}
	leader := put(-280, "leader/billing", 1)
	second := put(-279, "leader/billing", 2)
	schema := put(-270, "migrations/schema", 3)
	for i := range 3 {
		goes(-230+60*i, put(-260+60*i, "nightly", 4+i))
	}
	b.Breaks(string(schema.Key), true)
	goes(-105, schema)
	b.Heard(at(-101), 1, 0, 15)
	goes(-100, leader)
	b.Trouble(at(-61), "")
	b.Read(at(-40), rev, []*mvccpb.KeyValue{second})
	put(-20, "nightly", 7)
	asked := &mvccpb.KeyValue{Key: second.Key, CreateRevision: second.CreateRevision, Lease: 2,
		ModRevision: rev + 1, Version: 2,
		Value: []byte(`{"owner":"api-2","recall":{"id":"1","by":"ops","grace_ms":30000}}`)}
	b.Apply(at(-10), rev+1, []*clientv3.Event{{Type: clientv3.EventTypePut, Kv: asked}})
	v := &View{Width: width, Height: 10}
	v.Show(b.Picture(start, 0))
	v.Remember(b.History(start, 0))
	for _, k := range append(keys, 't') {
		v.Press(k)
	}
	return v
}

// The bars of an owner have one style in all lanes, which its name has, too, and others have other
// ones. A marked row is the one under the cursor.
func TestLanesHaveTheStylesOfOwners(t *testing.T) {
	lines := lanes(80).Lines()
	byStyle := func(line Line) (styles []Style) {
		for _, piece := range line {
			if piece.Style >= Owner {
				styles = append(styles, piece.Style)
			}
		}
		return styles
	}
	leader := slices.Compact(byStyle(lines[5][3:]))
	require.Equal(t, []Style{Owner, Owner + 1}, leader, "api-1, api-2")
	require.Equal(t, SelectedWarn, lines[5][0].Style, "it is recalled")
	require.Equal(t, Piece{"api-2  ", leader[1]}, lines[5][1])
	nightly := slices.Compact(byStyle(lines[7][3:]))
	require.Len(t, nightly, 4, "each time another")
	require.Equal(t, Piece{"api-7  ", nightly[3]}, lines[7][1])
	v := lanes(80)
	v.ASCII = true
	require.Regexp(t, `(?m)^leader/billing +api-2 +/+ \S#+x#+r#+$`, text(v.Lines()))
	v.Press('t')
	require.Contains(t, text(v.Lines()), "LONGEST")
}

// At each width a line above the lanes says what their marks mean, in the colours of these.
func TestALegendSaysWhatLanesShow(t *testing.T) {
	for width, held := range map[int]string{60: "█ held  ▄ partly  x",
		80:  "█ held  ▄ partly  gap free",
		96:  "█ held, in its owner's colour  ▄ partly  gap free",
		240: "▄ for a part of that time  gap nobody held it  x lost: its lease ended"} {
		v := lanes(width)
		legend := v.Lines()[3]
		require.LessOrEqual(t, legend.width(), width)
		said := text([]Line{legend})
		require.Contains(t, said, held)
		for _, is := range []string{"x lost", "b broken", "r recalled", "/ unk"} {
			require.Regexp(t, `(^|  )`+is, said, width)
		}
		styles := make(map[string]Style)
		for _, piece := range legend {
			styles[piece.Text] = piece.Style
		}
		require.Equal(t, []Style{Owner, Owner, Bad, Bad, Warn, Faint}, []Style{styles["█"],
			styles["▄"], styles["x"], styles["b"], styles["r"], styles["/"]})
	}
	v := lanes(80)
	v.ASCII = true
	require.Contains(t, text(v.Lines()), "# held  ; partly")
	v.Height = 8 // so that three locks have room, but not with the legend
	for _, k := range []Key{'t', End, 't'} {
		v.Press(k)
	}
	require.Contains(t, text(v.Lines()), v.rows[2].Name, "the cursor stays in sight")
}

// The head of the lanes says which time stands where: a mark of the lane is below its time.
func TestTheLanesHaveTimes(t *testing.T) {
	for width, labels := range map[int][]string{60: {"5 min ago", "3 min"}, 80: {"5 min ago", "3 min",
		"2 min"}, 200: {"5 min ago", "4 min", "3 min", "2 min", "1 min"}} {
		v := lanes(width)
		lines := strings.Split(text(v.Lines()), "\n")
		axis, lane := []rune(lines[4]), []rune(lines[5])
		require.True(t, strings.HasSuffix(lines[4], "now|"), lines[4])
		require.Len(t, axis, width, "now is at the right end")
		_, _, n := v.laneColumns()
		at := func(label string) int { return strings.Index(lines[4], "|"+label) }
		for _, label := range labels {
			require.Equal(t, width-int(label[0]-'0')*n/5, at(label), "%s at %d", label, width)
		}
		lost := slices.Index(lane, 'x') // 1m40 ago
		require.Greater(t, lost, at("2 min"))
		require.InDelta(t, width-n/3, lost, 1)
	}
	v := lanes(80)
	for since, first := range map[time.Duration]string{10 * time.Second: "|1 min ago",
		100 * time.Second: "|2 min ago", time.Hour: "|10 min ago"} {
		v.history.Since = v.shown.Now.Add(-since)
		require.True(t, strings.HasPrefix(v.axis(50), first), v.axis(50))
	}
	for n := range 12 {
		require.Len(t, v.axis(n), n)
	}
}

// A line above the lanes says which holds were lost or broken, the newest first, as many as fit, or
// that none was.
func TestALineSaysWhichHoldsEndedBadly(t *testing.T) {
	ends := func(v *View) Line { return v.Lines()[2] }
	require.Equal(t, "api-1 lost leader/billing 1m40 ago, "+
		"an operator broke migrations/schema 1m45 ago\n", text([]Line{ends(lanes(80))}))
	require.Equal(t, Bad, ends(lanes(80))[1].Style)
	require.Equal(t, "api-1 lost leader/billing 1m40 ago, and 1 more\n", text([]Line{ends(lanes(79))}))
	v := lanes(80)
	v.history.Past = append(v.history.Past, board.Past{Lock: "old", Owner: "a", Holds: true,
		End: board.Lost, Gone: at(-301)}, board.Past{Lock: "waited", Owner: "a", End: board.Lost,
		Gone: at(-1)}, board.Past{Lock: "new", Owner: "b", Holds: true, End: board.Lost, Gone: at(-1)})
	require.Equal(t, "b lost new 1s ago, api-1 lost leader/billing 1m40 ago, and 1 more\n",
		text([]Line{ends(v)}))
	v.history.Past = nil
	require.Equal(t, Line{{"no hold was lost or broken in the last 4m50", Faint}}, ends(v))
}

// What is wrong with a lock stays red or yellow in the row under the cursor, and in a line.
func TestTroubleStaysInSightUnderTheCursor(t *testing.T) {
	v := view(80, 24)
	for _, c := range []struct {
		lock        string
		lease, note Style
	}{{"stock/7", Selected, SelectedBad}, {"stock/9", Selected, SelectedBad},
		{"orders/42", SelectedBad, SelectedBad}, {"leader/billing", Selected, SelectedWarn},
		{"catalog", Selected, Selected}} {
		row := v.Lines()[3+v.cursor]
		require.Equal(t, c.lock, v.selected)
		require.Equal(t, []Style{Selected, c.lease, c.note},
			[]Style{row[0].Style, row[1].Style, row[2].Style}, c.lock)
		v.Press('t')
		require.Equal(t, c.note, v.Lines()[5+v.cursor][0].Style, c.lock)
		v.Press('t')
		v.Press(Down)
	}
	v = view(80, 24, '/', '4', '2', Enter, Enter)
	require.Equal(t, SelectedBad, v.Lines()[3][0].Style, "its lease is late")
}

// However narrow the terminal is, what is wrong is said whole. First the kind gives way, then the
// longest wait.
func TestTroubleIsSaidWholeOnANarrowTerminal(t *testing.T) {
	for width := 60; width <= 200; width++ {
		v := view(width, 24)
		lines := strings.Split(text(v.Lines()), "\n")
		require.NotContains(t, lines[1], "~", width)
		for _, note := range []string{"deadlock?", "late", "recalled", "free in 20s"} {
			require.Regexp(t, `(?m) `+regexp.QuoteMeta(note)+`$`, strings.Join(lines[3:], "\n"), width)
		}
		kind, long := strings.Contains(lines[2], "KIND"), strings.Contains(lines[2], "LONGEST")
		require.False(t, kind && !long, lines[2])
		require.Equal(t, width >= 76, kind, width)
		require.Equal(t, width >= 65, long, width)
	}
}

// The newest end of the curve is in sight, however little room there is.
func TestTheCurveIsCutAtItsOldEnd(t *testing.T) {
	for _, width := range []int{60, 70, 78, 80} {
		v := view(width, 24)
		v.shown.Turns[board.Spans-1] = 99
		require.Regexp(t, `locked \d+/min .*█$`, strings.Split(text(v.Lines()), "\n")[0], width)
	}
	require.Empty(t, view(60, 24).curve([]int{1, 2}, -3))
}

// The head says who recalls, if it is one.
func TestTheHeadSaysWhoRecalls(t *testing.T) {
	require.Contains(t, text(view(80, 24).Lines()), "1 recalled by ops@desk")
	v := view(80, 24)
	v.rows[0].Asked = v.rows[3].Asked
	require.Regexp(t, `(?m)  2 recalled$`, text(v.Lines()))
	for i := range v.rows {
		v.rows[i].Asked = nil
	}
	require.NotContains(t, text(v.Lines()[1:2]), "recalled")
}

// unread is a View of an etcd that has not answered yet.
func unread() *View {
	b := board.New()
	b.Trouble(start, "etcd at 10.0.0.1:2379 did not answer in 5s")
	v := &View{Width: 80, Height: 8}
	v.Show(b.Picture(start, 0))
	return v
}

// owners is a View of a lock whose holder has a name, and was there before the View. It has waited.
func owners(keys ...Key) *View {
	b := board.New()
	kv := &mvccpb.KeyValue{Key: []byte("reports/nightly/00000001-0000-4000-8000-000000000001"),
		CreateRevision: 4, ModRevision: 4, Version: 1, Lease: 0x694da2042e049413,
		Value: []byte(`{"owner":"billing-7","host":"vm","pid":26336,` +
			`"info":"invoices of november","since":"2026-11-27T11:59:52Z"}`)}
	b.Read(at(-1), 9, []*mvccpb.KeyValue{kv})
	b.Began("reports/nightly", string(kv.Key), 4, false)
	v := &View{Width: 80, Height: 10}
	v.Show(b.Picture(start, 0))
	for _, k := range keys {
		v.Press(k)
	}
	return v
}

// names is a View of locks whose names are long, or of several scripts.
func names(width int) *View {
	b := board.New()
	var kvs []*mvccpb.KeyValue
	for i, name := range []string{
		"tenants/8f14e45f-ceea-467f-a0f7-5d2f3c1b9e00/invoices/region-eu-west-1/shard-0001",
		"tenants/8f14e45f-ceea-467f-a0f7-5d2f3c1b9e00/invoices/region-eu-west-1/shard-0002",
		"在庫/東京第二倉庫", "창고/서울", "مخزن/القاهرة", "गोदाम/दिल्ली", "deploy/🚀",
		"e\u0301te\u0301", "orders/42",
	} {
		n := int64(i + 1)
		kvs = append(kvs, &mvccpb.KeyValue{CreateRevision: n, ModRevision: n, Version: 1, Lease: n,
			Key:   fmt.Appendf(nil, "%s/%08x-0000-4000-8000-%012[2]x", name, n),
			Value: fmt.Appendf(nil, `{"owner":"%s:%d","since":"2026-11-27T11:59:52Z"}`, name, n)})
	}
	b.Read(at(-1), 9, kvs)
	v := &View{Width: width, Height: 14}
	v.Show(b.Picture(start, 0))
	return v
}

// No bound shows before etcd was asked whether the holder has waited.
func TestABoundShowsOnlyOfOneThatHasWaited(t *testing.T) {
	p := &board.Place{Holds: true, Queued: at(-8)}
	require.Empty(t, heldText(p, start))
	p.Waited = true
	require.Equal(t, "<8s", heldText(p, start))
	p.Held = at(-5)
	require.Equal(t, "5s", heldText(p, start))
	require.Empty(t, heldText(&board.Place{Holds: true, Seen: at(-8)}, start), "another program's")
}

// r and b in the list are about the first holder of the lock under the cursor.
func TestTheListRecallsAndBreaks(t *testing.T) {
	v := view(80, 24, '>', Home, 'b', '1')
	require.Contains(t, text(v.Lines()), "Break leader/billing, held by api-1:1001?")
	_, broken := v.Press(Enter)
	require.NotNil(t, broken)
	require.Equal(t, []any{"leader/billing", int64(1)}, []any{broken.Lock, broken.Place.Token})
	v = view(80, 24, '>', Home, Down, 'r')
	require.Equal(t, list, v.mode)
	require.Contains(t, text(v.Lines()), "has not said that it listens")
	v = view(80, 24)
	v.Recall, v.Break = false, false
	v.Press('b')
	require.Contains(t, text(v.Lines()), "not allowed: start top with --allow")
	v = &View{Width: 80, Height: 24, Break: true}
	v.Press('b')
	v.Show(board.New().Picture(start, 0))
	v.Press('b')
	require.Nil(t, v.asks)
}

func text(lines []Line) string {
	var out strings.Builder
	for _, line := range lines {
		var row strings.Builder
		for _, piece := range line {
			row.WriteString(piece.Text)
		}
		out.WriteString(strings.TrimRight(row.String(), " ") + "\n")
	}
	return out.String()
}

// golden compares what a test shows with what a file has.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestGoldenScreens(t *testing.T) {
	for name, v := range map[string]*View{
		"list":     view(80, 24),
		"wide":     view(120, 30),
		"list-60":  view(60, 24),
		"list-200": view(200, 24),
		"small":    view(80, 8, End),
		"order":    view(80, 24, '>', '>', '>'),
		"detail":   view(100, 24, '>', Home, Enter),
		"readers":  view(100, 24, '/', 'c', 'a', 't', Enter, Enter),
		"waits":    view(80, 24, 'w'),
		"help":     view(80, 24, F1),
		"filter":   view(80, 24, '/', 'l', 'a', 't', 'e'),
		"question": view(80, 24, '>', Home, Enter, 'b'),
		"unread":   unread(),
		"names-60": names(60), "names-80": names(80), "names-200": names(200),
		"time-60": lanes(60), "time-80": lanes(80), "time-200": lanes(200),
		"owners": owners(),
		"owner":  owners(Enter),
	} {
		t.Run(name, func(t *testing.T) {
			lines := v.Lines()
			require.Len(t, lines, v.Height)
			for _, line := range lines {
				n := 0
				for _, piece := range line {
					n += cells.Width(piece.Text)
					require.NotContains(t, piece.Text, "\x1b")
				}
				require.LessOrEqual(t, n, v.Width)
			}
			golden(t, name+".txt", text(lines))
		})
	}
}

// Nothing is written without the right answer, and nothing that is not allowed.
func TestOnlyTheRightAnswerActs(t *testing.T) {
	presses := func(v *View, keys string) (target *Target) {
		for _, k := range keys {
			if k == '\n' {
				k = rune(Enter)
			}
			quit, do := v.Press(Key(k))
			require.False(t, quit)
			if do != nil {
				require.Nil(t, target)
				target = do
			}
		}
		return target
	}
	v := view(80, 24, '>', Home, Enter)
	require.Equal(t, "leader/billing", v.selected)
	for _, keys := range []string{"b\n", "byes\n", "b12\n", "b0\n", "r\n", "ry\n", "rno\n", "r1\n"} {
		require.Nil(t, presses(v, keys), keys)
		require.Equal(t, "nothing was done", v.Message)
	}
	require.Nil(t, presses(v, "b1"))
	v.Press(Esc)
	require.Nil(t, presses(v, "\n"))

	broken := presses(v, "b1\n")
	require.NotNil(t, broken)
	require.True(t, broken.Break)
	require.Equal(t, []any{"leader/billing", int64(1)}, []any{broken.Lock, broken.Place.Token})
	recalled := presses(v, "jryes\n")
	require.NotNil(t, recalled)
	require.False(t, recalled.Break)
	require.Equal(t, int64(2), recalled.Place.Token)
	require.Nil(t, presses(v, "jr"), "it is of another program")
	require.Contains(t, v.Message, "not said")

	v = view(80, 24, '>', Home, Enter)
	v.Recall, v.Break = false, false
	for _, keys := range []string{"b1\n", "ryes\n"} {
		require.Nil(t, presses(v, keys))
		v.Press(Key(keys[0]))
		require.Contains(t, v.Message, "not allowed")
	}
}

// The cursor stays on its lock when others come, and the list scrolls with it.
func TestTheCursorStaysOnItsLock(t *testing.T) {
	v := view(80, 8, End)
	require.Equal(t, v.rows[len(v.rows)-1].Name, v.selected)
	require.Contains(t, text(v.Lines()), quote.Text(v.selected))
	was := v.selected
	b := shop()
	b.Apply(start, 999, []*clientv3.Event{{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{
		Key: []byte("zz/1a"), CreateRevision: 999, ModRevision: 999, Version: 1, Lease: 0x1a}}})
	v.Show(b.Picture(start, 0))
	require.Equal(t, was, v.selected)
	require.Equal(t, was, v.rows[v.cursor].Name)
	v.Press(' ')
	v.Show(shop().Picture(start, 0))
	require.Len(t, v.shown.Locks, 10, "it is paused")
	v.Press(Home)
	require.Zero(t, v.offset)
	quit, _ := v.Press('q')
	require.True(t, quit)
}

// The pictures of the pages are screens of these tests.
func TestThePicturesAreThoseScreens(t *testing.T) {
	golden(t, "../../../../../docs/top.svg", svg(view(96, 16).Lines(), 96))
	golden(t, "../../../../../docs/top-time.svg", svg(lanes(96).Lines(), 96))
}

// svg draws lines as a terminal does.
func svg(lines []Line, columns int) string {
	const wide, high, gap = 8.4, 18, 12
	fill := map[Style]string{Plain: "#d0d0d0", Bold: "#ffffff", Head: "#101418", Selected: "#101418",
		SelectedWarn: "#101418", SelectedBad: "#101418",
		Good: "#7ec97e", Warn: "#e0c060", Bad: "#ff7070", Faint: "#8a8f98",
		Owner: "#3f8cff", Owner + 1: "#e8662a", Owner + 2: "#20d595", Owner + 3: "#dea0ee",
		Owner + 4: "#d9f068", Owner + 5: "#818596"}
	var out strings.Builder
	w, h := float64(columns)*wide+2*gap, len(lines)*high+2*gap
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" role="img" `+
		`aria-label="etcdlock top">`+"\n"+
		`<rect width="100%%" height="100%%" rx="6" fill="#101418"/>`+"\n"+
		`<g font-family="monospace" font-size="14" xml:space="preserve">`+"\n", w, h)
	for y, line := range lines {
		x := 0
		for _, piece := range line {
			at, n := gap+float64(x)*wide, cells.Width(piece.Text)
			x += n
			top := gap + y*high
			if ground := map[Style]string{Head: "#d0d0d0", Selected: "#d0d0d0", SelectedWarn: "#e0c060",
				SelectedBad: "#ff7070"}[piece.Style]; ground != "" {
				fmt.Fprintf(&out, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n",
					at, top, float64(n)*wide, high, ground)
			}
			if strings.TrimSpace(piece.Text) == "" {
				continue
			}
			weight := ""
			if slices.Contains([]Style{Bold, Bad, Selected, SelectedWarn, SelectedBad}, piece.Style) {
				weight = ` font-weight="bold"`
			}
			fmt.Fprintf(&out, `<text x="%.1f" y="%d" textLength="%.1f" fill="%s"%s>%s</text>`+"\n", at,
				top+high-5, float64(n)*wide, fill[piece.Style], weight,
				strings.ReplaceAll(html.EscapeString(piece.Text), " ", "\u00a0"))
		}
	}
	return out.String() + "</g>\n</svg>\n"
}

// However narrow the terminal is, and while etcd does not answer: what is not known is not free.
func TestLanesOfANarrowScreenAndOfAnEtcdThatIsAway(t *testing.T) {
	for width := range 12 {
		require.NotEmpty(t, lanes(width).Lines())
	}
	v := lanes(80)
	v.shown.Trouble, v.shown.Known = "etcd did not answer", v.shown.Now.Add(-2*time.Minute)
	require.True(t, v.unknown(v.shown.Now.Add(-time.Minute), time.Second))
	require.False(t, v.unknown(v.shown.Now.Add(-3*time.Minute), time.Second))
}
