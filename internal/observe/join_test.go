package observe_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/observe"
)

// recorder returns a Trace all of whose hooks append who and which to calls.
func recorder(who string, calls *[]string) *etcdlock.Trace {
	trace := new(etcdlock.Trace)
	fields := reflect.ValueOf(trace).Elem()
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		fields.Field(i).Set(reflect.MakeFunc(fields.Field(i).Type(), func(args []reflect.Value) []reflect.Value {
			*calls = append(*calls, fmt.Sprintf("%s %s %v", who, name, args[0].Interface()))
			return nil
		}))
	}
	return trace
}

func TestJoinCallsEachHookOfEachTraceInOrder(t *testing.T) {
	var calls, want []string
	joined := reflect.ValueOf(observe.Join(recorder("a", &calls), new(etcdlock.Trace), recorder("b", &calls))).Elem()
	for i := range joined.NumField() {
		hook, field := joined.Field(i), joined.Type().Field(i)
		args := make([]reflect.Value, hook.Type().NumIn())
		for j := range args {
			args[j] = reflect.Zero(hook.Type().In(j))
		}
		hook.Call(args)
		for _, who := range []string{"a", "b"} {
			want = append(want, fmt.Sprintf("%s %s %v", who, field.Name, args[0].Interface()))
		}
	}
	require.NotEmpty(t, want)
	require.Equal(t, want, calls)
}

// A hook that nobody has stays nil, so that the library does not start a goroutine for it.
func TestJoinLeavesHooksNilThatNobodyHas(t *testing.T) {
	require.Equal(t, etcdlock.Trace{}, *observe.Join(new(etcdlock.Trace)))
	require.Equal(t, etcdlock.Trace{}, *observe.Join())
}
