package spec

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var generate = flag.Int("generate", 0,
	"how many paths of each world TestPaths takes anew from quint, "+
		"which needs Node: see spec/check")

// pathsFile has the paths. Its first line says of which specification they are.
var pathsFile = filepath.Join(directory, "paths.txt")

const directory = "../../spec"

// worlds are the modules of small.qnt whose paths are followed.
var worlds = []string{"exclusive", "setBacks", "copies", "family"}

// sum is the sum of the specification without its comments and its layout.
func sum(t testing.TB) string {
	all := sha256.New()
	for _, name := range []string{"lock.qnt", "small.qnt"} {
		text, err := os.ReadFile(filepath.Join(directory, name))
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			code, _, _ := strings.Cut(line, "//")
			for word := range strings.FieldsSeq(code) {
				fmt.Fprintln(all, word)
			}
		}
	}
	return fmt.Sprintf("%x", all.Sum(nil)[:8])
}

// A path is a run of the specification, in a world.
type path struct {
	world string
	steps []step
}

// A step is one step of a path: an action and its arguments, as one word, and what has changed then
// of what there is to see. Both are told by what follows.
//
//	p          pass: a tick
//	b, z       backUp, setBack
//	o1         an operator deletes the key of place 1
//	x2 g1 r2   expire lease 2; grant a lease to client 1; renew lease 2
//	d2 q2 k1   drain, quit lease 2; client 1 learns of the epoch
//	a1e3       ask: client 1 puts a key of a kind (e, r, p) under the name 3
//	sP1.4c2    serve the request Put, Delete, Move, Grant or Renew of place or lease 1 that was
//	           sent at 4,
//	           the third time (c2), in the epoch 1 (e1)
//	hP1.4      hear the answer to it
//	mP1.4      both
//	l1 e1 u1   look, enter, unlock place 1; l1+: it is clear; u1+: a watch covers its key
//	v1 nP1     give it up; send its Put again
//
// What there is to see: 1W2 (place 1 is Waiting with the revision 2), 1ON (its Unlock has said
// Nil), L2=7
// (client trusts lease 2 until 7), K1.2 (etcd has the keys of the places 1 and 2), H1 (place 1
// holds).
type step struct {
	act  string
	seen []string
}

func (s step) String() string { return strings.Join(append([]string{s.act}, s.seen...), ",") }

func readPaths(t testing.TB) (of string, paths []path) {
	text, err := os.ReadFile(pathsFile)
	require.NoError(t, err)
	of, rest, _ := strings.Cut(string(text), "\n")
	for line := range strings.Lines(rest) {
		words := strings.Fields(line)
		p := path{world: words[0]}
		for _, word := range words[1:] {
			parts := strings.Split(word, ",")
			p.steps = append(p.steps, step{parts[0], parts[1:]})
		}
		paths = append(paths, p)
	}
	return of, paths
}

// TestPaths checks that the paths are those of the specification as it is.
func TestPaths(t *testing.T) {
	if *generate > 0 {
		write(t, *generate)
	}
	of, paths := readPaths(t)
	require.Equal(t, sum(t), of,
		"the specification has changed: go test ./internal/spec -generate 700")
	require.GreaterOrEqual(t, len(paths), 1500)
}

// write takes paths from quint.
func write(t *testing.T, each int) {
	const most = 100 // traces that quint keeps in memory
	text := []string{sum(t)}
	for _, world := range worlds {
		seen := make(map[string]bool)
		for n := 0; n < each; n += most {
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), "node_modules/.bin/quint", "run", "small.qnt",
				"--main="+world, "--backend=typescript", "--init=begin", "--step=go", "--max-steps=40",
				"--mbt", "--verbosity=0", fmt.Sprint("--max-samples=", most), fmt.Sprint("--n-traces=", most),
				"--out-itf="+filepath.Join(dir, "{seq}.json"))
			cmd.Dir = directory
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			files, err := filepath.Glob(filepath.Join(dir, "*.json"))
			require.NoError(t, err)
			for _, file := range files {
				itf, err := os.ReadFile(file)
				require.NoError(t, err)
				if line := world + " " + strings.Join(words(t, itf), " "); !seen[line] {
					seen[line] = true
					text = append(text, line)
				}
			}
		}
	}
	require.NoError(t, os.WriteFile(pathsFile, []byte(strings.Join(text, "\n")+"\n"), 0o666))
}

// words are the steps of a trace that quint has written.
func words(t *testing.T, itf []byte) (steps []string) {
	var trace struct {
		States []map[string]json.RawMessage `json:"states"`
	}
	require.NoError(t, json.Unmarshal(itf, &trace))
	var before state
	var seen map[string]string
	for n, raw := range trace.States {
		var s state
		var taken string
		var picks picks
		for name, value := range raw {
			switch {
			case strings.HasSuffix(name, "::s"):
				require.NoError(t, json.Unmarshal(value, &s))
			case name == "mbt::actionTaken":
				require.NoError(t, json.Unmarshal(value, &taken))
			case name == "mbt::nondetPicks":
				require.NoError(t, json.Unmarshal(value, &picks))
			}
		}
		now := s.seen()
		if n > 0 {
			word := step{act: picks.act(t, taken, before, s)}
			for _, key := range slices.Sorted(maps.Keys(now)) {
				if now[key] != seen[key] {
					word.seen = append(word.seen, key+now[key])
				}
			}
			steps = append(steps, word.String())
		}
		before, seen = s, now
	}
	return steps
}

// ---- how quint writes a state

type number int

func (n *number) UnmarshalJSON(b []byte) error {
	var big struct {
		Big json.Number `json:"#bigint"`
	}
	if err := json.Unmarshal(b, &big); err != nil {
		return err
	}
	i, err := big.Big.Int64()
	*n = number(i)
	return err
}

type tag string

func (s *tag) UnmarshalJSON(b []byte) error {
	var tagged struct {
		Tag string `json:"tag"`
	}
	err := json.Unmarshal(b, &tagged)
	*s = tag(tagged.Tag)
	return err
}

type table[K comparable, V any] map[K]V

func (m *table[K, V]) UnmarshalJSON(b []byte) error {
	var pairs struct {
		Map [][2]json.RawMessage `json:"#map"`
	}
	if err := json.Unmarshal(b, &pairs); err != nil {
		return err
	}
	*m = make(table[K, V])
	for _, pair := range pairs.Map {
		var key K
		var value V
		if err := json.Unmarshal(pair[0], &key); err != nil {
			return err
		}
		if err := json.Unmarshal(pair[1], &value); err != nil {
			return err
		}
		(*m)[key] = value
	}
	return nil
}

type set[V any] []V

func (s *set[V]) UnmarshalJSON(b []byte) error {
	var of struct {
		Set []V `json:"#set"`
	}
	err := json.Unmarshal(b, &of)
	*s = of.Set
	return err
}

type request struct {
	Verb           tag
	ID, Sent, Copy number
	Rev, Epoch     number
}

// String is how a step names r.
func (r request) String() string {
	text := fmt.Sprintf("%c%d.%d", r.Verb[0], r.ID, r.Sent)
	if r.Copy > 0 {
		text += fmt.Sprint("c", r.Copy)
	}
	if r.Epoch > 0 {
		text += fmt.Sprint("e", r.Epoch)
	}
	return text
}

type keyName struct {
	Kind string
	Of   number
}

type state struct {
	Now  number
	Etcd struct {
		Keys table[keyName, struct{ Rev, Place number }]
	}
	Requests set[request]
	Leases   table[number, struct{ By, Until number }]
	Places   table[number, struct {
		Phase, Said tag
		Rev, Lease  number
		Clear       bool
	}]
}

// seen is what there is to see of s.
func (s state) seen() map[string]string {
	seen := make(map[string]string)
	var keys []string
	var holders []string
	byRev := slices.SortedFunc(maps.Keys(s.Etcd.Keys), func(a, b keyName) int {
		return int(s.Etcd.Keys[a].Rev - s.Etcd.Keys[b].Rev)
	})
	for _, name := range byRev {
		keys = append(keys, fmt.Sprint(s.Etcd.Keys[name].Place))
	}
	for _, i := range slices.Sorted(maps.Keys(s.Places)) {
		p := s.Places[i]
		seen[fmt.Sprint(i)] = sight(string(p.Phase), int(p.Rev), string(p.Said))
		if p.Phase == "Holding" && s.Now < s.Leases[p.Lease].Until {
			holders = append(holders, fmt.Sprint(i))
		}
	}
	for l, lease := range s.Leases {
		seen[fmt.Sprint("L", l, "=")] = fmt.Sprint(lease.Until)
	}
	seen["K"], seen["H"] = strings.Join(keys, "."), strings.Join(holders, ".")
	return seen
}

// sight is what there is to see of a place.
func sight(phase string, rev int, said string) string {
	switch {
	case phase == "Over" && said == "Silent":
		return "O"
	case phase == "Over":
		return "O" + said[:1]
	case phase == "Releasing": // as Leaving, to a ticket
		phase = "Leaving"
	}
	return fmt.Sprint(phase[:1], rev)
}

// picks are what was chosen in a step.
type picks map[string]struct {
	Tag   string
	Value json.RawMessage
}

func (p picks) number(t *testing.T, name string) (n number) {
	require.Equal(t, "Some", p[name].Tag, name)
	require.NoError(t, json.Unmarshal(p[name].Value, &n))
	return n
}

func (p picks) name(t *testing.T) (n keyName) {
	require.NoError(t, json.Unmarshal(p["name"].Value, &n))
	return n
}

func (p picks) boolean(t *testing.T, name string) (is bool) {
	require.Equal(t, "Some", p[name].Tag, name)
	require.NoError(t, json.Unmarshal(p[name].Value, &is))
	return is
}

// act is the action of a step.
func (p picks) act(t *testing.T, taken string, before, after state) string {
	of := func(letter, name string) string { return fmt.Sprint(letter, p.number(t, name)) }
	switch taken {
	case "pass":
		return "p"
	case "backUp":
		return "b"
	case "setBack":
		return "z"
	case "expiry":
		return of("x", "l")
	case "operator":
		return fmt.Sprint("o", before.Etcd.Keys[p.name(t)].Place)
	case "grant", "granting":
		return of("g", "c")
	case "renewal":
		return of("r", "l")
	case "drain":
		return of("d", "l")
	case "quit":
		return of("q", "l")
	case "learn":
		return fmt.Sprint("k", before.Leases[p.number(t, "l")].By)
	case "look":
		act := of("l", "i")
		if after.Places[p.number(t, "i")].Clear {
			act += "+"
		}
		return act
	case "enter":
		return of("e", "i")
	case "unlock", "release":
		act := of("u", "i")
		if p.boolean(t, "seen") {
			act += "+"
		}
		return act
	case "giveUp", "givingUp":
		return of("v", "i")
	case "again", "twice", "repeating":
		for _, r := range after.Requests {
			if !slices.Contains(before.Requests, r) {
				return fmt.Sprintf("n%c%d", r.Verb[0], r.ID)
			}
		}
	case "ask", "asking":
		var kind string
		require.NoError(t, json.Unmarshal(p["kind"].Value, &kind))
		return fmt.Sprintf("a%d%c%d", p.number(t, "c"), kind[0], p.name(t).Of)
	case "serve", "message":
		var r request
		require.NoError(t, json.Unmarshal(p["r"].Value, &r))
		return fmt.Sprint(taken[:1], r)
	case "hear":
		var a struct{ To request }
		require.NoError(t, json.Unmarshal(p["a"].Value, &a))
		return fmt.Sprint("h", a.To)
	}
	require.Fail(t, "what is this step?", "%s %v", taken, p)
	return ""
}
