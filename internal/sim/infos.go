package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/line"
)

// An infoCall is one call of SetInfo. Each has an info of its own.
type infoCall struct {
	b    *belief
	info string
	keys map[string]bool // that have had the info
}

// informs has the holder of b change its info now and then, until the work is over. It returns what
// waits for the end of that.
func (w *worker) informs(working context.Context, b *belief) (wait func()) {
	if !w.p.w.informs || b.hold.setInfo == nil {
		return func() {}
	}
	working, stop := context.WithCancel(working)
	var over sync.WaitGroup
	over.Go(func() {
		r := generator(w.p.w.seed, "infos", w.line(b.name), fmt.Sprint(b.hold.token))
		for {
			select {
			case <-time.After(time.Duration(r.Int64N(int64(time.Second)))):
			case <-working.Done():
				return
			}
			if !w.p.goesOn() {
				return
			}
			bound := time.Millisecond + time.Duration(r.Int64N(int64(w.p.w.ttl)))
			ctx, cancel := context.WithTimeout(working, bound)
			call, began := w.p.w.judge.informs(b), time.Now()
			err := b.hold.setInfo(ctx, call.info)
			cancel()
			w.p.w.judge.took(w, "set the info of "+b.name, began, bound)
			w.p.w.judge.informed(call, err)
		}
	})
	return func() { stop(); over.Wait() }
}

// informs records that a holder is about to call SetInfo.
func (j *judge) informs(b *belief) *infoCall {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := &infoCall{b, fmt.Sprintf("%s, %d", b.who, len(j.infos)), make(map[string]bool)}
	j.infos[c.info] = c
	return c
}

// informed judges what a SetInfo has returned. With nil all keys of the hold have had the info. It
// says that there is no hold only of a hold that has ended.
func (j *judge) informed(c *infoCall, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := c.b
	gone := errors.Is(err, etcdlock.ErrLost) || errors.Is(err, etcdlock.ErrNotHeld) ||
		errors.Is(err, etcdlock.ErrRecalled)
	switch {
	case b.who.p.isDead():
	case err == nil && len(c.keys) != 1+len(b.others):
		j.violatedLocked(untold, "%s has set %q, and %d of its keys have had it", b.who, c.info,
			len(c.keys))
	case gone && b.hold.ctx.Err() == nil:
		j.violatedLocked(untold, "%s holds %s, token %d: %v", b.who, b.name, b.hold.token, err)
	case err == nil:
		j.told++
	}
}

// putOver judges a put over a key that keeps its create revision: a recall by the operator or by a
// wait, or another info by the key's own holder. Everything else stays as it was, the lease too.
func (j *judge) putOver(life *keyLife, kv *mvccpb.KeyValue, by string) {
	was := life.values[:min(int(kv.Version-1), len(life.values))] // a set-back may have undone some
	field, asked := "info", asksAnew(was[len(was)-1], kv)
	if by == byOperator || asked {
		field = "recall"
	}
	before, now := fieldsOf(was[len(was)-1]), fieldsOf(kv.Value)
	life.values = append(was, kv.Value)
	info, _ := now["info"].(string)
	delete(before, field)
	delete(now, field)
	switch c := j.infos[info]; {
	case life.lease != kv.Lease || life.rev != kv.CreateRevision || !reflect.DeepEqual(before, now):
		j.violatedLocked(harm, "%s put %s over %s of %s, which was %s", by, kv.Value, life.key,
			life.owner, was[len(was)-1])
	case by == byOperator:
	case asked:
		j.askedLocked(by, life, line.EntryOf(kv))
	case by != life.owner || c == nil:
		j.violatedLocked(harm, "%s put over %s of %s", by, life.key, life.owner)
	default:
		c.keys[life.key] = true
		j.ofItsHoldLocked(c, life)
	}
}

// asksAnew reports whether kv has the request of a wait, which was not there before.
func asksAnew(before []byte, kv *mvccpb.KeyValue) bool {
	was, _ := line.EntryOf(&mvccpb.KeyValue{Value: before}).Recall()
	now, is := line.EntryOf(kv).Recall()
	return is && now.By == byWaiter && now.ID != was.ID
}

// ofItsHoldLocked judges that an info is put at a key of the hold whose holder has set it, and not
// at that of another one, which may have the key by now. Readers share a key.
func (j *judge) ofItsHoldLocked(c *infoCall, life *keyLife) {
	for _, o := range j.beliefs[nameOf(life.key)] {
		if o.life == life && o.whole() && o != c.b && !slices.Contains(c.b.others, o) && !o.kind.joins() {
			j.violatedLocked(untold, "%s holds %s, token %d, which tells %q", o.who, o.name,
				o.hold.token, c.info)
		}
	}
}

// ownInfoLocked judges that a hold which begins alone at a key that others have had finds no info
// that one of them has set.
func (j *judge) ownInfoLocked(b *belief) {
	if b.life == nil || b.kind.joins() || b.life.shared < 2 {
		return
	}
	info, _ := fieldsOf(b.life.values[len(b.life.values)-1])["info"].(string)
	if c := j.infos[info]; c != nil {
		j.violatedLocked(untold, "%s holds %s, token %d, which tells %q of %s", b.who, b.name,
			b.hold.token, info, c.b.who)
	}
}

// fieldsOf is what a value has.
func fieldsOf(value []byte) (fields map[string]any) {
	_ = json.Unmarshal(value, &fields) // the peer's is none
	return fields
}
