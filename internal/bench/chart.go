package main

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A line of the chart is one alternative.
type line struct {
	title  string
	points []point
}

type point struct{ x, y float64 }

func (l line) last() point { return l.points[len(l.points)-1] }

// A panel of the chart draws how many a second there are over the numbers of a kind of case.
type panel struct {
	kind  kind
	setup string // that is drawn, "" for any
	title string
	axis  string
}

var panels = []panel{
	{crowd, "", "Hand-overs per second, by the number of contenders", "contenders"},
	{each, "1-tmpfs", "Holds per second of one process, by the number of names",
		"goroutines, a name each"},
}

// chart draws each panel for the first such setup that has its cases for more than one number. It
// returns "" if none has.
func chart(all []record) string {
	var drawn []string
	var titles []string // of the lines, which have the same hue in each panel
	for _, p := range panels {
		if svg := p.of(all, &titles); svg != "" {
			drawn = append(drawn,
				fmt.Sprintf("<g transform=\"translate(0 %d)\">\n%s</g>\n", len(drawn)*chartHeight, svg))
		}
	}
	if len(drawn) == 0 {
		return ""
	}
	return fmt.Sprintf(chartHead, chartWidth, chartHeight*len(drawn), escape(chartTitle)) +
		strings.Join(drawn, "") + "</svg>\n"
}

// of returns the panel, "" if there is nothing to draw.
func (p panel) of(all []record, titles *[]string) string {
	for _, r := range all {
		if strings.Contains(r.Command, " -trip ") {
			continue // of an etcd that is far away
		}
		for _, s := range r.Setups {
			lines, ticks := s.lines(p.kind)
			if len(ticks) < 2 || p.setup != "" && p.setup != s.Name {
				continue
			}
			for _, l := range lines {
				if !slices.Contains(*titles, l.title) {
					*titles = append(*titles, l.title)
				}
			}
			return p.draw(fmt.Sprintf("%s, %s; %d cores; %s", s.Title, strings.Join(s.Systems, ", "),
				r.Machine.Cores, r.Machine.Date), lines, ticks, *titles)
		}
	}
	return ""
}

// lines returns the figures of the cases of a kind that are in the chart, and their numbers.
func (s setupRecord) lines(k kind) (lines []line, numbers []int) {
	for _, c := range cases {
		i := slices.IndexFunc(s.Cases, func(measured caseRecord) bool { return measured.Name == c.name })
		if !c.drawn || c.kind != k || i < 0 {
			continue
		}
		numbers = append(numbers, c.n)
		for _, r := range s.Cases[i].Rows {
			if len(r.Figures) == 0 {
				continue
			}
			i := slices.IndexFunc(lines, func(l line) bool { return l.title == r.Title })
			if i < 0 {
				i = len(lines)
				lines = append(lines, line{title: r.Title})
			}
			lines[i].points = append(lines[i].points, point{float64(c.n), r.median(perSecond)})
		}
	}
	return lines, numbers
}

// The measures of a panel, in pixels.
const (
	chartWidth, chartHeight = 920, 470

	plotLeft, plotRight  = 64, 590
	plotTop, plotBottom  = 76, 420
	labelLeft, labelStep = plotRight + 26, 17
)

// A scale maps numbers to pixels by their logarithms: one picture must show 2 contenders
// and 2,000, and 10 hand-overs and 5,000.
type scale struct {
	from, to   float64
	start, end float64
}

func (s scale) at(v float64) float64 {
	return s.start + (s.end-s.start)*math.Log(v/s.from)/math.Log(s.to/s.from)
}

// hues are for light and for dark pages alike. The library's comes first.
var hues = []string{
	"#2f81f7", "#e5534b", "#d4792a", "#b08800", "#8957e5", "#c9569b",
	"#3fa34d", "#2a9d8f", "#7d8590", "#a0785a", "#6e7bd9", "#6f9a2f", "#57c4e5",
}

const chartTitle = "How many hand-overs and holds there are per second"

const chartHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%d" role="img" aria-label="%s">
<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.ours { font-weight: 600 }
.small { font-size: 12px; fill: #59636e }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.page { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .grid { stroke: #3d444d }
  .page { fill: #0d1117 }
}
</style>
<rect class="page" width="100%%" height="100%%"/>
`

// draw draws lines over x = ticks. Both axes are logarithmic. Each line has its name at its
// end, so that a reader need not match a legend by colour. The titles give the lines their hues.
func (p panel) draw(subtitle string, lines []line, ticks []int, titles []string) string {
	least, most := math.Inf(1), 0.
	for _, l := range lines {
		for _, p := range l.points {
			least, most = min(least, p.y), max(most, p.y)
		}
	}
	x := scale{float64(slices.Min(ticks)), float64(slices.Max(ticks)), plotLeft, plotRight}
	// Whole decades would leave much of the picture empty.
	y := scale{least / 1.3, most * 1.3, plotBottom, plotTop}

	var b strings.Builder
	text := func(class, anchor string, x, y float64, s string) {
		fmt.Fprintf(&b, `<text class="%s" text-anchor="%s" x="%.1f" y="%.1f">%s</text>`+"\n", class,
			anchor, x, y, escape(s))
	}
	text("title", "start", 16, 28, p.title)
	text("small", "start", 16, 48, subtitle)

	for _, v := range gridLines(y.from, y.to) {
		fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1[3]f"/>`+"\n", plotLeft,
			plotRight, y.at(v))
		text("small", "end", plotLeft-8, y.at(v)+4, grouped(int64(v)))
	}
	for _, n := range ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1[1]f" y1="%d" y2="%d"/>`+"\n",
			x.at(float64(n)), plotTop, plotBottom)
		text("small", "middle", x.at(float64(n)), plotBottom+18, grouped(int64(n)))
	}
	text("small", "middle", (plotLeft+plotRight)/2, plotBottom+40,
		p.axis+" (both axes are logarithmic)")

	ends := make([]float64, len(lines))
	for i, l := range lines {
		ends[i] = y.at(l.last().y)
	}
	labels := apart(ends, labelStep, plotTop, plotBottom)
	// It goes backwards, so that the library is on top.
	for i := len(lines) - 1; i >= 0; i-- {
		l, width, dashes, class := lines[i], 2, "", "theirs"
		if strings.HasPrefix(l.title, library) {
			width, class = 4, "ours"
		}
		if strings.HasPrefix(l.title, library) && i > 0 || strings.Contains(l.title, "(") {
			dashes = ` stroke-dasharray="6 4"`
		}
		hue := hues[slices.Index(titles, l.title)%len(hues)]
		var path strings.Builder
		for _, at := range l.points {
			fmt.Fprintf(&path, "%.1f,%.1f ", x.at(at.x), y.at(at.y))
		}
		fmt.Fprintf(&b,
			`<polyline fill="none" stroke="%s" stroke-width="%d" stroke-linejoin="round"%s points="%s"/>`+
				"\n",
			hue, width, dashes, strings.TrimSpace(path.String()))
		for _, at := range l.points {
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="%d" fill="%s"><title>%s</title></circle>`+"\n",
				x.at(at.x), y.at(at.y), width+1, hue,
				escape(fmt.Sprintf("%s, %s %s: %s a second", l.title, grouped(int64(at.x)),
					p.axis, digits(at.y))))
		}
		fmt.Fprintf(&b,
			`<line x1="%.1f" y1="%.1f" x2="%d" y2="%.1f" stroke="%s" stroke-dasharray="2 3"/>`+"\n",
			x.at(l.last().x), ends[i], labelLeft-6, labels[i], hue)
		text(class, "start", labelLeft, labels[i]+4, fmt.Sprintf("%s  %s", l.title, digits(l.last().y)))
	}
	return b.String()
}

// gridLines returns the 1, 2 and 5 of each decade between two values.
func gridLines(from, to float64) (values []float64) {
	for decade := math.Pow(10, math.Floor(math.Log10(from))); decade <= to; decade *= 10 {
		for _, v := range []float64{decade, 2 * decade, 5 * decade} {
			if v >= max(from, 1) && v <= to {
				values = append(values, v)
			}
		}
	}
	return values
}

// apart moves positions until any two are a step apart, within the bounds if there is room.
// It keeps their order.
func apart(at []float64, step, top, bottom float64) []float64 {
	order := make([]int, len(at))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(at[i], at[j]) })
	moved := slices.Clone(at)
	next := top
	for _, i := range order { // downwards
		moved[i] = max(moved[i], next)
		next = moved[i] + step
	}
	next = bottom
	for _, i := range slices.Backward(order) { // and up again from the bottom
		moved[i] = min(moved[i], next)
		next = moved[i] - step
	}
	return moved
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}
