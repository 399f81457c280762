package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the versions of the command, etcd's client and Go; also --version",
		Args:  atMost(0),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.stdout, version())
			return err
		},
	}
}

// version tells what the binary was built from: a bug report begins with it.
func version() string {
	client := ""
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	for _, m := range info.Deps {
		if m.Path == "go.etcd.io/etcd/client/v3" {
			client = m.Version
		}
	}
	return fmt.Sprintf("etcdlock %s, etcd's client %s, %s",
		orUnknown(info.Main.Version), orUnknown(client), info.GoVersion)
}

func orUnknown(version string) string {
	if version == "" {
		return "of unknown version"
	}
	return version
}
