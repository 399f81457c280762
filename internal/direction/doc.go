// Package direction tests the shape of the library: which of its files and packages use which, and
// that its cores are pure.
package direction
