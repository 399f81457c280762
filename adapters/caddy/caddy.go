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
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"

	"github.com/etcdlock/etcdlock"
	etcdlockcertmagic "github.com/etcdlock/etcdlock/adapters/certmagic"
	"github.com/etcdlock/etcdlock/internal/quote"
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

	storage locks
	logger  *zap.Logger
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
		ID:  name,
		New: func() caddy.Module { return new(Storage) },
	}
}

var pool = caddy.NewUsagePool()

// Provision loads the storage of the files and makes the client. It does not wait for etcd.
func (s *Storage) Provision(ctx caddy.Context) error {
	if len(s.Endpoints) == 0 {
		return errors.New("caddy.storage.etcdlock: no endpoints")
	}
	if slices.ContainsFunc(s.Endpoints, quote.HasUser) { // (which the error must not show)
		return errors.New("caddy.storage.etcdlock: endpoints: a user or a password in an address: " +
			"username and password are for these")
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
	value, _, err := pool.LoadOrNew(string(key), s.connect)
	if err != nil {
		return fmt.Errorf("caddy.storage.etcdlock: %w", err)
	}
	s.key, s.logger = string(key), ctx.Logger()
	s.storage.of = value.(*pooled)
	s.storage.of.loggers.add(s.logger)
	s.storage.Storage, err = etcdlockcertmagic.New(s.storage.of.session, s.Prefix, files)
	if err != nil {
		return fmt.Errorf("caddy.storage.etcdlock: %w", errors.Join(err, s.Cleanup()))
	}
	s.storage.Logger = s.storage.of.loggers.logger()
	return nil
}

// connect makes the client, and its Session.
func (e Etcd) connect() (caddy.Destructor, error) {
	p := &pooled{uses: 1}
	logger := p.loggers.logger()
	config := clientv3.Config{
		Endpoints: e.Endpoints, Username: e.Username, Password: e.Password,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Logger: logger.WithOptions(zap.IncreaseLevel(zap.ErrorLevel)),
	}
	var err error
	if e.CAFile != "" || e.CertFile != "" || e.KeyFile != "" {
		if config.TLS, err = e.tls(); err != nil {
			return nil, err
		}
	}
	if p.client, err = clientv3.New(config); err != nil {
		return nil, err
	}
	opts := []etcdlock.SessionOption{etcdlock.WithLogger(slog.New(
		zapslog.NewHandler(logger.Core(), zapslog.WithName(name))))}
	if e.TTL != 0 {
		opts = append(opts, etcdlock.WithTTL(time.Duration(e.TTL)))
	}
	if p.session, err = etcdlock.NewSession(p.client, opts...); err != nil {
		return nil, errors.Join(err, p.client.Close())
	}
	return p, nil
}

func (e Etcd) tls() (*tls.Config, error) {
	return transport.TLSInfo{
		TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile,
	}.ClientConfig()
}

// Cleanup gives back what Provision took, once no configuration has it any more, and no lock.
func (s *Storage) Cleanup() error {
	if s.key == "" {
		return nil
	}
	s.storage.of.loggers.remove(s.logger)
	_, err := pool.Delete(s.key)
	s.key = ""
	return err
}

// CertMagicStorage returns the storage for certmagic.
func (s *Storage) CertMagicStorage() (certmagic.Storage, error) { return s.storage, nil }
