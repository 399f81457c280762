// Package cells measures and cuts text by the cells that it takes on a terminal. It counts as the
// library that draws does: a wide character takes two, and one that joins another takes none.
package cells

import (
	"strings"

	"github.com/clipperhouse/displaywidth"
)

// Width is how many cells a text takes.
func Width(text string) int { return displaywidth.String(text) }

// Each calls f with each character of a text, as people count them, and its cells.
func Each(text string, f func(character string, width int)) {
	for g := displaywidth.StringGraphemes(text); g.Next(); {
		f(g.Value(), g.Width())
	}
}

// Cut is text in at most n cells. "~" says that its end was cut.
func Cut(text string, n int) string {
	if Width(text) <= n {
		return text
	}
	return Head(text, n-1) + end(n)
}

// Middle is text in at most n cells. "~" stands for its middle: the ends tell names apart.
func Middle(text string, n int) string {
	if Width(text) <= n {
		return text
	}
	tail := max(0, n-1) / 2
	return Head(text, n-1-tail) + end(n) + last(text, tail)
}

// end is what says that something was cut, if there is room for it.
func end(n int) string {
	if n < 1 {
		return ""
	}
	return "~"
}

// Head is the beginning of a text, in at most n cells.
func Head(text string, n int) string {
	at, full := 0, false
	Each(text, func(character string, width int) {
		if n -= width; n < 0 {
			full = true
		}
		if !full {
			at += len(character)
		}
	})
	return text[:at]
}

// last is the end of a text, in at most n cells.
func last(text string, n int) string {
	over := Width(text) - n
	at := 0
	Each(text, func(character string, width int) {
		if over > 0 {
			over -= width
			at += len(character)
		}
	})
	return text[at:]
}

// Pad is text in n cells, with space behind it.
func Pad(text string, n int) string {
	text = Cut(text, n)
	return text + strings.Repeat(" ", max(0, n-Width(text)))
}

// Name is a name in n cells: without its middle if it is longer, with space behind it if not.
func Name(name string, n int) string { return Pad(Middle(name, n), n) }

// Right is text in n cells, with space before it.
func Right(text string, n int) string {
	text = Cut(text, n-1)
	return strings.Repeat(" ", max(0, n-Width(text))) + text
}

// Wrap is text in lines of at most n cells, between words where it can be.
func Wrap(text string, n int) (lines []string) {
	n = max(1, n)
	for Width(text) > n {
		line := Head(text, n)
		if line == "" { // one character that is wider
			return append(lines, text)
		}
		if space := strings.LastIndexByte(text[:min(len(text), len(line)+1)], ' '); space > 0 {
			line = text[:space]
		}
		lines = append(lines, line)
		text = strings.TrimLeft(text[len(line):], " ")
	}
	return append(lines, text)
}
