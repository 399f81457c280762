package observe

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/etcdlockprom"
)

// page is docs/metrics.md.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	return string(text)
}

// first are the names in the first column of the page's tables.
func first(t *testing.T, begin string) (names []string) {
	t.Helper()
	for _, row := range regexp.MustCompile("(?m)^\\| `("+begin+
		"\\w*)` \\|").FindAllStringSubmatch(page(t), -1) {
		names = append(names, row[1])
	}
	slices.Sort(names)
	return names
}

// names are those of all metrics that the collector has.
func names(t *testing.T) (names []string) {
	t.Helper()
	metrics := etcdlockprom.NewMetrics()
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		names = append(names, family.GetName())
	}
	return names
}

// (The Go code of the page is checked with that of all pages, by TestTheCodeOfThePagesIsTested.)
func TestThePageHasEachMetricAndEachAlert(t *testing.T) {
	require.Equal(t, names(t), first(t, "etcdlock_"))
	var alerts []string
	for _, rule := range alertRules(t) {
		alerts = append(alerts, rule.Alert)
		require.Regexp(t, "(?m)^\\| `"+rule.Alert+"` \\| "+rule.Labels["severity"]+" \\|", page(t))
	}
	slices.Sort(alerts)
	require.Equal(t, alerts, first(t, "Etcdlock"))
}

func TestTheConfigurationOfThePageIsOneOfPrometheus(t *testing.T) {
	blocks := regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n").FindAllStringSubmatch(page(t), -1)
	require.Len(t, blocks, 1)
	c, err := config.Load(blocks[0][1], promslog.NewNopLogger())
	require.NoError(t, err)
	require.Len(t, c.ScrapeConfigs, 1)
	require.EqualValues(t, scrapeInterval, c.ScrapeConfigs[0].ScrapeInterval)
	require.Len(t, c.RuleFiles, 1)
}

// The dashboard or the rules look at each metric, except for those named here.
func TestEachMetricIsLookedAt(t *testing.T) {
	looked := make(map[string]bool)
	look := func(query string) {
		expr, err := parser.ParseExpr(interpolate(query))
		require.NoError(t, err)
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			if selector, ok := node.(*parser.VectorSelector); ok {
				looked[regexp.MustCompile("_(bucket|sum|count)$").ReplaceAllString(selector.Name, "")] = true
			}
			return nil
		})
	}
	for _, rule := range alertRules(t) {
		look(rule.Expr)
	}
	for _, p := range board(t).Panels {
		for _, target := range p.Targets {
			look(target.Expr)
		}
	}
	// it includes those that gave up; it is for the user's own queries
	looked["etcdlock_contended_total"] = true
	for _, name := range names(t) {
		require.True(t, looked[name], name)
		delete(looked, name)
	}
	require.Empty(t, looked, "there is no such metric")
}
