package analyzer_test

import (
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// methods returns the signatures of the methods in the files that match a pattern.
func methods(t *testing.T, pattern string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	all := make(map[string]string)
	fset := token.NewFileSet()
	for _, name := range files {
		file, err := parser.ParseFile(fset, name, nil, 0)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				var receiver, signature strings.Builder
				require.NoError(t, printer.Fprint(&receiver, fset, f.Recv.List[0].Type))
				require.NoError(t, printer.Fprint(&signature, fset, f.Type))
				all[receiver.String()+"."+f.Name.Name] = strings.Join(strings.Fields(signature.String()), " ")
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}

// What stands for the library in the tests has signatures of the library.
func TestTheTestsUseTheLibrarysSignatures(t *testing.T) {
	library := methods(t, "../../../*.go")
	for name, signature := range methods(t, "testdata/src/github.com/etcdlock/etcdlock/*.go") {
		require.Equal(t, library[name], signature, name)
	}
}
