//go:build browser

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// sized makes the page as wide as a phone, a tablet or a screen, in one of the colour schemes.
func (b *browser) sized(width int, scheme string) {
	b.t.Helper()
	b.high(width, 800, scheme)
}

// fits asks a script what is wrong with the page, at each width and in both colour schemes.
func (b *browser) fits(script string) {
	b.t.Helper()
	for _, width := range widths {
		for _, scheme := range []string{"light", "dark"} {
			b.sized(width, scheme)
			var wrong []string
			b.async(script, &wrong)
			require.Empty(b.t, wrong, "at %d, %s", width, scheme)
		}
	}
}

func (b *browser) high(width, height int, scheme string) {
	b.t.Helper()
	b.call("POST", "/goog/cdp/execute", map[string]any{"cmd": "Emulation.setDeviceMetricsOverride",
		"params": map[string]any{"width": width, "height": height, "deviceScaleFactor": 1,
			"mobile": false}}, nil)
	b.call("POST", "/goog/cdp/execute", map[string]any{"cmd": "Emulation.setEmulatedMedia",
		"params": map[string]any{"features": []map[string]string{
			{"name": "prefers-color-scheme", "value": scheme}}}}, nil)
}

// widths are those of a phone, a tablet and two screens.
var widths = []int{390, 768, 1280, 1920}

// foreign are names as they come: long, without a space, wide, from right to left, joined.
var foreign = []string{
	"tenants/8f14e45f-ceea-467f-a0f7-5d2f3c1b9e00/invoices/2026/november/region-eu-west-1/shard-0001",
	"tenants/8f14e45f-ceea-467f-a0f7-5d2f3c1b9e00/invoices/2026/november/region-eu-west-1/shard-0002",
	"在庫/東京第二倉庫/棚卸し", "مخزن/القاهرة", "deploy/🚀/e\u0301te\u0301", "orders/42",
}

// puts puts the n-th place of a line, as a contender writes it.
func (e *etcd) puts(
	t *testing.T, lock string, n int, owner, info string, since time.Duration, lease int64,
) {
	t.Helper()
	value, err := json.Marshal(map[string]any{"owner": owner, "host": "vm", "pid": 7, "info": info,
		"recallable": true, "since": time.Now().Add(-since).UTC().Format(time.RFC3339)})
	require.NoError(t, err)
	key := fmt.Sprintf("%s/%08x-0000-4000-8000-%012[2]x", lock, n)
	_, err = e.client.Put(t.Context(), key, string(value), clientv3.WithLease(clientv3.LeaseID(lease)))
	require.NoError(t, err)
}

// page is a browser with the page of an etcd.
func (e *etcd) page(t *testing.T, flags ...string) (b *browser, run *program) {
	t.Helper()
	run = starts(t, append([]string{"ui", "--endpoints", e.addr, "--listen", "127.0.0.1:0"}, flags...))
	b = newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": addressOf(t, run)}, nil)
	return b, run
}

// While etcd is away the page does not say that locks are free, but since when nothing is known.
func TestThePageSaysSinceWhenItKnowsNothing(t *testing.T) {
	e := newEtcd(t)
	b, run := e.page(t)
	b.shows("#alerts p", "Nobody holds a lock")
	e.server.Stop()
	b.shows("#alerts p", `Nothing is known since .*, \d+s ago`)
	var said string
	b.eval(`return document.getElementById("alerts").textContent`, &said)
	require.NotContains(t, said, "Nobody")
	require.NoError(t, run.Process.Kill())
	b.shows("#alerts p", `^No connection to etcdlock ui. Nothing is known since .*, \d+s ago`)
	b.eval(`return document.getElementById("alerts").textContent`, &said)
	require.NotContains(t, said, "Nobody")
}

// HELD of the page is HELD of who: of a holder that was there before, and of one that has waited.
func TestThePageSaysHeldAsWhoDoes(t *testing.T) {
	e := newEtcd(t)
	e.grant(t, 0x1a, 600)
	e.puts(t, "job/a", 1, "a", "", 250*time.Second, 0x1a)
	e.puts(t, "job/b", 2, "b", "", 260*time.Second, 0x1a)
	e.puts(t, "job/b", 3, "c", "", 255*time.Second, 0x1a)
	_, err := e.client.Delete(t.Context(), "job/b/00000002-0000-4000-8000-000000000002")
	require.NoError(t, err)
	_, table, _ := runs(t, "", "who", "--endpoints", e.addr)
	require.Regexp(t, `job/a .* ago +4m1\d\.?\d*s`, table)
	require.Regexp(t, `job/b .* ago +<4m1\d\.?\d*s`, table)
	b, _ := e.page(t)
	b.shows("#space .row", `(?m)^job/a \| a .* \| 4m[12]\d \|`)
	b.shows("#space .row", `(?m)^job/b \| c .* \| <4m[12]\d \|`)
}

// The line of a lock opens at its top, and no cell of it breaks a word, at each width.
func TestThePageShowsTheLineOfALock(t *testing.T) {
	e := newEtcd(t)
	e.grant(t, 0x1a2b3c4d5e6f7a, 600)
	for i := range 26 {
		owner, info := foreign[i%len(foreign)], ""
		if i%3 == 1 {
			info = "nightly report of the warehouse in the north"
		}
		e.puts(t, "orders/42", i+1, owner, info, 12345*time.Second, 0x1a2b3c4d5e6f7a)
	}
	for _, flags := range [][]string{nil, {"--allow", "recall,break"}} {
		e.linesUp(t, flags)
	}
}

// linesUp looks at the line of a lock at each width.
func (e *etcd) linesUp(t *testing.T, flags []string) {
	t.Helper()
	b, _ := e.page(t, flags...)
	b.shows("#space .row", `^orders/42 `)
	for _, width := range widths {
		b.sized(width, "light")
		b.press("#space .row")
		b.shows("#line tbody tr", `waits 25`)
		var seen struct {
			Top    float64
			First  bool
			Broken []string
			Wide   bool
		}
		b.eval(`
			const dialog = document.getElementById("detail"), broken = []
			const box = dialog.getBoundingClientRect()
			const row = dialog.querySelector("tbody tr").getBoundingClientRect()
			for (const cell of dialog.querySelectorAll("th, td, button")) {
				const nodes = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT)
				for (let node; node = nodes.nextNode();)
					for (const word of node.data.matchAll(/[^\s\/-]+/g)) {
						if (word[0].length > 16) continue // longer than its column may be
						const range = document.createRange()
						range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length)
						const lines = new Set([...range.getClientRects()].map(r => Math.round(r.top)))
						if (lines.size > 1) broken.push(word[0])
					}
			}
			return {Top: dialog.scrollTop, First: row.top >= box.top && row.bottom <= box.bottom,
				Broken: broken, Wide: document.documentElement.scrollWidth > innerWidth}`, &seen)
		require.Zero(t, seen.Top, width)
		require.True(t, seen.First, "the holder is in sight at %d", width)
		require.False(t, seen.Wide, width)
		require.Empty(t, seen.Broken, "at %d: %s", width, strings.Join(seen.Broken, " "))
		b.press("#close")
	}
}

// At each width and in both schemes cells neither touch nor overflow, names that differ in their
// ends look different, waits and leases are in sight, what needs attention is on top, and all that
// is written has the contrast of WCAG AA.
func TestThePageFitsEachWidth(t *testing.T) {
	e := newEtcd(t)
	e.grant(t, 0x1a2b, 600)
	for i, name := range foreign {
		e.puts(t, name, 1, name, "", time.Duration(i)*time.Minute, 0x1a2b)
	}
	e.puts(t, foreign[0], 2, "next", "", 5*time.Minute, 0x1a2b)
	e.grant(t, 0x77, 20)
	e.puts(t, "zz/late", 1, "dead", "", time.Second, 0x77)
	b, _ := e.page(t)
	for _, width := range widths {
		for _, scheme := range []string{"light", "dark"} {
			b.sized(width, scheme)
			if width == widths[0] && scheme == "light" {
				b.shows("#space .row", `^zz/late .* late\n`)
			}
			var wrong []string
			b.async(looks, &wrong)
			require.Empty(t, wrong, "at %d, %s", width, scheme)
		}
	}
	b.eval(`[...document.querySelectorAll("#space .row")]
		.find(e => e.dataset.name.endsWith("0002")).focus()`, nil)
	b.shows("#whole", "^"+regexp.QuoteMeta(foreign[1]))
	b.press(`.head button[data-order=name]`)
	b.shows("#space .row", `^deploy`)
	b.call("POST", "/refresh", map[string]any{}, nil)
	b.shows("#space .row", `^deploy`)
	var address, title string
	b.eval(`return location.search`, &address)
	require.Contains(t, address, "order=name")
	b.eval(`return document.title`, &title)
	require.Contains(t, title, "1 late")
	require.Contains(t, title, "1 waiting")
	var icon string
	b.eval(`return document.querySelector("link[rel=icon]").href`, &icon)
	require.True(t, strings.HasPrefix(icon, "data:image/svg+xml,"), icon)
}

// Ten thousand locks, whose names and owners are long, wide, from right to left and joined, fit at
// each width and in both schemes, at the top, in the middle and at the end of the list: each cell
// is one line, none touches another, and the page does not scroll sideways.
func TestThePageFitsTenThousandForeignLocks(t *testing.T) {
	p := newPast(60)
	for i := range 10_000 {
		name := fmt.Sprint(foreign[i%len(foreign)], "/", i)
		p.stood(name, foreign[(i+i/10)%len(foreign)], "", 50, 0)
		if i%97 == 0 {
			p.stood(name, foreign[i%len(foreign)]+"/next", "", 40, 0)
		}
	}
	for i := range p.sessions {
		p.then(0, func() { p.board.Heard(time.Now(), int64(i+1), 999, 999) })
	}
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#counts", "^10000 locks, 10000 held, 104 waiting")
	b.fits(rowsFit)
}

// rowsFit is what is wrong with the rows of many locks.
const rowsFit = `const wrong = [], list = document.getElementById("list"), range = document.createRange()
	const all = new Set(), look = part => {
		const rows = [...document.querySelectorAll("#space .row")].filter(r => r.offsetParent)
		const box = list.getBoundingClientRect(), high = rows[0].offsetHeight
		const seen = rows.filter(r => r.getBoundingClientRect().top < box.bottom && r.getBoundingClientRect().bottom > box.top)
		if (seen.length < Math.floor(box.height / high)) wrong.push("only " + seen.length + " rows at " + part)
		if (document.documentElement.scrollWidth > innerWidth || list.scrollWidth > list.clientWidth) wrong.push("it scrolls sideways")
		for (const row of rows) {
			all.add(row.dataset.name)
			const cells = [...row.children].filter(c => c.offsetParent && c.textContent && c.className !== "lane")
			for (const c of cells) {
				range.selectNodeContents(c)
				const lines = [...range.getClientRects()].filter(r => r.width), a = c.getBoundingClientRect()
				if (Math.max(...lines.map(r => r.top)) > Math.min(...lines.map(r => r.bottom))) wrong.push("two lines: " + c.textContent)
				if (c.scrollWidth > c.clientWidth + 1) wrong.push("cut: " + c.textContent)
				for (const d of cells) {
					const b = d.getBoundingClientRect(), beside = a.top < b.bottom - 1 && b.top < a.bottom - 1
					if (c !== d && beside && a.left < b.right + 4 && b.left < a.right + 4) wrong.push(c.textContent + " touches " + d.textContent)
				}
			}
			const [name, , , , , , lease] = row.children, whole = row.dataset.name
			if (!/^99\d of 999s$/.test(lease.textContent)) wrong.push("no lease: " + whole)
			if (!name.textContent.endsWith(whole.slice(-3))) wrong.push("no end: " + name.textContent + " of " + whole)
			if (name.textContent !== whole && name.title !== whole) wrong.push("no title: " + whole)
		}
	}
	const parts = [0, .5, 1], next = () => {
		if (!parts.length) {
			if (all.size < 30) wrong.push("only " + all.size + " locks")
			return done([...new Set(wrong)].slice(0, 20))
		}
		const part = parts.shift()
		list.scrollTop = part * (list.scrollHeight - list.clientHeight)
		requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => { look(part); next() }, 100)))
	}
	requestAnimationFrame(() => setTimeout(next, 200))`

// On a phone and a tablet, which have no heads, a label says what a number is: in the list, and in
// the line of a lock. On a screen the heads do.
func TestThePageHasLabelsWhereItHasNoHeads(t *testing.T) {
	p := fleet()
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#space .row", "leader/billing")
	b.eval(`[...document.querySelectorAll("#space .row")]
		.find(e => e.dataset.name === "reports/invoices-2026-11").click()`, nil)
	b.shows("#line tbody tr", "holds")
	for _, width := range widths {
		b.sized(width, "light")
		var wrong []string
		b.async(labels, &wrong)
		require.Empty(t, wrong, "at %d", width)
	}
}

// labels is what is wrong with the labels, by the room that stands before or behind a text.
const labels = `requestAnimationFrame(() => setTimeout(() => {
	const wrong = [], pen = document.createElement("canvas").getContext("2d"), range = document.createRange()
	const narrow = innerWidth < 950, room = (cell, label, behind) => {
		const style = getComputedStyle(cell), box = cell.getBoundingClientRect()
		range.selectNodeContents(cell)
		const text = range.getBoundingClientRect()
		pen.font = style.font
		const has = behind ? box.right - text.right : text.left - box.left - parseFloat(style.paddingLeft)
		return {is: has >= pen.measureText(label).width - 1, none: has < 2}
	}
	if (!!document.querySelector(".head").offsetParent === narrow) wrong.push("heads of the list")
	if (!!document.querySelector("#line thead").offsetParent === narrow) wrong.push("heads of the line")
	let n = 0
	for (const td of document.querySelectorAll("#line tbody td")) {
		if (!td.dataset.head || !td.textContent) continue
		n++
		const label = room(td, td.dataset.head + " ")
		if (narrow ? !label.is : !label.none) wrong.push(td.dataset.head + " of " + td.textContent)
	}
	if (n < 30) wrong.push("only " + n + " numbers")
	const waits = [...document.querySelectorAll("#space .row")].filter(r => r.offsetParent)
		.map(r => r.children[3]).filter(c => c.textContent)
	if (waits.length !== 3) wrong.push(waits.length + " locks with waiters")
	for (const c of waits) if (narrow !== room(c, " wait", true).is) wrong.push("wait of " + c.textContent)
	done(wrong)
}, 300))`

// Before the first event the page says that it connects, and not that nothing is held.
func TestThePageSaysThatItConnects(t *testing.T) {
	e := newEtcd(t)
	run := starts(t, []string{"ui", "--endpoints", e.addr, "--listen", "127.0.0.1:0"})
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/goog/cdp/execute", map[string]any{"cmd": "Page.addScriptToEvaluateOnNewDocument",
		"params": map[string]any{"source": "EventSource = class { close() {} }"}}, nil)
	b.call("POST", "/url", map[string]string{"url": addressOf(t, run)}, nil)
	b.shows("#alerts p", "^Connects to etcdlock ui")
	var said string
	b.eval(`return document.getElementById("alerts").textContent`, &said)
	require.NotContains(t, said, "Nobody")
}

// Rows at 1,920 px are told apart by their ground, and rules are as long as those of the head.
func TestRowsOfThePageAreToldApart(t *testing.T) {
	e := newEtcd(t)
	e.grant(t, 0x1a2b, 600)
	for i, name := range foreign {
		e.puts(t, name, 1, name, "", time.Duration(i)*time.Minute, 0x1a2b)
	}
	b, _ := e.page(t)
	b.sized(1920, "light")
	b.shows("#space .row", `(?m)^orders/42`)
	var seen struct {
		Grounds, Rows []string
		Head, Rules   string
	}
	b.eval(`
		const rows = [...document.querySelectorAll("#space .row")].filter(r => r.offsetParent)
			.sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
		const wide = e => Math.round(e.getBoundingClientRect().left) + " and " + e.clientWidth
		const rule = getComputedStyle(document.querySelector(".head"), "::after")
		const others = [".head", "#list"].map(e => document.querySelector(e)).map(getComputedStyle)
		return {Grounds: rows.map(r => getComputedStyle(r).backgroundColor), Rows: rows.map(wide),
			Head: wide(document.querySelector(".head")),
			Rules: [rule.borderBottomWidth, rule.left, rule.right,
				others[0].borderBottomWidth, others[1].borderTopWidth].join(" ")}`, &seen)
	require.Equal(t, "1px 0px 0px 0px 0px", seen.Rules)
	require.Len(t, seen.Grounds, len(foreign))
	for i := range seen.Grounds {
		if i > 0 {
			require.NotEqual(t, seen.Grounds[i-1], seen.Grounds[i], "row %d", i)
		}
		require.Equal(t, seen.Head, seen.Rows[i], "row %d", i)
	}
}

// looks is what is wrong with how the list looks.
const looks = `requestAnimationFrame(() => setTimeout(() => {
	const wrong = [], seen = new Map()
	if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the screen")
	for (const row of document.querySelectorAll("#space .row")) {
		if (!row.offsetParent) continue
		const cells = [...row.children].filter(c => c.offsetParent && c.textContent)
		for (const c of cells) {
			if (c.scrollWidth > c.clientWidth + 1) wrong.push("cut: " + c.textContent)
			for (const d of cells) {
				const a = c.getBoundingClientRect(), b = d.getBoundingClientRect()
				const beside = a.top < b.bottom - 1 && b.top < a.bottom - 1
				if (c !== d && beside && a.left < b.right + 4 && b.left < a.right + 4)
					wrong.push(c.textContent + " touches " + d.textContent)
			}
		}
		const [name, , , wait, , , lease] = row.children, whole = row.dataset.name
		if (seen.has(name.textContent)) wrong.push("two look like " + name.textContent)
		seen.set(name.textContent, whole)
		if (name.textContent !== whole && name.title !== whole) wrong.push("no title: " + whole)
		if (!lease.offsetParent || !lease.textContent) wrong.push("no lease: " + whole)
		const waits = wait.offsetParent && wait.textContent === "1"
		if (whole.endsWith("0001") && !waits) wrong.push("no wait")
	}
	const head = document.querySelector(".head").offsetParent !== null
	if (head === innerWidth < 950) wrong.push("not the layout of this width")
	if (seen.size !== 7) wrong.push(seen.size + " rows")
	const style = getComputedStyle(document.documentElement)
	const light = name => {
		const part = i => {
			const c = parseInt(style.getPropertyValue(name).trim().slice(i, i + 2), 16) / 255
			return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4
		}
		return .2126 * part(1) + .7152 * part(3) + .0722 * part(5)
	}
	const pairs = [["--on-bad", "--bad"]]
	for (const text of ["--text", "--faint", "--bad", "--warn"]) pairs.push([text, "--back"], [text, "--over"])
	for (const [text, back] of pairs) {
		const [a, b] = [light(text), light(back)].sort((x, y) => y - x)
		if (!((a + .05) / (b + .05) >= 4.5)) wrong.push(text + " on " + back)
	}
	done(wrong)
}, 300))`

// Breaking asks with the lock, its holder and what recall would do instead, and looks like danger.
func TestThePageAsksBeforeItBreaks(t *testing.T) {
	e := newEtcd(t)
	e.grant(t, 0x1a2b, 600)
	e.puts(t, "orders/42", 1, "api-7", "", time.Minute, 0x1a2b)
	b, _ := e.page(t, "--allow", "recall,break")
	b.shows("#space .row", `^orders/42 `)
	b.press("#space .row")
	b.press(`#line button[data-act^=break]`)
	var asked struct{ Text, Button, Back, Bad string }
	b.eval(`
		const button = document.getElementById("do")
		const probe = document.createElement("p")
		probe.style.color = "var(--bad)"
		document.body.append(probe)
		return {Text: document.getElementById("question").textContent, Button: button.textContent,
			Back: getComputedStyle(button).backgroundColor, Bad: getComputedStyle(probe).color}`, &asked)
	require.Regexp(t, `^Break orders/42, which is held by api-7 .*two may work then. Recall would ask`,
		asked.Text)
	require.Equal(t, "Break", asked.Button)
	require.Equal(t, asked.Bad, asked.Back)
	b.types("#answer", "yes\ue007")
	b.shows("#said", "Nothing was done")
	e.line(t, "orders/42", 1)
}
