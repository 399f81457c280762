// Package child starts processes that do not outlive the one that started them, however
// that ends, and finds ports for them.
package child
