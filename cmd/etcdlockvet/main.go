// Etcdlockvet finds mistakes in code that locks with etcdlock: see package analyzer.
//
//	go run github.com/etcdlock/etcdlock/cmd/etcdlockvet@latest ./...
//
// As a tool of a module it runs with go vet, which keeps what it has checked in the build cache:
//
//	go get -tool github.com/etcdlock/etcdlock/cmd/etcdlockvet@latest
//	go vet -vettool="$(go tool -n etcdlockvet)" ./...
//
// Package plugin makes it a linter of golangci-lint.
package main

import (
	"golang.org/x/tools/go/analysis/singlechecker"

	"github.com/etcdlock/etcdlock/cmd/etcdlockvet/analyzer"
)

func main() { singlechecker.Main(analyzer.Analyzer) }
