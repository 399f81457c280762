package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/hold"
	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/quote"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// The sentinels of this package, for use with [errors.Is]. What an error is by errors.Is and
// errors.As is about its own call. If its context has ended with an error of another call, that is
// only in the text; what else the cause wraps is found.
var (
	// ErrLocked says that another contender holds the lock, or is ahead of the caller. It comes as a
	// [*LockedError]. Try again later, or use Lock.
	ErrLocked = errors.New("etcdlock: locked by another")

	// ErrNotHeld says that the Mutex or [Hold] holds nothing: Unlock without a Lock, or after another
	// Unlock or Close, or the cause of the context of a lock that is not held. It is a bug in the
	// program, and nothing else has happened.
	ErrNotHeld = errors.New("etcdlock: not held")

	// ErrLost says that the hold ended before its release, so another contender may have held the
	// lock meanwhile. It comes as a [*LostError]. The work was not protected from the moment of the
	// loss. Unlock a lost hold, too: until then its Session lets no other of its goroutines in (but
	// for permits).
	ErrLost = errors.New("etcdlock: lost")

	// ErrUnconfirmed says that etcd did not confirm a release in time. The release goes on in the
	// background. If etcd stays away, the lock is free once its lease has expired. Or an answer of
	// etcd was lost and the key is gone: Unlock has deleted it, or an operator did before, and
	// another contender may have held the lock meanwhile. The text says which.
	ErrUnconfirmed = errors.New("etcdlock: release not confirmed")

	// ErrUnlocked is the cause of a hold's context after Unlock.
	ErrUnlocked = errors.New("etcdlock: unlocked")

	// ErrMaxHold is the cause of a hold's context after the time of [WithMaxHold], and the reason of
	// the [*LostError] that Unlock returns then.
	ErrMaxHold = errors.New("etcdlock: held for the longest time allowed")

	// ErrDeadlock says that a lock was asked for with the context of a hold of the same name in the
	// same Session, so the call would wait for itself. Pass another context, or let a Lock nest in a
	// Lock, and a read in a read, by [WithReentrancy].
	ErrDeadlock = errors.New("etcdlock: the context already comes from a hold of this lock")

	// ErrClosed says that the Mutex, RWMutex or Semaphore, or its Session, was closed.
	ErrClosed = errors.New("etcdlock: closed")

	// ErrNotRun says that Do or a method like it did not call its function. The error also wraps the
	// reason, and the caller may retry the work. An error without ErrNotRun says how the function
	// ended. ErrNotRun is always about the call that returned the error: if the function itself
	// returns the error of another Do, everything but ErrNotRun is passed on.
	ErrNotRun = errors.New("etcdlock: the function was not called")

	// ErrStopLeading is for the function of [Mutex.Lead]: if it returns an error that is
	// ErrStopLeading, Lead ends, and returns that error.
	ErrStopLeading = errors.New("etcdlock: stop leading")

	// ErrUnavailable says that etcd was not answering when a wait ended. The error also wraps the
	// reason, if one is known: gRPC's own for having no connection, or etcd's last error. Check the
	// endpoints, the network and the certificates. A wait shorter than 250 ms ends without it, unless
	// there is no connection or etcd has answered with an error.
	ErrUnavailable = errors.New("etcdlock: no answer from etcd")

	// ErrRecalled says that a hold has ended because it was recalled and its grace is over. It comes
	// as a [*RecalledError], the cause of the hold's context. The key is still there: unless it is
	// lost, no other contender gets in before Unlock, which says nil if the hold was whole. Stop the
	// work, and unlock.
	ErrRecalled = errors.New("etcdlock: recalled")

	// ErrNotRecallable says that a contender does not listen to [Recall]: it was made without
	// [WithRecall], or by another program. Nothing was written. Ask its owner, or see [Break].
	ErrNotRecallable = errors.New("etcdlock: does not listen to a recall")
)

// The reasons of a [*LostError], besides [ErrMaxHold], for use with [errors.Is]. Each loss has one
// of them. If etcd did not answer whether the key was deleted or put over, the loss is both.
// docs/runbook.md says where to look.
var (
	// ErrExpired says that etcd acknowledged no renewal that was sent within the last TTL less the
	// safety margin. If etcd refused the renewals, the error wraps its answer. Lock again. If it comes
	// often, etcd is too slow for the TTL.
	ErrExpired = errors.New("etcdlock: not renewed in time")

	// ErrSuspended says that the wall clock ran ahead of the monotonic one by more than was left: the
	// machine was suspended, or its clock was set forward. Lock again.
	ErrSuspended = errors.New("etcdlock: the wall clock ran ahead: machine suspended, or clock set")

	// ErrKeyDeleted says that the key of the hold was gone. An operator deleted it ([Break], etcdctl),
	// or revoked the lease and the missing key was noticed first. Another contender may hold the lock
	// since the deletion, which was before the loss was noticed.
	ErrKeyDeleted = errors.New("etcdlock: its key was deleted")

	// ErrKeyOverwritten says that another program put a value of its own over the key of the hold, and
	// so took it off the lease. Find out which one writes below the name.
	ErrKeyOverwritten = errors.New("etcdlock: its key was put over")

	// ErrLeaseRevoked says that etcd does not know the lease any more: an operator revoked it, etcd
	// let it expire, or etcd was restored from a backup. All holds on that lease are lost with it. It
	// wraps etcd's answer, if a request got one.
	ErrLeaseRevoked = errors.New("etcdlock: its lease was revoked, or has expired in etcd")
)

// The engine of holds knows of the errors only what it gets here.
func init() {
	attempt.Foreign = foreign
	hold.Use(hold.Errors{
		Closed: ErrClosed, NotHeld: ErrNotHeld, Lost: ErrLost, Unlocked: ErrUnlocked,
		Unconfirmed: ErrUnconfirmed, MaxHold: ErrMaxHold, Deadlock: ErrDeadlock,
		Expired: ErrExpired, Recalled: ErrRecalled,

		WaitClosed:  errWaitClosed,
		NilContext:  errNilContext,
		SetBack:     errors.New("etcd was set back: restored, wiped, or another cluster"),
		SomeTime:    errors.New("before the release or after it"),
		Unwitnessed: errors.New("an answer was lost, and nothing shows that the key was still there"),
		NestsNot:    errors.New("WithMinHold is not for a Lock that nests"),

		Failed:     failed,
		Locked:     func(b *hold.Busy) error { return lockedOf(b) },
		WaitFailed: waitFailed,
		NotRun:     notRun,
		LostHold: func(name string, token int64, reason error) error {
			return &LostError{Name: name, Token: token, Reason: reason}
		},
		ReasonOf: lossReason,
		RecalledHold: func(name string, token int64, r line.Recall) error {
			return &RecalledError{Name: name, Token: token, By: r.By, Reason: r.Reason}
		},
		OfTicket: reasonOf,
		OfLease:  leaseError,
		Unavailable: func(reason error) error {
			return &opError{text: reason.Error(), wraps: []error{ErrUnavailable, reason}}
		},
		CloseUnconfirmed: closeUnconfirmed,
	})
}

// A LockedError names the holder of a lock that the call did not get. errors.Is(err, ErrLocked) is
// true for it.
type LockedError struct {
	Name string // of the lock
	// Holder is the first in line when the line was last read; it may be one of several. Its Until is
	// set if the lock is only kept (see [WithMinHold]). If the call waits for the Unlock of a hold
	// that its own Session has lost, Holder has the Owner of that hold, but no Key, Token and Lease,
	// and its Holds is false. The text says if the Session of the call has it itself.
	Holder Contender
	// Ahead is how many contenders the caller has to wait for, with the holder; approximate above
	// eight. A reader does not wait for other readers.
	Ahead int

	here  bool          // Holder is of the call's own Session
	lost  int64         // the token of the lost hold, 0 if the call does not wait for an Unlock
	delay time.Duration // for how long no hold begins, because etcd was set back or may have been
	doubt bool          // it may have been
}

func (e *LockedError) Error() string {
	text := fmt.Sprintf("etcdlock: lock %q: %s", e.Name, e.awaits())
	if e.Ahead > 1 {
		text += fmt.Sprintf(", %d waiting", e.Ahead-1)
	}
	return text
}

// LogValue is e as attributes, with its text as "error".
func (e *LockedError) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("error", e.Error()), slog.String("name", quote.Text(e.Name)),
		slog.Int("ahead", e.Ahead),
	}
	if e.delay > 0 {
		attrs = append(attrs, slog.Duration("delay", e.delay))
	}
	switch {
	case e.lost != 0:
		attrs = append(attrs, slog.Int64("lost", e.lost))
	case e.Ahead > 0 || e.delay == 0:
		attrs = append(attrs, slog.Any("holder", e.Holder))
		if e.here {
			attrs = append(attrs, slog.Bool("here", true))
		}
	}
	return slog.GroupValue(attrs...)
}

// awaits is what the call waits for, or would have to wait for.
func (e *LockedError) awaits() string {
	var waits []string
	switch {
	case e.lost != 0:
		waits = append(waits,
			fmt.Sprintf("waits for the Unlock of a hold lost here (token %d)", e.lost))
	case e.Ahead > 0 || e.delay == 0:
		waits = append(waits, e.taken())
	}
	if e.delay > 0 {
		was := "was"
		if e.doubt {
			was = "may have been"
		}
		waits = append(waits, fmt.Sprintf("etcd %s set back, and a hold from before may last for %v",
			was, e.delay.Round(time.Millisecond)))
	}
	return strings.Join(waits, "; ")
}

// taken is by whom the lock is held, or until when it is kept though its hold is over.
func (e *LockedError) taken() string {
	if until := e.Holder.Until; !until.IsZero() {
		return fmt.Sprintf("kept until %s by %s, which has unlocked it",
			until.UTC().Round(time.Millisecond).Format(time.RFC3339Nano), e.Holder.label())
	}
	held := "held by " + e.Holder.label()
	if e.here {
		held += " in this Session"
	}
	return held
}

// lockedOf is the LockedError of a call that did not get the lock.
func lockedOf(b *hold.Busy) *LockedError {
	return &LockedError{
		Name: b.Name, Holder: contenderOf(b.Holder()), Ahead: b.Ahead,
		here: b.Here, lost: b.Lost, delay: b.Lasts, doubt: b.Lasts > 0 && !b.Proven,
	}
}

// contenderOf is c as users see it.
func contenderOf(c hold.Contender) Contender {
	return Contender{
		Name: c.Name, Key: c.Key, Owner: c.Owner, Host: c.Host, PID: c.PID,
		Token: c.Token, Lease: c.Lease, Since: c.Since, Until: c.Until,
		Mode: Mode(c.Mode), Holds: c.Holds, Info: c.Info, Self: c.Self,
	}
}

// Unwrap makes errors.Is(e, ErrLocked) true.
func (e *LockedError) Unwrap() error { return ErrLocked }

// A LostError says which hold was lost and why. errors.Is is true for ErrLost and for whatever
// Reason wraps: [ErrExpired], [ErrSuspended], [ErrKeyDeleted], [ErrKeyOverwritten],
// [ErrLeaseRevoked] or [ErrMaxHold].
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

// LogValue is e as attributes, with its text as "error".
func (e *LostError) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("error", e.Error()), slog.String("name", quote.Text(e.Name)),
		slog.Int64("token", e.Token),
	}
	if e.Reason != nil {
		attrs = append(attrs, slog.String("reason", bare(e.Reason)))
	}
	return slog.GroupValue(attrs...)
}

// A RecalledError is the cause of a hold's context after a [Recall] and its grace. errors.Is(err,
// ErrRecalled) is true for it.
type RecalledError struct {
	Name       string // of the lock
	Token      int64  // of the hold
	By, Reason string // of the request
}

func (e *RecalledError) Error() string {
	text := fmt.Sprintf("etcdlock: lock %q recalled (token %d)", e.Name, e.Token)
	if e.By != "" {
		text += " by " + quote.Text(e.By)
	}
	if e.Reason != "" {
		text += ": " + quote.Text(e.Reason)
	}
	return text
}

// Unwrap makes errors.Is(e, ErrRecalled) true.
func (e *RecalledError) Unwrap() error { return ErrRecalled }

// LogValue is e as attributes, with its text as "error".
func (e *RecalledError) LogValue() slog.Value {
	return slog.GroupValue(slog.String("error", e.Error()),
		slog.String("name", quote.Text(e.Name)), slog.Int64("token", e.Token),
		slog.String("by", quote.Text(e.By)), slog.String("reason", quote.Text(e.Reason)))
}

// opError is the error of one call. Its text names the call and the lock, and it wraps everything
// that the caller may want to tell apart.
type opError struct {
	text  string
	wraps []error
}

func (e *opError) Error() string   { return e.text }
func (e *opError) Unwrap() []error { return e.wraps }

// failed is the error of call op on the lock name for the given reasons. The last reason is the one
// nearest to the caller.
func failed(op, name string, reasons ...error) error {
	e := &opError{text: fmt.Sprintf("etcdlock: %s %s", op, quote.Excerpt(name, maxNameLen))}
	for _, reason := range reasons {
		if reason != nil {
			e.text += ": " + bare(reason)
			e.wraps = append(e.wraps, reason)
		}
	}
	return e
}

// waitFailed is the error of a wait for the lock name that ended with ctx. It says what the wait
// was for: the line, if busy is known, and etcd, if etcd was not answering then (for the reason
// away) or has failed before with lastRPC.
func waitFailed(ctx context.Context, name string, busy *hold.Busy, away, lastRPC error) error {
	e := &opError{text: fmt.Sprintf("etcdlock: lock %q", name)}
	if busy != nil {
		locked := lockedOf(busy)
		e.text += fmt.Sprintf(": %s in line, %s", ordinal(locked.Ahead+1), locked.awaits())
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
	cause := attempt.Cause(ctx)
	if cause != errWaitClosed && !errors.Is(cause, ctx.Err()) {
		if errors.Is(context.Cause(ctx), ErrClosed) { // of another lock
			e.text += ": " + ctx.Err().Error()
		}
		e.wraps = append(e.wraps, ctx.Err())
	}
	e.text += ": " + bare(cause)
	e.wraps = append(e.wraps, cause)
	return e
}

// errWaitClosed ends the context of a wait whose Mutex or Session was closed. It is not ErrClosed
// itself: the caller's context may have ended with that, because it comes from a hold of another
// lock.
var errWaitClosed error = &opError{text: ErrClosed.Error(), wraps: []error{ErrClosed}}

// notRun is the error of a Do that did not get the lock. It has the text of why, and is why where
// that is ErrNotRun, as the error that the Trace was told.
func notRun(why error) error {
	if errors.Is(why, ErrNotRun) {
		return why
	}
	return &opError{text: why.Error(), wraps: []error{ErrNotRun, why}}
}

// ran is the error of a function that Do has called. If it comes from another Do that did not call
// its function, it keeps everything but ErrNotRun.
func ran(err error) error {
	if errors.Is(err, ErrNotRun) {
		return &ranError{err}
	}
	return err
}

// A ranError is an error that is not ErrNotRun. It has no Unwrap: errors.Is would find ErrNotRun
// through it.
type ranError struct{ err error }

func (e *ranError) Error() string        { return e.err.Error() }
func (e *ranError) Is(target error) bool { return target != ErrNotRun && errors.Is(e.err, target) }
func (e *ranError) As(target any) bool   { return errors.As(e.err, target) }

// sentinels are what an error of this package may be by errors.Is.
var sentinels = []error{
	ErrLocked, ErrNotHeld, ErrLost, ErrUnconfirmed, ErrUnlocked, ErrMaxHold, ErrDeadlock, ErrClosed,
	ErrNotRun, ErrStopLeading, ErrUnavailable, ErrRecalled, ErrNotRecallable,
	ErrExpired, ErrSuspended, ErrKeyDeleted, ErrKeyOverwritten, ErrLeaseRevoked,
}

// foreign is err, the cause of a caller's context or an answer to a request, for an error of a
// call. It may be an error of another call, or have one inside.
func foreign(err error) error {
	is := func(sentinel error) bool { return errors.Is(err, sentinel) }
	if err == errWaitClosed || !slices.ContainsFunc(sentinels, is) {
		return err
	}
	return &foreignError{err}
}

// A foreignError is an error without what it says of another call: it is none of the sentinels, and
// none of the types of this package. All else that it wraps is found.
//
// Invariant: what is wrapped in an error of a call, and has come from the user's code, from etcd or
// with a context, is foreign. (TestNoErrorIsAboutAnotherCall.)
type foreignError struct{ err error }

func (e *foreignError) Error() string { return e.err.Error() }

// Is is as errors.Is has it.
func (e *foreignError) Is(target error) bool {
	return !slices.Contains(sentinels, target) && errors.Is(e.err, target)
}

// As is as errors.As has it.
func (e *foreignError) As(target any) bool {
	to := reflect.ValueOf(target).Elem()
	return !isOwn(to.Interface()) && as(e.err, target, to)
}

// as finds in the tree of err what can be assigned to target, which is to, and is not of this
// package.
func as(err error, target any, to reflect.Value) bool {
	if v := reflect.ValueOf(err); !isOwn(err) && v.Type().AssignableTo(to.Type()) {
		to.Set(v)
		return true
	}
	if x, ok := err.(interface{ As(any) bool }); ok && x.As(target) {
		return true
	}
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		next := x.Unwrap()
		return next != nil && as(next, target, to)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(x.Unwrap(), func(err error) bool {
			return err != nil && as(err, target, to)
		})
	}
	return false
}

// isOwn reports whether err is of a type of this package.
func isOwn(err any) bool {
	switch err.(type) {
	case *LockedError, *LostError, *RecalledError, *opError, *ranError, *foreignError:
		return true
	}
	return false
}

// because is the reason of a loss with etcd's answer, which says more about it and may be nil.
func because(reason, answer error) error {
	if answer == nil {
		return reason
	}
	return &opError{
		text:  fmt.Sprintf("%v: %s", reason, bare(answer)),
		wraps: []error{reason, foreign(answer)},
	}
}

// lossReason is the reason of a loss, or err itself if that is no LostError.
func lossReason(err error) error {
	var lost *LostError
	if errors.As(err, &lost) {
		return lost.Reason
	}
	return err
}

// errKeyTaken is the reason of a loss if etcd did not answer which of the two it is.
var errKeyTaken = &opError{
	text:  "etcdlock: its key was deleted, or put over",
	wraps: []error{ErrKeyDeleted, ErrKeyOverwritten},
}

var errNilContext = errors.New("nil context")

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

// closeUnconfirmed is the error of a Session's Close if etcd did not confirm it in time.
func closeUnconfirmed(why error) error {
	return &opError{
		text:  fmt.Sprintf("etcdlock: close: release not confirmed: %s", bare(why)),
		wraps: []error{ErrUnconfirmed, foreign(why)},
	}
}

// leaseError is the error for why a lease has ended. answer is what etcd has answered, and may be
// nil.
func leaseError(r lease.Reason, answer error) error {
	switch r {
	case lease.Expired:
		return because(ErrExpired, answer)
	case lease.Suspended:
		return ErrSuspended
	case lease.Revoked:
		return because(ErrLeaseRevoked, answer)
	default:
		return ErrClosed
	}
}

// reasonOf is the Reason of a LostError. Anything else is a deletion.
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
