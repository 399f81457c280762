package observe

import (
	"context"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/otlptranslator"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// A twin says which instrument of etcdlockotel has what a metric of etcdlockprom has: in
// all of its points, or in those with an attribute. A metric with two twins is their sum.
type twin struct {
	instrument string
	metric     string
	only       attribute.KeyValue
	label      string // the label of the metric besides lock
}

var twins = []twin{
	{"etcdlock.wait.duration", "etcdlock_wait_seconds", attribute.Bool("etcdlock.acquired", true), "contended"},
	{"etcdlock.wait.duration", "etcdlock_gave_up_total", attribute.Bool("etcdlock.acquired", false), "reason"},
	{"etcdlock.wait.duration", "etcdlock_contended_total", attribute.Bool("etcdlock.contended", true), ""},
	{instrument: "etcdlock.wait.queued", metric: "etcdlock_contended_total"},
	{instrument: "etcdlock.wait.queued", metric: "etcdlock_waiting"},
	{instrument: "etcdlock.wait.longest", metric: "etcdlock_longest_wait_seconds"},
	{instrument: "etcdlock.hold.duration", metric: "etcdlock_hold_seconds"},
	{instrument: "etcdlock.hold.active", metric: "etcdlock_holders"},
	{instrument: "etcdlock.hold.lost", metric: "etcdlock_lost_total", label: "reason"},
	{instrument: "etcdlock.hold.shared", metric: "etcdlock_shared_total", label: "mode"},
	{instrument: "etcdlock.hold.permits", metric: "etcdlock_permits_total"},
	{instrument: "etcdlock.hold.recalled", metric: "etcdlock_recalls_total"},
	{instrument: "etcdlock.term.duration", metric: "etcdlock_terms_total", label: "result"},
	{instrument: "etcdlock.lease.renewal.duration", metric: "etcdlock_lease_renewal_seconds"},
	{instrument: "etcdlock.lease.renewal.failed", metric: "etcdlock_lease_renewal_failures_total"},
	{instrument: "etcdlock.lease.renewal.at_risk", metric: "etcdlock_lease_at_risk_total"},
	{instrument: "etcdlock.lease.granted", metric: "etcdlock_leases_granted_total"},
	{instrument: "etcdlock.lease.replaced", metric: "etcdlock_leases_replaced_total"},
	{instrument: "etcdlock.etcd.unavailable", metric: "etcdlock_unavailable_total"},
	{instrument: "etcdlock.etcd.set_back", metric: "etcdlock_set_backs_total"},
	{instrument: "etcdlock.removal.begun", metric: "etcdlock_removals_begun_total"},
	{instrument: "etcdlock.removal.done", metric: "etcdlock_removals_done_total"},
}

var metricName = regexp.MustCompile(`etcdlock_\w+`)

// A comparison is of what both modules have reported in a story.
type comparison struct {
	differences map[string]string // the first difference of each series
	told        map[string]bool   // metrics that were not 0
	instruments map[string]*instrument
}

// An instrument is what OpenTelemetry has of an instrument.
type instrument struct {
	kind, unit string
	attributes map[attribute.Key]bool
}

func newComparison() comparison {
	return comparison{
		differences: make(map[string]string), told: make(map[string]bool),
		instruments: make(map[string]*instrument),
	}
}

// compare compares what Prometheus has just read of a process, by series, with what its
// instruments say. A series of 0 there may be missing here: a histogram has no point before
// its first measurement.
func (c *comparison) compare(
	t *testing.T, counted map[string]float64, reader *sdkmetric.ManualReader,
) {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &all))
	measured := make(map[string]float64)
	for _, m := range all.ScopeMetrics[0].Metrics {
		c.translate(t, m, measured)
	}
	for series := range counted {
		measured[series] += 0
	}
	for series, value := range measured {
		if value != 0 {
			c.told[metricName.FindString(series)] = true
		}
		if math.Abs(value-counted[series]) > 1e-6 && c.differences[series] == "" {
			c.differences[series] = fmt.Sprintf("%v by OpenTelemetry, %v by Prometheus", value,
				counted[series])
		}
	}
}

// translate adds what an instrument says to the series that Prometheus would have for it.
func (c *comparison) translate(t *testing.T, m metricdata.Metrics, series map[string]float64) {
	t.Helper()
	known := &instrument{unit: m.Unit, attributes: make(map[attribute.Key]bool)}
	if before, ok := c.instruments[m.Name]; ok {
		known = before
	}
	c.instruments[m.Name] = known
	add := func(of attribute.Set, value float64, histogram *metricdata.HistogramDataPoint[float64]) {
		for _, a := range of.ToSlice() {
			known.attributes[a.Key] = true
		}
		for _, twin := range twins {
			if value, _ := of.Value(twin.only.Key); twin.instrument != m.Name || value != twin.only.Value {
				continue
			}
			name := func(suffix string, le ...string) string {
				metric := twin.labels(of)
				metric[model.MetricNameLabel] = model.LabelValue(twin.metric + suffix)
				for _, le := range le {
					metric[model.BucketLabel] = model.LabelValue(le)
				}
				return metric.String()
			}
			// Of a histogram a counter may have the count. A gauge may be of seconds, too.
			if histogram == nil || !strings.HasSuffix(twin.metric, "_seconds") {
				series[name("")] += value
				continue
			}
			series[name("_count")] += value
			series[name("_sum")] += histogram.Sum
			below := uint64(0)
			for i, n := range histogram.BucketCounts {
				le := "+Inf"
				if i < len(histogram.Bounds) {
					le = strconv.FormatFloat(histogram.Bounds[i], 'g', -1, 64)
				}
				below += n
				series[name("_bucket", le)] += float64(below)
			}
		}
	}
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		known.kind = "updowncounter"
		if data.IsMonotonic {
			known.kind = "counter"
		}
		for _, p := range data.DataPoints {
			add(p.Attributes, float64(p.Value), nil)
		}
	case metricdata.Histogram[float64]:
		known.kind = "histogram"
		for _, p := range data.DataPoints {
			add(p.Attributes, float64(p.Count), &p)
		}
	case metricdata.Gauge[float64]:
		known.kind = "gauge"
		for _, p := range data.DataPoints {
			add(p.Attributes, p.Value, nil)
		}
	default:
		require.Fail(t, "what is this?", "%s is a %T", m.Name, data)
	}
}

// labels returns the labels of the metric for a point of the instrument.
func (w twin) labels(of attribute.Set) model.Metric {
	metric := make(model.Metric)
	add := func(name, value string) { metric[model.LabelName(name)] = model.LabelValue(value) }
	if kind, ok := of.Value("etcdlock.kind"); ok {
		add("lock", kind.AsString())
	}
	switch w.label {
	case "contended":
		contended, _ := of.Value("etcdlock.contended")
		add("contended", strconv.FormatBool(contended.AsBool()))
	case "reason":
		reason, failed := of.Value("error.type")
		text := reason.AsString()
		if text == "_OTHER" {
			text = "other"
		}
		if !failed {
			text = "locked"
		}
		add("reason", text)
	case "mode":
		mode, _ := of.Value("etcdlock.mode")
		add("mode", mode.AsString())
	case "result":
		reason, failed := of.Value("error.type")
		result := "lost"
		switch text := reason.AsString(); {
		case !failed:
			result = "ok"
		case text == "recalled":
			result = "recalled"
		case text == "_OTHER":
			result = "error"
		}
		add("result", result)
	}
	return metric
}

// Whatever happens in the stories, both modules report the same at any time. Each metric
// changes in some story.
func TestBothModulesTellTheSameStories(t *testing.T) {
	told := make(map[string]bool)
	for _, s := range stories {
		r := recorded(t, s)
		require.Empty(t, r.both.differences, s.name)
		maps.Copy(told, r.both.told)
	}
	for _, name := range names(t) {
		require.True(t, told[name] || told[name+"_count"], "no story has %s", name)
	}
}

// allInstruments are those of all stories, by name.
func allInstruments(t *testing.T) map[string]*instrument {
	t.Helper()
	all := make(map[string]*instrument)
	for _, s := range stories {
		for name, i := range recorded(t, s).both.instruments {
			if all[name] == nil {
				all[name] = &instrument{i.kind, i.unit, maps.Clone(i.attributes)}
			}
			maps.Copy(all[name].attributes, i.attributes)
		}
	}
	return all
}

// The page's table has each instrument, with its type, unit and attributes, and the metrics
// that match it.
func TestThePageHasEachInstrument(t *testing.T) {
	row := regexp.MustCompile(
		"(?m)^\\| `(etcdlock\\.\\S+)` \\| (\\w+) \\| (\\S+) \\| (.*?) ?\\| (.*) \\|$")
	quoted := regexp.MustCompile("`(.*?)`")
	all := allInstruments(t)
	var documented, compared []string
	for _, cells := range row.FindAllStringSubmatch(page(t), -1) {
		name := cells[1]
		require.Contains(t, all, name)
		require.Equal(t, all[name].kind, cells[2], name)
		require.Equal(t, all[name].unit, cells[3], name)
		delete(all[name].attributes, "etcdlock.kind")
		var attributes []attribute.Key
		for _, key := range quoted.FindAllStringSubmatch(cells[4], -1) {
			attributes = append(attributes, attribute.Key(key[1]))
		}
		require.ElementsMatch(t, slices.Collect(maps.Keys(all[name].attributes)), attributes, name)
		delete(all, name)
		for _, metric := range quoted.FindAllStringSubmatch(cells[5], -1) {
			documented = append(documented, name+" "+metric[1])
		}
	}
	require.Empty(t, all)
	for _, twin := range twins {
		compared = append(compared, twin.instrument+" "+twin.metric)
	}
	require.ElementsMatch(t, compared, documented)
	for _, name := range names(t) {
		require.True(t, slices.ContainsFunc(twins, func(w twin) bool { return w.metric == name }), name)
	}
}

// If a program uses both modules, and Prometheus reads them from one process, no two
// metrics have one name.
func TestTheNamesOfBothModulesDoNotCollide(t *testing.T) {
	types := map[string]otlptranslator.MetricType{
		"histogram":     otlptranslator.MetricTypeHistogram,
		"counter":       otlptranslator.MetricTypeMonotonicCounter,
		"updowncounter": otlptranslator.MetricTypeNonMonotonicCounter,
		"gauge":         otlptranslator.MetricTypeGauge,
	}
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	all := allInstruments(t)
	require.NotEmpty(t, all)
	for name, i := range all {
		translated, err := namer.Build(otlptranslator.Metric{Name: name, Unit: i.unit,
			Type: types[i.kind]})
		require.NoError(t, err)
		require.NotContains(t, names(t), translated)
	}
}
