package observe

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const rulesFile = "../../etcdlockprom/dashboard/alerts.yaml"

// An alertRule is a rule of the file, as far as tests look at it. promtool checks the rest.
type alertRule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alertRules(t *testing.T) []alertRule {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	require.NoError(t, err)
	var file struct{ Groups []struct{ Rules []alertRule } }
	require.NoError(t, yaml.Unmarshal(text, &file))
	require.Len(t, file.Groups, 1)
	require.NotEmpty(t, file.Groups[0].Rules)
	return file.Groups[0].Rules
}

// promtool runs the tool of Prometheus, which must succeed.
func promtool(t *testing.T, args ...string) (output string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("there is no promtool here: it is in Debian's package prometheus")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// A unitTest is what promtool makes of a recording: it evaluates the rules each 15 s, and
// then the expressions.
type unitTest struct {
	Name     string  `json:"name"`
	Interval string  `json:"interval"`
	Series   []input `json:"input_series"`
	Exprs    []want  `json:"promql_expr_test"`
}

type input struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// A want is an expression and what it gives at a time of the story.
type want struct {
	Expr    string   `json:"expr"`
	At      string   `json:"eval_time"`
	Samples []labels `json:"exp_samples"`
}

type labels struct {
	Labels string `json:"labels"`
	Value  int    `json:"value"`
}

// newUnitTest returns a test of a story that expects nothing yet.
func newUnitTest(t *testing.T, s story) *unitTest {
	t.Helper()
	u := &unitTest{Name: s.name, Interval: scrapeInterval.String()}
	for series, values := range recorded(t, s).series {
		var text strings.Builder
		for _, v := range values {
			if math.IsNaN(v) {
				text.WriteString("_ ")
			} else {
				text.WriteString(strconv.FormatFloat(v, 'f', -1, 64) + " ")
			}
		}
		u.Series = append(u.Series, input{series, text.String()})
	}
	return u
}

// gives expects groups of series by some of their labels: those with the values, and no others.
func (u *unitTest) gives(by string, at time.Duration, expr string, values ...string) {
	w := want{Expr: fmt.Sprintf("group by (%s) (%s)", by, expr), At: at.String(), Samples: []labels{}}
	for _, value := range values {
		w.Samples = append(w.Samples, labels{value, 1})
	}
	u.Exprs = append(u.Exprs, w)
}

// some expects that an expression gives something at a time, and none that it gives nothing.
func (u *unitTest) some(at time.Duration, expr string) { u.gives("", at, expr, "{}") }
func (u *unitTest) none(at time.Duration, expr string) { u.gives("", at, expr) }

// evaluate has promtool run tests with a file of rules.
func evaluate(t *testing.T, rules string, tests []*unitTest) {
	t.Helper()
	require.NotEmpty(t, tests)
	rules, err := filepath.Abs(rules)
	require.NoError(t, err)
	text, err := json.Marshal(map[string]any{ // which is YAML
		"rule_files": []string{rules}, "evaluation_interval": scrapeInterval.String(), "tests": tests,
	})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "test.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	promtool(t, "test", "rules", file)
}

const end = lasts - scrapeInterval

// Each alert fires in the story that it is for, in time, and in no other. On a quiet day
// none fires. None is left of an outage that is over, nor of a loss after half an hour.
func TestEachAlertFiresInItsStoryAndInNoOther(t *testing.T) {
	var tests []*unitTest
	fires := make(map[string]bool)
	for _, s := range stories {
		u := newUnitTest(t, s)
		firing := fmt.Sprintf(`ALERTS{alertstate="firing", alertname!=%q}`, s.may)
		u.none(calm-scrapeInterval, "last_over_time("+firing+"["+calm.String()+"])")
		var names []string
		for alert, label := range s.fires {
			fires[alert] = true
			names = append(names, fmt.Sprintf("{alertname=%q}", alert))
			key, value, _ := strings.Cut(label, "=")
			u.some(end, fmt.Sprintf(`last_over_time(ALERTS{alertstate="firing", alertname=%q, %s=%q}[%s])`,
				alert, key, value, lasts))
		}
		u.gives("alertname", end, "last_over_time("+firing+"["+lasts.String()+"])", names...)
		if s.soon > 0 {
			u.some(calm+s.soon, "last_over_time("+firing+"["+s.soon.String()+"])")
		}
		if s.name == "etcd away" {
			u.none(end, "ALERTS")
		}
		tests = append(tests, u)
	}
	for _, rule := range alertRules(t) {
		require.True(t, fires[rule.Alert], "no story is for %s", rule.Alert)
		delete(fires, rule.Alert)
	}
	require.Empty(t, fires, "there is no such alert")
	evaluate(t, rulesFile, tests)
}

// The texts of an alert name only labels that it has.
func TestTheTextsOfAlertsHaveTheirLabels(t *testing.T) {
	for _, rule := range alertRules(t) {
		require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		for _, text := range rule.Annotations {
			for _, label := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
				require.Contains(t, labelsBy(rule.Expr), label[1], rule.Alert)
			}
		}
	}
}

// labelsBy are the labels of what an expression gives: those of its first "by".
func labelsBy(expr string) []string {
	by := regexp.MustCompile(`\bby \(([^)]*)\)`).FindStringSubmatch(expr)
	if by == nil {
		return nil
	}
	return strings.Split(strings.ReplaceAll(by[1], " ", ""), ",")
}

// Each query of the dashboard shows something in an eventful story, with the labels of its
// legend. The numbers on top are red in the story that they are for, and not in a quiet one.
// The variables find their values.
func TestTheDashboardShowsTheStories(t *testing.T) {
	type record struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	tests := make(map[string]*unitTest)
	for _, s := range append(slices.Clone(stories), eventful) {
		tests[s.name] = newUnitTest(t, s)
	}
	quiet, all := tests["quiet"], tests["eventful"]
	legend := regexp.MustCompile(`\{\{(\w+)\}\}`)
	d := board(t)
	var records []record
	red := map[string]struct {
		story string
		after time.Duration // from the event
	}{
		"Holds lost":                           {"a hold lost to an operator", 10 * minute},
		"Processes whose etcd does not answer": {"etcd away", 3 * minute},
		"etcd set back":                        {"etcd set back", 10 * minute},
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			name := fmt.Sprintf("panel:%d:%s", p.ID, target.RefID)
			query := interpolate(target.Expr)
			require.NotContains(t, query, "$")
			records = append(records, record{name, query})
			shown := "max_over_time(" + name + "[" + lasts.String() + "]) > 0"
			for _, label := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				shown = fmt.Sprintf(`label_replace(%s, "empty", %q, %q, "")`, shown, label[1], label[1])
			}
			all.gives("empty", end, shown, "{}")
		}
		if row, ok := red[p.Title]; ok {
			steps := p.FieldConfig.Defaults.Thresholds.Steps
			require.Len(t, steps, 2)
			name := fmt.Sprintf("panel:%d:%s", p.ID, p.Targets[0].RefID)
			tests[row.story].some(calm+row.after, fmt.Sprintf("%s > %v", name, *steps[1].Value))
			quiet.none(end, fmt.Sprintf("max_over_time(%s[%s]) >= %v", name, lasts, *steps[1].Value))
			delete(red, p.Title)
		}
	}
	require.Empty(t, red, "no such panel")
	require.GreaterOrEqual(t, len(records), 20)

	require.Len(t, d.Annotations.List, 1)
	records = append(records, record{"annotation", interpolate(d.Annotations.List[0].Expr)})
	ever := "last_over_time(annotation[" + lasts.String() + "])"
	tests["etcd set back"].some(end, ever)
	quiet.none(end, ever)

	call := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	values := map[string][]string{
		"job": {`{job="shop"}`}, "lock": {`{lock="cron"}`, `{lock="leader"}`, `{lock="orders"}`},
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		parts := call.FindStringSubmatch(v.Query)
		require.Len(t, parts, 3, v.Query)
		require.Equal(t, v.Query, v.Definition)
		require.Equal(t, v.Name, parts[2])
		require.Contains(t, values, v.Name)
		quiet.gives(parts[2], calm, interpolate(parts[1]), values[v.Name]...)
		delete(values, v.Name)
	}
	require.Empty(t, values, "no such variable")

	rules, err := json.Marshal(map[string]any{"groups": []any{
		map[string]any{"name": "dashboard", "rules": records},
	}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(file, rules, 0o600))
	var those []*unitTest
	for _, u := range tests {
		if len(u.Exprs) > 0 {
			those = append(those, u)
		}
	}
	evaluate(t, file, those)
}
