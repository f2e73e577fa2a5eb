package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

// duration is a flag in the form of api.ParseDuration; nil: it was not given.
type duration struct{ at **api.Duration }

func (d duration) Set(s string) error {
	v, err := api.ParseDuration(s)
	if err == nil {
		*d.at = &v
	}
	return err
}

func (d duration) Type() string { return "duration" }

func (d duration) String() string {
	if d.at == nil || *d.at == nil {
		return ""
	}
	return (*d.at).String()
}

// waitFlag is the flag --wait, whose value may follow it as another word, and may be left out.
func waitFlag(c *cobra.Command, at **api.Duration) {
	f := c.Flags()
	f.Var(duration{at}, "wait", "wait in the queue if nothing is free, at most this long, as in 10m or 1d (--wait alone or --wait=0: no limit)")
	f.Lookup("wait").NoOptDefVal = "0s"
}

// joinWait writes '--wait 3s' as '--wait=3s', because a flag whose value may be left out does not take the next word. A word
// that is no duration stays where it is: it is the command.
func joinWait(root *cobra.Command, args []string) []string {
	c, rest, err := root.Find(args)
	if err != nil || c.Flags().Lookup("wait") == nil {
		return args
	}
	out := strings.Fields(c.CommandPath())[1:]
	for i := 0; i < len(rest); i++ {
		word := rest[i]
		out = append(out, word)
		switch {
		case word == "--" || !strings.HasPrefix(word, "-"):
			return append(out, rest[i+1:]...)
		case word == "--wait" && i+1 < len(rest) && durationLike(rest[i+1]):
			out[len(out)-1] += "=" + rest[i+1]
			i++
		case i+1 < len(rest) && takesNext(c, word):
			i++
			out = append(out, rest[i])
		}
	}
	return out
}

// durationLike reports whether a word is a duration, or nothing but a number that a user took for one: then --wait refuses it
// with the reason.
func durationLike(word string) bool {
	_, err := api.ParseDuration(word)
	return err == nil || word != "" && word[0] >= '0' && word[0] <= '9' && strings.Trim(word, "0123456789.:-") == ""
}

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
