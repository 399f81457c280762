package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/etcdlock/etcdlock/internal/attempt"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// The sentinels of this package, for use with [errors.Is].
var (
	// ErrLocked says that another contender holds the lock, or stands before
	// the caller. It comes as a [*LockedError]. Come back later, or use Lock.
	ErrLocked = errors.New("etcdlock: locked by another")

	// ErrNotHeld says that the Mutex holds nothing: Unlock without a Lock, or
	// the cause of the context of a Mutex that is not held. It is a mistake of
	// the program, and nothing else has happened.
	ErrNotHeld = errors.New("etcdlock: not held")

	// ErrLost says that the hold ended before its release, so another may have
	// held the lock meanwhile. It comes as a [*LostError]. Treat the work done
	// in the critical section as unprotected from the moment of the loss.
	ErrLost = errors.New("etcdlock: lost")

	// ErrUnconfirmed says that etcd did not confirm a release in time. The
	// release goes on in the background; if etcd stays away, the lock is free
	// once its lease has expired. Nothing is left for the caller to do.
	ErrUnconfirmed = errors.New("etcdlock: release not confirmed")

	// ErrUnlocked is the cause of a hold's context after Unlock.
	ErrUnlocked = errors.New("etcdlock: unlocked")

	// ErrMaxHold is the cause of a hold's context after the time of
	// [WithMaxHold], and the reason of the [*LostError] that Unlock returns then.
	ErrMaxHold = errors.New("etcdlock: held for the longest time allowed")

	// ErrDeadlock says that Lock was called with the context of a hold of the
	// same name in the same Session, and would wait for itself. Pass another
	// context, or allow nesting with [WithReentrancy].
	ErrDeadlock = errors.New("etcdlock: the context already comes from a hold of this lock")

	// ErrClosed says that the Mutex or its Session was closed. Make a new one.
	ErrClosed = errors.New("etcdlock: closed")

	// ErrNotRun says that Do or TryDo did not call its function: what is wrapped beside it is
	// why the lock could not be had, and the work may be tried again. Without it the function
	// was called, and the rest of the error says what became of that. It is always about the
	// call that returned the error: a function that returns the error of another Do passes on
	// all of that but this.
	ErrNotRun = errors.New("etcdlock: the function was not called")

	// ErrUnavailable says that etcd did not answer when a wait ended, whatever
	// else the wait was for. Beside it the error wraps the reason, if one is
	// known: gRPC's own for having no connection, or etcd's last error. Look at
	// the endpoints, the network and the certificates; a later call may succeed.
	ErrUnavailable = errors.New("etcdlock: no answer from etcd")
)

// The reasons of a [*LostError], for use with [errors.Is], beside [ErrMaxHold]. Each loss has
// one of them. Where etcd did not answer whether the key was deleted or put over, the loss is
// both. docs/runbook.md says where to look.
var (
	// ErrExpired says that etcd acknowledged no renewal of the lease for the TTL less the
	// safety margin. If etcd refused the renewals, its answer is wrapped. Nothing is to be
	// done to lock again; where it comes often, etcd is too slow for the TTL.
	ErrExpired = errors.New("etcdlock: not renewed in time")

	// ErrSuspended says that the wall clock ran ahead of the monotonic one by more than was
	// left: the machine was suspended, or its clock was set forward. Lock again.
	ErrSuspended = errors.New("etcdlock: the wall clock ran ahead: machine suspended, or clock set")

	// ErrKeyDeleted says that the key of the hold was gone: an operator deleted it ([Break],
	// etcdctl), or revoked the lease, and the key was missed first. Another may have held
	// the lock from that moment on, which is some time before the loss was noticed.
	ErrKeyDeleted = errors.New("etcdlock: its key was deleted")

	// ErrKeyOverwritten says that another program put a value of its own over the key of the
	// hold, and so took it off the lease. Find out who writes below the name.
	ErrKeyOverwritten = errors.New("etcdlock: its key was put over")

	// ErrLeaseRevoked says that etcd does not know the lease any more: an operator revoked
	// it, or etcd let it expire, or etcd was restored from a backup. All holds of the Session
	// are lost with it. It wraps etcd's answer, if a request had one.
	ErrLeaseRevoked = errors.New("etcdlock: its lease was revoked, or has expired in etcd")
)

// A LockedError tells who holds a lock that could not be had.
// errors.Is(err, ErrLocked) is true of it.
type LockedError struct {
	Name   string    // of the lock
	Holder Contender // first in line when it was last looked at
	Ahead  int       // contenders before the caller, the holder included; about, if more than eight
}

func (e *LockedError) Error() string {
	text := fmt.Sprintf("etcdlock: lock %q: held by %s", e.Name, e.Holder.label())
	if e.Ahead > 1 {
		text += fmt.Sprintf(", %d waiting", e.Ahead-1)
	}
	return text
}

// Unwrap makes errors.Is(e, ErrLocked) true.
func (e *LockedError) Unwrap() error { return ErrLocked }

// A LostError tells which hold was lost and why. errors.Is is true of it for
// ErrLost and for whatever Reason wraps: [ErrExpired], [ErrSuspended], [ErrKeyDeleted],
// [ErrKeyOverwritten], [ErrLeaseRevoked] or [ErrMaxHold].
type LostError struct {
	Name   string // of the lock
	Token  int64  // of the lost hold
	Reason error  // why
}

func (e *LostError) Error() string {
	text := fmt.Sprintf("etcdlock: lock %q lost (token %d)", e.Name, e.Token)
	if e.Reason != nil {
		text += ": " + bare(e.Reason)
	}
	return text
}

// Unwrap makes errors.Is(e, ErrLost) and errors.Is(e, e.Reason) true.
func (e *LostError) Unwrap() []error {
	if e.Reason == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Reason}
}

// opError is the error of one call: its text names the call and the lock, and
// it wraps all that the caller may want to tell apart.
type opError struct {
	text  string
	wraps []error
}

func (e *opError) Error() string   { return e.text }
func (e *opError) Unwrap() []error { return e.wraps }

// failed is the error of call op on the lock name for the reasons given, the
// last of which is nearest to the caller.
func failed(op, name string, reasons ...error) error {
	e := &opError{text: fmt.Sprintf("etcdlock: %s %s", op, excerpt(name, maxNameLen))}
	for _, reason := range reasons {
		if reason != nil {
			e.text += ": " + bare(reason)
			e.wraps = append(e.wraps, reason)
		}
	}
	return e
}

// waitFailed is the error of a wait for the lock name that ended with ctx.
// It says what was waited for: the line, if locked is known, and etcd, if that did not
// answer then, for the reason away, or has failed before with lastRPC.
func waitFailed(ctx context.Context, name string, locked *LockedError, away, lastRPC error) error {
	e := &opError{text: fmt.Sprintf("etcdlock: lock %q", name)}
	if locked != nil {
		e.text += fmt.Sprintf(": %s in line, held by %s", ordinal(locked.Ahead+1), locked.Holder.label())
		e.wraps = append(e.wraps, locked)
	}
	if away != nil {
		e.text += ": " + bare(ErrUnavailable)
		e.wraps = append(e.wraps, ErrUnavailable)
		lastRPC = away
	}
	if lastRPC != nil && (away == nil || lastRPC != attempt.ErrNoAnswer) {
		e.text += ": " + bare(lastRPC)
		e.wraps = append(e.wraps, lastRPC)
	}
	cause := context.Cause(ctx)
	e.text += ": " + bare(cause)
	e.wraps = append(e.wraps, cause)
	if !errors.Is(cause, ctx.Err()) && !errors.Is(cause, ErrClosed) {
		e.wraps = append(e.wraps, ctx.Err())
	}
	return e
}

// notRun is the error of a Do that could not have the lock. It has the text of why, which says
// what it was.
func notRun(why error) error {
	return &opError{text: why.Error(), wraps: []error{ErrNotRun, why}}
}

// ran is the error of a function that Do has called. If that comes from another Do, which did
// not call its own, it stays what it is but for ErrNotRun.
func ran(err error) error {
	if errors.Is(err, ErrNotRun) {
		return &ranError{err}
	}
	return err
}

// A ranError is an error that is not ErrNotRun. It has no Unwrap, through which it would be.
type ranError struct{ err error }

func (e *ranError) Error() string        { return e.err.Error() }
func (e *ranError) Is(target error) bool { return target != ErrNotRun && errors.Is(e.err, target) }
func (e *ranError) As(target any) bool   { return errors.As(e.err, target) }

// because is the reason of a loss that an answer of etcd tells more about; that may be nil.
func because(reason, answer error) error {
	if answer == nil {
		return reason
	}
	return &opError{
		text:  fmt.Sprintf("%v: %s", reason, bare(answer)),
		wraps: []error{reason, answer},
	}
}

// errKeyTaken is the reason of a loss if etcd did not answer which one of two it is.
var errKeyTaken = &opError{
	text:  "etcdlock: its key was deleted, or put over",
	wraps: []error{ErrKeyDeleted, ErrKeyOverwritten},
}

// bare is the text of err without this package's prefix, for use inside another.
func bare(err error) string { return strings.TrimPrefix(err.Error(), "etcdlock: ") }

// ordinal is n as an English ordinal: 1st, 2nd, 3rd, 4th, 11th, 21st.
func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprintf("%d%s", n, suffix)
}

// closeUnconfirmed is the error of a Session's Close that etcd did not confirm in time.
func closeUnconfirmed(why error) error {
	return &opError{
		text:  fmt.Sprintf("etcdlock: close: release not confirmed: %s", bare(why)),
		wraps: []error{ErrUnconfirmed, why},
	}
}

// unconfirmed is the error of an Unlock that etcd did not confirm in time.
func unconfirmed(name string, reasons ...error) error {
	return failed("unlock", name, append([]error{ErrUnconfirmed}, reasons...)...)
}

// reasonOf is a Reason as a LostError has it. What is not told was a deletion.
func reasonOf(r ticket.Reason) error {
	switch r {
	case ticket.Overwritten:
		return ErrKeyOverwritten
	case ticket.Either:
		return errKeyTaken
	case ticket.LeaseRevoked:
		return ErrLeaseRevoked
	default:
		return ErrKeyDeleted
	}
}
