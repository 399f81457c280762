package etcdlockcaddy

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

var _ caddyfile.Unmarshaler = (*Storage)(nil)

// UnmarshalCaddyfile reads
//
//	etcdlock {
//		endpoints <url...>
//		prefix    <prefix>
//		ttl       <duration>
//		username  <name>
//		password  <password>
//		ca        <file>
//		cert      <file> <key file>
//		storage   <module> ...
//	}
//
// Only endpoints has to be there.
func (s *Storage) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name of the module
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		var ttl string
		switch option := d.Val(); option {
		case "endpoints":
			if s.Endpoints = append(s.Endpoints, d.RemainingArgs()...); len(s.Endpoints) == 0 {
				return d.ArgErr()
			}
			continue
		case "storage":
			if err := s.unmarshalStorage(d); err != nil {
				return err
			}
			continue
		case "prefix":
			if !d.AllArgs(&s.Prefix) {
				return d.ArgErr()
			}
		case "username":
			if !d.AllArgs(&s.Username) {
				return d.ArgErr()
			}
		case "password":
			if !d.AllArgs(&s.Password) {
				return d.ArgErr()
			}
		case "ca":
			if !d.AllArgs(&s.CAFile) {
				return d.ArgErr()
			}
		case "cert":
			if !d.AllArgs(&s.CertFile, &s.KeyFile) {
				return d.ArgErr()
			}
		case "ttl":
			if !d.AllArgs(&ttl) {
				return d.ArgErr()
			}
			parsed, err := caddy.ParseDuration(ttl)
			if err != nil {
				return d.Errf("ttl: %v", err)
			}
			s.TTL = caddy.Duration(parsed)
		default:
			return d.Errf("unknown option %q", option)
		}
	}
	if len(s.Endpoints) == 0 {
		return d.Err("etcdlock needs endpoints")
	}
	return nil
}

// unmarshalStorage reads the storage of the files.
func (s *Storage) unmarshalStorage(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.ArgErr()
	}
	name := d.Val()
	below, err := caddyfile.UnmarshalModule(d, "caddy.storage."+name)
	if err != nil {
		return err
	}
	if _, ok := below.(caddy.StorageConverter); !ok {
		return d.Errf("%s is not a storage", name)
	}
	s.Files = caddyconfig.JSONModuleObject(below, "module", name, nil)
	return nil
}
