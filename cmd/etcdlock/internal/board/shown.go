package board

import (
	"encoding/json"

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
