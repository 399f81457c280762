package etcdlock

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/etcdlock/etcdlock/internal/line"
)

// drawer returns what draws the names of keys of a shape, on l.
func (l *lease) drawer(shape line.Shape) func(name string) string {
	return func(name string) string { return l.draw(name, shape) }
}

// draw returns a new name for a key of a shape for the lock name, on l. Only this Session can have
// drawn it: the second half of the UUID, or the last quarter of a permit's, follows from the rest
// and from a secret. So the keys that late requests of the Session put are known from those of its
// user for certain, and nobody has to remember them.
//
// Invariant: no place has the name that is drawn. (Few of a permit's bits are random: among some
// thousand permits two would have one name. TestPermitsOfASessionHaveAKeyEach.)
func (l *lease) draw(name string, shape line.Shape) (key string) {
	for {
		id, ok := line.Draw(uuid.New(), shape)
		key = line.Key(name, l.sign(id, name))
		if ok && l.places[key] == nil {
			return key
		}
	}
}

// hasDrawn reports whether key comes from draw.
func (l *lease) hasDrawn(key string) bool {
	name, id, ok := line.ParseKey(key)
	return ok && l.sign(id, name) == id
}

// sign returns id with what the lease's Session derives from its first bytes behind these.
func (l *lease) sign(id uuid.UUID, name string) uuid.UUID {
	told := line.Told(id)
	signature := uuid.NewSHA1(l.s.secret, fmt.Appendf(id[:told:told], "%x/%s", int64(l.id), name))
	copy(id[told:], signature[told:]) // with the bits of the variant
	return id
}
