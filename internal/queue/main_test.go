package queue

import (
	"testing"

	"github.com/etcdlock/etcdlock/internal/race"
)

func TestMain(m *testing.M) {
	race.InBubbles()
	m.Run()
}
