package attempt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/internal/guard"
)

// A busyError says that a request was not sent because etcd was still busy with earlier ones, or
// has failed them.
type busyError struct{ last error } // of the earlier ones, nil if they have not failed

func (e *busyError) Error() string {
	const text = "etcd is busy: no request was sent"
	if e.last == nil {
		return text
	}
	return text + ": " + e.last.Error()
}

// Unwrap lets a caller find the error of the earlier ones, too: it is about etcd, and not about a
// call. (For this package it is no answer: see answerIn.)
func (e *busyError) Unwrap() []error {
	if e.last == nil {
		return []error{ErrUnreachable}
	}
	return []error{ErrUnreachable, e.last}
}

var (
	// ErrNoAnswer says that etcd did not answer in all the time that an attempt may take.
	ErrNoAnswer = errors.New("no answer from etcd")

	// errNoPings is ErrNoAnswer where the connection has been up and silent for long.
	errNoPings = fmt.Errorf("%w; without clientv3.Config.DialKeepAliveTime "+
		"the client never notices that a connection is dead", ErrNoAnswer)

	// ErrUnreachable says that a request was not sent: no endpoint was connected.
	ErrUnreachable = errors.New("no endpoint of etcd can be reached")
)

// ErrClientClosed is ErrUnreachable for good.
var ErrClientClosed error = &unreachableError{errors.New("the etcd client is closed")}

// An unreachableError is ErrUnreachable for the reason that gRPC gives.
type unreachableError struct{ reason error }

func (e *unreachableError) Error() string { return e.reason.Error() }
func (e *unreachableError) Unwrap() error { return ErrUnreachable }

// A BoundError is the cause of the end of a context by a bound of this library's own: it says of
// what call or option that is the bound.
type BoundError struct {
	Of   string
	Most time.Duration
}

func (e *BoundError) Error() string {
	return fmt.Sprintf("the bound of %s, %v, is over: %v", e.Of, e.Most, context.DeadlineExceeded)
}

// Unwrap makes it context.DeadlineExceeded.
func (e *BoundError) Unwrap() error { return context.DeadlineExceeded }

// Foreign is an error of the user's code, or of etcd, as an error of this library's calls has it:
// one that is not, by errors.Is and errors.As, what this library says of another call. It is set
// before there is a Session.
var Foreign = func(err error) error { return err }

// Cause is the cause of ctx for an error of a call. (Do not take context.Cause: the user's context
// may have ended with an error of another call, and a Do whose function has run would say that it
// was not called. TestNoErrorIsAboutAnotherCall.)
func Cause(ctx context.Context) error { return Foreign(context.Cause(ctx)) }

// A class is what an error says about a request that failed with it.
type class uint8

// The classes. Only a refusal makes a retry useless.
const (
	undecided class = iota // it may have been carried out, or may yet be
	absence                // undecided, and the member cannot serve: it has no leader, or no majority
	incapable              // not carried out: no member, or one that cannot serve it
	unapplied              // not carried out
	refusal                // not carried out, and a retry does not fix it
)

// classOfCode has the codes that tell the class, whether etcd has answered with them, a proxy, a
// gateway or gRPC itself. An answer with any other code is undecided. (So is etcd's ErrNoSpace: the
// first one comes after the transaction was applied.)
var classOfCode = map[string]class{
	codes.Unavailable.String():      absence,
	codes.PermissionDenied.String(): refusal,
	codes.Unauthenticated.String():  refusal,
	codes.InvalidArgument.String():  refusal,
	codes.Unimplemented.String():    refusal,
}

// learnerRefuses has another name in clientv3 3.5.
var learnerRefuses = rpctypes.Error(errors.New("etcdserver: rpc not supported for learner"))

// classOf has the answers of etcd that do not go by their code.
var classOf = map[error]class{
	rpctypes.ErrNotLeader:  absence,
	rpctypes.ErrNotCapable: incapable, // it does not know the cluster's version yet
	learnerRefuses:         incapable,

	rpctypes.ErrTooManyRequests: unapplied,
	rpctypes.ErrLeaseNotFound:   unapplied,
	rpctypes.ErrLeaseExist:      unapplied,
	rpctypes.ErrAuthOldRevision: unapplied,
	rpctypes.ErrCompacted:       unapplied,
	rpctypes.ErrFutureRev:       unapplied,

	rpctypes.ErrAuthNotEnabled:   refusal,
	rpctypes.ErrLeaseTTLTooLarge: refusal,
}

// answerIn returns etcd's own error in err as clients have it, in whatever form it came: as the
// client passes it on, as it was on the wire, inside another error, or as the reason for a
// cancelled watch, which etcd sends as text.
func answerIn(err error) (answer rpctypes.EtcdError, ok bool) {
	if _, busy := err.(*busyError); busy { // which names an answer to another request
		return answer, false
	}
	for ; err != nil; err = errors.Unwrap(err) {
		if answer, ok = rpctypes.Error(err).(rpctypes.EtcdError); ok {
			return answer, true
		}
		if _, desc, cut := cutStatus(err); cut {
			if answer, ok = rpctypes.Error(errors.New(desc)).(rpctypes.EtcdError); ok {
				return answer, true
			}
		}
	}
	return answer, false
}

// cutStatus extracts the text of a gRPC status, of the innermost one if they are nested. What the
// user's code has panicked with is no answer, whatever it is.
func cutStatus(err error) (code, desc string, ok bool) {
	if err == nil || guard.FallIn(err) != nil {
		return "", "", false
	}
	const prefix = "rpc error: code = "
	text := err.Error()
	if i := strings.LastIndex(text, prefix); i >= 0 {
		code, desc, ok = strings.Cut(text[i+len(prefix):], " desc = ")
	}
	return code, desc, ok
}

// Is reports whether err is this answer of etcd, one of the errors of rpctypes for clients.
func Is(err, want error) bool {
	answer, ok := answerIn(err)
	return ok && answer == want
}

// classify returns the class of an error.
func classify(err error) class {
	answer, _ := answerIn(err)
	class, exceptional := classOf[answer]
	switch {
	case errors.Is(err, ErrNoAnswer):
		return absence
	case errors.Is(err, ErrUnreachable):
		return incapable
	case exceptional:
		return class
	}
	return classOfCode[codeOf(err)]
}

// Refused reports whether err is an answer that a retry does not fix. Such a request was not
// carried out.
func Refused(err error) bool { return classify(err) == refusal }

// Absent reports whether err says that no etcd that can serve has answered.
func Absent(err error) bool {
	c := classify(err)
	return c == absence || c == incapable
}

// Overloaded reports whether err says that etcd is overloaded, as far as is known: etcd turns
// the request away, or its own time for the request runs out, or all the time of the attempt does.
func Overloaded(err error) bool {
	return err == ErrNoAnswer || Is(err, rpctypes.ErrTooManyRequests) || Is(err, rpctypes.ErrTimeout)
}

// IsAnswer reports whether err is an answer to what was asked, of etcd or of a proxy before it. It
// is none if it says that no etcd can serve, that etcd is overloaded, or that the time is over.
func IsAnswer(err error) bool {
	switch codeOf(err) {
	case codes.Canceled.String(), codes.DeadlineExceeded.String():
		return false
	}
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	return !ended && !Absent(err) && !Overloaded(err) && guard.FallIn(err) == nil
}

// Fallen returns err if the user's code has fallen in the request, and nil otherwise. A call does
// not repeat such a request. What no call waits for is repeated, as after any other error.
func Fallen(err error) error {
	if guard.FallIn(err) != nil {
		return err
	}
	return nil
}

// NotApplied reports whether a write that failed with err is known to have changed nothing.
// Any other error leaves the outcome unknown.
func NotApplied(err error) bool { return classify(err) >= incapable }

// codeOf returns the name of the code of etcd's own error, or of a gRPC status: of the innermost
// one if they are nested.
func codeOf(err error) string {
	if answer, known := answerIn(err); known {
		return answer.Code().String()
	}
	if code, _, ok := cutStatus(err); ok {
		return code
	}
	return status.Code(err).String()
}
