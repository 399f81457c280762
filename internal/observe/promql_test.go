package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/util/teststorage"
	"github.com/stretchr/testify/require"
)

const rulesFile = "../../etcdlockprom/dashboard/alerts.yaml"

// A history is what Prometheus has read of a story.
type history struct {
	t      *testing.T
	story  story
	began  time.Time
	data   *teststorage.TestStorage
	engine *promql.Engine
}

// read returns a Prometheus that has read each of the stories. It records them once.
func read(t *testing.T) map[string]*history {
	t.Helper()
	all := make(map[string]*history)
	for _, s := range stories {
		all[s.name] = newHistory(t, s, recordings(t)[s.name])
	}
	return all
}

// newHistory returns a Prometheus that has read a recording of a story.
func newHistory(t *testing.T, s story, r recording) *history {
	t.Helper()
	p := &history{
		t: t, story: s, began: r.began, data: teststorage.New(t),
		engine: promqltest.NewTestEngine(t, false, 0, 50_000_000),
	}
	appender := p.data.Appender(context.Background())
	for _, s := range r.samples {
		_, err := appender.Append(0, s.labels, s.at.UnixMilli(), s.value)
		require.NoError(t, err)
	}
	require.NoError(t, appender.Commit())
	return p
}

type recording struct {
	samples []sample
	began   time.Time
	both    comparison
}

var recorded struct {
	sync.Once
	of map[string]recording
}

func recordings(t *testing.T) map[string]recording {
	t.Helper()
	recorded.Do(func() {
		recorded.of = make(map[string]recording)
		for _, s := range stories {
			recorded.of[s.name] = record(t, s)
		}
	})
	require.Len(t, recorded.of, len(stories))
	return recorded.of
}

// alertRules are the rules of the file, and their groups.
func alertRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(rulesFile, false, model.UTF8Validation)
	require.Empty(t, errs)
	require.Len(t, groups.Groups, 1)
	return groups.Groups[0].Rules
}

// Each alert fires in the story that it is for, in time, and in no other. On a quiet day
// none fires.
func TestEachAlertFiresInItsStoryAndInNoOther(t *testing.T) {
	fired := make(map[string]bool)
	for name, p := range read(t) {
		t.Run(name, func(t *testing.T) {
			got := make(map[string][]string) // labels
			first := time.Duration(0)
			for _, rule := range alertRules(t) {
				alerts, at := p.fires(t, rule)
				if alerts == nil {
					continue
				}
				require.Positive(t, at, "%s fires before the event", rule.Alert)
				if rule.Alert == p.story.may {
					continue
				}
				fired[rule.Alert] = true
				got[rule.Alert] = alerts
				if first == 0 || at < first {
					first = at
				}
			}
			t.Log("first after", first, got)
			for alert, label := range p.story.fires {
				require.Contains(t, got, alert)
				key, value, _ := strings.Cut(label, "=")
				require.Contains(t, strings.Join(got[alert], " "), fmt.Sprintf("%s=%q", key, value))
			}
			require.Len(t, got, len(p.story.fires), "%v", got)
			require.LessOrEqual(t, first, p.story.soon)
		})
	}
	for _, rule := range alertRules(t) {
		require.True(t, fired[rule.Alert], "no story is for %s", rule.Alert)
	}
}

// fires makes Prometheus evaluate a rule each 15 s. It returns the labels of the alerts
// that fire, and the time from the story's event to the first one.
func (p *history) fires(t *testing.T, rule rulefmt.Rule) (alerts []string, first time.Duration) {
	t.Helper()
	expr, err := parser.ParseExpr(rule.Expr)
	require.NoError(t, err)
	r := rules.NewAlertingRule(rule.Alert, expr, time.Duration(rule.For),
		time.Duration(rule.KeepFiringFor),
		labels.FromMap(rule.Labels), labels.FromMap(rule.Annotations), labels.EmptyLabels(), "", true,
		promslog.NewNopLogger())
	query := rules.EngineQueryFunc(p.engine, p.data)
	for at := scrapeInterval; at < lasts; at += scrapeInterval {
		_, err := r.Eval(context.Background(), 0, p.began.Add(at), query, nil, 0)
		require.NoError(t, err)
		for _, alert := range r.ActiveAlerts() {
			require.NotEmpty(t, alert.Annotations.Get("summary"))
			alert.Annotations.Range(func(a labels.Label) {
				require.NotContains(t, a.Value, "<error", "%s of %s", a.Name, rule.Alert)
				require.NotContains(t, a.Value, "no value", "%s of %s", a.Name, rule.Alert)
			})
			if alert.State != rules.StateFiring {
				continue
			}
			if alerts == nil {
				first = at - calm
			}
			if text := alert.Labels.String(); !slices.Contains(alerts, text) {
				alerts = append(alerts, text)
			}
		}
	}
	return alerts, first
}

// No alert fires for an outage that is over, nor for a loss after a quarter of an hour.
func TestAlertsEnd(t *testing.T) {
	p := read(t)["etcd away"]
	for _, rule := range alertRules(t) {
		end := p.began.Add(lasts - scrapeInterval)
		result := p.engineInstant(t, rule.Expr, end)
		require.Empty(t, result, "%s", rule.Alert)
	}
}

func (p *history) engineInstant(t *testing.T, query string, at time.Time) promql.Vector {
	t.Helper()
	q, err := p.engine.NewInstantQuery(context.Background(), p.data, nil, query, at)
	require.NoError(t, err, query)
	defer q.Close()
	result := q.Exec(context.Background())
	require.NoError(t, result.Err, query)
	require.Empty(t, result.Warnings, query)
	vector, err := result.Vector()
	require.NoError(t, err, query)
	out := make(promql.Vector, len(vector))
	copy(out, vector)
	return out
}

func (p *history) engineRange(t *testing.T, query string) promql.Matrix {
	t.Helper()
	q, err := p.engine.NewRangeQuery(context.Background(), p.data, nil, query,
		p.began.Add(minute), p.began.Add(lasts-scrapeInterval), scrapeInterval)
	require.NoError(t, err, query)
	defer q.Close()
	result := q.Exec(context.Background())
	require.NoError(t, result.Err, query)
	require.Empty(t, result.Warnings, query)
	matrix, err := result.Matrix()
	require.NoError(t, err, query)
	return matrix
}

// interpolate puts values in place of Grafana's variables, as Grafana does if "All" is
// chosen.
func interpolate(query string) string {
	return strings.NewReplacer(
		`"$job"`, `".*"`, `"$lock"`, `".*"`,
		"$__rate_interval", (4 * scrapeInterval).String(), "$__range", (lasts - minute).String(),
	).Replace(query)
}

// Each query of the dashboard shows something in some story, with the labels of its legend.
func TestEachQueryOfTheDashboardShowsSomething(t *testing.T) {
	worlds := read(t)
	legend := regexp.MustCompile(`\{\{(\w+)\}\}`)
	queries := 0
	for _, p := range board(t).Panels {
		for _, target := range p.Targets {
			queries++
			query := interpolate(target.Expr)
			require.NotContains(t, query, "$")
			shown := ""
			for name, world := range worlds {
				var matrix promql.Matrix
				if target.Instant {
					for at := calm; at < lasts; at += minute {
						for _, s := range world.engineInstant(t, query, world.began.Add(at)) {
							matrix = append(matrix, promql.Series{Metric: s.Metric, Floats: []promql.FPoint{{F: s.F}}})
						}
					}
				} else {
					matrix = world.engineRange(t, query)
				}
				for _, series := range matrix {
					for _, label := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
						require.NotEmpty(t, series.Metric.Get(label[1]), "%s: %s", p.Title, label[1])
					}
					for _, point := range series.Floats {
						if point.F > 0 {
							shown = name
						}
					}
				}
			}
			require.NotEmpty(t, shown, "%s shows nothing anywhere: %s", p.Title, query)
		}
	}
	require.GreaterOrEqual(t, queries, 20)
	require.NotEmpty(t,
		worlds["etcd set back"].engineRange(t, interpolate(board(t).Annotations.List[0].Expr)))
	require.Empty(t, worlds["quiet"].engineRange(t, interpolate(board(t).Annotations.List[0].Expr)))
}

// The numbers on top are red in the story that they are for, and not in a quiet one.
func TestTheNumbersOnTopAreRedWhenTheyShouldBe(t *testing.T) {
	worlds := read(t)
	for _, row := range []struct {
		panel, story string
		after        time.Duration // from the event
	}{
		{"Holds lost", "a hold lost to an operator", 10 * minute},
		{"Processes whose etcd does not answer", "etcd away", 3 * minute},
		{"etcd set back", "etcd set back", 10 * minute},
	} {
		for _, p := range board(t).Panels {
			if p.Title != row.panel {
				continue
			}
			steps := p.FieldConfig.Defaults.Thresholds.Steps
			require.Len(t, steps, 2)
			value := func(story string, after time.Duration) (v float64) {
				w := worlds[story]
				for _, s := range w.engineInstant(t, interpolate(p.Targets[0].Expr), w.began.Add(calm+after)) {
					v += s.F
				}
				return v
			}
			require.Greater(t, value(row.story, row.after), *steps[1].Value, row.panel)
			for after := time.Duration(0); calm+after < lasts; after += minute {
				require.Less(t, value("quiet", after), *steps[1].Value, row.panel)
			}
			row.panel = ""
		}
		require.Empty(t, row.panel, "no such panel")
	}
}

// The dashboard's variables offer the right values.
func TestTheVariablesOfTheDashboardFindTheirValues(t *testing.T) {
	world := read(t)["quiet"]
	call := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	found := make(map[string]map[string]bool)
	for _, v := range board(t).Templating.List {
		if v.Type != "query" {
			continue
		}
		parts := call.FindStringSubmatch(v.Query)
		require.Len(t, parts, 3, v.Query)
		require.Equal(t, v.Query, v.Definition)
		found[v.Name] = make(map[string]bool)
		for _, s := range world.engineInstant(t, interpolate(parts[1]), world.began.Add(calm)) {
			found[v.Name][s.Metric.Get(parts[2])] = true
		}
	}
	require.Equal(t, map[string]map[string]bool{
		"job":  {"shop": true},
		"lock": {"orders": true, "cron": true, "leader": true},
	}, found)
}

func board(t *testing.T) dashboard {
	t.Helper()
	file, err := os.Open("../../etcdlockprom/dashboard/etcdlock.json")
	require.NoError(t, err)
	defer file.Close()
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	var d dashboard
	require.NoError(t, decoder.Decode(&d))
	return d
}
