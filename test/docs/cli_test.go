package docs

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/internal/cli"
	"github.com/gpushare/gpushare/test/golden"
)

const cliHead = `# The command line

Written by ` + "`go test ./test/docs -update`" + ` from the commands themselves; change it there.

`

func TestCommandLineIsCurrent(t *testing.T) {
	var b strings.Builder
	b.WriteString(cliHead)
	command(&b, cli.Root())
	golden.File(t, filepath.Join(root, "docs/cli.md"), b.String())
}

// command writes one command and its subcommands.
func command(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "## %s\n\n%s.\n", c.CommandPath(), c.Short)
	if c.Long != "" {
		fmt.Fprintf(b, "\n%s\n", c.Long)
	}
	if c.Runnable() && !c.HasSubCommands() {
		fmt.Fprintf(b, "\n```\n%s\n```\n", c.UseLine())
	}
	flags(b, "Flags of every command", c.PersistentFlags())
	flags(b, "Flags", c.LocalNonPersistentFlags())
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", dedent(c.Example))
	}
	b.WriteString("\n")
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
			command(b, sub)
		}
	}
}

// usages is a set of flags. Its concrete type is in a module that this one does not import directly.
type usages interface {
	HasAvailableFlags() bool
	FlagUsages() string
}

func flags(b *strings.Builder, title string, set usages) {
	if set.HasAvailableFlags() {
		fmt.Fprintf(b, "\n%s:\n\n```\n%s```\n", title, set.FlagUsages())
	}
}

// dedent removes the two spaces of indentation that cobra expects.
func dedent(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}
