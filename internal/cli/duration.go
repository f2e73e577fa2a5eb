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
	f.Var(
		duration{at}, "wait",
		"wait in the queue if nothing is free, at most this long, as in 10m or 1d (--wait alone or --wait=0: no limit)",
	)
	f.Lookup("wait").NoOptDefVal = "0s"
}

// durationLike reports whether a word is a duration, or nothing but a number that a user took for one: then --wait refuses it
// with the reason.
func durationLike(word string) bool {
	_, err := api.ParseDuration(word)
	return err == nil || word != "" && word[0] >= '0' && word[0] <= '9' && strings.Trim(word, "0123456789.:-") == ""
}
