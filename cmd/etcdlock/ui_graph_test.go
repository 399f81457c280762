//go:build browser

package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page draws which Session waits for which: a cycle in red, the rest not, with names in their
// boxes that can be read at each width. The list below says the same.
func TestThePageDrawsWhoWaits(t *testing.T) {
	p := fleet()
	evil := `<img src=x onerror=document.title=1>`
	p.stood(evil, "a", "", 50, 0)
	p.stood(evil, "مخزن/القاهرة", "", 40, 0)
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#alerts p", "Possible deadlock")
	b.press("#alerts button")
	b.shows("#edges li", `(?s)^Possible deadlock: picker-`)
	for _, width := range widths {
		for _, scheme := range []string{"light", "dark"} {
			b.sized(width, scheme)
			var seen graphSeen
			b.async(graphLooks, &seen)
			require.Empty(t, seen.Wrong, "at %d, %s", width, scheme)
			require.Equal(t, 4, seen.Red, "picker, lock, picker, lock")
			require.Equal(t, 4, seen.Grey, "two lines of a holder and one node that waits")
			require.Regexp(t, `^<img src=x.*…`, seen.Names[0])
			require.Equal(t, []string{"a", "picker-1", "picker-2", "reports-3", "reports-4 and 6 more",
				"reports/invoices-2026-11", "stock/4711", "stock/4712", "مخزن/القاهرة"}, seen.Names[1:])
		}
	}
}

// The pictures of the page are those of the fleet: go test -tags browser -run Picture
// ./cmd/etcdlock -update.
func TestThePageAndItsPictures(t *testing.T) {
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": fleet().page(t)}, nil)
	b.high(1280, 560, "light")
	b.shows("#space .row", `(?m)^leader/billing `)
	b.shows("#alerts p", "Possible deadlock")
	b.shows(".head .axis", "^10 min ago")
	b.picture("ui.png")
	b.high(1040, 620, "light")
	b.press("#waits")
	b.shows("#edges li", "Possible deadlock: picker-")
	b.eval(`document.activeElement.blur()`, nil)
	b.picture("ui-waits.png")
}

// Several cycles are one line above the list, with their number, at each width. It opens the graph,
// which has each of them in red.
func TestThePageCountsSeveralCycles(t *testing.T) {
	p := newPast(60)
	for i := range 3 {
		a, b := fmt.Sprintf("stock/%d/a", i), fmt.Sprintf("stock/%d/b", i)
		first, second := fmt.Sprintf("picker-%d-first", i), fmt.Sprintf("picker-%d-second", i)
		p.stood(a, first, "", 50, 0)
		p.stood(b, second, "", 49, 0)
		p.stood(a, second, "", 48, 0)
		p.stood(b, first, "", 47, 0)
	}
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	for _, width := range widths {
		b.sized(width, "light")
		b.shows("#alerts p", `^3 possible deadlocks \| Show$`)
		var high float64
		b.eval(`return document.getElementById("alerts").getBoundingClientRect().height`, &high)
		require.Less(t, high, 48.0, "one line at %d", width)
		b.press("#alerts button")
		b.shows("#edges li.bad", `(?s)^(Possible deadlock: picker-\d-[^\n]*\n?){3}$`)
		var seen graphSeen
		b.async(graphLooks, &seen)
		require.Empty(t, seen.Wrong, width)
		require.Equal(t, 12, seen.Red, "four arrows of each")
		b.press("#done")
	}
}

// However many wait, at most 30 nodes are drawn.
func TestThePageDrawsAtMostThirtyNodes(t *testing.T) {
	p := newPast(60)
	for i := range 40 {
		lock := fmt.Sprint("shard/", i)
		for n := range 2 + i%4 {
			p.stood(lock, fmt.Sprintf("worker-%d-%d", i, n), "", 50-float64(n), 0)
		}
		p.stood(lock, fmt.Sprintf("worker-%d-0", i+1), "", 20, 0)
	}
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#space .row", "shard/")
	b.press("#waits")
	b.shows("#drawnmore", `\d\d locks with a shorter line are not drawn`)
	var seen graphSeen
	b.async(graphLooks, &seen)
	require.Empty(t, seen.Wrong)
	require.Zero(t, seen.Red)
	require.LessOrEqual(t, len(seen.Names), 30)
	require.Greater(t, len(seen.Names), 25)
}

// A line that is too long to be drawn whole is drawn all the same, though its Sessions are in
// another line, too.
func TestThePageDrawsALongLineOfSessionsThatAreInOthers(t *testing.T) {
	p := newPast(60)
	for _, lock := range []string{"stock", "prices"} {
		for n := range 40 {
			p.stood(lock, fmt.Sprint("worker-", n), "", 50-float64(n), 0)
		}
	}
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#space .row", "stock")
	b.press("#waits")
	b.shows("#drawnmore", "^Rounded boxes are Sessions, .* before each in line. $")
	var seen graphSeen
	b.async(graphLooks, &seen)
	require.Empty(t, seen.Wrong)
	require.Len(t, seen.Names, 5, "two locks, the Session that holds both, and their lines: %v",
		seen.Names)
}

// A graphSeen is what is on the screen.
type graphSeen struct {
	Wrong     []string
	Red, Grey int // edges
	Names     []string
}

const graphLooks = `requestAnimationFrame(() => setTimeout(() => {
	const wrong = [], dialog = document.getElementById("graph"), svg = dialog.querySelector("svg")
	if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the screen")
	if (dialog.scrollWidth > dialog.clientWidth) wrong.push("the dialog scrolls sideways")
	const rects = [...svg.querySelectorAll("rect")], boxes = rects.map(r => r.getBoundingClientRect())
	const all = svg.getBoundingClientRect()
	boxes.forEach((a, i) => {
		const text = rects[i].nextElementSibling, t = text.getBoundingClientRect()
		if (t.left < a.left || t.right > a.right || t.height < 11) wrong.push("not legible: " + text.textContent)
		if (a.left < all.left || a.right > all.right || a.top < all.top || a.bottom > all.bottom) wrong.push("cut: " + text.textContent)
		boxes.forEach((b, j) => {
			if (i < j && a.left < b.right + 4 && b.left < a.right + 4 && a.top < b.bottom + 4 && b.top < a.bottom + 4)
				wrong.push(text.textContent + " lies on " + rects[j].nextElementSibling.textContent)
		})
	})
	const list = document.getElementById("edges")
	if (list.getBoundingClientRect().top < all.bottom) wrong.push("the list is not below")
	const colour = name => {
		const probe = document.createElement("p")
		probe.style.color = "var(" + name + ")"
		document.body.append(probe)
		const c = getComputedStyle(probe).color
		probe.remove()
		return c
	}
	const edges = [...svg.querySelectorAll(".edge")].map(e => getComputedStyle(e).stroke)
	const of = name => edges.filter(c => c === colour(name)).length
	done({Wrong: wrong, Red: of("--bad"), Grey: of("--faint"),
		Names: [...svg.querySelectorAll("text")].map(e => e.textContent.replace(/[\u2068\u2069]/g, "")).sort()})
}, 300))`
