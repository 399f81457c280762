package main

import (
	"errors"
	"flag"
	"fmt"
	"runtime/debug"
)

func versionCommand() *command {
	return &command{
		name:  "version",
		short: "print the versions of the command, etcd's client and Go; also --version",
		flags: func(*flag.FlagSet) func(*app, call) error {
			return func(a *app, c call) error {
				if err := c.atMost(0); err != nil {
					return err
				}
				return a.version()
			}
		},
	}
}

// version writes what the binary was built from: a bug report begins with it.
func (a *app) version() error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("the binary does not tell what it was built from")
	}
	versions := map[string]string{}
	for _, m := range append(info.Deps, &info.Main) {
		versions[m.Path] = m.Version
		if m.Replace != nil {
			versions[m.Path] = m.Replace.Version
		}
	}
	_, err := fmt.Fprintf(a.stdout, "etcdlock %s, etcd's client %s, %s\n",
		orUnknown(versions["github.com/etcdlock/etcdlock"]),
		orUnknown(versions["go.etcd.io/etcd/client/v3"]), info.GoVersion)
	return err
}

func orUnknown(version string) string {
	if version == "" {
		return "of unknown version"
	}
	return version
}
