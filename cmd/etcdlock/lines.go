package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/internal/line"
)

// page is how many keys one request reads.
var page int64 = board.Page

// readKeys reads all keys that begin with prefix, as they are at one revision.
func readKeys(ctx context.Context, kv clientv3.KV, prefix string) ([]*mvccpb.KeyValue, error) {
	read, err := board.ReadKeys(ctx, kv, prefix, page)
	return read.Keys, err
}

// A place is a position in the line for a lock; 0 holds it.
type place struct {
	etcdlock.Contender
	Number int
}

// placesOf returns the line for the lock name.
func placesOf(ctx context.Context, kv clientv3.KV, name string) ([]place, error) {
	kvs, err := readKeys(ctx, kv, line.Prefix(name))
	if err != nil {
		return nil, err
	}
	return placesIn(name, line.Of(name, kvs)), nil
}

// placesIn is a line as places.
func placesIn(name string, l line.Line) (places []place) {
	holding := len(l.Holding())
	for i, e := range l {
		v := e.Value()
		places = append(places, place{etcdlock.Contender{
			Name: name, Key: e.Key, Owner: v.Owner, Host: v.Host, PID: v.PID,
			Token: e.Rev, Lease: clientv3.LeaseID(e.Lease), Since: v.Since,
			Mode: etcdlock.Mode(e.Kind().String()), Holds: i < holding, Info: v.Info,
			Until: v.Until,
		}, i})
	}
	return places
}

// nested reports whether there are names below name.
func nested(ctx context.Context, kv clientv3.KV, name string) bool {
	resp, err := kv.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithLimit(1))
	return err == nil && len(resp.Kvs) > 0 &&
		strings.Contains(string(resp.Kvs[0].Key[len(name)+1:]), "/")
}

// placesBelow returns the lines for all locks whose names begin with prefix.
func placesBelow(ctx context.Context, kv clientv3.KV, prefix string) (places []place, err error) {
	kvs, err := readKeys(ctx, kv, prefix)
	if err != nil {
		return nil, err
	}
	lines := line.ByName(kvs)
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		if !strings.HasPrefix(name, prefix) {
			continue // prefix ends in the last part of a key
		}
		places = append(places, placesIn(name, lines[name])...)
	}
	return places, nil
}
