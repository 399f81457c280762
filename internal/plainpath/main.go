// Command plainpath prints how much of the library the calls run that everybody makes: files,
// functions and lines, by coverage, of one call of a warm Session on the etcd in memory. With
// -bounds it fails if a call runs more than the table of bounds allows. With -allocations it prints
// instead how many objects each call allocates.
//
//	go run ./internal/plainpath -bounds
//
// It builds itself again with counters, and that program makes each call a few times. What counts
// is what each of these times ran, since a goroutine of the Session may have been at work beside
// one of them.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	module = "github.com/etcdlock/etcdlock"
	rounds = 5
)

// A size is how much of the library something runs.
type size struct{ files, functions, lines int }

func (s size) String() string { return fmt.Sprintf("%d, %d, %d", s.files, s.functions, s.lines) }

func (s size) exceeds(bound size) bool {
	return s.files > bound.files || s.functions > bound.functions || s.lines > bound.lines
}

func main() {
	child := flag.String("child", "", "make the calls, and write the counters to this folder")
	bounds := flag.Bool("bounds", false, "fail if a call runs more than its bound")
	allocations := flag.Bool("allocations", false, "print the objects that each call allocates")
	list := flag.String("list", "", "print the functions that this call runs, with their lines")
	flag.Parse()
	var err error
	switch {
	case *child != "":
		err = makeCalls(*child)
	case *allocations:
		err = printAllocations()
	default:
		err = table(*bounds, *list)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "plainpath:", err)
		os.Exit(1)
	}
}

// table prints a row a call.
func table(bounds bool, list string) (err error) {
	dir, err := os.MkdirTemp("", "plainpath")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "program")
	err = run("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"/...",
		"-o", program, module+"/internal/plainpath")
	if err == nil {
		err = run(program, "-child", dir)
	}
	if err != nil {
		return err
	}
	fmt.Printf("%-44s %s   %s   goal\n", "", "files functions  lines", "bound      ")
	over := false
	for i, c := range calls {
		ran, err := ranOf(dir, i)
		if err != nil {
			return err
		}
		is := ran.size()
		verdict := ""
		if is.exceeds(c.bound) {
			over, verdict = true, "   exceeds its bound"
		}
		fmt.Printf("%-44s %5d %9d %6d   %-12s %s%s\n",
			c.name, is.files, is.functions, is.lines, c.bound, c.goal, verdict)
		if c.name == list {
			ran.print()
		}
	}
	if bounds && over {
		return errors.New("a call runs more of the library than its bound")
	}
	return nil
}

// run runs a command, and returns what it has printed if it fails.
func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
