package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// optionalValues are the flags whose value may be left out, with what is a value and no other word.
var optionalValues = map[string]func(string) bool{"wait": durationLike, "plot": fileLike}

// joinValues writes '--wait 3s' as '--wait=3s', because a flag whose value may be left out does not take the next word. A word
// that is no value stays where it is: after --wait it is the command.
func joinValues(root *cobra.Command, args []string) []string {
	c, rest, err := root.Find(args)
	if err != nil || !hasOptionalValue(c) {
		return args
	}
	out := strings.Fields(c.CommandPath())[1:]
	for i := 0; i < len(rest); i++ {
		word := rest[i]
		out = append(out, word)
		name, long := strings.CutPrefix(word, "--")
		isValue := optionalValues[name]
		switch {
		case word == "--" || !strings.HasPrefix(word, "-") && takesCommand(c):
			return append(out, rest[i+1:]...)
		case !strings.HasPrefix(word, "-"):
		case long && isValue != nil && c.Flags().Lookup(name) != nil && i+1 < len(rest) && isValue(rest[i+1]):
			out[len(out)-1] += "=" + rest[i+1]
			i++
		case i+1 < len(rest) && takesNext(c, word):
			i++
			out = append(out, rest[i])
		}
	}
	return out
}

// takesCommand reports whether the first word that is no flag begins a command of the user, whose flags are its own.
func takesCommand(c *cobra.Command) bool { return c.Name() == "run" }

func hasOptionalValue(c *cobra.Command) bool {
	for name := range optionalValues {
		if c.Flags().Lookup(name) != nil {
			return true
		}
	}
	return false
}

// fileLike reports whether a word is the name of a file, or - for standard output.
func fileLike(word string) bool { return word == "-" || word != "" && word[0] != '-' }

// takesNext reports whether the value of the flag is the next word.
func takesNext(c *cobra.Command, word string) bool {
	if name, long := strings.CutPrefix(word, "--"); long {
		f := c.Flag(name)
		return f != nil && f.NoOptDefVal == ""
	}
	for i, letter := range word[1:] {
		if f := c.Flags().ShorthandLookup(string(letter)); f != nil && f.NoOptDefVal == "" {
			return i == len(word)-2 // Otherwise the rest of the word is its value.
		}
	}
	return false
}
