// Package plugin is the linter etcdlockvet of golangci-lint, by its module plugin system. Build
// golangci-lint with it by .custom-gcl.yml and the command golangci-lint custom:
//
//	version: v2.7.0
//	plugins:
//	  - module: github.com/etcdlock/etcdlock/cmd/etcdlockvet
//	    import: github.com/etcdlock/etcdlock/cmd/etcdlockvet/plugin
//	    version: v0.1.0
//
// and enable it in .golangci.yml:
//
//	linters:
//	  enable: [etcdlockvet]
//	  settings:
//	    custom:
//	      etcdlockvet:
//	        type: module
//	        settings: {lost: true}
package plugin

import (
	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"

	"github.com/etcdlock/etcdlock/cmd/etcdlockvet/analyzer"
)

func init() { register.Plugin("etcdlockvet", New) }

// Settings are those of the linter.
type Settings struct {
	Lost bool `json:"lost"` // as the flag of the command
}

type linter struct{ Settings }

// New returns the linter with its settings, which may be nil.
func New(settings any) (register.LinterPlugin, error) {
	s, err := register.DecodeSettings[Settings](settings)
	return linter{s}, err
}

// BuildAnalyzers returns the analyzer.
func (l linter) BuildAnalyzers() ([]*analysis.Analyzer, error) {
	return []*analysis.Analyzer{analyzer.New(l.Lost)}, nil
}

// GetLoadMode says that the analyzer needs types.
func (linter) GetLoadMode() string { return register.LoadModeTypesInfo }
