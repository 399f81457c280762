// Package cookbook is the tested code of docs/cookbook.md. It is a module of its own, since a
// database and a scheduler are nothing that users of the library should download.
package cookbook
