package sim

import (
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
)

// generator returns the random numbers for one purpose under a seed. Each purpose has its
// own, so that the order in which goroutines run does not shift those of another.
func generator(seed uint64, purpose ...string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(strings.Join(purpose, "\x00")))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// bytesOf reads random bytes. It is safe for concurrent use.
type bytesOf struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (b *bytesOf) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range p {
		p[i] = byte(b.r.Uint32())
	}
	return len(p), nil
}
