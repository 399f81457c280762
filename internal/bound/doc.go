// Package bound counts what runs under the mutex of a Session, and requires that it is bounded.
package bound
