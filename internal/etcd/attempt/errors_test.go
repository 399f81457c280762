package attempt

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// formsOf returns the forms in which an answer of etcd comes to this package: as the client
// passes it on, as it was on the wire, and inside another error.
func formsOf(answer error) map[string]error {
	return map[string]error{
		"from the client":          rpctypes.Error(answer),
		"from the client, wrapped": fmt.Errorf("somewhere: %w", rpctypes.Error(answer)),
		"from the wire":            answer,
		"from the wire, wrapped":   fmt.Errorf("somewhere: %w", answer),
		// by clientv3
		"why a watch was cancelled": status.Error(codes.FailedPrecondition, answer.Error()),
	}
}

// An answer is a refusal only if a retry does not fix it. A lock that gives up on an error
// that passes is as bad as one that never gives up.
func TestRefusalsAreEtcdsOwn(t *testing.T) {
	for _, answer := range []error{
		rpctypes.ErrGRPCPermissionDenied,
		rpctypes.ErrGRPCInvalidAuthToken,
		rpctypes.ErrGRPCUserEmpty,
		rpctypes.ErrGRPCAuthFailed,
		rpctypes.ErrGRPCEmptyKey,
		rpctypes.ErrGRPCTooManyOps,
		rpctypes.ErrGRPCDuplicateKey,
		rpctypes.ErrGRPCRequestTooLarge,
		errAPIVersion,
		// These are not etcd's, but a proxy's, a gateway's or gRPC's own.
		status.Error(codes.PermissionDenied, "not on my watch"),
		status.Error(codes.Unauthenticated, "who are you"),
		status.Error(codes.InvalidArgument, "what is this"),
		status.Error(codes.Unimplemented, "unknown service etcdserverpb.KV"),
	} {
		for form, err := range formsOf(answer) {
			require.True(t, Refused(err), "%v, %s", answer, form)
			require.True(t, NotApplied(err), "%v, %s: what is refused is not carried out", answer, form)
		}
	}
	// These have other codes, as the client passes them on.
	for _, err := range []error{rpctypes.ErrLeaseTTLTooLarge, rpctypes.ErrAuthNotEnabled} {
		require.True(t, Refused(err), "%v", err)
		require.True(t, Refused(fmt.Errorf("somewhere: %w", err)), "%v, wrapped", err)
	}

	for _, answer := range []error{
		rpctypes.ErrGRPCAuthOldRevision,
		rpctypes.ErrGRPCNoLeader,
		rpctypes.ErrGRPCNotLeader,
		rpctypes.ErrGRPCLeaderChanged,
		rpctypes.ErrGRPCStopped,
		rpctypes.ErrGRPCTimeout,
		rpctypes.ErrGRPCTimeoutDueToLeaderFail,
		rpctypes.ErrGRPCTimeoutDueToConnectionLost,
		rpctypes.ErrGRPCTimeoutWaitAppliedIndex,
		rpctypes.ErrGRPCUnhealthy,
		rpctypes.ErrGRPCNoSpace,
		rpctypes.ErrGRPCRequestTooManyRequests,
		rpctypes.ErrGRPCCompacted,
		rpctypes.ErrGRPCFutureRev,
		rpctypes.ErrGRPCLeaseNotFound,
		rpctypes.ErrGRPCCanceled,
		rpctypes.ErrGRPCDeadlineExceeded,
		status.Error(codes.Unavailable, "connection refused"),
		status.Error(codes.Unknown, "etcdserver: permission denied by nobody"),
		status.Error(codes.Internal, "stream terminated"),
		status.Error(codes.ResourceExhausted, "message larger than max"),
		context.Canceled,
		context.DeadlineExceeded,
		errors.New("permission"),
	} {
		for form, err := range formsOf(answer) {
			require.False(t, Refused(err), "%v, %s", answer, form)
		}
	}
	require.False(t, Refused(nil))
}

// These have another name in rpctypes 3.5, or are not there.
var (
	errLearner    = status.Error(codes.FailedPrecondition, "etcdserver: rpc not supported for learner")
	errClusterID  = status.Error(codes.FailedPrecondition, "etcdserver: cluster ID mismatch")
	errAPIVersion = status.Error(codes.InvalidArgument, "etcdserver: invalid client api version")
	errSortOption = status.Error(codes.InvalidArgument, "etcdserver: invalid sort option")
)

// classes has a row for each error of rpctypes, as it is on the wire. Members answer some of them
// only to requests that this library never sends; what is not known of an answer is undecided.
var classes = map[class][]error{
	undecided: {
		rpctypes.ErrGRPCNoSpace, // the first one comes after the transaction was applied
		rpctypes.ErrGRPCCorrupt,
		rpctypes.ErrGRPCCanceled, rpctypes.ErrGRPCDeadlineExceeded, rpctypes.ErrGRPCWatchCanceled,

		// These are about members.
		rpctypes.ErrGRPCMemberExist, rpctypes.ErrGRPCPeerURLExist, rpctypes.ErrGRPCMemberNotEnoughStarted,
		rpctypes.ErrGRPCMemberNotFound, rpctypes.ErrGRPCMemberNotLearner, rpctypes.ErrGRPCLearnerNotReady,
		rpctypes.ErrGRPCTooManyLearners, errClusterID,
		rpctypes.ErrGRPCBadLeaderTransferee,
		rpctypes.ErrGRPCDowngradeInProcess, rpctypes.ErrGRPCNoInflightDowngrade,

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
		errLearner,
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
		rpctypes.ErrGRPCKeyNotFound, errSortOption,
		rpctypes.ErrGRPCLeaseTTLTooLarge,
		errAPIVersion,

		// These are answers to other requests, and say that the request is not valid.
		rpctypes.ErrGRPCMemberBadURLs, rpctypes.ErrGRPCRoleEmpty, rpctypes.ErrGRPCPermissionNotGiven,
		rpctypes.ErrGRPCInvalidAuthMgmt, rpctypes.ErrGRPCWrongDowngradeVersionFormat,
		rpctypes.ErrGRPCInvalidDowngradeTargetVersion,
	},
}

// Each error of the module rpctypes has the class of its row, by its code or as an exception. A
// version of the module that has another error fails here until that has a row, too.
func TestEachErrorOfEtcdHasAClass(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(),
		"go", "list", "-f", "{{.Dir}}", "go.etcd.io/etcd/api/v3/v3rpc/rpctypes").Output()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	require.NoError(t, err)
	found := make(map[string]bool) // by text
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 || !isStatus(call) {
				return true
			}
			text, err := strconv.Unquote(call.Args[1].(*ast.BasicLit).Value)
			require.NoError(t, err)
			found[text] = true
			return true
		})
	}
	rows := make(map[string]bool)
	for class, errs := range classes {
		for _, err := range errs {
			text := rpctypes.ErrorDesc(err)
			require.False(t, rows[text], "%q has two rows", text)
			rows[text] = true
			require.Equal(t, class, classify(err), text)
			require.Equal(t, class, classify(rpctypes.Error(err)), "%s, from the client", text)
			require.Equal(t, class, classify(fmt.Errorf("somewhere: %w", err)), "%s, wrapped", text)
		}
	}
	// Its code was Unavailable before 3.6. It answers only requests for a downgrade.
	delete(found, rpctypes.ErrorDesc(rpctypes.ErrGRPCClusterVersionUnavailable))
	found[rpctypes.ErrorDesc(errAPIVersion)], found[rpctypes.ErrorDesc(errSortOption)] = true, true
	require.Equal(t, found, rows, "the errors of the module, and the rows")
}

// isStatus reports whether a call is one of status.Error, or of status.New, which rpctypes 3.5 has.
func isStatus(call *ast.CallExpr) bool {
	of, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || of.Sel.Name != "Error" && of.Sel.Name != "New" {
		return false
	}
	pkg, ok := of.X.(*ast.Ident)
	return ok && pkg.Name == "status"
}

// The answer of a member that cannot serve is no answer for a waiter. Neither is an error
// of gRPC without an answer.
func TestAMemberThatCannotServeHasNotAnswered(t *testing.T) {
	for _, answer := range []error{
		rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCNotLeader, rpctypes.ErrGRPCLeaderChanged,
		rpctypes.ErrGRPCStopped,
		rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCTimeoutDueToLeaderFail,
		rpctypes.ErrGRPCTimeoutDueToConnectionLost,
		rpctypes.ErrGRPCTimeoutWaitAppliedIndex, rpctypes.ErrGRPCUnhealthy,
		status.Error(codes.Unavailable, "refused"),
		errLearner, rpctypes.ErrGRPCNotCapable,
	} {
		for form, err := range formsOf(answer) {
			require.True(t, Absent(err), "%v, %s", answer, form)
		}
	}
	require.True(t, Absent(ErrNoAnswer))
	require.True(t, Absent(&unreachableError{errors.New("refused")}))
	for _, answer := range []error{
		rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCRequestTooManyRequests, rpctypes.ErrGRPCPermissionDenied,
		rpctypes.ErrGRPCLeaseNotFound, rpctypes.ErrGRPCCompacted, context.Canceled,
	} {
		for form, err := range formsOf(answer) {
			require.False(t, Absent(err), "%v, %s", answer, form)
		}
	}
	require.False(t, Absent(nil))
}

// After these errors a write has certainly not been carried out. After any other error the
// outcome is unknown, also after the first ErrNoSpace.
func TestOnlyAnAnswerSaysThatAWriteWasNotApplied(t *testing.T) {
	for _, answer := range []error{
		rpctypes.ErrGRPCLeaseNotFound, rpctypes.ErrGRPCRequestTooManyRequests,
		rpctypes.ErrGRPCPermissionDenied,
		errLearner, rpctypes.ErrGRPCNotCapable,
		rpctypes.ErrGRPCAuthOldRevision,
	} {
		for form, err := range formsOf(answer) {
			require.True(t, NotApplied(err), "%v, %s", answer, form)
		}
	}
	for _, answer := range []error{
		rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCLeaderChanged,
		rpctypes.ErrGRPCNoLeader,
		rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCTimeoutDueToConnectionLost,
		rpctypes.ErrGRPCTimeoutWaitAppliedIndex,
		status.Error(codes.Unavailable, "transport is closing"), context.DeadlineExceeded,
		context.Canceled,
	} {
		for form, err := range formsOf(answer) {
			require.False(t, NotApplied(err), "%v, %s", answer, form)
		}
	}
}

// An answer to what was asked may be another one to a part of that.
func TestSilenceAndWhatIsAboutEtcdItselfAreNoAnswers(t *testing.T) {
	for _, answer := range []error{
		rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCLeaseNotFound, rpctypes.ErrGRPCPermissionDenied,
		rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCRequestTooLarge, rpctypes.ErrGRPCAuthOldRevision,
		status.Error(codes.ResourceExhausted, "message larger than max"),
		status.Error(codes.Internal, "stream terminated"), errors.New("unknown"),
	} {
		for form, err := range formsOf(answer) {
			require.True(t, IsAnswer(err), "%v, %s", answer, form)
		}
	}
	for _, answer := range []error{
		rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCRequestTooManyRequests,
		rpctypes.ErrGRPCNotCapable, rpctypes.ErrGRPCCanceled, rpctypes.ErrGRPCDeadlineExceeded,
		status.Error(codes.Unavailable, "refused"), status.Error(codes.Canceled, "the client is closing"),
	} {
		for form, err := range formsOf(answer) {
			require.False(t, IsAnswer(err), "%v, %s", answer, form)
		}
	}
	for _, err := range []error{
		ErrNoAnswer, &busyError{}, context.Canceled, context.DeadlineExceeded,
	} {
		require.False(t, IsAnswer(err), "%v", err)
	}
}

// Is tells the answers that matter apart in each form.
func TestAnAnswerIsToldInEachForm(t *testing.T) {
	known := map[error]error{
		rpctypes.ErrLeaseNotFound:    rpctypes.ErrGRPCLeaseNotFound,
		rpctypes.ErrTooManyRequests:  rpctypes.ErrGRPCRequestTooManyRequests,
		rpctypes.ErrTooManyOps:       rpctypes.ErrGRPCTooManyOps,
		rpctypes.ErrPermissionDenied: rpctypes.ErrGRPCPermissionDenied,
		rpctypes.ErrInvalidAuthToken: rpctypes.ErrGRPCInvalidAuthToken,
		rpctypes.ErrAuthOldRevision:  rpctypes.ErrGRPCAuthOldRevision,
		rpctypes.ErrUserEmpty:        rpctypes.ErrGRPCUserEmpty,
	}
	for want, answer := range known {
		for form, err := range formsOf(answer) {
			for other := range known {
				require.Equal(t, other == want, Is(err, other), "%v, %s: is it %v?", answer, form, other)
			}
		}
		require.False(t, Is(nil, want))
		require.False(t, Is(errors.New("lease not found"), want))
	}
}

func TestWhatSaysThatEtcdHasTooMuchToDo(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, ErrNoAnswer: true, rpctypes.ErrTooManyRequests: true, rpctypes.ErrTimeout: true,
		rpctypes.ErrNoLeader: false, rpctypes.ErrLeaseNotFound: false, &busyError{}: false,
		ErrUnreachable: false,
	} {
		require.Equal(t, want, Overloaded(err), "%v", err)
	}
	require.True(t, NotApplied(&busyError{}), "nothing was sent")
}
