package etcdlockotel

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// The version is that of the module, wherever the build records it. A text that is no
// version is left out.
func TestTheVersionIsThatOfTheBuild(t *testing.T) {
	other := &debug.Module{Path: "example.com/other", Version: "v9.9.9"}
	for _, row := range []struct {
		main debug.Module
		dep  *debug.Module
		want string
	}{
		{*other, &debug.Module{Path: ScopeName, Version: "v0.1.0"}, "0.1.0"},
		{debug.Module{Path: ScopeName, Version: "v0.2.0"}, other, "0.2.0"},
		{debug.Module{Path: ScopeName, Version: "(devel)"}, other, ""},
		{*other, other, ""},
	} {
		build := &debug.BuildInfo{Main: row.main, Deps: []*debug.Module{other, row.dep}}
		require.Equal(t, row.want, versionIn(build))
	}
}
