//go:build timed

package contract_test

import (
	"testing"

	"github.com/etcdlock/etcdlock/internal/race"
)

func TestContractOnThreeMembers(t *testing.T) { runsOn(t, 3, race.Fewer(1_000, 300)) }
