package quint

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// A Node is an expression or a declaration, as quint has parsed it.
type Node struct {
	ID         int
	Kind       string // of an expression: app, name, lambda, let, int, bool or str
	Name       string
	Qualifier  string
	Opcode     string
	Args       []*Node
	Value      json.RawMessage
	Params     []*Node
	Expr       *Node
	Opdef      *Node
	Assumption *Node
	ProtoName  string
	Overrides  [][2]*Node
}

// A File is a file of Quint, and what it imports.
type File struct {
	names   []string // of the modules, in their order
	modules map[string][]*Node
	places  map[int]Place
	sources map[string][]byte
}

// A Place is where something stands in a file.
type Place struct {
	File  string
	Line  int
	Start int
	End   int
}

// Load has quint, a command, parse a file. It writes to the directory scratch.
func Load(quint, path, scratch string) (*File, error) {
	parsed, mapped := filepath.Join(scratch, "parsed.json"), filepath.Join(scratch, "map.json")
	cmd := exec.Command(quint, "parse", path, "--out="+parsed, "--source-map="+mapped)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("quint parse %s: %w\n%s", path, err, out)
	}
	var tree struct {
		Modules []struct {
			Name         string
			Declarations []*Node
		}
	}
	var sources struct {
		SourceIndex map[string]string
		Map         map[int][3]json.RawMessage
	}
	if err := read(parsed, &tree); err != nil {
		return nil, err
	}
	if err := read(mapped, &sources); err != nil {
		return nil, err
	}
	f := &File{nil, make(map[string][]*Node), make(map[int]Place), make(map[string][]byte)}
	for _, m := range tree.Modules {
		f.names = append(f.names, m.Name)
		f.modules[m.Name] = m.Declarations
	}
	for id, at := range sources.Map {
		var start, end struct{ Line, Index int }
		if err := json.Unmarshal(at[1], &start); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(at[2], &end); err != nil {
			return nil, err
		}
		file := sources.SourceIndex[string(at[0])]
		f.places[id] = Place{file, start.Line + 1, start.Index, end.Index + 1}
	}
	return f, nil
}

func read(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// Place returns where n stands.
func (f *File) Place(n *Node) Place { return f.places[n.ID] }

// Text returns the source of n.
func (f *File) Text(n *Node) string {
	at := f.places[n.ID]
	if f.sources[at.File] == nil {
		text, err := os.ReadFile(at.File)
		if err != nil {
			return err.Error()
		}
		f.sources[at.File] = text
	}
	return string(f.sources[at.File][at.Start:at.End])
}

// Modules returns the names of the modules.
func (f *File) Modules() []string { return f.names }

// Definitions returns the definitions of a module.
func (f *File) Definitions(module string) []*Node { return f.declared(module, "def") }

// Assumptions returns what a module assumes of its constants.
func (f *File) Assumptions(module string) []*Node { return f.declared(module, "assume") }

func (f *File) declared(module, kind string) (some []*Node) {
	for _, n := range f.modules[module] {
		if n.Kind == kind {
			some = append(some, n)
		}
	}
	return some
}
