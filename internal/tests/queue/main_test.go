// Package queue tests who gets in when: in the local queue, in etcd's line, in a long line, and
// with WithHandoff and WithLinger.
package queue

import (
	"testing"

	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestMain(m *testing.M) { tests.Main(m) }
