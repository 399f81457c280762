package quote

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// Nothing that a terminal obeys, that has no width, or that turns or breaks a line comes through,
// whatever the rest of the text.
func TestNoCharacterOfTheseKindsComesThrough(t *testing.T) {
	kinds := []*unicode.RangeTable{
		unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Cs, unicode.Co,
	}
	n := 0
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !unicode.In(r, kinds...) || !utf8.ValidRune(r) {
			continue
		}
		n++
		text := "a" + string(r) + "b"
		for _, shown := range []string{
			Text(text), Excerpt(text, 99), Line(text), Owner(text, "", 0), Owner("a", text, 1),
		} {
			require.False(t, strings.ContainsRune(shown, r), "%U in %q", r, shown)
		}
	}
	require.Greater(t, n, 200)
	for _, bytes := range []string{"\x9b31m", "a\xff", "\xe2\x80", "\xc0\x80", "\xed\xa0\x80"} {
		for _, shown := range []string{Text(bytes), Line(bytes), Owner(bytes, "", 0)} {
			require.True(t, utf8.ValidString(shown), "%q", shown)
			require.NotContains(t, shown, "\uFFFD")
		}
	}
}

func TestAnUsualTextStaysAsItIs(t *testing.T) {
	for _, text := range []string{
		"", "api-7:1234", "orders/42", "v 1.2 (main)", "заказ", "注文", "שלום", "naïve", "🔒",
	} {
		require.Equal(t, text, Text(text))
		require.Equal(t, text, Line(text))
		require.Equal(t, text, JSON(text))
	}
	require.Equal(t, `"a\u202eb"`, Text("a\u202eb"))
	require.Equal(t, `a "b" \x1b[2J\n`, Line("a \"b\" \x1b[2J\n"))
}

// What is quoted looks like no other text, so a name cannot pass for another one.
func TestNoTwoTextsLookTheSame(t *testing.T) {
	parts := []string{"a", `"`, `\`, "\x1b", "\u202e", `\x1b`, "\xff", "\uFFFD", "x1b"}
	seen := make(map[string]string)
	var look func(text string, n int)
	look = func(text string, n int) {
		shown := Text(text)
		before, is := seen[shown]
		require.False(t, is && before != text, "%q and %q are %s", before, text, shown)
		seen[shown] = text
		for _, part := range parts {
			if n > 0 {
				look(text+part, n-1)
			}
		}
	}
	look("", 4)
	require.Greater(t, len(seen), 5000)
}

func TestALongTextIsItsBeginning(t *testing.T) {
	whole := strings.Repeat("n", longest)
	require.Equal(t, whole, Text(whole))
	require.Equal(t, fmt.Sprintf("%q...", whole[:32]), Text(whole+"n"))
	require.Less(t, len(Text(strings.Repeat("\x1b", longest+1))), 200)
}

func TestAnOwnerIsNamedByItsProcessOnlyOnce(t *testing.T) {
	require.Equal(t, "api-7:12", Owner("api-7:12", "api-7", 12))
	require.Equal(t, "batch (api-7:12)", Owner("batch", "api-7", 12))
	require.Equal(t, "batch", Owner("batch", "", 12))
	require.Empty(t, Owner("", "api-7", 12))
	require.Equal(t, `"\x1b" ("\u202e:12")`, Owner("\x1b", "\u202e", 12))
}

// Programs read the same from JSON, and a terminal shows it.
func TestJSONStaysTheSameForPrograms(t *testing.T) {
	for _, text := range []string{
		"\u009b31m", "\x7f", "a\u202eb", "\U000E0001", "\u2028", `"\`, "注文",
	} {
		encoded, err := json.Marshal(text)
		require.NoError(t, err)
		shown := JSON(string(encoded) + "\n")
		require.True(t, strings.HasSuffix(shown, "\"\n"))
		require.True(t, printable(strings.TrimSuffix(shown, "\n")), shown)
		var decoded string
		require.NoError(t, json.Unmarshal([]byte(shown), &decoded))
		require.Equal(t, text, decoded)
	}
}
