package main

import (
	"bufio"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A block is a piece of a file without a branch, by the coverage of Go.
type block struct {
	file        string // below the module
	from, until int    // its lines
}

// A function is one that was run, with the lines of it that were.
type function struct {
	file, name string
	lines      int
}

// A ran is what a call has run of the library.
type ran []function

// ranOf reads the counters of all rounds of a call.
func ranOf(dir string, call int) (ran, error) {
	var always map[block]bool
	for round := 1; round <= rounds; round++ {
		in := filepath.Join(dir, folder(call, round))
		text := in + ".txt"
		if err := run("go", "tool", "covdata", "textfmt", "-i="+in, "-o="+text); err != nil {
			return nil, err
		}
		blocks, err := blocksOf(text)
		if err != nil {
			return nil, err
		}
		if always == nil {
			always = blocks
		}
		maps.DeleteFunc(always, func(b block, _ bool) bool { return !blocks[b] })
	}
	if len(always) == 0 {
		return nil, errors.New("the counters say that nothing was run")
	}
	files := map[string]map[int]bool{} // the lines that were run
	for b := range always {
		if files[b.file] == nil {
			files[b.file] = map[int]bool{}
		}
		for line := b.from; line <= b.until; line++ {
			files[b.file][line] = true
		}
	}
	var all ran
	for _, file := range slices.Sorted(maps.Keys(files)) {
		functions, err := functionsOf(file, files[file])
		if err != nil {
			return nil, err
		}
		all = append(all, functions...)
	}
	return all, nil
}

// blocksOf returns the blocks of the library that a profile says were run.
func blocksOf(profile string) (map[block]bool, error) {
	f, err := os.Open(profile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	blocks := map[block]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		path, rest, ok := strings.Cut(lines.Text(), ".go:")
		if !ok {
			continue // the mode
		}
		path = strings.TrimPrefix(path, module+"/") + ".go"
		var b block
		var column, statements, count int
		_, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d",
			&b.from, &column, &b.until, &column, &statements, &count)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", lines.Text(), err)
		}
		if b.file = path; count > 0 && isLibrary(path) {
			blocks[b] = true
		}
	}
	return blocks, lines.Err()
}

// isLibrary tells the library from the etcd in memory and from this program.
func isLibrary(file string) bool {
	switch dir := filepath.Dir(file); dir {
	case "internal/fake", "internal/plainpath", "internal/race":
		return false
	default:
		return true
	}
}

// functionsOf returns the functions of a file of which lines were run. A line counts if there is
// more than a comment or a closing bracket on it.
func functionsOf(file string, lines map[int]bool) (all []function, err error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, source, 0)
	if err != nil {
		return nil, err
	}
	code := codeOf(source)
	for _, d := range parsed.Decls {
		d, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		f := function{file: file, name: d.Name.Name}
		for line := set.Position(d.Pos()).Line; line <= set.Position(d.End()).Line; line++ {
			if lines[line] && code[line] {
				f.lines++
			}
		}
		if f.lines > 0 {
			all = append(all, f)
		}
	}
	return all, nil
}

// codeOf returns the lines of a source on which there is more than a closing bracket.
func codeOf(source []byte) map[int]bool {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	code := map[int]bool{}
	for {
		switch pos, tok, _ := s.Scan(); tok {
		case token.EOF:
			return code
		case token.RBRACE, token.RPAREN, token.SEMICOLON:
		default:
			code[file.Line(pos)] = true
		}
	}
}

func (r ran) size() (s size) {
	files := map[string]bool{}
	for _, f := range r {
		files[f.file] = true
		s.lines += f.lines
	}
	s.files, s.functions = len(files), len(r)
	return s
}

func (r ran) print() {
	for _, f := range r {
		fmt.Printf("\t%-40s %-28s %3d\n", f.file, f.name, f.lines)
	}
}
