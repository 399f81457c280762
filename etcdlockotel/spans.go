package etcdlockotel

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcdlock/etcdlock"
)

// ScopeName is the name of the instrumentation scope of all spans and metrics.
const ScopeName = "github.com/etcdlock/etcdlock/etcdlockotel"

// The attributes, besides error.type.
const (
	nameKey     = attribute.Key("etcdlock.name")
	tokenKey    = attribute.Key("etcdlock.token")
	acquiredKey = attribute.Key("etcdlock.acquired")
	aheadKey    = attribute.Key("etcdlock.ahead")
	ownerKey    = attribute.Key("etcdlock.holder.owner")
	hostKey     = attribute.Key("etcdlock.holder.host")
	pidKey      = attribute.Key("etcdlock.holder.pid")
)

// An Option of [NewTrace].
type Option func(*options)

type options struct{ provider trace.TracerProvider }

// WithTracerProvider sets where the spans go. The default is the global one, of package otel.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return func(o *options) { o.provider = provider }
}

// NewTrace returns hooks for [etcdlock.WithTrace] that make spans. They keep no state, and serve
// any number of Sessions and Mutexes at once.
func NewTrace(opts ...Option) *etcdlock.Trace {
	o := options{provider: otel.GetTracerProvider()}
	for _, opt := range opts {
		opt(&o)
	}
	tracer := o.provider.Tracer(ScopeName,
		trace.WithInstrumentationVersion(Version()), trace.WithSchemaURL(semconv.SchemaURL))
	// over makes a span that has just ended, except for its End.
	over := func(
		ctx context.Context, span string, lasted time.Duration, attributes ...attribute.KeyValue,
	) (trace.Span, trace.SpanEventOption) {
		now := time.Now()
		_, s := tracer.Start(ctx, span,
			trace.WithTimestamp(now.Add(-lasted)), trace.WithAttributes(attributes...))
		return s, trace.WithTimestamp(now)
	}
	return &etcdlock.Trace{
		Queued: func(ctx context.Context, e etcdlock.QueuedEvent) {
			trace.SpanFromContext(ctx).AddEvent("etcdlock.queued", trace.WithAttributes(
				nameKey.String(e.Name), aheadKey.Int(e.Ahead), ownerKey.String(e.Holder.Owner),
				hostKey.String(e.Holder.Host), pidKey.Int(e.Holder.PID)))
		},
		GaveUp: func(ctx context.Context, e etcdlock.GaveUpEvent) {
			s, now := over(ctx, "etcdlock.wait", e.Waited,
				nameKey.String(e.Name), acquiredKey.Bool(false), aheadKey.Int(e.Ahead))
			if why := whyGivenUp(e.Err); why != "" {
				s.SetAttributes(semconv.ErrorTypeKey.String(why))
				s.SetStatus(codes.Error, bare(e.Err))
			}
			s.End(now)
		},
		Acquired: func(ctx context.Context, e etcdlock.AcquiredEvent) {
			s, now := over(ctx, "etcdlock.wait", e.Waited,
				nameKey.String(e.Name), tokenKey.Int64(e.Token), acquiredKey.Bool(true), aheadKey.Int(e.Ahead))
			s.End(now)
		},
		Released: func(ctx context.Context, e etcdlock.ReleasedEvent) {
			s, now := over(ctx, "etcdlock.hold", e.Held, nameKey.String(e.Name), tokenKey.Int64(e.Token))
			s.End(now)
		},
		Lost: func(ctx context.Context, e etcdlock.LostEvent) {
			why := semconv.ErrorTypeKey.String(whyLost(e.Reason))
			s, now := over(ctx, "etcdlock.hold", e.Held, nameKey.String(e.Name), tokenKey.Int64(e.Token), why)
			s.AddEvent("etcdlock.lost", now, trace.WithAttributes(why))
			s.SetStatus(codes.Error, "lock lost: "+bare(e.Reason))
			s.End(now)
		},
		Led: func(ctx context.Context, e etcdlock.LedEvent) {
			s, now := over(ctx, "etcdlock.term", e.Held, nameKey.String(e.Name), tokenKey.Int64(e.Token))
			if why := whyFailed(e.Err); why != "" {
				s.SetAttributes(semconv.ErrorTypeKey.String(why))
				s.SetStatus(codes.Error, firstLine(bare(e.Err)))
			}
			s.End(now)
		},
	}
}

// Version returns the version of this module in the running program, from its build info: without
// the v, and "" if it is not known, as in a test of this module.
func Version() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return versionIn(build)
}

func versionIn(build *debug.BuildInfo) string {
	for _, module := range append([]*debug.Module{&build.Main}, build.Deps...) {
		if module.Path == ScopeName && strings.HasPrefix(module.Version, "v") {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return ""
}

// whyLost puts the reason of a loss into one of a few classes, as error.type requires.
func whyLost(reason error) string {
	switch {
	case is(reason, etcdlock.ErrMaxHold):
		return "max_hold"
	case is(reason, etcdlock.ErrExpired, etcdlock.ErrSuspended):
		return "expired"
	case is(reason, etcdlock.ErrKeyDeleted, etcdlock.ErrKeyOverwritten, etcdlock.ErrLeaseRevoked):
		return "taken" // by an operator
	default:
		return semconv.ErrorTypeOther.Value.AsString()
	}
}

// whyGivenUp classifies the error of a call that got no hold. It is "" for a TryLock that
// found others, which is no error. A wait that ran out behind others is an
// [etcdlock.ErrLocked] too.
func whyGivenUp(err error) string {
	switch {
	case is(err, etcdlock.ErrUnavailable):
		return "unavailable"
	case is(err, context.DeadlineExceeded):
		return "timeout"
	case is(err, context.Canceled):
		return "canceled"
	case is(err, etcdlock.ErrClosed):
		return "closed"
	case is(err, etcdlock.ErrLocked):
		return ""
	default:
		return semconv.ErrorTypeOther.Value.AsString()
	}
}

// whyFailed classifies the error of a term of leadership. It is "" for a function that has
// returned because its context ended, which is no error: that context ends with Lead's, or
// after a recall. A loss comes before whatever else the function says.
func whyFailed(err error) string {
	switch {
	case err == nil:
		return ""
	case is(err, etcdlock.ErrLost):
		return whyLost(err)
	case is(err, etcdlock.ErrRecalled):
		return "recalled"
	case is(err, context.Canceled):
		return ""
	default:
		return semconv.ErrorTypeOther.Value.AsString()
	}
}

func is(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// bare is the text of an error without the library's name: the span has that.
func bare(err error) string { return strings.TrimPrefix(err.Error(), "etcdlock: ") }

// firstLine is the text without the stack of a panic.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
