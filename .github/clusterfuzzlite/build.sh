#!/bin/bash -eu
# Builds the fuzz targets of the parsers of keys and values for libFuzzer. It compiles no tests, so
# their file becomes a package of its own.
export GOWORK=off
package=internal/line/fuzz
mkdir -p $package
sed 's/^package line_test$/package fuzz/' internal/line/fuzz_test.go >$package/fuzz.go
printf 'package fuzz\n\nimport _ "%s"\n' github.com/AdamKorcz/go-118-fuzz-build/testing >$package/deps.go
go get github.com/AdamKorcz/go-118-fuzz-build/testing
for target in $(sed -n 's/^func \(Fuzz[A-Za-z]*\)(f \*testing.F) {$/\1/p' $package/fuzz.go); do
	compile_native_go_fuzzer "github.com/etcdlock/etcdlock/$package" "$target" "$target"
done
