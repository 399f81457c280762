//go:build linux || darwin || freebsd

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// heldEnv is the environment variable with the holds of all runs around a command, the outermost
// first.
const heldEnv = "ETCDLOCK_HELD"

// An outer is the hold of a run around this process. Its key tells it apart from a hold of the same
// name in another etcd, and from one that has ended: that key is not there.
type outer struct {
	Key   string `json:"key"`
	Token int64  `json:"token"`
}

// outers are the holds around this process. What is not as a run has written it counts for none.
func outers() (all []outer) {
	if json.Unmarshal([]byte(os.Getenv(heldEnv)), &all) != nil {
		return nil
	}
	return all
}

// around returns the hold of name around this process, in the etcd of client: a wait for name would
// wait for itself. Permits may be taken beside permits.
func (h *holding) around(ctx context.Context, client *clientv3.Client, name string) *outer {
	for _, o := range slices.Backward(outers()) {
		if of, _, ok := line.ParseKey(o.Key); !ok || of != name {
			continue
		}
		resp, err := h.read(ctx, client, o.Key)
		if err != nil || len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != o.Token {
			continue // an error is one of the Lock, too
		}
		if h.limit == 0 || line.EntryOf(resp.Kvs[0]).Kind() != line.Permit {
			return &o
		}
	}
	return nil
}

// read reads a key, and retries as often as it takes while etcd is away.
func (h *holding) read(
	ctx context.Context, client *clientv3.Client, key string,
) (*clientv3.GetResponse, error) {
	for {
		resp, err := client.Get(ctx, key)
		if err == nil || !away(err) || ctx.Err() != nil {
			return resp, err
		}
		h.why.set(fmt.Sprintf("%v: %v", errNoAnswer, err))
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

// become makes this process the command, since a run around it has the lock.
func (h *holding) become(cmd *exec.Cmd, o *outer) error {
	name, _, _ := line.ParseKey(o.Key)
	err := syscall.Exec(cmd.Path, cmd.Args, h.environ(name, *o, outers()))
	return notStarted(&os.PathError{Op: "exec", Path: cmd.Path, Err: err})
}

// ---- the environment

// environ is the environment of the command: name is that of its lock, o the
// hold, and all are the holds around it.
func (h *holding) environ(name string, o outer, all []outer) []string {
	env := os.Environ()
	if !h.keepSecrets {
		env = withoutSecrets(env)
	}
	held, _ := json.Marshal(all) // of strings and numbers
	for _, v := range [][2]string{
		{"ETCDLOCK_NAME", name}, {"ETCDLOCK_KEY", o.Key}, {"ETCDLOCK_TOKEN", fmt.Sprint(o.Token)},
		{heldEnv, string(held)},
	} {
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, v[0]+"=") })
		env = append(env, v[0]+"="+v[1])
	}
	return env
}

// withoutSecrets is an environment without the password for etcd.
func withoutSecrets(env []string) (rest []string) {
	for _, variable := range env {
		switch name, value, _ := strings.Cut(variable, "="); name {
		case "ETCDCTL_PASSWORD":
			continue
		case "ETCDCTL_USER":
			user, _, _ := strings.Cut(value, ":")
			variable = name + "=" + user
		}
		rest = append(rest, variable)
	}
	return rest
}
