package etcdlockcertmagic_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"slices"

	"github.com/caddyserver/certmagic"

	"github.com/etcdlock/etcdlock"
	etcdlockcertmagic "github.com/etcdlock/etcdlock/adapters/certmagic"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

func secure(
	ctx context.Context, s *etcdlock.Session, files certmagic.Storage, domains ...string,
) (*tls.Config, error) {
	storage, err := etcdlockcertmagic.New(s, "certmagic/", files) // all servers share both
	if err != nil {
		return nil, err
	}
	certmagic.Default.Storage = storage
	config := certmagic.NewDefault()
	err = config.ManageSync(ctx, domains)
	return config.TLSConfig(), err
}

func Example() {
	etcd, err := etcdlocktest.Start() // etcd.Client is clientv3.New elsewhere
	contract.Must(err)
	defer etcd.Close()
	session, err := etcdlock.NewSession(etcd.Client())
	contract.Must(err)
	ctx := context.Background()
	defer session.Close(ctx)
	dir, err := os.MkdirTemp("", "certificates")
	contract.Must(err)
	defer os.RemoveAll(dir)

	// With domains it obtains their certificates before it returns.
	config, err := secure(ctx, session, &certmagic.FileStorage{Path: dir})
	contract.Must(err)
	fmt.Println(slices.Contains(config.NextProtos, "acme-tls/1"))
	// Output: true
}
