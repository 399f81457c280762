package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhichAdvisoriesAReleaseIsOpenTo(t *testing.T) {
	t.Parallel()
	var all []string
	for _, a := range advisories {
		all = append(all, a.id)
	}
	for version, row := range map[string]struct {
		open  []string
		least string
	}{
		"3.7.3":         {nil, "3.7.1"},
		"3.7.1":         {nil, "3.7.1"},
		"3.7.1+vendor":  {nil, "3.7.1"},
		"3.7.1-rc.1":    {all[4:], "3.7.1"},
		"3.7.0":         {all[4:], "3.7.1"},
		"3.7.0-alpha.0": {all, "3.7.1"},
		"3.6.100":       {nil, "3.6.14"},
		"3.6.14":        {nil, "3.6.14"},
		"3.6.13":        {all[4:], "3.6.14"},
		"3.6.11":        {all[3:], "3.6.14"},
		"3.6.10":        {all[2:], "3.6.14"},
		"3.6.8":         {all, "3.6.14"},
		"3.6.0-rc.1":    {all, "3.6.14"},
		"3.5.33":        {nil, "3.5.33"},
		"3.5.32":        {all[4:], "3.5.33"},
		"3.4.45":        {all[3:], "3.7.1"}, // the last of 3.4
		"3.4.23":        {all, "3.7.1"},
		"3.3.99":        {all, "3.7.1"},
		"2.7.99":        {all, "3.7.1"},
	} {
		r, err := parseRelease(version)
		require.NoError(t, err, version)
		require.False(t, r.unknown(), version)
		require.Equal(t, row.open, r.openTo(), version)
		require.Equal(t, row.least, r.least(), version)
	}
	for _, version := range []string{"3.8.0-alpha.0", "3.10.0", "4.0.0"} {
		r, err := parseRelease(version)
		require.NoError(t, err, version)
		require.True(t, r.unknown(), version)
	}
	for _, garbage := range []string{
		"", "3", "3.6", "v3.6.14", "3.6.14 ", "3.6.x", "3.-6.14", "3.6.14.1", "3.6.14-", "3.6.14-rc.1+",
		"3.6.99999999999999999999", "etcd",
	} {
		_, err := parseRelease(garbage)
		require.EqualError(t, err, fmt.Sprintf("%q is not a version of etcd", garbage))
	}
}

// SECURITY.md has the same advisories and the same fixes as the command.
func TestTheAdvisoriesAreThoseOfThePage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../.github/SECURITY.md")
	require.NoError(t, err)
	page := string(text)
	require.Contains(t, page, advised)
	require.Equal(t, len(advisories), strings.Count(page, "| [CVE-"))
	newest := 0
	for _, a := range advisories {
		var fixes []string
		for _, minor := range slices.Sorted(maps.Keys(a.fixed)) {
			fixes = append(fixes, fmt.Sprintf("3.%d.%d", minor, a.fixed[minor]))
			newest = max(newest, minor)
		}
		require.Regexp(t, `(?m)^\| \[`+a.id+`\]\([^|]*\|[^|]*\| `+strings.Join(fixes, ", ")+` \|`, page)
		require.Contains(t, a.fixed, newestMinor)
	}
	require.Equal(t, newestMinor, newest)
	for _, least := range []string{release{3, 5, 0, false}.least(), release{3, 6, 0, false}.least(),
		release{3, 7, 0, false}.least()} {
		require.Contains(t, page, "**"+least+"**")
	}
}
