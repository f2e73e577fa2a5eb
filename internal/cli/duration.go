package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

// duration is a flag in the form of api.ParseDuration; nil: it was not given.
type duration struct{ at **api.Duration }

func (d duration) Set(s string) error {
	v, err := api.ParseDuration(s)
	if err != nil {
		return wrongDuration{err}
	}
	*d.at = &v
	return nil
}

// wrongDuration is why a duration cannot be read, without the name of its flag.
type wrongDuration struct{ error }

func (d duration) Type() string { return "duration" }

func (d duration) String() string {
	if d.at == nil || *d.at == nil {
		return ""
	}
	return (*d.at).String()
}

// noLimit is a wait without a limit.
const noLimit = 365 * 24 * time.Hour

// waitLimit is how long a wait lasts at most: every wait of 0 has no limit.
func waitLimit(d *api.Duration) time.Duration {
	if d == nil || *d == 0 {
		return noLimit
	}
	return time.Duration(*d)
}

// waitFlag is the flag --wait of a command that does not wait without it. Its value may follow it as another word, and may be left
// out. For what it waits is the first part of its help.
func waitFlag(c *cobra.Command, at **api.Duration, what string) {
	f := c.Flags()
	f.Var(duration{at}, "wait", what+", at most this long, as in 10m or 1d (--wait alone or --wait=0: no limit)")
	f.Lookup("wait").NoOptDefVal = "0s"
}

// timeoutFlag is the flag --timeout of a command that waits without it too. at has its default; nil: it has no limit.
func timeoutFlag(c *cobra.Command, at **api.Duration, what string) {
	c.Flags().Var(duration{at}, "timeout", what+", at most this long, as in 10m or 1d (0: no limit)")
}

// placeFlags are the flags of a request for a lease: where, and for how long.
func placeFlags(c *cobra.Command, gpus *[]string, limit **api.Duration) {
	f := c.Flags()
	f.StringSliceVarP(gpus, "gpu", "g", nil, "place it on this GPU, by its index or UUID; of several, as in 0,1, on any")
	f.Var(
		duration{limit}, "time",
		"end it after this time, as in 2h or 1-12:00:00, after a warning (default and at most: the max_time of the grant)",
	)
}

// durationLike reports whether a word is a duration, or nothing but a number that a user took for one: then --wait refuses it
// with the reason.
func durationLike(word string) bool {
	_, err := api.ParseDuration(word)
	return err == nil || word != "" && word[0] >= '0' && word[0] <= '9' && strings.Trim(word, "0123456789.:-") == ""
}
