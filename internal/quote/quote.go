// Package quote shows people what other programs have written: names of locks, keys, owners, hosts,
// infos and recalls. A terminal, a log or a page has to show such a text and not to obey it.
//
// Not printable, and so shown as Go writes it in a string, are control characters, format
// characters (those that turn the direction of a text, and those without a width), separators of
// lines and paragraphs, spaces other than " ", what Unicode has not assigned, and bytes that
// are not UTF-8.
package quote

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// longest bounds a text that is shown whole, in bytes. A key of this library is shorter, and so is
// each of its parts.
const longest = 2048

// Text is text as it is, or quoted if not all of it is printable, or if it has a quotation mark or
// a backslash. So no two texts look the same. Of a text that is too long it is the beginning.
func Text(text string) string {
	if len(text) <= longest && !strings.ContainsAny(text, `"\`) && printable(text) {
		return text
	}
	return Excerpt(text, longest)
}

// Excerpt is text, always quoted, or its beginning if it is longer than most bytes.
func Excerpt(text string, most int) string {
	if len(text) > most {
		return strconv.Quote(text[:32]) + "..."
	}
	return strconv.Quote(text)
}

// Owner is a contender for people: the label of its owner, and its process if the label does not
// tell that. It is empty if there is no label.
func Owner(label, host string, pid int) string {
	process := fmt.Sprintf("%s:%d", host, pid)
	if label == "" || host == "" || label == process {
		return Text(label)
	}
	return fmt.Sprintf("%s (%s)", Text(label), Text(process))
}

// Line is a line of our own words in which what is not printable is escaped: an error may have
// brought it.
func Line(line string) string {
	return escape(line, func(part string) string {
		quoted := strconv.Quote(part)
		return quoted[1 : len(quoted)-1]
	})
}

// JSON is a text in JSON, the same for programs, in which all but the ends of lines is printable.
func JSON(text string) string {
	return escape(text, func(part string) (escaped string) {
		if part == "\n" {
			return part
		}
		r, _ := utf8.DecodeRuneInString(part)
		for _, unit := range utf16.AppendRune(nil, r) {
			escaped += fmt.Sprintf(`\u%04x`, unit)
		}
		return escaped
	})
}

// printable reports whether all of text is.
func printable(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, isNotPrint) < 0
}

func isNotPrint(r rune) bool { return !strconv.IsPrint(r) }

// escape is text with each part that is not printable replaced.
func escape(text string, by func(part string) string) string {
	if printable(text) {
		return text
	}
	var escaped strings.Builder
	for len(text) > 0 {
		_, size := utf8.DecodeRuneInString(text)
		part := text[:size]
		text = text[size:]
		if printable(part) {
			escaped.WriteString(part)
		} else {
			escaped.WriteString(by(part))
		}
	}
	return escaped.String()
}
