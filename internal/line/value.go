package line

import (
	"encoding/json"
	"strings"
	"time"
)

// MaxInfo is the greatest length of a Value's Info, in bytes.
const MaxInfo = 1024

// maxValue is the longest value that this package parses, in bytes. Ours are shorter: each
// byte takes at most six in JSON, the label has at most 1,024, the info too, a host's name
// 253, and a recall twice 256.
const maxValue = 20 * 1024

// A Value is what a contender's key holds, for people and operators.
type Value struct {
	Owner string `json:"owner"`
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Mode  string `json:"mode,omitempty"` // of a key that is not exclusive; the key itself decides

	Info       string `json:"info,omitempty"`
	Recallable bool   `json:"recallable,omitempty"` // its holder heeds a Recall

	Since time.Time `json:"since"` // the last one
}

// Value is e's parsed value, or the zero Value if it is not ours.
func (e Entry) Value() Value {
	var v Value
	if len(e.value) > maxValue || json.Unmarshal(e.value, &v) != nil || v.Owner == "" {
		return Value{}
	}
	return v
}

// A Text is the value of a key without the time, which stands at its end: the part that
// does not change from one key of a contender to the next.
type Text string

// NewText is the Text for a contender of a kind, with all of v but its mode and its time.
func NewText(v Value, k Kind) (Text, error) {
	if k != Exclusive {
		v.Mode = k.String()
	}
	text, err := json.Marshal(v)
	return Text(strings.TrimSuffix(string(text), `"0001-01-01T00:00:00Z"}`)), err
}

// Since is the value of a key that is put at a time.
func (t Text) Since(at time.Time) string {
	quoted := make([]byte, 0, len(`"`+time.RFC3339Nano+`"}`))
	quoted = at.UTC().AppendFormat(append(quoted, '"'), time.RFC3339Nano)
	quoted = append(quoted, `"}`...)
	var value strings.Builder
	value.Grow(len(t) + len(quoted))
	value.WriteString(string(t))
	value.Write(quoted)
	return value.String()
}

// Bare reports whether e has no value: it is not this library's key, or only the key was
// read.
func (e Entry) Bare() bool { return len(e.value) == 0 }
