package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand is for who packages the program, and so the help does not list it.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "write a man page for each command into a directory",
		Hidden: true,
		Args: cobra.MatchAll(atMost(1), func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misused("man needs a directory")
			}
			return nil
		}),
		RunE: func(c *cobra.Command, args []string) error {
			c.Root().DisableAutoGenTag = true // the same pages each day
			return doc.GenManTree(c.Root(), &doc.GenManHeader{Source: "etcdlock", Manual: "etcdlock"},
				args[0])
		},
	}
}
