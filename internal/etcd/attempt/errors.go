package attempt

import (
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errBusy says that a request was not sent because etcd was still busy with earlier ones.
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

// classOf has a row for each error of rpctypes, as it is on the wire, and so by its text and code.
// Members answer some of them only to requests that this library never sends; what is not known
// of an answer is undecided.
var classOf = map[class][]error{
	undecided: {
		rpctypes.ErrGRPCNoSpace, // the first one comes after the transaction was applied
		rpctypes.ErrGRPCCorrupt,
		rpctypes.ErrGRPCCanceled, rpctypes.ErrGRPCDeadlineExceeded, rpctypes.ErrGRPCWatchCanceled,

		// These are about members.
		rpctypes.ErrGRPCMemberExist, rpctypes.ErrGRPCPeerURLExist, rpctypes.ErrGRPCMemberNotEnoughStarted,
		rpctypes.ErrGRPCMemberNotFound, rpctypes.ErrGRPCMemberNotLearner, rpctypes.ErrGRPCLearnerNotReady,
		rpctypes.ErrGRPCTooManyLearners, rpctypes.ErrGRPCClusterIDMismatch,
		rpctypes.ErrGRPCBadLeaderTransferee,
		rpctypes.ErrGRPCClusterVersionUnavailable, rpctypes.ErrGRPCDowngradeInProcess,
		rpctypes.ErrGRPCNoInflightDowngrade,

		// These are about users and roles.
		rpctypes.ErrGRPCRootUserNotExist, rpctypes.ErrGRPCRootRoleNotExist,
		rpctypes.ErrGRPCUserAlreadyExist, rpctypes.ErrGRPCUserNotFound,
		rpctypes.ErrGRPCRoleAlreadyExist, rpctypes.ErrGRPCRoleNotFound,
		rpctypes.ErrGRPCRoleNotGranted, rpctypes.ErrGRPCPermissionNotGranted,
	},
	absence: {
		rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCNotLeader, rpctypes.ErrGRPCLeaderChanged,
		rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCUnhealthy,
		rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCTimeoutDueToLeaderFail,
		rpctypes.ErrGRPCTimeoutDueToConnectionLost, rpctypes.ErrGRPCTimeoutWaitAppliedIndex,
	},
	incapable: {
		rpctypes.ErrGRPCNotSupportedForLearner,
		rpctypes.ErrGRPCNotCapable, // it does not know the cluster's version yet
	},
	unapplied: {
		rpctypes.ErrGRPCRequestTooManyRequests,
		rpctypes.ErrGRPCLeaseNotFound, rpctypes.ErrGRPCLeaseExist,
		rpctypes.ErrGRPCAuthOldRevision,
		rpctypes.ErrGRPCCompacted, rpctypes.ErrGRPCFutureRev,
	},
	refusal: {
		rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCUserEmpty,
		rpctypes.ErrGRPCAuthFailed, rpctypes.ErrGRPCAuthNotEnabled,
		rpctypes.ErrGRPCRequestTooLarge, rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCDuplicateKey,
		rpctypes.ErrGRPCEmptyKey, rpctypes.ErrGRPCValueProvided, rpctypes.ErrGRPCLeaseProvided,
		rpctypes.ErrGRPCKeyNotFound, rpctypes.ErrGRPCInvalidSortOption,
		rpctypes.ErrGRPCLeaseTTLTooLarge,
		rpctypes.ErrGRPCInvalidClientAPIVersion,

		// These are answers to other requests, and say that the request is not valid.
		rpctypes.ErrGRPCMemberBadURLs, rpctypes.ErrGRPCRoleEmpty, rpctypes.ErrGRPCPermissionNotGiven,
		rpctypes.ErrGRPCInvalidAuthMgmt, rpctypes.ErrGRPCWrongDowngradeVersionFormat,
		rpctypes.ErrGRPCInvalidDowngradeTargetVersion,
	},
}

// An answer is a row of classOf.
type answer struct {
	class
	err error // as clients have it
}

// answers are the rows of classOf by their texts.
var answers = func() map[string]answer {
	byText := make(map[string]answer)
	for c, errs := range classOf {
		for _, err := range errs {
			byText[rpctypes.ErrorDesc(err)] = answer{c, rpctypes.Error(err)}
		}
	}
	return byText
}()

// classOfCode has the codes of a proxy, a gateway or gRPC itself.
var classOfCode = map[string]class{
	codes.Unavailable.String():      absence,
	codes.PermissionDenied.String(): refusal,
	codes.Unauthenticated.String():  refusal,
	codes.InvalidArgument.String():  refusal,
	codes.Unimplemented.String():    refusal,
}

// answerIn returns etcd's own error in err, in whatever form it came: as the client passes it on,
// as it was on the wire, inside another error, or as the reason for a cancelled watch, which etcd
// sends as text.
func answerIn(err error) (a answer, ok bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		if a, ok = answers[rpctypes.ErrorDesc(err)]; ok {
			return a, true
		}
		if _, desc, cut := cutStatus(err); cut {
			if a, ok = answers[desc]; ok {
				return a, true
			}
		}
	}
	return answer{}, false
}

// cutStatus extracts the text of a gRPC status, of the innermost one if they are nested.
func cutStatus(err error) (code, desc string, ok bool) {
	if err == nil {
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
	a, ok := answerIn(err)
	return ok && a.err == want
}

// classify returns the class of an error.
func classify(err error) class {
	switch a, ok := answerIn(err); {
	case errors.Is(err, ErrNoAnswer):
		return absence
	case errors.Is(err, ErrUnreachable):
		return incapable
	case ok:
		return a.class
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

// NotApplied reports whether a write that failed with err is known to have changed nothing.
// Any other error leaves the outcome unknown.
func NotApplied(err error) bool { return classify(err) >= incapable }

// codeOf returns the name of a gRPC status's code, of the innermost one if they are nested.
func codeOf(err error) string {
	if code, _, ok := cutStatus(err); ok {
		return code
	}
	return status.Code(err).String()
}
