// Package ui is the page of etcdlock ui: one static file, fed by server-sent events.
package ui

import (
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/internal/quote"
)

//go:embed page.html
var page string

const (
	// sendEvery is how often a page hears what has changed, and aliveEvery how often it hears
	// something if nothing has.
	sendEvery  = 250 * time.Millisecond
	aliveEvery = 5 * time.Second

	// sendWithin bounds how long a page may take to read what it is sent.
	sendWithin = 30 * time.Second
)

// A Server serves the page of a board.
type Server struct {
	Board *board.Board
	Token string // that a request must have; "" asks for none, and takes requests to loopback only

	Prefix string
	Allow  []string // what Act may do, for the page
	Act    func(what, lock string, p *board.Place) string

	streams atomic.Int64 // of events, that are open
}

// Handler is the server's requests: the page, its events, and what its user does.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("POST /act", s.act)
	return http.NewCrossOriginProtection().Handler(s.admit(mux))
}

// admit refuses requests without the token. Without one it refuses requests to another host than
// loopback: a page elsewhere could have its own name resolved to 127.0.0.1.
func (s *Server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := []byte(r.URL.Query().Get("token"))
		switch {
		case s.Token != "" && subtle.ConstantTimeCompare(given, []byte(s.Token)) != 1:
			http.Error(w, "the token of the address that etcdlock ui has printed is missing",
				http.StatusForbidden)
			return
		case s.Token == "" && !IsLoopback(r.Host):
			http.Error(w, "ask 127.0.0.1 or localhost", http.StatusForbidden)
			return
		}
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Referrer-Policy", "no-referrer") // the token is in the address
		h.Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

// IsLoopback reports whether host, with or without a port, names this machine's loopback.
func IsLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback() || host == "localhost"
}

// page has no script and no style but its own, and speaks to nobody else.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; connect-src 'self'; "+
		"img-src data:; script-src %s; style-src %s; base-uri 'none'; form-action 'none'; "+
		"frame-ancestors 'none'", hashOf("script"), hashOf("style")))
	fmt.Fprint(w, page)
}

// hashOf is the hash of the page's element, as a policy names it.
func hashOf(element string) string {
	_, rest, _ := strings.Cut(page, "<"+element+">")
	text, _, _ := strings.Cut(rest, "</"+element+">")
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// A message is what a page hears: all, or what has changed since the message before.
type message struct {
	Now     time.Time              `json:"now"`
	Whole   bool                   `json:"whole"`
	Prefix  string                 `json:"prefix"`
	Allow   []string               `json:"allow"`
	Trouble string                 `json:"trouble"`
	Ready   bool                   `json:"ready"`          // the board has been read
	Known   time.Time              `json:"known,omitzero"` // when etcd last answered
	Turns   []int                  `json:"turns"`
	Locks   []*board.Lock          `json:"locks"`
	Gone    []string               `json:"gone"`
	Leases  map[string]board.Lease `json:"leases"` // that were heard of since
	Cycles  []board.Cycle          `json:"cycles"`

	Since time.Time     `json:"since"` // no contender that went before is remembered
	Blind []board.Blind `json:"blind"`
	Anew  bool          `json:"anew,omitempty"` // Past is all that is remembered
	Past  []board.Past  `json:"past,omitempty"`

	told told
}

// told is what a page knows by a message: the next one has what is new since. It is all that a
// stream keeps of a message.
type told struct {
	at      time.Time // zero if there was no message yet
	version uint64    // of the board
	past    uint64    // of its history
	ready   bool
	trouble string
}

// mostLocks is how many locks one message tells at most, and mostPast how many contenders that have
// gone: each may have long texts.
const mostLocks, mostPast = 100, 500

// parts are messages that together tell m.
func (m message) parts() iter.Seq[message] {
	return func(yield func(message) bool) {
		rest, past := m.Locks, m.Past
		for first := true; first || len(rest)+len(past) > 0; first = false {
			m.Locks, rest = rest[:min(mostLocks, len(rest))], rest[min(mostLocks, len(rest)):]
			m.Past, past = past[:min(mostPast, len(past))], past[min(mostPast, len(past)):]
			if !first {
				m.Whole, m.Anew, m.Gone, m.Leases = false, false, nil, map[string]board.Lease{}
			}
			if !yield(m) {
				return
			}
		}
	}
}

// isForeign reports whether a request is of a page of another site, as its browser says. That page
// could not read the answer, but etcdlock ui would make it.
func isForeign(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site != "same-origin" && site != "none"
	}
	origin := r.Header.Get("Origin") // of a browser that does not say more, or no browser
	from, err := url.Parse(origin)
	return origin != "" && (err != nil || from.Host != r.Host)
}

// mostStreams is how many pages hear events at a time.
const mostStreams = 32

// events tells a page what changes, until it goes.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	defer s.streams.Add(-1)
	switch open := s.streams.Add(1); {
	case isForeign(r):
		http.Error(w, "not for pages of other sites", http.StatusForbidden)
		return
	case open > mostStreams:
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	ticks := time.NewTicker(sendEvery)
	defer ticks.Stop()
	var before told
	for {
		if m := s.message(time.Now(), before); m.isNew(before) {
			for part := range m.parts() {
				_ = control.SetWriteDeadline(time.Now().Add(sendWithin))
				fmt.Fprint(w, "data: ")
				if json.NewEncoder(w).Encode(part) != nil { // which ends the line
					return
				}
				if _, err := fmt.Fprintln(w); err != nil || control.Flush() != nil {
					return
				}
			}
			before = m.told
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticks.C:
		}
	}
}

// isNew reports whether a page that knows what a message before has told needs m, or needs to hear
// that its connection stands.
func (m message) isNew(before told) bool {
	return len(m.Locks)+len(m.Gone)+len(m.Leases) > 0 || m.Trouble != before.trouble ||
		m.Ready != before.ready || m.Now.Sub(before.at) >= aliveEvery
}

// message is what is to be told to a page that knows what a message before has told.
func (s *Server) message(now time.Time, before told) message {
	if !before.ready {
		before = told{} // it has heard of no lock
	}
	p := s.Board.Picture(now, before.version)
	history := s.Board.History(now, before.past)
	m := message{
		Now: now, Whole: p.Whole, Prefix: quote.Text(s.Prefix), Allow: s.Allow, Trouble: p.Trouble,
		Ready: p.Revision > 0, Known: p.Known, Turns: p.Turns, Locks: p.Locks,
		Leases: make(map[string]board.Lease), Cycles: s.Board.Cycles(now),
		Since: history.Since, Blind: history.Blind, Past: history.Past, Anew: !before.ready,
	}
	m.told = told{now, p.Version, history.Next, m.Ready, m.Trouble}
	for _, name := range p.Gone {
		m.Gone = append(m.Gone, quote.Text(name))
	}
	for id, l := range p.Leases {
		if l.At.After(before.at) {
			m.Leases[fmt.Sprintf("%x", id)] = l
		}
	}
	return m
}

// An order is what a page's user wants to be done to a place, by the names that the page has heard.
type order struct {
	What  string `json:"what"`
	Lock  string `json:"lock"`
	Key   string `json:"key"`
	Token int64  `json:"token"`
}

func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, l := range s.Board.Picture(time.Now(), 0).Locks {
		if quote.Text(l.Name) != o.Lock {
			continue
		}
		for _, p := range l.Places {
			if quote.Text(p.Key) == o.Key && p.Token == o.Token {
				fmt.Fprint(w, s.Act(o.What, l.Name, p))
				return
			}
		}
	}
	fmt.Fprint(w, "that place is gone")
}
