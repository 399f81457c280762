package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "write a man page for each command into a directory",
		Args: cobra.MatchAll(atMost(1), func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misused("man needs a directory")
			}
			return nil
		}),
		RunE: func(c *cobra.Command, args []string) error {
			c.Root().DisableAutoGenTag = true // the same pages each day
			return manPages(c.Root(), args[0])
		},
	}
}

// manPages writes the pages of c and of all commands below into a directory.
func manPages(c *cobra.Command, dir string) error {
	for _, below := range c.Commands() {
		if !below.IsAvailableCommand() {
			continue
		}
		if err := manPages(below, dir); err != nil {
			return err
		}
	}
	var page strings.Builder
	err := doc.GenMan(c, &doc.GenManHeader{Section: "1", Source: "etcdlock", Manual: "etcdlock"}, &page)
	if err != nil {
		return err
	}
	text := strings.ReplaceAll(page.String(), "[=false]", "") // as in --help[=false]
	name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
	return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
}
