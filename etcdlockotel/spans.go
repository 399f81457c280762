package etcdlockotel

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/events"
)

// ScopeName is the name of the instrumentation scope of all spans and metrics.
const ScopeName = "github.com/etcdlock/etcdlock/etcdlockotel"

// The attributes, besides error.type.
const (
	nameKey     = attribute.Key("etcdlock.name")
	namesKey    = attribute.Key("etcdlock.names")
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

// NewTrace returns hooks for [etcdlock.WithTrace] that make spans. They serve any number of
// Sessions and Mutexes at once. What they know of a call is in its context, and goes with it.
func NewTrace(opts ...Option) *etcdlock.Trace {
	o := options{provider: otel.GetTracerProvider()}
	for _, opt := range opts {
		opt(&o)
	}
	s := &spans{o.provider.Tracer(ScopeName,
		trace.WithInstrumentationVersion(Version()), trace.WithSchemaURL(semconv.SchemaURL))}
	return &etcdlock.Trace{
		Start:    s.start,
		Queued:   of(s, (*call).queued),
		GaveUp:   of(s, (*call).gaveUp),
		Acquired: of(s, (*call).acquired),
		Released: of(s, (*call).released),
		Lost:     of(s, (*call).lost),
		Led:      of(s, (*call).led),
	}
}

// spans makes those of one Trace. It is the key of their calls in a context.
type spans struct{ tracer trace.Tracer }

// of is the hook that has do told of the events of its call.
func of[E any](s *spans, do func(*call, E)) func(context.Context, E) {
	return func(ctx context.Context, e E) {
		if c, ok := ctx.Value(s).(*call); ok {
			do(c, e)
		}
	}
}

// A call is the context of a call that locks, with its spans. Of several names it has one wait and
// one hold, since these begin and end together.
type call struct {
	// Set once, then only read.
	context.Context // has the span of the wait
	spans           *spans
	caller          context.Context // has the parent of both spans
	names           []attribute.KeyValue
	last            string // name, of which the last hook of the wait tells
	wait            trace.Span
	started         time.Time

	// Set by holds, once, then only read.
	once  sync.Once
	hold  trace.Span
	began time.Time // the hold

	told  atomic.Bool // Holds was called
	ahead int         // of the wait, used by the hooks only: they run one at a time
}

// start is the hook Start: it begins the wait.
func (s *spans) start(ctx context.Context, e etcdlock.StartEvent) context.Context {
	c := &call{
		spans: s, caller: ctx, started: time.Now(), last: e.Name,
		names: []attribute.KeyValue{nameKey.String(e.Name)},
	}
	if n := len(e.Names); n > 0 {
		c.names, c.last = append(c.names, namesKey.StringSlice(e.Names)), e.Names[n-1]
	}
	c.Context, c.wait = s.tracer.Start(ctx, "etcdlock.wait",
		trace.WithTimestamp(c.started), trace.WithAttributes(c.names...))
	return c
}

// Value is as in context.Context.
func (c *call) Value(key any) any {
	if key == any(c.spans) || key == any(events.CallKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Holds is as in events.Call.
func (c *call) Holds(ctx context.Context, waited time.Duration) context.Context {
	if c.told.Swap(true) { // ctx is of a call of the work
		return ctx
	}
	c.holds(waited)
	return trace.ContextWithSpan(ctx, c.hold)
}

// holds begins the hold, unless it has begun: the goroutine of the call does that or, if it is the
// first, the hook Acquired.
func (c *call) holds(waited time.Duration) {
	c.once.Do(func() {
		c.began = c.started.Add(waited)
		_, c.hold = c.spans.tracer.Start(c.caller, "etcdlock.hold",
			trace.WithTimestamp(c.began), trace.WithAttributes(c.names...))
	})
}

func (c *call) queued(e etcdlock.QueuedEvent) {
	c.wait.AddEvent("etcdlock.queued", trace.WithAttributes(
		nameKey.String(e.Name), aheadKey.Int(e.Ahead), ownerKey.String(e.Holder.Owner),
		hostKey.String(e.Holder.Host), pidKey.Int(e.Holder.PID)))
}

func (c *call) gaveUp(e etcdlock.GaveUpEvent) {
	if why := whyGivenUp(e.Err); why != "" {
		c.wait.SetAttributes(semconv.ErrorTypeKey.String(why))
		c.wait.SetStatus(codes.Error, bare(e.Err))
	}
	c.waited(e.Name, e.Waited, e.Ahead, acquiredKey.Bool(false))
}

func (c *call) acquired(e etcdlock.AcquiredEvent) {
	token := tokenKey.Int64(e.Token)
	c.waited(e.Name, e.Waited, e.Ahead, token, acquiredKey.Bool(true))
	c.holds(e.Waited)
	c.hold.SetAttributes(token)
}

// waited ends the wait, with the last of its names.
func (c *call) waited(name string, waited time.Duration, ahead int, how ...attribute.KeyValue) {
	c.ahead = max(c.ahead, ahead)
	if name != c.last {
		return
	}
	c.wait.SetAttributes(append(how, aheadKey.Int(c.ahead))...)
	c.wait.End(trace.WithTimestamp(c.started.Add(waited)))
}

func (c *call) released(e etcdlock.ReleasedEvent) {
	c.hold.End(trace.WithTimestamp(c.began.Add(e.Held)))
}

func (c *call) lost(e etcdlock.LostEvent) {
	why, at := semconv.ErrorTypeKey.String(whyLost(e.Reason)), trace.WithTimestamp(c.began.Add(e.Held))
	c.hold.SetAttributes(why)
	c.hold.AddEvent("etcdlock.lost", at, trace.WithAttributes(why))
	c.hold.SetStatus(codes.Error, "lock lost: "+bare(e.Reason))
	c.hold.End(at)
}

// led makes the span of a term that is over. It has begun with its hold.
func (c *call) led(e etcdlock.LedEvent) {
	_, term := c.spans.tracer.Start(trace.ContextWithSpan(c.caller, c.hold), "etcdlock.term",
		trace.WithTimestamp(c.began),
		trace.WithAttributes(nameKey.String(e.Name), tokenKey.Int64(e.Token)))
	if why := whyFailed(c.caller, e.Err); why != "" {
		term.SetAttributes(semconv.ErrorTypeKey.String(why))
		term.SetStatus(codes.Error, firstLine(bare(e.Err)))
	}
	term.End(trace.WithTimestamp(c.began.Add(e.Held)))
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

// whyFailed classifies the error of a term of leadership, by Lead with ctx. It is "" for a function
// that has returned because its context ended, which is no error: that context ends with Lead's,
// for whatever cause, or after a recall. So it is for one that ends Lead. A loss comes before
// whatever else the function says.
func whyFailed(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return ""
	case is(err, etcdlock.ErrLost):
		return whyLost(err)
	case is(err, etcdlock.ErrRecalled):
		return "recalled"
	case is(err, context.Canceled, etcdlock.ErrStopLeading):
		return ""
	case ctx.Err() != nil && is(err, ctx.Err(), context.Cause(ctx)):
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
