//go:build browser

package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// axe-core finds nothing in the list, in the line of a lock and in the graph, in both schemes.
// It is npm's. AXE says where its axe.min.js is, as .ci/run has it.
func TestThePageIsAccessible(t *testing.T) {
	axe, err := os.ReadFile(os.Getenv("AXE"))
	require.NoError(t, err, "npm install axe-core, and set AXE to its axe.min.js")
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": fleet().page(t)}, nil)
	b.shows("#space .row", "leader/billing")
	b.eval(string(axe), nil)
	check := func(what string) {
		t.Helper()
		for _, width := range []int{390, 1280} {
			for _, scheme := range []string{"light", "dark"} {
				b.sized(width, scheme)
				var found []string
				b.async(`axe.run().then(r => done(r.violations.flatMap(v => v.nodes.map(n =>
					v.id + ": " + n.target + ": " + n.failureSummary))), e => done([String(e)]))`, &found)
				require.Empty(t, found, "%s at %d, %s", what, width, scheme)
			}
		}
	}
	check("the list")
	b.press("#space .row")
	b.shows("#line tbody tr", "holds")
	check("a line")
	b.press("#close")
	b.press("#waits")
	b.shows("#edges li", "waits for")
	check("the graph")
}

// Printed, the page has all its locks, dark on white, and nothing to press. Paper is narrower than
// the screen for which the rows were placed, and no script runs once its width is known.
func TestThePagePrints(t *testing.T) {
	p := fleet()
	for i := range 60 {
		p.stood("shard/"+string(rune('a'+i%26))+string(rune('a'+i/26)), "worker", "", 50, 0)
	}
	for i := range 70 {
		p.stood("shard/aa", fmt.Sprint("waiter-", i), "", 40, 0)
	}
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#space .row", "leader/billing")
	paper := func(width int, script string) {
		t.Helper()
		b.sized(1280, "dark")
		b.async(`setTimeout(() => {
			dispatchEvent(new Event("beforeprint"))
			window.paints ||= paint
			paint = () => {}
			done()
		}, 300)`, nil)
		b.sized(width, "dark")
		b.call("POST", "/goog/cdp/execute", map[string]any{"cmd": "Emulation.setEmulatedMedia",
			"params": map[string]any{"media": "print"}}, nil)
		var wrong []string
		b.async(`setTimeout(() => {`+script+`
			const style = getComputedStyle(document.body)
			if (style.color !== "rgb(27, 31, 36)" || style.backgroundColor !== "rgb(255, 255, 255)")
				wrong.push(style.color + " on " + style.backgroundColor)
			for (const e of document.querySelectorAll("input, select, button:not(.head button)"))
				if (e.offsetParent) wrong.push("it prints " + e.outerHTML)
			paint = window.paints
			dispatchEvent(new Event("afterprint"))
			done(wrong)
		}, 300)`, &wrong)
		require.Empty(t, wrong, "%d wide", width)
	}
	for _, width := range []int{718, 1280} { // A4 upright, and wider
		paper(width, `
			const wrong = [], rows = [...document.querySelectorAll("#space .row")].filter(e => e.offsetParent)
			if (rows.length !== 70) wrong.push(rows.length + " rows")
			const box = document.querySelector("#space").getBoundingClientRect()
			if (rows.at(-1).getBoundingClientRect().bottom > box.bottom + 1) wrong.push("rows are cut")
			rows.reduce((a, b) => {
				if (a.getBoundingClientRect().bottom > b.getBoundingClientRect().top + 1) wrong.push("rows overlap")
				return b
			})
			const times = [...document.querySelectorAll(".axis")].filter(e => e.offsetParent)
			const now = times[0].lastElementChild.getBoundingClientRect().right
			const drawn = document.querySelector("#space .row .lane .length").getBoundingClientRect()
			if (times.length !== 1 || Math.abs(drawn.right - now) > 12) wrong.push("the lane ends at " + drawn.right + ", now is " + now)`)
	}
	b.sized(1280, "light")
	b.call("POST", "/goog/cdp/execute", map[string]any{"cmd": "Emulation.setEmulatedMedia",
		"params": map[string]any{"media": ""}}, nil)
	b.eval(`[...document.querySelectorAll("#space .row")]
		.find(e => e.dataset.name === "shard/aa").click()`, nil)
	b.shows("#line tbody tr", "waits 70")
	paper(718, `
		const wrong = [], dialog = document.getElementById("detail"), box = dialog.getBoundingClientRect()
		const rows = [...dialog.querySelectorAll("tbody tr")].map(e => e.getBoundingClientRect())
		if (rows.length !== 71) wrong.push(rows.length + " places")
		if (box.top < 0 || rows[0].top < box.top) wrong.push("the first places are cut: " + box.top)
		if (rows.at(-1).bottom > box.bottom) wrong.push("the last places are cut")
		if (box.left < 0 || box.right > innerWidth) wrong.push("it is wider than the paper")
		if (getComputedStyle(dialog).position === "fixed") wrong.push("it is on each page")
		for (const e of document.querySelectorAll("header, main")) if (e.offsetParent || e.offsetHeight) wrong.push("it prints what is behind")`)
}

// All texts of the head stand on one baseline, where they are in one row.
func TestTheHeadOfThePageHasOneBaseline(t *testing.T) {
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": fleet().page(t)}, nil)
	b.shows("#space .row", "leader/billing")
	for _, width := range []int{1280, 1920} {
		b.sized(width, "light")
		var baselines []float64
		b.async(`setTimeout(() => {
			const at = e => {
				const probe = document.createElement("span")
				probe.style.display = "inline-block"
				e.prepend(probe) // of no height: its bottom is on the baseline
				const y = probe.getBoundingClientRect().bottom
				probe.remove()
				return Math.round(y)
			}
			done([...document.querySelectorAll("header > h1, header > span, header > label, header > button")].map(at))
		}, 300)`, &baselines)
		require.Len(t, baselines, 6)
		for _, y := range baselines {
			require.Equal(t, baselines[0], y, "%d: %v", width, baselines)
		}
	}
}

// Names that are read from right to left stay where they stand, and move nothing beside them.
func TestThePageKeepsArabicNamesInTheirPlaces(t *testing.T) {
	p := newPast(60)
	store, stock, first, second := "مخزن/القاهرة", "بضائع/42", "عامل-1", "عامل-2"
	p.stood(store, first, "", 50, 0)
	p.stood(stock, second, "", 49, 0)
	p.stood(store, second, "", 48, 0)
	p.stood(stock, first, "", 47, 0)
	b := newBrowser(t, 1280, 800)
	b.call("POST", "/url", map[string]string{"url": p.page(t)}, nil)
	b.shows("#alerts p", "Possible deadlock")
	var seen struct {
		Sentence []string
		Letters  []float64
		Left     []float64
	}
	b.eval(`
		const lefts = [...document.querySelectorAll("#alerts bdi")].map(e => [e.getBoundingClientRect().left, e.textContent])
		const name = [...document.querySelectorAll("#space .row")].find(e => e.dataset.name.startsWith("م")).children[0]
		const text = name.firstChild, range = document.createRange()
		const left = i => {
			range.setStart(text, i)
			range.setEnd(text, i + 1)
			return range.getBoundingClientRect().left
		}
		return {Sentence: lefts.sort((a, b) => a[0] - b[0]).map(e => e[1]),
			Letters: [...text.data].map((_, i) => left(i)), Left: [...document.querySelectorAll("#space .row")]
				.filter(e => e.offsetParent).map(e => Math.min(...[...e.children[0].childNodes].map(n => {
					range.selectNodeContents(n)
					return range.getBoundingClientRect().left
				})))}`, &seen)
	require.Len(t, seen.Sentence, 6)
	var said []string
	b.eval(`return [...document.querySelectorAll("#alerts bdi")].map(e => e.textContent)`, &said)
	require.Equal(t, said, seen.Sentence, "the words stand in their order")
	require.IsDecreasing(t, seen.Letters, "the name is read from right to left")
	require.Equal(t, seen.Left[0], seen.Left[1], "both names begin where their column does")
}
