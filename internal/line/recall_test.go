package line_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/line"
)

// To put a request into a value changes nothing else in it, whether this version knows it
// or not. The request is read as it was made.
func TestARecallIsPutIntoAValue(t *testing.T) {
	text, err := line.NewText(line.Value{Owner: "<api>", Host: "h", PID: 1, Recallable: true},
		line.Read)
	require.NoError(t, err)
	value := text.Since(time.Now(), 15*time.Second, 0)
	require.True(t, entryWith(value).Value().Recallable)
	value = strings.TrimSuffix(value, "}") + `,"future":{"a":[1,2.50]},"recall":{"id":"earlier"}}`
	for _, r := range []line.Recall{
		{ID: "x", By: "op", Reason: "why", Grace: time.Second},
		{ID: "y", By: strings.Repeat("\x01", line.MaxRecallText), Reason: "<&>\u2028🔒"},
		{ID: "z", Grace: time.Duration(math.MaxInt64).Truncate(time.Millisecond)},
	} {
		value, err = entryWith(value).Recalled(r)
		require.NoError(t, err)
		got, ok := entryWith(value).Recall()
		require.True(t, ok)
		require.Equal(t, r, got)
		v := entryWith(value).Value()
		require.Equal(t, "<api>", v.Owner)
		require.Equal(t, "read", v.Mode)
		require.True(t, v.Recallable)
		var all map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(value), &all))
		require.JSONEq(t, `{"a":[1,2.50]}`, string(all["future"]))
	}
	for _, foreign := range []string{"", "null", "7", "[]", "{"} {
		_, err := entryWith(foreign).Recalled(line.Recall{ID: "x"})
		require.Error(t, err, foreign)
	}
}

// To put an info into a value changes nothing else in it, whether this version knows it or not.
func TestAnInfoIsPutIntoAValue(t *testing.T) {
	text, err := line.NewText(line.Value{Owner: "<api>", Host: "h", PID: 1, Info: "starts",
		Recallable: true}, line.Read)
	require.NoError(t, err)
	value, err := entryWith(strings.TrimSuffix(text.Since(time.Now(), 15*time.Second, 0), "}") +
		`,"future":{"a":[1,2.50]}}`).
		Recalled(line.Recall{ID: "x", By: "op", Grace: time.Second})
	require.NoError(t, err)
	for _, info := range []string{"10.0.0.7:80", "<&>\u2028🔒", "",
		strings.Repeat("\x01", line.MaxInfo)} {
		was := entryWith(value)
		value, err = was.Informed(info)
		require.NoError(t, err)
		want := was.Value()
		want.Info = info
		require.Equal(t, want, entryWith(value).Value())
		r, ok := entryWith(value).Recall()
		require.True(t, ok)
		require.Equal(t, line.Recall{ID: "x", By: "op", Grace: time.Second}, r)
		var all map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(value), &all))
		require.JSONEq(t, `{"a":[1,2.50]}`, string(all["future"]))
		require.Equal(t, entryWith(value).Value(), was.With(value, 9).Value())
		require.EqualValues(t, 9, was.With(value, 9).Mod)
	}
	for _, foreign := range []string{"", "null", "7", "[]", "{"} {
		_, err := entryWith(foreign).Informed("x")
		require.Error(t, err, foreign)
	}
}

// A grace is stored in milliseconds and rounded up, so that the shortest one is not none.
func TestTheGraceOfARecallIsRoundedUp(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{
		0: 0, 1: time.Millisecond, time.Millisecond: time.Millisecond,
		time.Millisecond + 1: 2 * time.Millisecond,
	} {
		value, err := entryWith(ours).Recalled(line.Recall{ID: "x", Grace: grace})
		require.NoError(t, err)
		r, ok := entryWith(value).Recall()
		require.True(t, ok)
		require.Equal(t, want, r.Grace)
	}
	value, err := entryWith(ours).Recalled(line.Recall{ID: "x", Grace: math.MaxInt64})
	require.NoError(t, err)
	r, ok := entryWith(value).Recall()
	require.True(t, ok, "the longest is read, too")
	require.Greater(t, r.Grace, 100*365*24*time.Hour)
}
