package board

import (
	"encoding/json"
	"time"

	"github.com/etcdlock/etcdlock/internal/quote"
)

// A page shows what is in JSON. So all that others have written is quoted there.

// MarshalJSON is l for a page.
func (l *Lock) MarshalJSON() ([]byte, error) {
	type fields Lock
	shown := fields(*l)
	shown.Name = quote.Text(l.Name)
	return json.Marshal(shown)
}

// MarshalJSON is p for a page, with whose it is.
func (p *Place) MarshalJSON() ([]byte, error) {
	type fields Place
	shown := struct {
		fields
		Whose string `json:"whose"`
	}{fields(*p), p.Whose()}
	shown.Key, shown.Owner = quote.Text(p.Key), quote.Text(p.Owner)
	shown.Host, shown.Info = quote.Text(p.Host), quote.Text(p.Info)
	return json.Marshal(shown)
}

// MarshalJSON is r for a page.
func (r Recall) MarshalJSON() ([]byte, error) {
	type fields Recall
	r.By, r.Reason = quote.Text(r.By), quote.Text(r.Reason)
	return json.Marshal(fields(r))
}

// MarshalJSON is w for a page.
func (w Wait) MarshalJSON() ([]byte, error) {
	type fields Wait
	w.Lock, w.Owner, w.Holder = quote.Text(w.Lock), quote.Text(w.Owner), quote.Text(w.Holder)
	return json.Marshal(fields(w))
}

// MarshalJSON is p for a page. There may be 10,000 of them, so the times are in milliseconds, and
// what is not known is left out.
func (p Past) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Lock     string `json:"lock"`
		Whose    string `json:"whose"`
		Token    int64  `json:"token"`
		Seen     int64  `json:"seen"`
		Holds    bool   `json:"holds,omitempty"`
		Held     int64  `json:"held,omitempty"`
		Recalled int64  `json:"recalled,omitempty"`
		By       string `json:"by,omitempty"`
		Gone     int64  `json:"gone"`
		Why      End    `json:"why,omitempty"`
	}{quote.Text(p.Lock), p.Owner, p.Token, milli(p.Seen), p.Holds, milli(p.Held), milli(p.Recalled),
		quote.Text(p.By), milli(p.Gone), p.End})
}

// milli is a time in milliseconds, and 0 if it is not known.
func milli(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixMilli()
}
