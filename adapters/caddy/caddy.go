// Package etcdlockcaddy is the Caddy module caddy.storage.etcdlock: a storage whose locks are in
// etcd, and whose files are in any other storage of Caddy. Build Caddy with it:
//
//	xcaddy build --with github.com/etcdlock/etcdlock/adapters/caddy
//
// In a Caddyfile:
//
//	{
//		storage etcdlock {
//			endpoints https://etcd-1:2379 https://etcd-2:2379 https://etcd-3:2379
//			storage file_system /mnt/shared/caddy
//		}
//	}
//
// What the locks do, and what becomes of a lost one, is that of package etcdlockcertmagic.
package etcdlockcaddy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"

	"github.com/etcdlock/etcdlock"
	etcdlockcertmagic "github.com/etcdlock/etcdlock/adapters/certmagic"
)

func init() { caddy.RegisterModule(Storage{}) }

var (
	_ caddy.Provisioner      = (*Storage)(nil)
	_ caddy.CleanerUpper     = (*Storage)(nil)
	_ caddy.StorageConverter = (*Storage)(nil)
)

// A Storage is another storage whose locks are in etcd.
type Storage struct {
	Etcd

	// Prefix stands before the names of the locks. It is "caddy/" by default.
	Prefix string `json:"prefix,omitempty"`

	// Files is the storage of the files: {"module": "file_system", "root": ...} and so on. By
	// default it is the one that Caddy has without any configuration. All servers share it.
	Files json.RawMessage `json:"storage,omitempty" caddy:"namespace=caddy.storage inline_key=module"`

	storage certmagic.Storage
	key     string // of the pool, "" if nothing is to be given back
}

// Etcd says where the etcd is.
type Etcd struct {
	Endpoints []string `json:"endpoints"`
	Username  string   `json:"username,omitempty"`
	Password  string   `json:"password,omitempty"`

	// CAFile has the authorities that the servers' certificates are from; those of the system by
	// default. CertFile and KeyFile are this client's, if the servers ask for one.
	CAFile   string `json:"ca_file,omitempty"`
	CertFile string `json:"cert_file,omitempty"`
	KeyFile  string `json:"key_file,omitempty"`

	// TTL is how long the locks of a server that has died stay taken: 15s by default.
	TTL caddy.Duration `json:"ttl,omitempty"`
}

// CaddyModule is the module for Caddy.
func (Storage) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "caddy.storage.etcdlock",
		New: func() caddy.Module { return new(Storage) },
	}
}

// A pooled is what the storages of two configurations share while one takes the place of the other:
// an order that began with the former keeps its lock.
type pooled struct {
	client  *clientv3.Client
	session *etcdlock.Session
}

var pool = caddy.NewUsagePool()

// Provision loads the storage of the files and makes the client. It does not wait for etcd.
func (s *Storage) Provision(ctx caddy.Context) error {
	if len(s.Endpoints) == 0 {
		return errors.New("caddy.storage.etcdlock: no endpoints")
	}
	if s.Prefix == "" {
		s.Prefix = "caddy/"
	}
	files := certmagic.Storage(caddy.DefaultStorage)
	if s.Files != nil {
		below, err := ctx.LoadModule(s, "Files")
		if err != nil {
			return fmt.Errorf("caddy.storage.etcdlock: the storage of the files: %w", err)
		}
		if files, err = below.(caddy.StorageConverter).CertMagicStorage(); err != nil {
			return fmt.Errorf("caddy.storage.etcdlock: the storage of the files: %w", err)
		}
	}
	key, err := json.Marshal(s.Etcd)
	if err != nil {
		return err
	}
	value, _, err := pool.LoadOrNew(string(key), func() (caddy.Destructor, error) {
		return s.connect(caddy.Log().Named("storage.etcdlock"))
	})
	if err != nil {
		return fmt.Errorf("caddy.storage.etcdlock: %w", err)
	}
	s.key = string(key)
	storage, err := etcdlockcertmagic.New(value.(*pooled).session, s.Prefix, files)
	if err != nil {
		return fmt.Errorf("caddy.storage.etcdlock: %w", errors.Join(err, s.Cleanup()))
	}
	storage.Logger = ctx.Logger()
	s.storage = storage
	return nil
}

// connect makes the client, and its Session.
func (e Etcd) connect(logger *zap.Logger) (*pooled, error) {
	config := clientv3.Config{
		Endpoints: e.Endpoints, Username: e.Username, Password: e.Password,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Logger: logger.WithOptions(zap.IncreaseLevel(zap.ErrorLevel)),
	}
	if e.CAFile != "" || e.CertFile != "" || e.KeyFile != "" {
		var err error
		if config.TLS, err = e.tls(); err != nil {
			return nil, err
		}
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, err
	}
	opts := []etcdlock.SessionOption{etcdlock.WithLogger(slog.New(zapslog.NewHandler(logger.Core())))}
	if e.TTL != 0 {
		opts = append(opts, etcdlock.WithTTL(time.Duration(e.TTL)))
	}
	session, err := etcdlock.NewSession(client, opts...)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &pooled{client, session}, nil
}

func (e Etcd) tls() (*tls.Config, error) {
	return transport.TLSInfo{
		TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile,
	}.ClientConfig()
}

// Destruct gives back the locks, and ends the client.
func (p *pooled) Destruct() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(p.session.Close(ctx), p.client.Close())
}

// Cleanup gives back what Provision took, once no configuration has it any more.
func (s *Storage) Cleanup() error {
	if s.key == "" {
		return nil
	}
	_, err := pool.Delete(s.key)
	s.key = ""
	return err
}

// CertMagicStorage returns the storage for certmagic.
func (s *Storage) CertMagicStorage() (certmagic.Storage, error) { return s.storage, nil }
