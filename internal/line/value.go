package line

import (
	"encoding/json"
	"strings"
	"time"
)

// maxValue is the longest value that is parsed, in bytes. Ours are shorter: the label has at
// most 1,024 bytes, each of which takes at most six in JSON, and a host's name at most 253.
const maxValue = 8 * 1024

// A Value is what a contender's key holds, for people and operators.
type Value struct {
	Owner string    `json:"owner"`
	Host  string    `json:"host"`
	PID   int       `json:"pid"`
	Mode  string    `json:"mode,omitempty"` // of a key that is not exclusive; its name counts
	Since time.Time `json:"since"`
}

// Value is e's parsed value, or the zero Value if it is not ours.
func (e Entry) Value() Value {
	var v Value
	if len(e.value) > maxValue || json.Unmarshal(e.value, &v) != nil || v.Owner == "" {
		return Value{}
	}
	return v
}

// A Text is the value of a key up to the time: what does not change from one key of a
// contender to the next.
type Text string

// NewText is the Text for a contender of a kind.
func NewText(owner, host string, pid int, k Kind) (Text, error) {
	v := Value{Owner: owner, Host: host, PID: pid}
	if k != Exclusive {
		v.Mode = k.String()
	}
	text, err := json.Marshal(v)
	return Text(strings.TrimSuffix(string(text), `"0001-01-01T00:00:00Z"}`)), err
}

// Since is the value of a key that is put at a time.
func (t Text) Since(at time.Time) string {
	quoted := make([]byte, 0, len(time.RFC3339Nano)+2)
	quoted = at.UTC().AppendFormat(append(quoted, '"'), time.RFC3339Nano)
	return string(t) + string(append(quoted, `"}`...))
}

// Bare reports whether e has no value: it is not this library's, or its key alone was read.
func (e Entry) Bare() bool { return len(e.value) == 0 }
