package observe

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A dashboard is the classic form of Grafana's dashboards, as far as this one uses it. The
// test refuses what it has no field for. Each of these fields is in the schema that Grafana
// publishes (grafana-foundation-sdk, jsonschema/dashboard.jsonschema.json).
type dashboard struct {
	UID                  string
	Title                string
	Description          string
	Tags                 []string
	SchemaVersion        int
	Version              int
	Editable             bool
	GraphTooltip         int
	Timezone             string
	Refresh              string
	Time                 struct{ From, To string }
	Timepicker           struct{}
	WeekStart            string
	FiscalYearStartMonth int
	Links                []struct{}
	Annotations          struct {
		List []struct {
			Name, IconColor, Expr, TitleFormat, TextFormat string
			Enable, Hide                                   bool
			Datasource                                     *datasource
		}
	}
	Templating struct{ List []variable }
	Panels     []panel
}

type datasource struct{ Type, UID string }

type variable struct {
	Type, Name, Label, Query, Definition, Regex, AllValue string
	Refresh, Sort, Hide                                   int
	Multi, IncludeAll, SkipURLSync                        bool
	Datasource                                            *datasource
	Options                                               []struct{}
	Current                                               struct {
		Selected    bool
		Text, Value []string
	}
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Collapsed                *bool
	Panels                   []struct{}
	Datasource               *datasource
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct {
		RefID, Expr, LegendFormat, EditorMode string
		Instant, Range                        bool
		Datasource                            *datasource
	}
	FieldConfig struct {
		Defaults struct {
			Unit, NoValue string
			Min           *float64
			Decimals      *int
			Thresholds    struct {
				Mode  string
				Steps []struct {
					Value *float64
					Color string
				}
			}
			Color  struct{ Mode string }
			Custom map[string]any
		}
		Overrides []struct{}
	}
	Options map[string]any
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
	file, err := os.Open("../../etcdlockprom/dashboard/etcdlock.json")
	require.NoError(t, err)
	defer file.Close()
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	var d dashboard
	require.NoError(t, decoder.Decode(&d))
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

var (
	metricOf = regexp.MustCompile(`\betcdlock_\w+`)
	suffixOf = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// The dashboard or the rules look at each metric, except for those named here, and at
// nothing else.
func TestEachMetricIsLookedAt(t *testing.T) {
	looked := []string{
		// it includes those that gave up; it is for the user's own queries
		"etcdlock_contended_total",
	}
	look := func(query string) {
		for _, name := range metricOf.FindAllString(query, -1) {
			looked = append(looked, suffixOf.ReplaceAllString(name, ""))
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
	slices.Sort(looked)
	require.Equal(t, names(t), slices.Compact(looked))
}
