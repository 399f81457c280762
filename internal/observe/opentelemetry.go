package observe

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcdlock/etcdlock"
)

// NewTrace returns hooks for [etcdlock.WithTrace] that make a span etcdlock.wait of every
// wait, and a span etcdlock.hold of every hold that was released or lost. A wait that ended
// without a hold has the status error, with its text. A loss is an event of the hold's span,
// with the reason, and its status is then an error.
//
// The spans are children of the span in ctx, which also gets an event when a wait begins
// behind others: so the trace of a request that gave up tells who held the lock. Hooks do
// not know the context of the call, so for that make the Mutex per request, which costs
// nothing on a Session:
//
//	mu, err := session.Mutex(name, etcdlock.WithTrace(observe.NewTrace(ctx, tracer)))
//
// For a Mutex that lives longer than a request pass context.Background(): the spans are
// then roots, found by their attributes.
//
// Each span is made when it is over and dated back. So there is nothing to keep between
// the hooks, and nothing to leak. Its length is exact; its place on the time line is late by
// the time that the hook waited for others.
func NewTrace(ctx context.Context, tracer trace.Tracer) *etcdlock.Trace {
	// over makes a span that has just ended, but for its End.
	over := func(span string, lasted time.Duration, name string, token int64) (trace.Span, trace.SpanEventOption) {
		now := time.Now()
		_, s := tracer.Start(ctx, span,
			trace.WithTimestamp(now.Add(-lasted)),
			trace.WithAttributes(
				attribute.String("etcdlock.name", name),
				attribute.Int64("etcdlock.token", token)))
		return s, trace.WithTimestamp(now)
	}
	return &etcdlock.Trace{
		Queued: func(name string, ahead int, holder etcdlock.Contender) {
			trace.SpanFromContext(ctx).AddEvent("etcdlock.queued", trace.WithAttributes(
				attribute.String("etcdlock.name", name),
				attribute.Int("etcdlock.ahead", ahead),
				attribute.String("etcdlock.holder", holder.Owner)))
		},
		GaveUp: func(name string, waited time.Duration, ahead int, err error) {
			s, now := over("etcdlock.wait", waited, name, 0)
			s.SetAttributes(attribute.Int("etcdlock.ahead", ahead))
			s.SetStatus(codes.Error, err.Error())
			s.End(now)
		},
		Acquired: func(name string, token int64, waited time.Duration, ahead int) {
			s, now := over("etcdlock.wait", waited, name, token)
			s.SetAttributes(attribute.Int("etcdlock.ahead", ahead))
			s.End(now)
		},
		Released: func(name string, token int64, held time.Duration) {
			s, now := over("etcdlock.hold", held, name, token)
			s.End(now)
		},
		Lost: func(name string, token int64, held time.Duration, reason error) {
			s, now := over("etcdlock.hold", held, name, token)
			why := strings.TrimPrefix(reason.Error(), "etcdlock: ")
			s.AddEvent("etcdlock.lost", now, trace.WithAttributes(
				attribute.String("etcdlock.reason", why)))
			s.SetStatus(codes.Error, "lock lost: "+why)
			s.End(now)
		},
	}
}
