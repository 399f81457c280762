//go:build browser

package main

import (
	"fmt"
	"net/http/httptest"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/ui"
)

// A past is what a board is told to have seen. Its times are in seconds ago.
type past struct {
	now      time.Time
	known    float64 // for so long the board has looked
	events   []event
	board    *board.Board
	places   int
	sessions []string // of each owner one: the number is its place here
}

// An event is what a board is told at a time, or something else that is done then.
type event struct {
	at   time.Time
	tell func(rev int64) *clientv3.Event
	do   func()
}

func newPast(known float64) *past {
	return &past{now: time.Now(), known: known, board: board.New()}
}

func (p *past) ago(seconds float64) time.Time {
	return p.now.Add(-time.Duration(seconds * float64(time.Second)))
}

func (p *past) session(owner string) int64 {
	if !slices.Contains(p.sessions, owner) {
		p.sessions = append(p.sessions, owner)
	}
	return int64(slices.Index(p.sessions, owner) + 1)
}

// stood has an owner stand in line from a time to another one; 0 is until now. kind is how keys
// begin that are not exclusive.
func (p *past) stood(lock, owner, kind string, from, to float64) *mvccpb.KeyValue {
	p.places++
	tail, session := fmt.Sprintf("%08x-0000-4000-8000-%012[1]x", p.places), p.session(owner)
	if kind != "" {
		tail = fmt.Sprintf("%s%08x", kind, p.places)
	}
	value := `{"owner":%q,"host":"vm-%d","pid":%d,"recallable":true,"since":%q}`
	kv := &mvccpb.KeyValue{Key: []byte(lock + "/" + tail), Version: 1, Lease: session,
		Value: fmt.Appendf(nil, value, owner, session, 4000+session,
			p.ago(from).UTC().Format(time.RFC3339Nano))}
	p.events = append(p.events, event{at: p.ago(from), tell: func(rev int64) *clientv3.Event {
		kv.CreateRevision, kv.ModRevision = rev, rev
		return &clientv3.Event{Type: clientv3.EventTypePut, Kv: kv}
	}})
	if to > 0 {
		p.events = append(p.events, event{at: p.ago(to), tell: func(int64) *clientv3.Event {
			return &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: kv.Key}}
		}})
	}
	return kv
}

// asked has a contender be asked to give the lock back.
func (p *past) asked(kv *mvccpb.KeyValue, ago float64) {
	p.events = append(p.events, event{at: p.ago(ago), tell: func(rev int64) *clientv3.Event {
		value := fmt.Appendf(nil, `%s,"recall":{"id":"1","by":"ops@desk","reason":"rolling update",`+
			`"grace_ms":90000}}`, kv.Value[:len(kv.Value)-1])
		return &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: kv.Key,
			Value: value, CreateRevision: kv.CreateRevision, ModRevision: rev, Version: 2,
			Lease: kv.Lease}}
	}})
}

// then has something happen.
func (p *past) then(ago float64, do func()) {
	p.events = append(p.events, event{at: p.ago(ago), do: do})
}

// page is the address of a page that shows the board.
func (p *past) page(t *testing.T) string {
	t.Helper()
	slices.SortStableFunc(p.events, func(a, b event) int { return a.at.Compare(b.at) })
	p.board.Read(p.ago(p.known), 1, nil)
	for i, e := range p.events {
		if e.do != nil {
			e.do()
			continue
		}
		rev := int64(i + 2)
		p.board.Apply(e.at, rev, []*clientv3.Event{e.tell(rev)})
	}
	p.board.Trouble(time.Now(), "")
	web := httptest.NewServer((&ui.Server{Board: p.board}).Handler())
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	return web.URL + "/"
}

const reads, permits = "ffffffff-0000-8000-8000-0000", "fffffffe-0001-8000-8000-0003"

// fleet is ten minutes of a shop in which some things go wrong.
func fleet() *past {
	p := newPast(570)
	// A leader was lost: its lease ended.
	p.stood("leader/billing", "billing-1", "", 560, 200)
	p.stood("leader/billing", "billing-2", "", 550, 0)
	p.then(201, func() { p.board.Heard(p.ago(201), p.session("billing-1"), 0, 15) })
	// A holder is stuck, a line grows behind it, and it was recalled.
	stuck := p.stood("reports/invoices-2026-11", "reports-3", "", 400, 0)
	for i := range 7 {
		owner := fmt.Sprint("reports-", 4+i)
		p.stood("reports/invoices-2026-11", owner, "", 330-45*float64(i), 0)
	}
	p.asked(stuck, 60)
	// Many take turns, with few gaps.
	for i := range 90 {
		at := 565 - 6.2*float64(i)
		owner := fmt.Sprint("checkout-", i%5+1)
		p.stood("orders/checkout", owner, "", at, max(.5, at-5.5-float64(i*7%4)))
	}
	// A job runs each two minutes.
	for i := range 5 {
		at := 540 - 120*float64(i)
		p.stood("cron/expire-carts", fmt.Sprint("cron-", i%2+1), "", at, at-25)
	}
	p.stood("cron/expire-carts", "cron-2", "", 12, 0)
	// Readers share, and so do three permits.
	for i := range 12 {
		at := 550 - 45*float64(i)
		p.stood("catalog/prices", fmt.Sprint("web-", i%3+1), reads, at, max(0, at-100))
	}
	for i := range 24 {
		at := 555 - 23*float64(i)
		p.stood("thumbnails", fmt.Sprint("batch-", i%4+1), permits, at, max(0, at-60))
	}
	// Two wait for each other.
	p.stood("stock/4711", "picker-1", "", 95, 0)
	p.stood("stock/4712", "picker-2", "", 94, 0)
	p.stood("stock/4711", "picker-2", "", 93, 0)
	p.stood("stock/4712", "picker-1", "", 92, 0)
	export := "tenants/8f14e45f-ceea-467f-a0f7-5d2f3c1b9e00/export"
	p.stood(export, "export-1", "", 300, 150)
	p.stood(export, "export-2", "", 100, 0)
	broken := p.stood("migrations/schema", "deploy-17", "", 480, 240)
	p.then(240.5, func() { p.board.Breaks(string(broken.Key), true) })
	p.stood("migrations/schema", "deploy-18", "", 300, 180)
	p.stood("migrations/schema", "deploy-18", "", 7, 0)
	for i := range p.sessions {
		p.then(0, func() { p.board.Heard(time.Now(), int64(i+1), int64(10+i%5), 15) })
	}
	return p
}

// Each lock has a lane: a bar for each hold, apart where nothing held, with marks, and the line's
// length above. It fits, at each width.
func TestThePageShowsLanes(t *testing.T) {
	p := fleet()
	evil := `<img src=x onerror=document.title=1>`
	p.stood(evil, evil, "", 70, 30)
	p.stood(evil, "next", "", 60, 0)
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#space .row", "leader/billing")
	b.fits(lanes)
	var head string
	b.eval(`return [...document.querySelector(".head .axis").children]
		.map(e => e.textContent).join(" ")`, &head)
	require.Regexp(t, `^10 min ago known for 9m3\d now$`, head)

	b.sized(1280, "light")
	// The pointer, and keys, go from bar to bar.
	b.eval(`[...document.querySelectorAll("#space .row")]
		.find(e => e.dataset.name === "leader/billing").focus()`, nil)
	b.keys("\ue012") // left
	b.shows("#tip", `^billing-2 \(vm-\d+:\d+\) has held for 3m\d+, .* to now, token \d+. Nobody`)
	b.keys("\ue012")
	b.shows("#tip", `^billing-1 .* held for 6m00, .* Lost: its lease ended. billing-2 .* waited`)
	b.keys("\ue007") // enter
	b.shows("#line tbody tr", `^holds | billing-2`)
	var dialog struct {
		Top        float64
		Shown      bool
		High, Wide float64
		Legend     []string
	}
	b.eval(`
		const dialog = document.getElementById("detail"), svg = document.querySelector("#time svg")
		const a = dialog.getBoundingClientRect(), b = svg.getBoundingClientRect()
		const row = dialog.querySelector("tbody tr").getBoundingClientRect()
		return {Top: dialog.scrollTop, Shown: row.top > b.bottom && row.bottom <= a.bottom && b.left >= a.left && b.right <= a.right,
			High: b.height, Wide: b.width / a.width, Legend: [...document.querySelectorAll("#legend li")].map(e => e.textContent)}`,
		&dialog)
	b.sized(1280, "light")
	require.Zero(t, dialog.Top)
	require.True(t, dialog.Shown)
	require.Greater(t, dialog.High, 60.0)
	require.Greater(t, dialog.Wide, .9)
	require.Equal(t, []string{"billing-1 (vm-1:4001)", "billing-2 (vm-2:4002)",
		"how many wait, up to 1", "lost: its lease ended", "unknown"}, dialog.Legend)
	b.types("#time svg", "\ue012\ue012")
	b.shows("#tip", `^billing-1 `)
	b.press("#close")

	b.point(evil, .97)
	b.shows("#tip", `^next `)
	b.point(evil, .92)
	b.shows("#tip", "^"+regexp.QuoteMeta(evil)+` .* held for 40s`)
	b.point("cron/expire-carts", .2)
	b.shows("#tip", ": nobody held it$")
	b.point("cron/expire-carts", .01)
	b.shows("#tip", ": not known$")
	var images int
	b.eval(`return document.images.length`, &images)
	require.Zero(t, images, "names are text")
}

// One line above the lanes says what is in them, at each width: once, in words that can be read, by
// the same marks.
func TestThePageSaysWhatTheLanesShow(t *testing.T) {
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": fleet().page(t)}, nil)
	b.shows("#space .row", "leader/billing")
	for _, width := range widths {
		for _, scheme := range []string{"light", "dark"} {
			b.sized(width, scheme)
			var seen struct {
				Wrong []string
				Words string
			}
			b.async(legendLooks, &seen)
			require.Empty(t, seen.Wrong, "at %d, %s", width, scheme)
			words := "held, in the colour of its owner, one of six|free|how many wait|" +
				"lost: its lease ended|broken by an operator|recalled: asked to give it back|unknown"
			switch {
			case width < 950:
				words = "held|free|wait|lost|broken|recalled|unknown"
			case width < 1200:
				words = "held|free|wait|lost|broken|recalled|unknown"
			}
			require.Equal(t, words, seen.Words, width)
		}
	}
	var title string
	b.eval(`return document.getElementById("turns").parentNode.title`, &title)
	require.Contains(t, title, "Holds that began in the last minute")
}

// legendLooks is what is wrong with the line that says what the lanes show.
const legendLooks = `requestAnimationFrame(() => setTimeout(() => {
	const wrong = [], all = [...document.querySelectorAll("#marks li")].filter(e => e.offsetParent)
	const boxes = all.map(e => e.getBoundingClientRect()), first = boxes[0]
	const light = text => {
		const part = c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4
		const [r, g, b] = text.match(/[\d.]+/g).map(Number)
		return .2126 * part(r) + .7152 * part(g) + .0722 * part(b) + .05
	}
	const contrast = (a, b) => Math.max(light(a) / light(b), light(b) / light(a))
	const back = getComputedStyle(document.body).backgroundColor
	if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the screen")
	boxes.forEach((a, i) => {
		const e = all[i], style = getComputedStyle(e)
		if (a.top !== first.top || a.height > 24) wrong.push(e.textContent + " is on another line")
		if (a.left < 4 || a.right > innerWidth - 4) wrong.push(e.textContent + " is cut")
		if (i && a.left < boxes[i - 1].right + 3) wrong.push(e.textContent + " touches " + all[i - 1].textContent)
		if (parseFloat(style.fontSize) < 11) wrong.push(e.textContent + " is small")
		if (contrast(style.color, back) < 4.5) wrong.push(e.textContent + " has a contrast of " + contrast(style.color, back))
	})
	const above = document.querySelector("#list").getBoundingClientRect()
	if (first.bottom > above.top || first.bottom < above.top - 60) wrong.push("it is not above the lanes")
	for (const e of document.querySelectorAll(".lane text, .lane li")) if (!/^\d*$/.test(e.textContent)) wrong.push("a lane has words")
	for (const kind of ["c0", "c1", "length", "lost", "broken", "recalled", "unknown"]) {
		const mark = document.querySelector("#marks ." + kind), drawn = document.querySelector(".lane ." + kind)
		const [a, b] = [mark, drawn].map(e => getComputedStyle(e))
		for (const what of ["stroke", "fill", "strokeOpacity"]) if (a[what] !== b[what]) wrong.push(kind + " has another " + what)
		const box = mark.getBoundingClientRect()
		if (!box.width || !box.height) wrong.push(kind + " is not drawn")
	}
	done({Wrong: wrong, Words: all.map(e => [...e.childNodes].filter(n => n.nodeType === 3 || n.offsetParent)
		.map(n => n.textContent).join("")).join("|")})
}, 300))`

// The lanes have times at their ends, at each width, and the curve of each has its scale: a number
// where the most have waited, which the line of the lock says in words.
func TestTheLanesOfThePageHaveScales(t *testing.T) {
	p := fleet()
	for i := range 12 {
		p.stood("zz/late-peak", fmt.Sprint("late-", i), "", 12-float64(i), 0)
	}
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#space .row", "leader/billing")
	b.fits(scales)
	b.eval(`[...document.querySelectorAll("#space .row")]
		.find(e => e.dataset.name === "reports/invoices-2026-11").click()`, nil)
	b.shows("#legend li", "how many  | , up to 7")
	b.shows("#begin", "^10 min ago, known for")
}

// scales is what is wrong with the times and numbers of the lanes of the fleet.
const scales = `requestAnimationFrame(() => setTimeout(() => {
	const wrong = [], most = {"reports/invoices-2026-11": "7", "stock/4711": "1", "leader/billing": "1",
		"cron/expire-carts": "", "zz/late-peak": "11"}
	const axes = [...document.querySelectorAll(".axis")].filter(e => e.offsetParent)
	if (axes.length !== 1) return done([axes.length + " lines of times"])
	const [from, , to] = [...axes[0].children].map(e => e.getBoundingClientRect())
	if (axes[0].textContent.replace(/known for \d+m\d+/, " ") !== "10 min ago now") wrong.push(axes[0].textContent)
	const said = [...axes[0].children].filter(e => e.offsetParent && e.textContent).map(e => e.getBoundingClientRect())
	said.forEach((b, i) => { if (i && b.left < said[i - 1].right + 4) wrong.push("times touch") })
	if (axes[0].scrollWidth > axes[0].clientWidth) wrong.push("times are cut")
	const colour = e => getComputedStyle(e)
	for (const row of document.querySelectorAll("#space .row")) {
		if (!row.offsetParent) continue
		const svg = row.querySelector(".lane svg"), lane = svg.getBoundingClientRect(), name = row.dataset.name
		if (Math.abs(from.left - lane.left) > 2 || Math.abs(to.right - lane.right) > 2) wrong.push("the times are not above " + name)
		if (from.bottom > lane.top && name === document.querySelector("#space .row").dataset.name) wrong.push("the times are below")
		const number = svg.querySelector("text"), box = number.getBoundingClientRect()
		if (name in most && number.textContent !== most[name]) wrong.push(name + " has the scale " + number.textContent)
		if (!number.textContent) continue
		if (parseFloat(colour(number).fontSize) < 11) wrong.push("small: " + name)
		if (box.left < lane.left || box.right > lane.right + .5) wrong.push("cut: the scale of " + name)
		if (colour(number).fill !== colour(document.body).color) wrong.push("faint: " + name)
		if (colour(number).stroke !== colour(row).backgroundColor && colour(row).backgroundColor !== "rgba(0, 0, 0, 0)")
			wrong.push("the ground of the scale of " + name)
		const peak = [...svg.querySelector(".length").getAttribute("d").matchAll(/H([\d.]+)V([\d.]+)/g)].find(m => m[2] === "1.0")
		const at = lane.left + Number(peak[1])
		if (Math.min(Math.abs(box.left - at), Math.abs(box.right - at)) > 6) wrong.push("the scale of " + name + " is not at its peak")
	}
	done(wrong)
}, 300))`

// The page says who recalls: above the list, in the line, and in the lane, of what has gone, too.
func TestThePageSaysWhoRecalls(t *testing.T) {
	p := newPast(90) // of two minutes
	p.asked(p.stood("job", "first", "", 50, 30), 40)
	second := p.stood("job", "second", "", 45, 0)
	p.asked(second, 20)
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#alerts p", `^ops@desk recalls job \(rolling update\)$`)
	b.shows("#space .row", "recalled$")
	var title string
	b.eval(`return document.querySelector("#space .row").children[7].title`, &title)
	require.Equal(t, "recalled by ops@desk (rolling update)", title)
	b.eval(`document.querySelector("#space .row").focus()`, nil)
	b.keys("\ue012") // left
	b.shows("#tip", `^second .* has held for .* Recalled at \S+( [AP]M)? by ops@desk\. `)
	b.keys("\ue012")
	b.shows("#tip", `^first .* held for 20s, .* Recalled at \S+( [AP]M)? by ops@desk\. second`)

	p = newPast(60)
	for _, lock := range []string{"job/1", "job/2"} {
		p.asked(p.stood(lock, "first", "", 50, 0), 40)
	}
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#alerts p", "^2 recalled$")
}

// A lock that is kept though its hold is over says when it is free, in the list and in its line.
func TestThePageSaysWhenAKeptLockIsFree(t *testing.T) {
	p := newPast(60)
	kv := p.stood("nightly", "cron-1", "", 50, 0)
	p.events = append(p.events, event{at: p.ago(10), tell: func(rev int64) *clientv3.Event {
		value := fmt.Appendf(nil, `%s,"until":%q}`, kv.Value[:len(kv.Value)-1],
			p.ago(-90).UTC().Format(time.RFC3339Nano))
		return &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: kv.Key,
			Value: value, CreateRevision: kv.CreateRevision, ModRevision: rev, Version: 2,
			Lease: kv.Lease}}
	}})
	p.stood("orders/42", "api-7", "", 40, 0)
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#space .row", `(?m)^nightly .* free in [78]\ds$`)
	b.types("#filter", "kept")
	b.shows("#space .row", `^nightly [^\n]*$`)
	b.press("#space .row")
	b.shows("#line tbody tr", `^free in [78]\ds \| cron-1 `)
}

// keys presses keys where the focus is.
func (b *browser) keys(text string) {
	b.t.Helper()
	var active map[string]string
	b.call("GET", "/element/active", nil, &active)
	for _, id := range active {
		b.call("POST", "/element/"+id+"/value", map[string]string{"text": text}, nil)
	}
}

// point moves the pointer over a lane: 1 is its right end.
func (b *browser) point(lock string, part float64) {
	b.t.Helper()
	var at struct{ X, Y float64 }
	b.eval(fmt.Sprintf(`
		const row = [...document.querySelectorAll("#space .row")].find(e => e.dataset.name === %q)
		const box = row.querySelector(".lane svg").getBoundingClientRect()
		return {X: Math.round(box.left + box.width * %f), Y: Math.round(box.bottom - 6)}`,
		lock, part), &at)
	move := map[string]any{"type": "pointerMove", "duration": 0, "x": at.X, "y": at.Y}
	b.call("POST", "/actions", map[string]any{"actions": []any{map[string]any{
		"type": "pointer", "id": "mouse", "actions": []any{move}}}}, nil)
}

// lanes is what is wrong with the lanes of the fleet.
const lanes = `requestAnimationFrame(() => setTimeout(() => {
	const wrong = [], colours = new Map(), rows = [...document.querySelectorAll("#space .row")]
	if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the screen")
	const path = (svg, kind) => svg.querySelector("." + kind).getAttribute("d")
	const marks = {"leader/billing": "lost", "reports/invoices-2026-11": "recalled", "migrations/schema": "broken"}
	const bars = {"leader/billing": 2, "cron/expire-carts": 6, "catalog/prices": 12, "thumbnails": 24, "stock/4711": 1,
		"migrations/schema": 3}
	for (const row of rows) {
		if (!row.offsetParent) continue
		const svg = row.querySelector(".lane svg"), box = svg.getBoundingClientRect(), name = row.dataset.name
		const out = row.getBoundingClientRect()
		if (box.left < out.left || box.right > out.right || box.top < out.top || box.bottom > out.bottom + 1)
			wrong.push("the lane of " + name + " is not in its row")
		if (box.width < 100) wrong.push("the lane of " + name + " is " + box.width + " wide")
		for (const other of row.children) {
			const b = other.getBoundingClientRect()
			if (other !== row.lastChild && other.textContent && b.width && box.left < b.right && b.left < box.right && box.top < b.bottom - 3
				&& b.top < box.bottom - 3) wrong.push("the lane of " + name + " lies on " + other.textContent)
		}
		for (const mark of ["lost", "recalled", "broken"])
			if (!!path(svg, mark) !== (marks[name] === mark)) wrong.push(name + ": " + mark + " " + path(svg, mark))
		if (name in bars && svg.bars.length !== bars[name]) wrong.push(name + " has " + svg.bars.length + " bars")
		if (svg.bars.some(({bar: [x, y, w, h]}) => x < 0 || x + w > box.width + 1 || y < 0 || y + h > box.height))
			wrong.push("a bar of " + name + " is out of its lane")
		if (name === "cron/expire-carts") svg.bars.forEach(({bar: [x, , w]}, i) => {
			if (i && x - svg.bars[i - 1].bar[0] - svg.bars[i - 1].bar[2] < 5) wrong.push("no gap")
		})
		if (name === "catalog/prices" && new Set(svg.bars.map(b => b.bar[1])).size < 2) wrong.push("readers hide each other")
		for (const {p} of svg.bars) {
			const drawn = [..."012345"].filter(c => path(svg, "c" + c))
			if (!drawn.length) wrong.push("no colour in " + name)
		}
		const length = path(svg, "length")
		if (name === "reports/invoices-2026-11" && !(new Set(length.match(/V[\d.]+/g)).size >= 7)) wrong.push("the line does not grow: " + length)
		if (name === "cron/expire-carts" && length) wrong.push("a line where nobody waited: " + length)
	}
	done(wrong)
}, 300))`
