//go:build quint

package quint

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var agree = flag.Bool("agree", false,
	"whether machines are compared with quint, which needs Node: see spec/check")

const directory = "../../../spec"

var quintCommand = filepath.Join(directory, "node_modules", ".bin", "quint")

// load has quint parse a file, and returns its worlds, too.
func load(t *testing.T, name string) (f *File, worlds []string) {
	if !*agree {
		t.Skip("-agree says so, and needs Node")
	}
	f, err := Load(quintCommand, filepath.Join(directory, name), t.TempDir())
	require.NoError(t, err)
	isProtocol := func(name string) bool { return name == "lock" }
	return f, slices.DeleteFunc(slices.Clone(f.Modules()), isProtocol)
}

// A told state is one of a run of quint, and what quint says of the one before.
type told struct{ state, before Value }

// runs has quint make runs of a world, and say what a definition is in each state.
func runs(t *testing.T, file, world, definition string, number, steps int) (all [][]told) {
	dir, err := os.MkdirTemp(directory, "agree-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	text, err := os.ReadFile(filepath.Join(directory, file))
	require.NoError(t, err)
	module := regexp.MustCompile(`(?ms)^module ` + world + ` {.*?^}`).FindString(string(text))
	module = strings.ReplaceAll(strings.TrimSuffix(module, "}"), `"./lock"`, `"../lock"`)
	module += fmt.Sprintf(`
		var before: str -> str -> bool
		action first = all { begin, before' = Map() }
		action onwards = all { go, before' = %s }
	}`, definition)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "telling.qnt"), []byte(module), 0o666))
	out, err := exec.CommandContext(t.Context(), quintCommand, "run",
		filepath.Join(dir, "telling.qnt"), "--main="+world, "--backend=typescript",
		"--init=first", "--step=onwards", "--seed=7", "--verbosity=0",
		fmt.Sprint("--max-steps=", steps), fmt.Sprint("--max-samples=", number),
		fmt.Sprint("--n-traces=", number), "--out-itf="+filepath.Join(dir, "{seq}.json"),
	).CombinedOutput()
	require.NoError(t, err, "%s", out)
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	require.NoError(t, err)
	require.Len(t, files, number)
	for _, name := range files {
		var trace struct{ States []map[string]json.RawMessage }
		require.NoError(t, read(name, &trace))
		var run []told
		for _, variables := range trace.States {
			var at told
			for name, text := range variables {
				var raw any
				require.NoError(t, json.Unmarshal(text, &raw))
				switch {
				case name == "before" || strings.HasSuffix(name, "::before"):
					at.before = written(raw)
				case name == "s" || strings.HasSuffix(name, "::s"):
					at.state = written(raw)
				}
			}
			run = append(run, at)
		}
		all = append(all, run)
	}
	return all
}

// written is a value as quint writes it.
func written(raw any) Value {
	list := func(raw any) (values []Value) {
		for _, v := range raw.([]any) {
			values = append(values, written(v))
		}
		return values
	}
	switch raw := raw.(type) {
	case string, bool:
		return raw
	case []any:
		return List(list(raw))
	case map[string]any:
		if text, is := raw["#bigint"]; is {
			n, err := strconv.Atoi(text.(string))
			if err != nil {
				panic(err)
			}
			return n
		}
		if all, is := raw["#set"]; is {
			return newSet(list(all))
		}
		if all, is := raw["#map"]; is {
			m := Map{}
			for _, p := range list(all) {
				m = m.put(p.(List)[0], p.(List)[1])
			}
			return m
		}
		if tag, is := raw["tag"]; is {
			return Variant(tag.(string))
		}
		r := &Record{shape: new(shape)}
		for name := range raw {
			r.names = append(r.names, name)
		}
		slices.Sort(r.names)
		for _, name := range r.names {
			r.values = append(r.values, written(raw[name]))
		}
		return r
	}
	panic(fmt.Sprintf("%T: %v", raw, raw))
}

// TestEachStepOfQuintIsOneOfAMachine goes along runs of quint. A machine must have each step among
// its own, and must find the same of each state: promises, and what the world is for.
func TestEachStepOfQuintIsOneOfAMachine(t *testing.T) {
	f, worlds := load(t, "small.qnt")
	for _, world := range worlds {
		t.Run(world, func(t *testing.T) {
			t.Parallel()
			m := f.New(world, nil)
			steps := 0
			for n, run := range runs(t, "small.qnt", world,
				`Map("promises" -> promises, "reached" -> reached)`, 6, 40) {
				from, op := Value(nil), m.operator("begin")
				for i, at := range run {
					if i > 0 {
						m.state = from
						own := Map{}
						for _, name := range []string{"promises", "reached"} {
							own = own.put(name, m.operator(name).body(m))
						}
						require.Zero(t, compare(own, at.before),
							"run %d, step %d, of %v:\n%v\nand to quint\n%v", n, i, from, own, at.before)
					}
					found := false
					require.NoError(t, m.each(op, from, func(to Value) error {
						found = found || compare(to, at.state) == 0
						return nil
					}))
					require.True(t, found, "run %d, step %d: no step leads from\n%v\nto\n%v",
						n, i, from, at.state)
					from, op = at.state, m.operator("go")
					steps++
				}
			}
			t.Logf("%d steps", steps)
		})
	}
}

// TestAMachineHasNoStepThatQuintHasNot compares all states that three steps reach: quint's are
// those of many runs.
func TestAMachineHasNoStepThatQuintHasNot(t *testing.T) {
	f, worlds := load(t, "whole.qnt")
	for _, world := range worlds {
		t.Run(world, func(t *testing.T) {
			t.Parallel()
			const steps = 3
			ofQuint := make(map[string]bool)
			define := `Map("promises" -> promises)`
			for _, run := range runs(t, "whole.qnt", world, define, 3000, steps) {
				for _, at := range run {
					ofQuint[string(encode(nil, at.state))] = true
				}
			}
			m, all := f.New(world, nil), len(ofQuint)
			_, err := m.Explore("begin", "go", steps, func() error {
				text := string(encode(nil, m.state))
				assert.True(t, ofQuint[text], "quint has no run to %v", m.state)
				delete(ofQuint, text)
				return nil
			})
			require.NoError(t, err)
			assert.Empty(t, ofQuint)
			t.Logf("%d states", all)
		})
	}
}
