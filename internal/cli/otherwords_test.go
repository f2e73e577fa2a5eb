package cli_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// Users type what docker, kubectl and Slurm call it, with the flags of those. The hint is the command that does it here.
func TestWordsOfOtherTools(t *testing.T) {
	for args, hint := range map[string]string{
		"ps":                  "'gpushare lease list'",
		"ps -a":               "'gpushare lease list'",
		"help ps":             "'gpushare lease list'",
		"logs -f vision-x":    "'gpushare lease logs ID'",
		"drain 3":             "'gpushare gpu drain GPU'",
		"cordon 3":            "'gpushare gpu cordon GPU'",
		"kill vision-x":       "'gpushare lease stop ID'",
		"kill -9 vision-x":    "'gpushare lease stop ID'",
		"describe vision-x":   "'gpushare lease show ID'",
		"rm -f vision-x":      "'gpushare lease stop ID'",
		"PS":                  "'gpushare lease list'",
		"lease kill vision-x": "did you mean 'gpushare lease stop'?",
		"lease kill -9 x":     "did you mean 'gpushare lease stop'?",
		"lease describe x":    "did you mean 'gpushare lease show'?",
		"lease ps":            "did you mean 'gpushare lease list'?",
		"gpu describe 0":      "did you mean 'gpushare gpu show'?",
		"gpu ls":              "did you mean 'gpushare gpu list'?",
		"gpu kill 0":          "'gpushare lease stop --gpu GPU'",
		"tenant describe red": "did you mean 'gpushare tenant show'?",
		"tenant rm red":       "it is part of the spec",
		"mig rm 0 0":          "did you mean 'gpushare mig remove'?",
		"mps logs 0":          "did you mean 'gpushare mps log'?",
		"condition ls":        "did you mean 'gpushare condition list'?",
		"spec apply node":     "'gpushare apply -f FILE'",
		"status -w":           "'gpushare top'",
		"lease list -w":       "'gpushare top'",
		"lease list --watch":  "'gpushare top'",
		"gpu list -w":         "'gpushare top'",
		"events -w":           "it follows them already",
		"lease logs -w x":     "did you mean --follow?",
		"apply -w":            "did you mean --wait?",
		"run -w -- true":      "did you mean --wait?",
		"operation show -w x": "'gpushare operation wait ID'",
		"lease list -a":       "did you mean --all?",
		"run -p red -- true":  "did you mean --tenant?",
		"run --gres gpu true": "did you mean --kind?",
	} {
		t.Run(args, func(t *testing.T) {
			r := runOn(t.Context(), "/nowhere", "", strings.Fields(args)...)
			_, got, _ := strings.Cut(r.err, "\nhint: ")
			if r.code != api.ExitUsage || r.out != "" || !strings.Contains(got, hint) {
				t.Errorf("exit code %d, want 2 with the hint %q:\n%s", r.code, hint, r.all)
			}
		})
	}
}

var quoted = regexp.MustCompile(`'(gpushare [^']*)'`)

// Every command of these hints exists with its flags, and no word of another tool is a command itself.
func TestHintsForOtherToolsAreCommands(t *testing.T) {
	root := cli.Root()
	check := func(typed, hint string) {
		t.Helper()
		for _, m := range quoted.FindAllStringSubmatch(hint, -1) {
			at := root
			for _, word := range strings.Fields(strings.TrimPrefix(m[1], "gpushare ")) {
				name, isFlag := strings.CutPrefix(word, "--")
				switch {
				case word == "--":
					continue
				case isFlag && at.Flags().Lookup(name) == nil && root.PersistentFlags().Lookup(name) == nil:
					t.Errorf("the hint for %q has the flag %s, which '%s' has not", typed, word, at.CommandPath())
				case isFlag || !strings.HasPrefix(word, strings.ToLower(word)):
					continue
				}
				if c := child(at, word); c != nil {
					at = c
				} else if at.HasSubCommands() {
					t.Errorf("the hint for %q is %q, and '%s' has no command %q", typed, m[1], at.CommandPath(), word)
				}
			}
			if at == root {
				t.Errorf("the hint for %q names no command: %q", typed, hint)
			}
		}
	}
	for word, hint := range cli.OtherWords() {
		if child(root, word) != nil {
			t.Errorf("%q is a command, so its hint is never shown", word)
		}
		if len(quoted.FindAllString(hint, 1)) == 0 {
			t.Errorf("the hint for %q has no command: %q", word, hint)
		}
		check(word, hint)
	}
	for words, hint := range cli.NounWords() {
		noun, verb, _ := strings.Cut(words, " ")
		at := child(root, noun)
		if at == nil {
			t.Errorf("%q begins with no noun", words)
			continue
		}
		if child(at, verb) != nil {
			t.Errorf("%q is a command, so its hint is never shown", words)
		}
		check(words, hint)
	}
}

func child(c *cobra.Command, name string) *cobra.Command {
	for _, sub := range c.Commands() {
		if sub.Name() == name {
			return sub
		}
	}
	return nil
}
