package cli

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// word is one word of a command line: without quotes, or in one pair of them.
var word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)

// The examples of every command, which docs/cli.md and the man pages show, are command lines that gpushare accepts: the command, its
// flags and the number of its arguments. They are not run.
func TestExamplesAreRead(t *testing.T) {
	lines := 0
	var each func(c *cobra.Command)
	each = func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			for _, part := range strings.Split(line, "|") {
				args := commandLine(part)
				if len(args) == 0 || args[0] != "gpushare" {
					continue
				}
				lines++
				if err := accepted(args[1:]); err != nil {
					t.Errorf("the example %q of '%s': %v", strings.TrimSpace(line), c.CommandPath(), err)
				}
			}
		}
		for _, sub := range c.Commands() {
			each(sub)
		}
	}
	each(Root())
	if lines < 60 {
		t.Errorf("only %d examples were found: the reading is broken", lines)
	}
}

// commandLine splits a part of a line of a shell, without its comment and without what follows a redirection or the next command.
func commandLine(part string) []string {
	var args []string
	for _, w := range word.FindAllString(part, -1) {
		if strings.HasPrefix(w, "#") || w == ">" || w == "&&" || w == ";" {
			break
		}
		args = append(args, strings.Trim(w, `'"`))
	}
	return args
}

// accepted reports whether a command takes these flags and arguments.
func accepted(args []string) error {
	root := Root()
	c, rest, err := root.Find(joinValues(root, args))
	if err != nil {
		return err
	}
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	return c.ValidateArgs(c.Flags().Args())
}
