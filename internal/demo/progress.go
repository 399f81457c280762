package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress shows how far the sale is: on a terminal in one line that is
// written over, elsewhere in a new line now and then.
type progress struct {
	out   io.Writer
	live  bool // a terminal
	every time.Duration
	began time.Time
	width int  // of the line that the cursor stands in
	stays bool // something was printed that stays
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, every: time.Second, began: time.Now()}
	if f, isFile := out.(*os.File); isFile {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.live, p.every = true, 100*time.Millisecond
		}
	}
	return p
}

func (p *progress) show(answers map[int]record, requests int) {
	sold := 0
	for _, r := range answers {
		if r.Item > 0 {
			sold++
		}
	}
	text := fmt.Sprintf("%5.1fs  %d of %d requests answered: %d sold, %d refused",
		time.Since(p.began).Seconds(), len(answers), requests, sold, len(answers)-sold)
	if !p.live {
		p.line("%s", text)
		return
	}
	// Blanks instead of an escape sequence: every console understands them.
	fmt.Fprintf(p.out, "\r%-*s", p.width, text)
	p.width = len(text)
}

// clear leaves the cursor at the start of an empty line.
func (p *progress) clear() {
	if p.width > 0 {
		fmt.Fprintf(p.out, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
}

// line prints something that stays.
func (p *progress) line(format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.out, format+"\n", args...)
	p.stays = true
}

// end leaves room for what comes after.
func (p *progress) end() {
	p.clear()
	if p.stays {
		fmt.Fprintln(p.out)
	}
}
