package lease

import (
	"context"
	"time"

	"github.com/etcdlock/etcdlock/internal/list"
)

// A Life is a hold as the lease knows it on which its keys are: what ends with the trust in the
// lease, in time.
//
// Invariant: the end of a hold waits for nothing. The safety lock of the Pool guards the trust in
// each lease, its timer, and the lives on it. It is held for no longer than it takes to read or
// write a few words, and with it held no other lock is taken. (A method that is called with it held
// has a name that ends in Safe. The Session's mutex may be held, too, and is taken first.) So no
// call of the Session delays the end of a hold's contexts, the move of the trust's end, or a look
// at a hold, however many calls there are. The hold does later, with the Session's mutex, what else
// follows from the end of its life.
// (Do not take the Session's mutex on the way from the send of a renewal to the moved end of the
// trust, or from the timer to a context. TestHoldsEndInTimeWhileTheSessionsMutexIsHeld.)
//
// Invariant: a life ends once, with the first cause. Its contexts are fixed from then on, and it is
// among the ending ones of its lease until all of them have ended. So the lease can end them before
// it is revoked.
type Life struct {
	lease *Lease
	of    Mortal

	// Guarded by Pool.safety.
	cause    error // nil while it is whole
	own      *own  // its own end, nil if only its lease ends it
	contexts map[Key]Ender
	node     list.Node[*Life] // in the whole or the ending ones of its lease
}

// An own end is when a life ends by itself, and the cause then.
type own struct {
	ends time.Time
	why  error
}

// A Mortal is a hold, or several that begin and end together, as their Life knows them. The
// safety lock may be held as its methods are called: they only compute.
type Mortal interface {
	// LostSafe is the cause of the end if the lease has ended for why.
	LostSafe(why error) error

	// KeySafe is its key, or one of them.
	KeySafe() string

	// OverSafe says that a look has found the life over by its own time, before any timer: the
	// hold draws the conclusions soon, in a goroutine of its own.
	OverSafe()
}

// A Key tells the contexts of a Life apart.
type Key struct {
	Of     any // the hold that it is asked of
	Parent context.Context
}

// An Ender is a context that ends with a Life.
type Ender interface {
	// End ends it, with a cause. When it returns all that comes from it has ended, too, even if
	// another call does the same at that time.
	End(cause error)
}

// lock locks the safety lock of f's Pool.
func (f *Life) lock() *Pool {
	p := f.lease.pool
	p.safety.Lock()
	return p
}

// Begin begins f, of a hold on l. It ends with the trust in l.
func (f *Life) Begin(l *Lease, of Mortal) {
	l.pool.safety.Lock()
	defer l.pool.safety.Unlock()
	f.lease, f.of = l, of
	if l.over != nil { // as the hold began
		f.cause = of.LostSafe(l.over)
		return
	}
	l.whole.Add(&f.node, f)
}

// Cap makes f end at a time, for why, if it would not end before.
func (f *Life) Cap(ends time.Time, why error) {
	defer f.lock().safety.Unlock()
	if f.own == nil || ends.Before(f.own.ends) {
		f.own = &own{ends, why}
	}
}

// Cause is why f has ended, nil while it is whole. It goes by now, which the caller has just read,
// and by no timer. So it tells the truth after a pause of the process, before any timer has run.
func (f *Life) Cause(now time.Time) error {
	defer f.lock().safety.Unlock()
	return f.causeSafe(now)
}

func (f *Life) causeSafe(now time.Time) error {
	if f.cause != nil {
		return f.cause
	}
	if over := f.lease.overSafe(now); over != nil {
		f.endSafe(f.of.LostSafe(over))
	} else if f.own != nil && !Before(now, f.own.ends) {
		f.endSafe(f.own.why)
		f.of.OverSafe()
	}
	return f.cause
}

// Before reports whether now is before t by the monotonic and by the wall clock.
func Before(now, t time.Time) bool {
	return now.Before(t) && now.Round(0).Before(t.Round(0))
}

// Until is when f ends, unless a renewal moves that, or zero if it has ended.
func (f *Life) Until(now time.Time) time.Time {
	defer f.lock().safety.Unlock()
	if f.causeSafe(now) != nil {
		return time.Time{}
	}
	until := f.lease.trust.Until()
	if f.own != nil && f.own.ends.Before(until) {
		until = f.own.ends
	}
	return until
}

// End ends f with a cause, unless it has ended, and returns the cause that counts. The caller has
// its contexts ended.
func (f *Life) End(cause error) error {
	defer f.lock().safety.Unlock()
	if f.causeSafe(time.Now()) == nil {
		f.endSafe(cause)
	}
	return f.cause
}

func (f *Life) endSafe(cause error) {
	f.cause = cause
	if len(f.contexts) == 0 {
		f.node.Remove()
	} else {
		f.lease.ending.Add(&f.node, f)
	}
}

// Ending reports whether f has ended, and its contexts may not have.
func (f *Life) Ending() bool {
	defer f.lock().safety.Unlock()
	return f.cause != nil && f.contexts != nil
}

// EndContexts ends the contexts of f, which has ended. When it returns they all have ended, and all
// that come from them, even if other calls do the same at that time.
func (f *Life) EndContexts() {
	p := f.lock()
	cause, contexts := f.cause, f.contexts
	p.safety.Unlock()
	if cause == nil {
		return
	}
	for _, c := range contexts {
		c.End(cause)
	}
	defer f.lock().safety.Unlock()
	f.contexts = nil
	f.node.Remove()
}

// Context is the context of f with a key, nil if it has none.
func (f *Life) Context(k Key) Ender {
	defer f.lock().safety.Unlock()
	return f.contexts[k]
}

// Add makes c end with f. It returns c, or the one that was added with its key meanwhile. cause
// says why f has ended already.
func (f *Life) Add(k Key, c Ender) (one Ender, cause error) {
	defer f.lock().safety.Unlock()
	if cause := f.causeSafe(time.Now()); cause != nil {
		return c, cause
	}
	if other := f.contexts[k]; other != nil {
		return other, nil
	}
	if f.contexts == nil {
		f.contexts = make(map[Key]Ender)
	}
	f.contexts[k] = c
	return c, nil
}

// Forget removes c, which has ended by itself, from f.
func (f *Life) Forget(k Key, c Ender) {
	defer f.lock().safety.Unlock()
	if f.cause == nil && f.contexts[k] == c {
		delete(f.contexts, k)
	}
}

// Contexts is how many contexts f has to end.
func (f *Life) Contexts() int {
	defer f.lock().safety.Unlock()
	return len(f.contexts)
}
