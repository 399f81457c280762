package guard

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Fall is the error of the call, and goes on by Rethrow as it began, whatever wraps it. Its text
// has the stack.
func TestAFallIsAnErrorThatGoesOn(t *testing.T) {
	boom := errors.New("boom")
	for name, fall := range map[string]func(){
		"panic": func() { panic(boom) }, "Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			n, err := Apart(func() (int, error) { fall(); return 1, nil })
			require.Zero(t, n)
			require.NotErrorIs(t, err, boom, "that would be about another call")
			if name == "panic" {
				require.ErrorContains(t, err, "boom")
				require.ErrorContains(t, err, "fall_test.go")
			}
			for _, err := range []error{err, fmt.Errorf("lock: %w", err), errors.Join(boom, err)} {
				require.NotNil(t, FallIn(err))
				var value any
				over, returned := make(chan struct{}), false
				go func() {
					defer close(over)
					defer func() { value = recover() }()
					Rethrow(err)
					returned = true
				}()
				<-over
				require.False(t, returned)
				if name == "panic" {
					require.Equal(t, boom, value)
				} else {
					require.Nil(t, value)
				}
			}
		})
	}
}

// What returns has no Fall.
func TestWhatReturnsHasNoFall(t *testing.T) {
	boom := errors.New("boom")
	n, err := Apart(func() (int, error) { return 1, boom })
	require.Equal(t, 1, n)
	require.Equal(t, boom, err)
	for _, err := range []error{nil, boom} {
		require.Nil(t, FallIn(err))
		Rethrow(err)
	}
}
