// Package child starts processes that do not outlive the process that started them, however
// that ends. It also finds ports for them. They are servers of etcd for the fault table
// (internal/faults), the matrix of versions (internal/matrix) and the benchmark
// (internal/bench).
package child
