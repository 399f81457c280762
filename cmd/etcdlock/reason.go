//go:build linux || darwin || freebsd

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// sayWhyAfter is how long run waits before it says what it waits for.
var sayWhyAfter = 10 * time.Second

// A reason is what a wait is for, as last reported.
type reason struct {
	mu   sync.Mutex
	text string
}

func (r *reason) set(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = text
}

func (r *reason) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.text == "" {
		return "nothing heard from etcd yet"
	}
	return r.text
}

// away reports whether err says that etcd cannot be reached, which may pass, rather than that
// it refuses.
func away(err error) bool {
	code := status.Code(err)
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		code == codes.Unavailable || code == codes.DeadlineExceeded
}
