// Command overlay writes the overlay of package bound to a folder.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/etcdlock/etcdlock/internal/bound"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: overlay <folder>, in the root of the module")
		os.Exit(64)
	}
	path, err := bound.Write(context.Background(), ".", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}
