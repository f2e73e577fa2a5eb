package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{
			err:  fmt.Errorf("'%s' takes no arguments, got %q", cmd.CommandPath(), args[0]),
			hint: meantArgument(cmd.CommandPath(), args[0]),
		}
	}
	return nil
}

func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < n:
			return usageError{err: fmt.Errorf("'%s' needs %s", cmd.CommandPath(), what), hint: whoHas(what)}
		case len(args) > n:
			return usageError{err: fmt.Errorf("'%s' needs %s, and no more: got %s", cmd.CommandPath(), what, quotedWords(args))}
		}
		return nil
	}
}

func atLeast(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return usageError{err: fmt.Errorf("'%s' needs %s", cmd.CommandPath(), what), hint: whoHas(what)}
		}
		return nil
	}
}

// quotedWords lists arguments, the first few of many.
func quotedWords(args []string) string {
	const few = 4
	out := make([]string, 0, few+1)
	for i, arg := range args {
		if i == few {
			out = append(out, fmt.Sprintf("and %d more", len(args)-few))
			break
		}
		if r := []rune(arg); len(r) > 40 {
			arg = string(r[:40]) + "…"
		}
		out = append(out, strconv.Quote(arg))
	}
	return strings.Join(out, " ")
}

// whoHas names the command that lists what an argument names; empty where the help says more.
func whoHas(what string) string {
	for _, of := range []struct{ prefix, hint string }{
		{"the id of a lease", "'gpushare lease list' shows them"},
		{"a lease or a tenant", "'gpushare lease list' and 'gpushare tenant list' show them"},
		{"the name of a tenant", "'gpushare tenant list' shows them"},
		{"the id of a condition", "'gpushare condition list' shows them"},
		{operationArgument, "'gpushare operation list' shows them"},
		{mpsArgument, "'gpushare mps list' shows them"},
		{"a GPU's index or UUID", "'gpushare gpu list' shows them"},
	} {
		if strings.HasPrefix(what, of.prefix) {
			return of.hint
		}
	}
	return ""
}

// plainWord reports whether a word is the same without quotes in a shell, so that a hint may have it.
func plainWord(s string) bool {
	const more = "-_./:@+=,"
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune(more, r)
	})
}

// meantArgument is how what was written as an argument of a command without arguments is written; empty if that is not known.
func meantArgument(command, arg string) string {
	if !plainWord(arg) {
		return ""
	}
	switch command {
	case "gpushare apply":
		return fmt.Sprintf("a spec is written as in 'gpushare apply -f %s'", arg)
	case "gpushare status", "gpushare lease list":
		return fmt.Sprintf("--tenant, --gpu and --user select a part, as in '%s --tenant %s'", command, arg)
	}
	return ""
}
