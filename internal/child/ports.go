package child

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
)

// Ports are below those that the kernel gives to connections. Otherwise a connection could
// get the port before its server listens. This process hands out none twice, since the port
// of a server that is down must stay free.
const firstPort, ports = 10_000, 20_000

var nextPort = func() *atomic.Uint32 {
	next := new(atomic.Uint32)
	next.Store(rand.Uint32N(ports)) // other processes on the machine choose ports, too
	return next
}()

// FreePorts returns n addresses on the loopback interface that nobody listens on.
func FreePorts(n int) (addrs []string, err error) {
	for range ports {
		if len(addrs) == n {
			return addrs, nil
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", firstPort+nextPort.Add(1)%ports))
		if err != nil {
			continue // another process listens on it
		}
		defer l.Close() // not yet: the port would be free again
		addrs = append(addrs, l.Addr().String())
	}
	return nil, fmt.Errorf("no %d free ports on the loopback interface from %d to %d", n, firstPort,
		firstPort+ports-1)
}
