package mutex

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
)

// A copy of a Mutex would hold what its original holds, and release it twice.
func TestGoVetReportsACopyOfAMutexOrASession(t *testing.T) {
	const program = `package copies

import "github.com/etcdlock/etcdlock"

type server struct{ etcdlock.Mutex }

func ofAMutex(mu *etcdlock.Mutex) { other := *mu; _ = &other }
func ofAStruct(s *server) { other := *s; _ = &other }
func ofASession(s *etcdlock.Session) { other := *s; _ = &other }
func ofAPointer(mu *etcdlock.Mutex) { other := mu; _ = other }
`
	file := filepath.Join(t.TempDir(), "copies.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	// Where nothing is built yet it compiles clientv3 and gRPC first, which takes as long as it takes.
	report, err := exec.CommandContext(t.Context(), "go", "vet", "-copylocks", file).CombinedOutput()
	require.Error(t, err, "go vet finds nothing:\n%s", report)
	for line, what := range map[int]string{7: "Mutex", 8: "Mutex", 9: "Session"} {
		finding := fmt.Sprintf(`copies\.go:%d:.* copies .*etcdlock\.%s contains`, line, what)
		require.Regexp(t, finding, string(report))
	}
	require.NotContains(t, string(report), "copies.go:10:")
}

func TestATokenComesFromHoldsOnly(t *testing.T) {
	token, ok := etcdlock.TokenFrom(t.Context())
	require.False(t, ok)
	require.Zero(t, token)
	token, ok = etcdlock.TokenFrom((*etcdlock.Mutex)(nil).Context(t.Context()))
	require.False(t, ok)
	require.Zero(t, token)
}
