package plugin_test

import (
	"testing"

	"github.com/golangci/plugin-module-register/register"
	"github.com/stretchr/testify/require"

	_ "github.com/etcdlock/etcdlock/cmd/etcdlockvet/plugin"
)

// golangci-lint finds the linter by its name, and gives it the settings of .golangci.yml.
func TestTheLinterHasTheSettingsOfGolangciLint(t *testing.T) {
	plugin, err := register.GetPlugin("etcdlockvet")
	require.NoError(t, err)
	for _, tc := range []struct {
		settings any
		lost     string
	}{
		{nil, "false"}, {map[string]any{}, "false"}, {map[string]any{"lost": true}, "true"},
	} {
		linter, err := plugin(tc.settings)
		require.NoError(t, err)
		require.Equal(t, register.LoadModeTypesInfo, linter.GetLoadMode())
		analyzers, err := linter.BuildAnalyzers()
		require.NoError(t, err)
		require.Len(t, analyzers, 1)
		require.Equal(t, tc.lost, analyzers[0].Flags.Lookup("lost").Value.String())
	}
	_, err = plugin(map[string]any{"lots": true})
	require.ErrorContains(t, err, "lots")
}
