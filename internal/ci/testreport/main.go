// Testreport reads what go test -json writes, shows the closing line of each
// package and the output of what failed, and exits with an error if a test
// failed or was skipped, or if none ran: a skipped test has shown nothing.
//
//	go test -json ./... | testreport
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	if err := report(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

// event is a line of go test -json; see "go doc test2json" and "go help buildjson".
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build, in place of Package
	Test       string // empty: about the package
	Output     string
}

// report copies to w what a reader wants to see of the tests' result.
func report(r io.Reader, w io.Writer) error {
	type test struct{ pkg, name string }
	output := map[test]*strings.Builder{} // of tests that have not ended yet
	show := func(t test) {
		if text := output[t]; text != nil {
			fmt.Fprint(w, text)
		}
	}
	var passed int
	var failed, skipped []string

	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil && (err != io.EOF || len(line) > 0) {
			return fmt.Errorf("read the events of go test: %w", err)
		}
		if err == io.EOF {
			break
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			fmt.Fprintf(w, "%s", line) // the go command's own words
			continue
		}
		t := test{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(w, e.Output)
		case "output":
			if t.name == "" && closesPackage(e.Output) {
				fmt.Fprint(w, e.Output)
			} else {
				if output[t] == nil {
					output[t] = new(strings.Builder)
				}
				output[t].WriteString(e.Output)
			}
		case "pass":
			if t.name != "" {
				passed++
			}
			delete(output, t)
		case "skip":
			if t.name != "" { // else a package without tests
				skipped = append(skipped, t.pkg+" "+t.name)
				show(t)
			}
			delete(output, t)
		case "fail":
			failed = append(failed, strings.TrimSpace(t.pkg+" "+t.name))
			show(t)
			delete(output, t)
			if t.name == "" { // after a crash no test has an end of its own
				unended := slices.DeleteFunc(slices.Collect(maps.Keys(output)), func(u test) bool {
					return u.pkg != t.pkg
				})
				slices.SortFunc(unended, func(a, b test) int { return strings.Compare(a.name, b.name) })
				for _, u := range unended {
					failed = append(failed, u.pkg+" "+u.name)
					show(u)
					delete(output, u)
				}
			}
		}
	}

	for _, t := range failed {
		fmt.Fprintln(w, "failed: ", t)
	}
	for _, t := range skipped {
		fmt.Fprintln(w, "skipped:", t)
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", passed, len(failed), len(skipped))
	switch {
	case len(failed) > 0:
		return errors.New("tests failed")
	case len(skipped) > 0:
		return errors.New("tests were skipped")
	case passed == 0:
		return errors.New("no test ran")
	}
	return nil
}

// closesPackage recognizes the last line that go test writes about a package.
func closesPackage(output string) bool {
	for _, verdict := range []string{"ok  \t", "FAIL\t", "?   \t"} {
		if strings.HasPrefix(output, verdict) {
			return true
		}
	}
	return false
}
