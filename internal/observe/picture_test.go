package observe

import (
	"context"
	"errors"
	"flag"
	"math"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

const pictureFile = "../../docs/dashboard.svg"

var update = flag.Bool("update", false, "draw "+pictureFile+" anew")

// eventful is the story of the picture: it has a little for each panel of the dashboard. It
// belongs to no alert.
var eventful = story{name: "eventful", happens: func(w *world) {
	from := time.Now()
	at := func(after time.Duration) { time.Sleep(time.Until(from.Add(after))) }
	terms := 0
	w.process("c", func(s *etcdlock.Session) {
		w.running.Go(func() { w.readAndWrite(s) })
		w.running.Go(func() { w.limited(s) })
		w.lead(s, func(ctx context.Context) error {
			if terms++; terms == 2 {
				return errors.New("the second term of this one fails")
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})
	w.process("d", func(s *etcdlock.Session) {
		w.lead(s, untilRecalled)
	})
	for _, name := range []string{"e", "f"} {
		w.process(name, func(s *etcdlock.Session) {
			for w.over.Err() == nil {
				w.hold(s, "imports/1", 40*second)
				w.sleep(20 * second)
			}
		})
	}
	w.process("g", func(s *etcdlock.Session) { // it learns of a recall, and holds on
		mu, err := s.Mutex("reports/1", etcdlock.WithRecall(minute))
		if err == nil {
			err = mu.Lock(w.over)
		}
		w.note(err)
	})
	at(3 * minute)
	w.recall("leader/2")
	at(6 * minute)
	w.recall("leader/2")
	at(8 * minute)
	w.recall("reports/1")
	at(11 * minute)
	w.etcd.DeleteKey(w.etcd.Keys("leader/1")[0])
	at(14 * minute)
	silentFrom := time.Now()
	w.etcd.Intercept(func(c fake.Call) fake.Effect {
		return fake.Effect{Drop: c.Method == fake.KeepAlive && time.Since(silentFrom) < 6*second}
	})
	at(18 * minute)
	w.etcd.Freeze()
	at(20*minute + 30*second)
	w.etcd.Thaw()
	at(28 * minute)
	w.etcd.Restore(0, 1)
}}

// The picture in the docs shows the dashboard as it is. Its values are those of one
// recording. A story has other values each time, since delays are random, and so are the
// order of arrival and the reasons that come up. So the test does not compare them, nor the
// legends. It compares all else: the panels, where they stand, their titles, types, units,
// queries and the forms of their legends. No panel is without curves, neither in the
// picture nor today. (-update draws it anew.)
func TestThePictureIsOfTheDashboard(t *testing.T) {
	p := newHistory(t, eventful, record(t, eventful))
	now := p.picture(t)
	if *update {
		require.NoError(t, os.WriteFile(pictureFile, []byte(now), 0o644))
	}
	file, err := os.ReadFile(pictureFile)
	require.NoError(t, err)
	there := string(file)
	require.Equal(t, frame(now), frame(there), "draw it anew: go test -run Picture -update .")
	for _, picture := range []string{now, there} {
		require.NotContains(t, picture, "No data", "a panel has nothing to show")
		require.NotContains(t, picture, "NaN")
		require.Less(t, len(picture), 150_000)
	}
}

// picture draws the dashboard as it is at the end of a story.
func (p *history) picture(t *testing.T) string {
	t.Helper()
	d := board(t)
	var panels []shown
	for _, panel := range d.Panels {
		s := shown{panel: panel}
		for _, target := range panel.Targets {
			query := interpolate(target.Expr)
			if target.Instant {
				for _, v := range p.engineInstant(t, query, p.began.Add(lasts-scrapeInterval)) {
					s.number += math.Round(v.F) // decimals: 0
				}
				continue
			}
			for _, series := range p.engineRange(t, query) {
				if something(series) {
					s.curves = append(s.curves, p.curve(series, target.LegendFormat))
				}
			}
		}
		panels = append(panels, s)
	}
	var marks []int
	for _, a := range d.Annotations.List {
		for _, series := range p.engineRange(t, interpolate(a.Expr)) {
			marks = append(marks, p.step(series.Floats[0])) // the beginning
		}
	}
	slices.Sort(marks)
	marks = slices.Compact(marks)
	return draw("Dashboard: "+d.Title,
		"Drawn from the dashboard's own queries over a recorded test, not by Grafana. "+
			"Curves that are always 0 are left out.", panels, marks)
}

// something reports whether a series is ever above zero. The others would fill the legends,
// with each reason that has not come up for each lock.
func something(series promql.Series) bool {
	return slices.ContainsFunc(series.Floats, func(p promql.FPoint) bool { return p.F > 0 })
}

// curve is a series with the name that the legend has for it.
func (p *history) curve(series promql.Series, legend string) curve {
	c := curve{values: make([]float64, lasts/scrapeInterval)}
	c.legend = regexp.MustCompile(`\{\{(\w+)\}\}`).ReplaceAllStringFunc(legend, func(s string) string {
		return series.Metric.Get(s[2 : len(s)-2])
	})
	for i := range c.values {
		c.values[i] = math.NaN()
	}
	for _, point := range series.Floats {
		c.values[p.step(point)] = point.F
	}
	return c
}

// step returns the step of the story to which a point belongs.
func (p *history) step(point promql.FPoint) int {
	return int(time.UnixMilli(point.T).Sub(p.began) / scrapeInterval)
}
