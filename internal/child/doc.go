// Package child starts processes that do not outlive the one that started them, however
// that ends, and finds ports for them: servers of etcd for the fault table (internal/faults), the
// matrix of versions (internal/matrix) and the benchmark (internal/bench).
package child
