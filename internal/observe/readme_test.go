package observe_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/stretchr/testify/require"
)

// What the README offers for pasting parses, and asks for what there is.
func TestTheQueriesOfTheReadmeAskForMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	queries := blocks(string(text), "promql")
	require.Len(t, queries, 7)
	rules := blocks(string(text), "yaml")
	require.Len(t, rules, 1)
	groups, errs := rulefmt.Parse([]byte(rules[0]), false, model.UTF8Validation)
	require.Empty(t, errs)
	require.Len(t, groups.Groups, 1)
	for _, rule := range groups.Groups[0].Rules {
		queries = append(queries, rule.Expr)
	}
	require.Len(t, queries, 12)

	series := exposed(t)
	for _, query := range queries {
		expr, err := parser.ParseExpr(query)
		require.NoError(t, err, query)
		labels := []string{"job", "instance"} // Prometheus's own, and those of all metrics asked for
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			if selector, ok := node.(*parser.VectorSelector); ok {
				require.Contains(t, series, selector.Name, query)
				labels = append(labels, series[selector.Name]...)
				for _, matcher := range selector.LabelMatchers {
					if matcher.Name != "__name__" {
						require.Contains(t, series[selector.Name], matcher.Name, query)
					}
				}
			}
			return nil
		})
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			if aggregate, ok := node.(*parser.AggregateExpr); ok {
				for _, label := range aggregate.Grouping {
					require.Contains(t, labels, label, query)
				}
			}
			return nil
		})
	}
}

// Three wait from minute 5 on; in "stuck" nobody gets in any more, in "moving" somebody
// does each minute.
func TestTheAlertTellsALineThatStandsStillFromOneThatMoves(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	groups, errs := rulefmt.Parse([]byte(blocks(string(text), "yaml")[0]), false, model.UTF8Validation)
	require.Empty(t, errs)
	rules := groups.Groups[0].Rules
	at := slices.IndexFunc(rules, func(r rulefmt.Rule) bool { return r.Alert == "EtcdlockNobodyGetsIn" })
	require.GreaterOrEqual(t, at, 0)
	expr := strings.Join(strings.Fields(rules[at].Expr), " ")
	const labels = `{job="shop",instance="a",lock=%q}`
	var script strings.Builder
	fmt.Fprintln(&script, "load 1m")
	for lock, gotIn := range map[string]string{"stuck": "7x60", "moving": "7+1x60"} {
		fmt.Fprintf(&script, "  etcdlock_waiting"+labels+" 0x4 3x60\n", lock)
		fmt.Fprintf(&script, "  etcdlock_wait_seconds_count"+strings.TrimSuffix(labels, "}")+`,contended="true"} %s`+"\n", lock, gotIn)
	}
	for minute, stuck := range map[int]bool{4: false, 10: false, 20: true, 30: true, 60: true} {
		fmt.Fprintf(&script, "\neval instant at %dm %s\n", minute, expr)
		if stuck {
			fmt.Fprintln(&script, `  {job="shop",lock="stuck"} 3`)
		}
	}
	promqltest.RunTest(t, script.String(), promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery))
}

// blocks are the code blocks of a language.
func blocks(text, language string) []string {
	fence := regexp.MustCompile("(?s)\n```" + language + "\n(.*?)\n```\n")
	var found []string
	for _, block := range fence.FindAllStringSubmatch(text, -1) {
		found = append(found, block[1])
	}
	return found
}

// exposed are the labels of each series, by name, that Prometheus reads.
func exposed(t *testing.T) map[string][]string {
	t.Helper()
	families, err := everyMetric(t).Gather()
	require.NoError(t, err)
	series := make(map[string][]string)
	for _, family := range families {
		var labels []string
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		name := family.GetName()
		if !strings.HasSuffix(name, "_seconds") {
			series[name] = labels
			continue
		}
		for _, suffix := range []string{"_count", "_sum"} {
			series[name+suffix] = labels
		}
		series[name+"_bucket"] = append(slices.Clone(labels), "le")
	}
	return series
}
