package observe

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// The picture's measures, in pixels.
const (
	cellWidth, cellHeight = 38, 26 // of the dashboard's grid
	margin, headHeight    = 8, 58
	boardWidth            = 24*cellWidth + 2*margin

	legendStep = 15
	letter     = 6.1 // the width of one in the legend, about
	headLetter = 7.7 // and in a title
)

// hues are for light and for dark pages alike, as in the chart of the benchmarks.
var hues = []string{
	"#2f81f7", "#e5534b", "#3fa34d", "#d4792a", "#8957e5", "#b08800", "#2a9d8f",
	"#c9569b", "#7d8590", "#a0785a", "#6e7bd9", "#6f9a2f", "#57c4e5",
}

// signals are the colours that the dashboard has for its numbers.
var signals = map[string]string{"green": "#3fa34d", "red": "#e5534b", "blue": "#2f81f7"}

// A shown panel is one with what its queries give.
type shown struct {
	panel
	number float64 // of a stat
	curves []curve
}

// A curve has a value for each step of the story, NaN where there is none.
type curve struct {
	legend string
	values []float64
}

// drawing is a dashboard in SVG. What depends on the story's values stands between the
// lines dataBegin and dataEnd. The rest depends on the dashboard alone.
type drawing struct{ strings.Builder }

const (
	dataBegin = `<g class="data">` + "\n"
	dataEnd   = "</g>\n"
)

func draw(title, subtitle string, panels []shown, marks []int) string {
	var d drawing
	height := 0
	for _, p := range panels {
		height = max(height, p.GridPos.Y+p.GridPos.H)
	}
	fmt.Fprintf(&d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%d" role="img" aria-label="%s">
<style>
text { font: 11px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.row { font-size: 13px; font-weight: 600 }
.head { font-size: 12px; font-weight: 600 }
.number { font-size: 38px; font-weight: 600 }
.small { fill: #59636e }
.grid { stroke: #d1d9e0; stroke-width: 1; fill: none }
.mark { stroke: #e5534b; stroke-dasharray: 3 3 }
.line { fill: none; stroke-width: 1.3; stroke-linejoin: round; stroke-linecap: round }
.page { fill: #f6f8fa }
.panel { fill: #ffffff; stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .grid { stroke: #3d444d }
  .page { fill: #0d1117 }
  .panel { fill: #151b23; stroke: #3d444d }
}
</style>
<rect class="page" width="100%%" height="100%%"/>
`, boardWidth, headHeight+height*cellHeight+margin, escape(title))
	d.text("title", "start", margin+4, 26, title)
	d.text("small", "start", margin+4, 46, subtitle)
	for _, p := range panels {
		d.panel(p, marks)
	}
	d.WriteString("</svg>\n")
	return d.String()
}

// text writes in the class's colour.
func (d *drawing) text(class, anchor string, x, y float64, s string) {
	fmt.Fprintf(d, `<text class="%s" text-anchor="%s" x="%s" y="%s">%s</text>`+"\n",
		class, anchor, pixel(x), pixel(y), escape(s))
}

// A box is where a panel stands, or its plot.
type box struct{ left, top, right, bottom float64 }

func (d *drawing) panel(p shown, marks []int) {
	b := box{
		left:   float64(margin + p.GridPos.X*cellWidth + 3),
		top:    float64(headHeight + p.GridPos.Y*cellHeight + 3),
		right:  float64(margin + (p.GridPos.X+p.GridPos.W)*cellWidth - 3),
		bottom: float64(headHeight + (p.GridPos.Y+p.GridPos.H)*cellHeight - 3),
	}
	if p.Type == "row" {
		d.text("row", "start", b.left+2, b.bottom-5, p.Title)
		return
	}
	fmt.Fprintf(d, `<rect class="panel" x="%s" y="%s" width="%s" height="%s" rx="4"/>`+"\n",
		pixel(b.left), pixel(b.top), pixel(b.right-b.left), pixel(b.bottom-b.top))
	// It names the queries, so that the picture differs from that of other queries.
	fmt.Fprintf(d, "<desc>%s in %s:", p.Type, escape(p.FieldConfig.Defaults.Unit))
	for _, target := range p.Targets {
		query := strings.Join(strings.Fields(target.Expr), " ")
		d.WriteString(escape(fmt.Sprintf(" %s as %q", query, target.LegendFormat)))
	}
	d.WriteString("</desc>\n")
	for i, line := range wrap(p.Title, b.right-b.left-18) {
		d.text("head", "start", b.left+9, b.top+17+15*float64(i), line)
	}
	d.WriteString(dataBegin)
	if p.Type == "stat" {
		fmt.Fprintf(d,
			`<text class="number" text-anchor="middle" x="%s" y="%s" style="fill:%s">%s</text>`+"\n",
			pixel((b.left+b.right)/2), pixel((b.top+b.bottom)/2+28), p.signal(),
			format(p.number, p.FieldConfig.Defaults.Unit))
	} else {
		d.series(p, b, marks)
	}
	d.WriteString(dataEnd)
}

// wrap breaks a text into lines of a width.
func wrap(text string, width float64) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		last := len(lines) - 1
		if last >= 0 && headLetter*float64(len(lines[last])+1+len(word)) <= width {
			lines[last] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}

// signal returns the colour of a stat: that of the highest step that its number has
// reached.
func (p shown) signal() (hue string) {
	for _, step := range p.FieldConfig.Defaults.Thresholds.Steps {
		if step.Value == nil || p.number >= *step.Value {
			hue = signals[step.Color]
		}
	}
	return hue
}

// series draws the plot of a panel, and its legend below.
func (d *drawing) series(p shown, b box, marks []int) {
	places, lines := legendPlaces(p.curves, b)
	plot := box{b.left + 62, b.top + 30, b.right - 14, b.bottom - 24 - legendStep*float64(lines)}
	stacked := p.FieldConfig.Defaults.Custom["drawStyle"] == "bars"
	most := highest(p.curves, stacked)
	step := ladder(most / 3)
	if p.FieldConfig.Defaults.Unit == "s" && most > 2*minute.Seconds() {
		step = minute.Seconds() * ladder(most/minute.Seconds()/3)
	}
	top := step * math.Max(1, math.Ceil(most/step-1e-9))
	y := func(v float64) float64 { return plot.bottom - (plot.bottom-plot.top)*v/top }
	steps := float64(lasts / scrapeInterval)
	x := func(i float64) float64 { return plot.left + (plot.right-plot.left)*i/steps }

	for v := 0.; v < top+step/2; v += step {
		fmt.Fprintf(d, `<path class="grid" d="M%s %sH%s"/>`+"\n", pixel(plot.left), pixel(y(v)),
			pixel(plot.right))
		d.text("small", "end", plot.left-6, y(v)+4, format(v, p.FieldConfig.Defaults.Unit))
	}
	for at := calm; at < lasts; at += calm {
		d.text("small", "middle", x(float64(at/scrapeInterval)), plot.bottom+14,
			fmt.Sprintf("%.0f min", at.Minutes()))
	}
	for _, i := range marks {
		fmt.Fprintf(d, `<path class="mark" d="M%s %sV%s"/>`+"\n", pixel(x(float64(i))), pixel(plot.top),
			pixel(plot.bottom))
	}
	if len(p.curves) == 0 {
		d.text("small", "middle", (plot.left+plot.right)/2, (plot.top+plot.bottom)/2, "No data")
	}
	below := make([]float64, int(steps)+1) // the bars on which the next bars stand
	for n, c := range p.curves {
		hue := hues[n%len(hues)]
		if stacked {
			fmt.Fprintf(d, `<path fill="%s" d="%s"/>`+"\n", hue, bars(c.values, below, x, y))
		} else {
			fmt.Fprintf(d, `<path class="line" stroke="%s" d="%s"/>`+"\n", hue, polyline(c.values, x, y))
		}
		at := places[n]
		fmt.Fprintf(d, `<path stroke="%s" stroke-width="3" d="M%s %sh11"/>`+"\n", hue, pixel(at.left),
			pixel(at.top-4))
		d.text("small", "start", at.left+15, at.top, c.legend)
	}
}

// legendPlaces lays the legend out at the bottom of a panel, in as many lines as it takes.
func legendPlaces(curves []curve, b box) (places []box, lines int) {
	places = make([]box, len(curves))
	x := b.left + 12
	for i, c := range curves {
		width := 15 + letter*float64(len(c.legend)) + 12
		if lines == 0 || x+width > b.right {
			x, lines = b.left+12, lines+1
		}
		places[i] = box{left: x, top: float64(lines)}
		x += width
	}
	for i := range places {
		places[i].top = b.bottom - 9 - legendStep*(float64(lines)-places[i].top)
	}
	return places, lines
}

// highest is the greatest value that is drawn.
func highest(curves []curve, stacked bool) (most float64) {
	sums := make(map[int]float64)
	for _, c := range curves {
		for i, v := range c.values {
			if math.IsNaN(v) {
				continue
			}
			if stacked {
				sums[i] += v
				v = sums[i]
			}
			most = max(most, v)
		}
	}
	if most == 0 {
		return 1
	}
	return most
}

// ladder returns the least number of the form 1, 2, 2.5 or 5 times a power of ten that is
// not below a step.
func ladder(step float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(step)))
	for _, v := range []float64{1, 2, 2.5, 5} {
		if v*decade >= step*(1-1e-9) {
			return v * decade
		}
	}
	return 10 * decade
}

// polyline goes through values, with a gap where there is none. It leaves out points in the
// middle of a straight line.
func polyline(values []float64, x, y func(float64) float64) string {
	var path strings.Builder
	for i := 0; i < len(values); i++ {
		if math.IsNaN(values[i]) {
			continue
		}
		begin := i
		fmt.Fprintf(&path, "M%s %s", pixel(x(float64(i))), pixel(y(values[i])))
		for i+1 < len(values) && !math.IsNaN(values[i+1]) {
			i++
			level := values[i] == values[i-1]
			if level && i+1 < len(values) && values[i+1] == values[i] {
				continue
			}
			fmt.Fprintf(&path, "L%s %s", pixel(x(float64(i))), pixel(y(values[i])))
		}
		if i == begin {
			path.WriteString("h.1") // a point
		}
	}
	return path.String()
}

// bars draws bars that stand on those below.
func bars(values, below []float64, x, y func(float64) float64) string {
	var path strings.Builder
	for i, v := range values {
		if math.IsNaN(v) || v == 0 {
			continue
		}
		bottom, top := y(below[i]), y(below[i]+v)
		below[i] += v
		fmt.Fprintf(&path, "M%s %sV%sH%sV%sz", pixel(x(float64(i)-.5)), pixel(bottom), pixel(top),
			pixel(x(float64(i)+.4)), pixel(bottom))
	}
	return path.String()
}

// format returns a value with its unit, about as Grafana writes it.
func format(v float64, unit string) string {
	digits := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	switch {
	case unit == "percentunit":
		return digits(100*v) + "%"
	case unit == "ops":
		return digits(v) + " ops/s"
	case unit != "s" || v == 0:
		if unit == "s" {
			return "0 s"
		}
		return digits(math.Round(v*1000) / 1000)
	case v < time.Millisecond.Seconds():
		return digits(v*1e6) + " µs"
	case v < time.Second.Seconds():
		return digits(v*1000) + " ms"
	case v < time.Minute.Seconds()*2:
		return digits(v) + " s"
	default:
		return digits(v/60) + " min"
	}
}

func pixel(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

// frame is the part of a picture that depends on the dashboard alone.
func frame(picture string) string {
	var b strings.Builder
	for i, part := range strings.Split(picture, dataBegin) {
		if i > 0 {
			_, part, _ = strings.Cut(part, dataEnd)
		}
		b.WriteString(part)
	}
	return b.String()
}
