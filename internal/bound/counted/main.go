// Command counted runs go test, with its arguments, on the library with the overlay of package
// bound, and on tests with the build tag bound. It runs in the root of the module.
//
//	go run ./internal/bound/counted -run 'TestBound/reads_hold$' ./internal/bound -whole
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"github.com/etcdlock/etcdlock/internal/bound"
)

func main() {
	dir, err := os.MkdirTemp("", "counted")
	if err == nil {
		err = test(dir)
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "counted:", err)
		os.Exit(1)
	}
}

// test runs go test with an overlay in a folder.
func test(dir string) error {
	overlay, err := bound.Write(context.Background(), ".", dir)
	if err != nil {
		return err
	}
	args := slices.Concat([]string{"test", "-overlay", overlay}, bound.Flags, os.Args[1:])
	cmd := exec.Command("go", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), bound.Env...)
	return cmd.Run()
}
