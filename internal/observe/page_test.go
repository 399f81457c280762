package observe

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
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

// series are the names of all series that the collector has, each with that of its metric.
func series(t *testing.T) map[string]string {
	t.Helper()
	metrics := etcdlockprom.NewMetrics()
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	families, err := registry.Gather()
	require.NoError(t, err)
	all := make(map[string]string)
	for _, family := range families {
		suffixes := []string{""}
		if family.GetMetric()[0].GetHistogram() != nil {
			suffixes = []string{"_bucket", "_count", "_sum"}
		}
		for _, suffix := range suffixes {
			all[family.GetName()+suffix] = family.GetName()
		}
	}
	return all
}

// names are those of all metrics that the collector has.
func names(t *testing.T) []string {
	t.Helper()
	return slices.Compact(slices.Sorted(maps.Values(series(t))))
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
	require.Contains(t, blocks[0][1], "scrape_interval: "+scrapeInterval.String())
	dir := t.TempDir()
	rules, err := os.ReadFile(rulesFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etcdlock-alerts.yaml"), rules, 0o600))
	file := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(file, []byte(blocks[0][1]), 0o600))
	require.Contains(t, promtool(t, "check", "config", file), "1 rule files found")
}
