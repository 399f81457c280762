package observe

import (
	"reflect"

	"github.com/etcdlock/etcdlock"
)

// Join returns one Trace that calls the hooks of all, in the order given: WithTrace takes
// one. It goes through the fields by reflection, so that a hook that Trace gets later is
// not forgotten.
func Join(traces ...*etcdlock.Trace) *etcdlock.Trace {
	joined := new(etcdlock.Trace)
	fields := reflect.ValueOf(joined).Elem()
	for i := range fields.NumField() {
		var hooks []reflect.Value
		for _, t := range traces {
			if hook := reflect.ValueOf(t).Elem().Field(i); !hook.IsNil() {
				hooks = append(hooks, hook)
			}
		}
		if len(hooks) == 0 {
			continue
		}
		fields.Field(i).Set(reflect.MakeFunc(fields.Field(i).Type(), func(args []reflect.Value) []reflect.Value {
			for _, hook := range hooks {
				hook.Call(args)
			}
			return nil
		}))
	}
	return joined
}
