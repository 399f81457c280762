package etcdlock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Contender is one place in the line for a lock: its holder, or one that waits.
// Of contenders of other programs (etcd's own concurrency.Mutex, etcdctl lock) Owner,
// Host, PID and Since are not known, and zero.
type Contender struct {
	Name  string           // of the lock
	Key   string           // in etcd
	Owner string           // label, see WithOwner
	Host  string           // its name, of the machine or container of the process
	PID   int              // of the process, on its host
	Token int64            // create revision of Key: the place in line, and the fencing token of a holder
	Lease clientv3.LeaseID // the key goes when the lease does, in client.TimeToLive(ctx, Lease) seconds if nobody renews it
	Since time.Time        // when it queued, by its own clock
}

// label names c to people.
func (c Contender) label() string {
	if c.Owner != "" {
		return c.Owner
	}
	return fmt.Sprintf("%q", c.Key)
}

// Contenders returns all that hold or wait for the lock name, in the order of the
// line: the first one holds. It is one linearizable read, writes nothing, and may
// be called with any KV that sees the same keys as the lock's client.
func Contenders(ctx context.Context, kv clientv3.KV, name string) ([]Contender, error) {
	if err := checkAdmin(ctx, kv, "contenders of", name); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	resp, err := kv.Get(ctx, name+"/", clientv3.WithPrefix())
	if err != nil {
		return nil, failed("contenders of", name, err)
	}
	line := lineOf(name, entriesOf(resp.Kvs))
	contenders := make([]Contender, len(line))
	for i, e := range line {
		contenders[i] = e.contender(name)
	}
	return contenders, nil
}

// Holders returns the holder of every lock whose name begins with prefix, which is
// a plain string and may be empty for all, sorted by name. It is one linearizable
// read of all keys that begin with prefix, and writes nothing.
func Holders(ctx context.Context, kv clientv3.KV, prefix string) ([]Contender, error) {
	if err := checkAdmin(ctx, kv, "holders below", prefix); err != nil {
		return nil, err
	}
	resp, err := kv.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, failed("holders below", prefix, err)
	}
	first := make(map[string]Contender)
	for _, e := range entriesOf(resp.Kvs) {
		name, _ := cutLast(e.key)
		if name == "" || !e.isIn(name) || !strings.HasPrefix(name, prefix) {
			continue
		}
		if held, taken := first[name]; !taken || e.rev < held.Token {
			first[name] = e.contender(name)
		}
	}
	byName := func(a, b Contender) int { return cmp.Compare(a.Name, b.Name) }
	return slices.SortedFunc(maps.Values(first), byName), nil
}

// Break deletes exactly the key of c, whoever made it, so that the next in line
// gets in. It returns nil if the key is gone, now or already, and never touches a
// newer key: not even one of the same name, since it compares the create revision.
//
// The holder that is broken learns it within about a second, and its Unlock then
// returns ErrLost. Until it learns, two may believe that they hold the lock; what
// protects then is the fencing token. After an error the key may be there or not:
// call Break again.
func Break(ctx context.Context, kv clientv3.KV, c Contender) error {
	if err := checkAdmin(ctx, kv, "break", c.Name); err != nil {
		return err
	}
	if c.Key == "" || c.Token <= 0 {
		return fmt.Errorf("etcdlock: break: not a contender: key %s, token %d", excerpt(c.Key, 2*maxNameLen), c.Token)
	}
	_, err := kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(c.Key), "=", c.Token)).
		Then(clientv3.OpDelete(c.Key)).
		Commit()
	if err != nil {
		return failed("break", c.Name, err)
	}
	return nil
}

func checkAdmin(ctx context.Context, kv clientv3.KV, op, name string) error {
	client, isClient := kv.(*clientv3.Client)
	if kv == nil || isClient && (client == nil || client.KV == nil) {
		return failed(op, name, errors.New("nil KV"))
	}
	return checkContext(ctx, op, name)
}

// keyValue is what this package reads of an mvccpb.KeyValue, whose package it
// would otherwise have to depend on directly.
type keyValue interface {
	GetKey() []byte
	GetValue() []byte
	GetLease() int64
	GetCreateRevision() int64
}

// An entry is a key as it was read. Its value is parsed when somebody asks for it.
type entry struct {
	key   string
	rev   int64 // create revision
	lease int64
	value []byte
}

func entryOf(kv keyValue) entry {
	return entry{string(kv.GetKey()), kv.GetCreateRevision(), kv.GetLease(), kv.GetValue()}
}

func entriesOf[KV keyValue](kvs []KV) []entry {
	entries := make([]entry, len(kvs))
	for i, kv := range kvs {
		entries[i] = entryOf(kv)
	}
	return entries
}

// lineOf is those of entries that stand in line for the lock name, in order.
func lineOf(name string, entries []entry) []entry {
	line := make([]entry, 0, len(entries))
	for _, e := range entries {
		if e.isIn(name) {
			line = append(line, e)
		}
	}
	slices.SortFunc(line, func(a, b entry) int { return cmp.Compare(a.rev, b.rev) })
	return line
}

// isIn reports whether e stands in line for the lock name. What does not blocks
// nobody: keys without a lease, keys of nested names, and whatever else people keep
// below the prefix.
func (e entry) isIn(name string) bool {
	tail, below := strings.CutPrefix(e.key, name)
	return below && e.lease != 0 && tail != "" && tail[0] == '/' && isTail(tail[1:], e.lease)
}

// contender is e, which stands in line for the lock name, for others to see.
func (e entry) contender(name string) Contender {
	v := parseValue(e.value)
	return Contender{
		Name: name, Key: e.key, Owner: v.Owner, Host: v.Host, PID: v.PID,
		Token: e.rev, Lease: clientv3.LeaseID(e.lease), Since: v.Since,
	}
}

// cutLast cuts a key at its last "/".
func cutLast(key string) (name, tail string) {
	slash := strings.LastIndexByte(key, '/')
	return key[:max(slash, 0)], key[slash+1:]
}

// isTail reports whether tail is how a contender's key ends: a canonical UUID in
// lower case, as this package puts it, or the key's own lease in hexadecimal, as
// concurrency.Mutex, etcdctl lock and the server's lock service put it.
func isTail(tail string, lease int64) bool {
	return isUUID(tail) || tail == strconv.FormatInt(lease, 16)
}

// isUUID reports whether tail is a UUID as this package puts it: canonical, in lower case.
func isUUID(tail string) bool {
	if len(tail) != 36 {
		return false
	}
	for i := range len(tail) {
		switch c := tail[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case c < '0' || c > 'f' || c > '9' && c < 'a':
			return false
		}
	}
	return true
}

// parseValue reads a key's value. Values that are not ours tell nothing.
func parseValue(value []byte) stored {
	var v stored
	if len(value) > 8*maxNameLen || json.Unmarshal(value, &v) != nil || v.Owner == "" {
		return stored{}
	}
	return v
}
