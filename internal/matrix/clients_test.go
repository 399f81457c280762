package matrix

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// oldClients are guests that use the present library with an older clientv3, and with the versions
// that this brings.
var oldClients = []guest{withClient("v3.5.16"), withClient("v3.6.5")}

func withClient(version string) guest {
	build := sync.OnceValues(func() (olderProgram, error) {
		dir := filepath.Join(scratch, "client-"+version)
		program := olderProgram{filepath.Join(dir, "holder"), "the present source, clientv3 " + version}
		if err := os.Mkdir(dir, 0o777); err != nil {
			return program, err
		}
		root, err := filepath.Abs("../..")
		if err != nil {
			return program, err
		}
		modfile := filepath.Join(dir, "client.mod")
		err = os.WriteFile(modfile, fmt.Appendf(nil, clientModule, version, root), 0o666)
		if err != nil {
			return program, err
		}
		return program, program.build("-mod=mod", "-modfile", modfile)
	})
	return guest{"the library with clientv3 " + version,
		func(tr *trial, v *visit, ttl time.Duration) error { return holds(tr, v, ttl, build) }}
}

// clientModule is the go.mod of this directory without what needs a later client.
const clientModule = `module github.com/etcdlock/etcdlock/internal/matrix

go 1.25.0

require (
	github.com/etcdlock/etcdlock v0.0.0
	go.etcd.io/etcd/client/v3 %s
)

replace github.com/etcdlock/etcdlock => %s
`
