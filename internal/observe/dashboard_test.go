package observe

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	grafana "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/stretchr/testify/require"
)

const dashboardFile = "../../etcdlockprom/dashboard/etcdlock.json"

// A dashboard is what the tests look at of Grafana's classic form of one.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Annotations   struct {
		List []struct {
			Expr       string
			Datasource *datasource
		}
	}
	Templating struct{ List []variable }
	Panels     []panel
}

type datasource struct{ Type, UID string }

type variable struct {
	Type, Name, Query, Definition, AllValue string
	Datasource                              *datasource
	Current                                 struct{ Value []string }
}

type panel struct {
	ID          int
	Type, Title string
	Collapsed   *bool
	Datasource  *datasource
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct {
		RefID, Expr, LegendFormat string
		Instant, Range            bool
		Datasource                *datasource
	}
	FieldConfig struct {
		Defaults struct {
			Unit       string
			Thresholds struct {
				Steps []struct{ Value *float64 }
			}
		}
	}
}

// Grafana's own model of a dashboard, of its panels and of their queries has each field of the
// file, with its type.
func TestTheDashboardIsOfGrafanasSchema(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	text, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)
	//lint:ignore SA1019 the next form of dashboards, v2, is not yet what each Grafana imports
	err = new(grafana.Dashboard).UnmarshalJSONStrict(text) // a list of errors, perhaps an empty one
	require.Empty(t, err)
}

// The rules that Grafana has for a dashboard, as far as they can be checked without a
// Grafana.
func TestTheDashboardIsWhatGrafanaAsksFor(t *testing.T) {
	d := board(t)
	require.NotEmpty(t, d.UID)
	require.LessOrEqual(t, len(d.UID), 40)
	require.NotEmpty(t, d.Title)
	require.Positive(t, d.SchemaVersion)

	variables := make(map[string]variable)
	for _, v := range d.Templating.List {
		require.Contains(t, []string{"datasource", "query"}, v.Type)
		require.NotContains(t, variables, v.Name)
		variables[v.Name] = v
	}
	require.Equal(t, "prometheus", variables["datasource"].Query)
	chosen := &datasource{Type: "prometheus", UID: "${datasource}"}
	require.Equal(t, "datasource", variables["datasource"].Type)
	for _, name := range []string{"job", "lock"} {
		require.Equal(t, "query", variables[name].Type)
		require.Equal(t, chosen, variables[name].Datasource)
		require.Equal(t, ".*", variables[name].AllValue, "a label that is empty is none to Prometheus")
		require.Equal(t, []string{"$__all"}, variables[name].Current.Value)
	}
	for _, a := range d.Annotations.List {
		require.Equal(t, chosen, a.Datasource)
	}

	// Units by which Grafana knows what a value is.
	units := []string{"s", "short", "ops", "percentunit"}
	ids := make(map[int]bool)
	var taken [100][24]string // the grid, which is 24 wide
	for _, p := range d.Panels {
		require.Positive(t, p.ID, p.Title)
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		require.NotEmpty(t, p.Title)
		for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				require.Empty(t, taken[y][x], "%s lies upon it", p.Title)
				taken[y][x] = p.Title
			}
		}
		if p.Type == "row" {
			require.NotNil(t, p.Collapsed)
			require.False(t, *p.Collapsed)
			require.Empty(t, p.Targets)
			continue
		}
		require.Contains(t, []string{"timeseries", "stat"}, p.Type)
		require.Equal(t, chosen, p.Datasource, p.Title)
		require.Contains(t, units, p.FieldConfig.Defaults.Unit, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		refs := make(map[string]bool)
		for _, target := range p.Targets {
			require.Equal(t, chosen, target.Datasource)
			require.NotEmpty(t, target.RefID)
			require.False(t, refs[target.RefID], p.Title)
			refs[target.RefID] = true
			require.Equal(t, p.Type == "stat", target.Instant, p.Title)
			require.Equal(t, p.Type != "stat", target.Range, p.Title)
		}
	}
}

func board(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// interpolate puts values in place of Grafana's variables, as Grafana does if "All" is
// chosen.
func interpolate(query string) string {
	return strings.NewReplacer(
		`"$job"`, `".*"`, `"$lock"`, `".*"`,
		"$__rate_interval", (4 * scrapeInterval).String(), "$__range", (lasts - minute).String(),
	).Replace(query)
}

// seriesOf are the names in a query that have labels in braces, or are of this library.
var seriesOf = regexp.MustCompile(`\betcdlock_\w+|\b[\w:]+ *\{`)

// The dashboard or the rules look at each metric, and at no series that there is none of.
func TestEachMetricIsLookedAt(t *testing.T) {
	exported, looked := series(t), make(map[string]bool)
	look := func(query string) {
		for _, name := range seriesOf.FindAllString(query, -1) {
			name = strings.TrimRight(name, " {")
			require.Contains(t, exported, name, query)
			looked[exported[name]] = true
		}
	}
	for _, rule := range alertRules(t) {
		look(rule.Expr)
	}
	d := board(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			look(target.Expr)
		}
	}
	for _, a := range d.Annotations.List {
		look(a.Expr)
	}
	for _, v := range d.Templating.List {
		look(v.Query)
	}
	require.Equal(t, names(t), slices.Sorted(maps.Keys(looked)))
}
