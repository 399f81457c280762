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
// sent. It has the key, the token and the lease on which they wait, so it is of one Detach alone.
// It has no secret: every etcd user with the right to write the lock's keys can adopt the hold. See
// [Mutex.Detach] and [Session.Adopt].
type Detached string

// String is d itself.
func (d Detached) String() string { return string(d) }

// detachedOf is the Detached of a key, on the lease on which it waits. (Do not leave out the lease:
// the text of an earlier Detach would adopt the hold after a later one that has no answer, and
// whose key is being removed. TestADetachedIsOfOneDetach.)
func detachedOf(e line.Entry) Detached {
	return Detached(fmt.Sprintf("%d:%x:%s", e.Rev, e.Lease, e.Key))
}

// parse returns what detachedOf has put together.
func (d Detached) parse() (name string, of line.Entry, ok bool) {
	token, rest, _ := strings.Cut(string(d), ":")
	lease, key, _ := strings.Cut(rest, ":")
	of.Rev, _ = strconv.ParseInt(token, 10, 64)
	of.Lease, _ = strconv.ParseInt(lease, 16, 64)
	of.Key = key
	name, _, isKey := line.ParseKey(key)
	return name, of, isKey && of.Rev > 0 && checkName(name) == nil && d == detachedOf(of)
}

// checkDetach returns an error if an argument of Detach is wrong.
func checkDetach(ctx context.Context, name string, keep time.Duration) error {
	if keep <= 0 || keep > maxTTL {
		return failed("detach", name,
			fmt.Errorf("keep %v: not positive, or above etcd's limit of %v", keep, maxTTL))
	}
	return checkContext(ctx, "detach", name)
}

var errNests = errors.New("a Lock nests in the hold, or the hold in another")
