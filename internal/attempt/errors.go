package attempt

import (
	"errors"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errBusy says that a request was not sent because etcd was still busy with others.
var errBusy error = &unreachableError{errors.New("etcd is busy: no request was sent")}

var (
	// ErrNoAnswer says that etcd did not answer in all the time that an attempt may take.
	ErrNoAnswer = errors.New("no answer from etcd")

	// ErrUnreachable says that a request was not sent: no endpoint was connected.
	ErrUnreachable = errors.New("no endpoint of etcd can be reached")
)

// ErrClientClosed is ErrUnreachable for good.
var ErrClientClosed error = &unreachableError{errors.New("the etcd client is closed")}

// An unreachableError is ErrUnreachable for the reason that gRPC gives.
type unreachableError struct{ reason error }

func (e *unreachableError) Error() string { return e.reason.Error() }
func (e *unreachableError) Unwrap() error { return ErrUnreachable }

// refusals are the answers of etcd that a retry does not fix.
var refusals = []error{
	rpctypes.ErrPermissionDenied,
	rpctypes.ErrInvalidAuthToken,
	rpctypes.ErrUserEmpty,
	rpctypes.ErrAuthFailed,
	rpctypes.ErrAuthNotEnabled,
	rpctypes.ErrRequestTooLarge,
	rpctypes.ErrTooManyOps,
	rpctypes.ErrDuplicateKey,
	rpctypes.ErrEmptyKey,
	rpctypes.ErrLeaseTTLTooLarge,
}

// refusedCodes are the codes of a proxy, a gateway or gRPC itself that a retry does not fix.
var refusedCodes = []codes.Code{
	codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.Unimplemented,
}

// absences are the answers of a member that cannot serve: it has no leader, or no majority.
var absences = []error{
	rpctypes.ErrNoLeader,
	rpctypes.ErrNotLeader,
	rpctypes.ErrLeaderChanged,
	rpctypes.ErrStopped,
	rpctypes.ErrTimeout,
	rpctypes.ErrTimeoutDueToLeaderFail,
	rpctypes.ErrTimeoutDueToConnectionLost,
	rpctypes.ErrUnhealthy,
}

// answer returns etcd's own error in err, in whatever form it came: as the client passes it on,
// as it was on the wire, inside another error, or as the reason for a cancelled watch, which etcd
// sends as text.
func answer(err error) error {
	for ; err != nil; err = errors.Unwrap(err) {
		if e, ok := rpctypes.Error(err).(rpctypes.EtcdError); ok {
			return e
		}
		if _, desc, ok := cutStatus(err); ok {
			if e, ok := rpctypes.Error(errors.New(desc)).(rpctypes.EtcdError); ok {
				return e
			}
		}
	}
	return nil
}

// cutStatus extracts the text of a gRPC status, of the innermost one if they are nested.
func cutStatus(err error) (code, desc string, ok bool) {
	const prefix = "rpc error: code = "
	text := err.Error()
	if i := strings.LastIndex(text, prefix); i >= 0 {
		code, desc, ok = strings.Cut(text[i+len(prefix):], " desc = ")
	}
	return code, desc, ok
}

// Is reports whether err is this answer of etcd, one of the errors of rpctypes for clients.
func Is(err, want error) bool {
	e := answer(err)
	return e != nil && e == want
}

// Refused reports whether err is an answer that a retry does not fix. Such a request was not
// carried out.
func Refused(err error) bool {
	e := answer(err)
	if e == nil {
		return hasCode(err, refusedCodes...)
	}
	if slices.Contains(refusals, e) {
		return true
	}
	code := e.(rpctypes.EtcdError).Code()
	return slices.Contains(refusedCodes, code) && e != rpctypes.ErrAuthOldRevision
}

// Absent reports whether err says that no etcd that can serve has answered.
func Absent(err error) bool {
	if errors.Is(err, ErrNoAnswer) || errors.Is(err, ErrUnreachable) {
		return true
	}
	if e := answer(err); e != nil {
		return slices.Contains(absences, e)
	}
	return hasCode(err, codes.Unavailable)
}

// NotApplied reports whether a write that failed with err is known to have changed nothing.
// Any other error leaves the outcome unknown. That includes etcd's ErrNoSpace, because the first
// one comes after the transaction was applied.
func NotApplied(err error) bool {
	return Refused(err) || Is(err, rpctypes.ErrLeaseNotFound) || Is(err, rpctypes.ErrTooManyRequests) ||
		errors.Is(err, ErrUnreachable)
}

// hasCode reports whether err is a gRPC status with one of the codes.
func hasCode(err error, of ...codes.Code) bool {
	if err == nil {
		return false
	}
	if code, _, ok := cutStatus(err); ok {
		return slices.ContainsFunc(of, func(c codes.Code) bool { return c.String() == code })
	}
	s, ok := status.FromError(err)
	return ok && slices.Contains(of, s.Code())
}
