package contract

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock"
)

// Reports collects what a Session reports about an etcd that does not answer.
type Reports struct {
	First chan struct{} // closed once the hook was called

	mu    sync.Mutex
	log   bytes.Buffer
	told  []error
	since []time.Duration
}

// NewReports returns Reports that are empty.
func NewReports() *Reports { return &Reports{First: make(chan struct{})} }

// Options make a Session report to r.
func (r *Reports) Options() []etcdlock.SessionOption {
	return []etcdlock.SessionOption{
		etcdlock.WithLogger(
			slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug}))),
		etcdlock.WithTrace(&etcdlock.Trace{Unavailable: func(_ context.Context,
			e etcdlock.UnavailableEvent) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told, r.since = append(r.told, e.Err), append(r.since, e.Since)
			if len(r.told) == 1 {
				close(r.First)
			}
		}}),
	}
}

// Write takes a line of the log.
func (r *Reports) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(line)
}

// Lines returns the lines of the log that report an etcd that does not answer.
func (r *Reports) Lines() (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "etcd does not answer") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Hooks returns what the hook was called with.
func (r *Reports) Hooks() ([]error, []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.told), slices.Clone(r.since)
}
