package analyzer_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/analysis/passes/inspect"

	"github.com/etcdlock/etcdlock/cmd/etcdlockvet/analyzer"
)

// Whatever compiles is looked at, and nothing that compiles makes the analyzer panic.
func TestNoFunctionMakesItPanic(t *testing.T) {
	const functions, compiled = 2000, 1000
	checker := newChecker(t)
	looked, reports := 0, 0
	for seed := range uint64(functions) {
		text := generate(rand.New(rand.NewPCG(seed, 0)))
		n, err := checker.look(text)
		if errors.Is(err, errNotGo) {
			continue
		}
		require.NoError(t, err, "seed %d:\n%s", seed, text)
		looked++
		reports += n
	}
	t.Logf("%d of %d functions compile, with %d reports", looked, functions, reports)
	require.Greater(t, looked, compiled)
	require.Positive(t, reports)
}

// A checker compiles programs, and has the analyzer look at them.
type checker struct {
	fset    *token.FileSet
	others  types.Importer
	library *types.Package
}

func newChecker(t *testing.T) *checker {
	fset := token.NewFileSet()
	c := &checker{fset: fset, others: importer.ForCompiler(fset, "source", nil)}
	const library = "testdata/src/github.com/etcdlock/etcdlock/etcdlock.go"
	file, err := parser.ParseFile(fset, library, nil, 0)
	require.NoError(t, err)
	config := types.Config{Importer: c}
	c.library, err = config.Check("github.com/etcdlock/etcdlock", fset, []*ast.File{file}, nil)
	require.NoError(t, err)
	return c
}

func (c *checker) Import(path string) (*types.Package, error) {
	if strings.HasSuffix(path, "/etcdlock") {
		return c.library, nil
	}
	return c.others.Import(path)
}

// errNotGo is the error of a program that does not compile.
var errNotGo = errors.New("does not compile")

// look returns how much the analyzer reports.
func (c *checker) look(text string) (reports int, err error) {
	file, err := parser.ParseFile(c.fset, "p.go", text, parser.SkipObjectResolution)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNotGo, err)
	}
	info := &types.Info{
		Types: make(map[ast.Expr]types.TypeAndValue), Instances: make(map[*ast.Ident]types.Instance),
		Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
		Implicits:  make(map[ast.Node]types.Object),
		Selections: make(map[*ast.SelectorExpr]*types.Selection),
		Scopes:     make(map[ast.Node]*types.Scope),
	}
	var failed error
	config := types.Config{Importer: c, Error: func(err error) {
		if e := (types.Error{}); errors.As(err, &e) && !e.Soft { // a variable may be unused
			failed = err
		}
	}}
	pkg, _ := config.Check("p", c.fset, []*ast.File{file}, info)
	if failed != nil {
		return 0, fmt.Errorf("%w: %w", errNotGo, failed)
	}
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("panic: %v", value)
		}
	}()
	results := make(map[*analysis.Analyzer]any)
	for _, a := range []*analysis.Analyzer{inspect.Analyzer, ctrlflow.Analyzer, analyzer.New(true)} {
		results[a], err = a.Run(&analysis.Pass{
			Analyzer: a, Fset: c.fset, Files: []*ast.File{file}, Pkg: pkg, TypesInfo: info,
			ResultOf:         results,
			Report:           func(analysis.Diagnostic) { reports++ },
			ImportObjectFact: func(types.Object, analysis.Fact) bool { return false },
			ExportObjectFact: func(types.Object, analysis.Fact) {},
		})
		if err != nil {
			return 0, err
		}
	}
	return reports, nil
}

// prelude is what the generated functions use.
const prelude = `package p

import (
	"context"
	"errors"

	"github.com/etcdlock/etcdlock"
)

type box struct {
	mu   *etcdlock.Mutex
	hold *etcdlock.Hold
	s    *etcdlock.Session
	err  error
	in   *box
}

type of[T any] struct{ v T }

type embeds struct{ *etcdlock.Mutex }

var (
	mu0        *etcdlock.Mutex
	box0       box
	hold0, err0 = box0.s.Lock(context.Background(), "x")
	_, _        = box0.s.Lock(context.Background(), "x")
)

func same[T any](t T) T { return t }

func look(context.Context, error) bool { return errors.Is(nil, nil) }

func f[T any](
	ctx context.Context, s *etcdlock.Session, mu *etcdlock.Mutex, rw *etcdlock.RWMutex,
	sem *etcdlock.Semaphore, b *box, g of[*etcdlock.Hold], e embeds, some []*etcdlock.Hold,
	named map[string]*etcdlock.Hold, fn func(context.Context) error, x any,
) (hold *etcdlock.Hold, err error) {
	lock, held := s.Lock, (*etcdlock.Mutex).Lock
`

// A generator draws the parts of a function.
type generator struct {
	*rand.Rand
	strings.Builder
	fresh int // variables so far
}

// generate returns a program of one function.
func generate(r *rand.Rand) string {
	g := &generator{Rand: r}
	g.WriteString(prelude)
	g.block(2)
	g.WriteString("\treturn\n}\n")
	return g.String()
}

// one draws one of several.
func (g *generator) one(of ...string) string { return of[g.IntN(len(of))] }

func (g *generator) mutex() string {
	return g.one("mu", "b.mu", "b.in.mu", "box0.mu", "mu0", "e", "e.Mutex", "rw", "rw.Mutex", "(mu)",
		"same(mu)", "(&embeds{mu})", "new(etcdlock.Mutex)", "same[*box](b).mu", "of[*box]{b}.v.mu")
}

func (g *generator) hold() string {
	return g.one("hold", "b.hold", "b.in.hold", "g.v", "some[0]", `named["x"]`, "hold0", "hold",
		"(hold)", "(*(&hold))", "same(b).hold")
}

func (g *generator) err() string { return g.one("err", "b.err", "err0", "same(b).err") }

// takes is a call that returns a Hold and an error.
func (g *generator) takes() string {
	return g.one(`s.Lock(ctx, "x")`, `s.TryLock(ctx, "x")`, "rw.RLock(ctx)", "rw.TryRLock(ctx)",
		"sem.Acquire(ctx, 1)", `b.s.LockAll(ctx, "x", "y")`, `lock(ctx, "x")`,
		`(*etcdlock.Session).Lock(s, ctx, "x")`, `(s.Lock)(ctx, "x")`, `(s.Lock(ctx, "x"))`,
		`func() (*etcdlock.Hold, error) { return s.Lock(ctx, "x") }()`)
}

// fails is an expression that is an error.
func (g *generator) fails() string {
	return g.one(g.mutex()+".Lock(ctx)", g.mutex()+".TryLock(ctx)", g.mutex()+".Unlock(ctx)",
		g.hold()+".Unlock(ctx)", "held("+g.one("mu", "b.mu")+", ctx)", "fn(ctx)", "errors.Join()",
		"(*etcdlock.Mutex).Lock(mu, ctx)", "s.Close(ctx)", g.err(), "nil",
		"mu.Do(ctx, func("+g.one("ctx", "_", "own")+" context.Context) error { return fn(ctx) })",
		`s.Do(ctx, "x", fn)`, "func() error { return mu.Lock(ctx) }()")
}

func (g *generator) condition() string {
	return g.one(g.fails()+" != nil", g.fails()+" == nil",
		"errors.Is("+g.fails()+", etcdlock.ErrLocked)",
		g.hold()+" == nil", "look(ctx, "+g.fails()+")", "!("+g.err()+" != nil || "+g.hold()+" != nil)",
		g.err()+" == nil && "+g.mutex()+".Status().Held", "true")
}

// variables draws two to be declared, or "_".
func (g *generator) variables() (string, string) {
	g.fresh++
	hold, err := fmt.Sprint("h", g.fresh), fmt.Sprint("e", g.fresh)
	return g.one("_", hold, hold, "hold"), g.one("_", err, "err", "err")
}

func (g *generator) block(depth int) {
	for range 1 + g.IntN(4) {
		g.statement(depth)
	}
}

// nest writes a block between head and tail.
func (g *generator) nest(depth int, head, tail string) {
	g.WriteString(head + " {\n")
	g.block(depth - 1)
	g.WriteString("}" + tail + "\n")
}

func (g *generator) statement(depth int) {
	h, e := g.variables()
	line := func(format string, args ...any) { fmt.Fprintf(g, format+"\n", args...) }
	most := 17
	if depth == 0 {
		most = 8
	}
	switch g.IntN(most) {
	case 0:
		line("%s, %s := %s", h, e, g.takes())
	case 1:
		line("var %s, %s = %s", g.one("_", h), g.one("_", e), g.takes())
	case 2:
		line("%s, %s = %s", g.one("_", g.hold()), g.one("_", g.err()), g.takes())
	case 3:
		line("%s = %s", g.one("_", g.err()), g.fails())
	case 4:
		line("%s", g.one(g.takes(), g.one("go ", "defer ", "")+g.mutex()+".Lock(ctx)",
			`defer s.TryLock(ctx, "x")`, `go lock(ctx, "x")`))
	case 5:
		line("return %s", g.one(g.takes(), g.hold()+", "+g.fails(), "nil, "+g.err()))
	case 6:
		line("%s.%s", g.one(g.mutex(), g.hold()), g.one("Token()", "Status()", "Context(ctx)"))
	case 7:
		line("%s = %s", g.one("_", "b.hold", "x"), g.one(g.hold(), "hold"))
	case 8:
		g.nest(depth, fmt.Sprintf("if %s, %s := %s; %s", h, e, g.takes(), g.condition()), "")
	case 9:
		g.nest(depth, "if "+g.condition(), " else { "+g.one("return", "panic(1)", "")+" }")
	case 10:
		g.nest(depth, "for "+g.one("", "range 3", g.condition(), "_, hold = range some",
			"_, h := range named", "x := range some"), "")
	case 11:
		g.nest(depth, g.one("func()", "go func()", "defer func()"), "()")
	case 12:
		g.nest(depth, "look := func(ctx context.Context)", "")
	case 13:
		g.nest(depth, "switch "+g.one("{ case "+g.condition(), g.err()+" { case nil",
			"err := mu.Lock(ctx); err { case etcdlock.ErrLost")+":", " }")
	case 14:
		g.nest(depth, "switch "+g.one("y := x.(type)", "x.(type)")+" { case *etcdlock.Hold:", " }")
	case 15:
		g.nest(depth, "select { case <-ctx.Done():", " }")
	case 16:
		g.fresh++
		label := fmt.Sprint("l", g.fresh)
		g.nest(depth, label+": for", "")
		line("goto %s", label)
	}
}
