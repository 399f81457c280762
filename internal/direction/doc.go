// Package direction tests the shape of the library: which of its files and packages use which, that
// its cores are pure, and how much there is to read in go doc.
package direction
