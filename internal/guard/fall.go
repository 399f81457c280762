package guard

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// A Fall is the error of a call of the user's code that has not returned: an interceptor, a wrapped
// KV, Lease or Watcher, or credentials have panicked, or have called [runtime.Goexit].
//
// Invariant: in a goroutine of the library the user's code runs by [Apart] or [Catch]. So its Fall
// is the error of its request there, and what other calls wait for is done. In the goroutine of a
// call it runs as it is, or its Fall goes on there by [Rethrow], once nothing of the call is left:
// as if the call had been alone. (internal/ARCHITECTURE.md has the table; TestNobodyElseFalls.)
//
// (Do not let a panic end the process because no call waits for that goroutine. The same request
// would have been recovered in the call that it works for, as net/http does.)
type Fall struct {
	value any    // of the panic, nil after Goexit
	stack []byte // where it panicked
}

// What says what has happened, without the stack.
func (f *Fall) What() string {
	if f.value == nil {
		return "the program's own code has called runtime.Goexit in a request"
	}
	return fmt.Sprintf("the program's own code has panicked in a request: %v", f.value)
}

// Error has the stack, too: a panic that goes on in another goroutine does not show it.
func (f *Fall) Error() string {
	if f.value == nil {
		return f.What()
	}
	return fmt.Sprintf("%s\n\n%s", f.What(), f.stack)
}

// FallIn is the Fall that err is, or wraps; nil if there is none.
func FallIn(err error) *Fall {
	if err == nil {
		return nil
	}
	var fall *Fall
	_ = errors.As(err, &fall)
	return fall
}

// Rethrow has the Fall that err is, or wraps, go on in the goroutine of the caller. Otherwise it
// does nothing.
func Rethrow(err error) {
	switch fall := FallIn(err); {
	case fall == nil:
	case fall.value == nil:
		runtime.Goexit()
	default:
		panic(fall.value)
	}
}

// Catch calls f, and then ended, with the Fall of f, or nil if f has returned. After Goexit it does
// not return: what has to follow is done in ended, and in the deferred calls of the goroutine.
func Catch(f func(), ended func(*Fall)) {
	returned := false
	defer func() {
		var fall *Fall
		if !returned {
			if fall = (&Fall{value: recover()}); fall.value != nil {
				fall.stack = debug.Stack()
			}
		}
		ended(fall)
	}()
	f()
	returned = true
}

// Apart calls f in a goroutine of its own, and waits for it. The error is the Fall of f.
func Apart[R any](f func() (R, error)) (r R, err error) {
	over := make(chan *Fall, 1)
	go Catch(func() { r, err = f() }, func(fall *Fall) { over <- fall })
	if fall := <-over; fall != nil {
		return r, fall
	}
	return r, err
}
