package hold

import (
	"context"

	"github.com/etcdlock/etcdlock/internal/lease"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// Errors are the errors of the API. The engine knows neither their texts nor their types.
type Errors struct {
	Closed, NotHeld, Lost, Unlocked, Unconfirmed, MaxHold, Deadlock error
	Expired, Recalled                                               error

	// WaitClosed ends the context of a wait whose lock or Session was closed. It is not Closed
	// itself: the caller's context may have ended with that, because it comes from a hold of another
	// lock.
	WaitClosed error

	// Reasons, for Failed.
	NilContext error
	SetBack    error // etcd was set back since something was learned from it
	SomeTime   error // another request has taken a key that a release was to move, at some time
	// Unwitnessed: the key is gone, and nothing shows that it was there when its release began.
	Unwitnessed error
	NestsNot    error // a Lock with WithMinHold does not nest

	// Failed is the error of call op on the lock name for the given reasons. The last reason is the
	// one nearest to the caller.
	Failed func(op, name string, reasons ...error) error
	// Locked is the error of a call that did not get the lock.
	Locked func(*Busy) error
	// WaitFailed is the error of a wait for the lock name that ended with ctx. It says what the wait
	// was for: the line, if busy is known, and etcd, if etcd was not answering then (for the reason
	// away) or has failed before with lastRPC.
	WaitFailed func(ctx context.Context, name string, busy *Busy, away, lastRPC error) error
	// NotRun is the error of a Do that did not get the lock.
	NotRun func(why error) error

	// LostHold is the error of a hold that was lost, and ReasonOf the reason in it; of another error
	// that is the error itself.
	LostHold func(name string, token int64, reason error) error
	ReasonOf func(err error) error
	// RecalledHold is the cause of the end of a hold that was recalled.
	RecalledHold func(name string, token int64, r line.Recall) error
	// OfTicket is why a key was lost, and OfLease why a lease was. answer is what etcd has answered,
	// and may be nil.
	OfTicket func(ticket.Reason) error
	OfLease  func(r lease.Reason, answer error) error

	// Unavailable is the error for an etcd that does not answer, and CloseUnconfirmed the error of a
	// Session's Close if etcd did not confirm it in time.
	Unavailable      func(reason error) error
	CloseUnconfirmed func(why error) error
}

// errs is set once, by Use, before there is a Session.
var errs Errors

// Use sets the errors that the engine returns.
func Use(e Errors) { errs = e }
