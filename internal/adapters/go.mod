module github.com/etcdlock/etcdlock/internal/adapters

go 1.26.0

require (
	github.com/caddyserver/certmagic v0.25.6
	github.com/etcdlock/etcdlock v0.1.0
	github.com/etcdlock/etcdlock/adapters/certmagic v0.1.0
	github.com/etcdlock/etcdlock/adapters/gocron v0.1.0
	github.com/etcdlock/etcdlock/adapters/tusd v0.1.0
	github.com/etcdlock/etcdlock/internal/proof v0.0.0
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/google/uuid v1.6.0
	github.com/letsencrypt/pebble/v2 v2.10.1
	github.com/stretchr/testify v1.11.1
	github.com/tus/tusd/v2 v2.9.1
	go.etcd.io/etcd/client/v3 v3.7.3
	go.uber.org/zap v1.28.0
)

replace (
	github.com/etcdlock/etcdlock => ../..
	github.com/etcdlock/etcdlock/adapters/certmagic => ../../adapters/certmagic
	github.com/etcdlock/etcdlock/adapters/gocron => ../../adapters/gocron
	github.com/etcdlock/etcdlock/adapters/tusd => ../../adapters/tusd
	github.com/etcdlock/etcdlock/internal/proof => ../proof
)
