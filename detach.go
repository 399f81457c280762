package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
)

// Detached is a hold on its way from one process to another: opaque text, which can be stored or
// sent. It has the name, the key and the token of the hold, and no secret: whoever may write the
// lock's keys in etcd may adopt the hold. See [Mutex.Detach] and [Session.Adopt].
type Detached string

// String is d itself.
func (d Detached) String() string { return string(d) }

// detachedOf is the Detached of a key and its token.
func detachedOf(key string, token int64) Detached {
	return Detached(fmt.Sprintf("%d:%s", token, key))
}

// parse returns what detachedOf has put together.
func (d Detached) parse() (name string, of line.Entry, ok bool) {
	token, key, _ := strings.Cut(string(d), ":")
	of.Key = key
	of.Rev, _ = strconv.ParseInt(token, 10, 64)
	name, _, isKey := line.ParseKey(key)
	return name, of, isKey && of.Rev > 0 && checkName(name) == nil && d == detachedOf(key, of.Rev)
}

// checkDetach returns an error if an argument of Detach is wrong.
func checkDetach(ctx context.Context, name string, keep time.Duration) error {
	if keep <= 0 || keep > maxTTL {
		return failed("detach", name, fmt.Errorf("keep %v: not positive, or above etcd's limit of %v", keep, maxTTL))
	}
	return checkContext(ctx, "detach", name)
}

var errNests = errors.New("a Lock nests in the hold, or the hold in another")
