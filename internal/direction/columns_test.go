package direction

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Lines of code and of comments end at column 100, where a tab is one column. Rows of tables in
// tests may be longer.
func TestLinesEndAtColumn100(t *testing.T) {
	files := 0
	check := func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		files++
		source, err := os.ReadFile(path)
		for _, at := range longLines(source, strings.HasSuffix(path, "_test.go")) {
			assert.Fail(t, "a line is too long", "%s:%d", path, at)
		}
		return err
	}
	require.NoError(t, filepath.WalkDir(filepath.Join("..", ".."), check))
	require.Greater(t, files, 300)
}

// longLines returns the numbers of the lines that are too long and can be broken: what crosses
// column 100 is no string at the beginning of its line.
func longLines(source []byte, isTest bool) (numbers []int) {
	file := token.NewFileSet().AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	firsts := make(map[int]token.Token) // of each line, behind the key of a literal
	raw := make(map[int]bool)           // lines of a literal or comment of several lines
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		line := file.Line(pos)
		first, ok := firsts[line]
		if !ok || first == token.COLON || tok == token.COLON && first == token.IDENT {
			firsts[line] = tok
		}
		for i := range strings.Count(lit, "\n") {
			if tok != token.SEMICOLON {
				raw[line+i], raw[line+i+1] = true, true
			}
		}
	}
	for i, text := range strings.Split(string(source), "\n") {
		code := strings.TrimSpace(text)
		switch first := firsts[i+1]; {
		case utf8.RuneCountInString(text) <= 100, raw[i+1], first == token.STRING:
		case strings.HasPrefix(code, "//go:"), strings.Contains(code, "://") && first == token.COMMENT:
		case isTest && strings.HasSuffix(code, "},"):
		default:
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}
