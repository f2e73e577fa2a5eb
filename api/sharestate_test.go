package api

import "testing"

// TestShareStateIsSaid checks what is said of the share of a lease: that it is met only if it was measured to be.
func TestShareStateIsSaid(t *testing.T) {
	within := 6.4
	for name, c := range map[string]struct {
		share           LeaseShare
		qualifier, text string
	}{
		"met":          {LeaseShare{State: ShareMet, Enforced: true, Within: &within}, "", "met, within 6 points over 10 s"},
		"less":         {LeaseShare{State: ShareLess, Enforced: true, Why: "it does nothing"}, "", "it needs less than its share: it does nothing"},
		"not met":      {LeaseShare{State: ShareUnmet, Why: "it had 11% of the 55% that are due"}, " (not met)", "not met: it had 11% of the 55% that are due"},
		"not measured": {LeaseShare{State: ShareUnmeasured, Enforced: true, Why: "the driver is silent"}, " (not measured)", "not measured: the driver is silent"},
		"met by chance, and not enforced": {
			LeaseShare{State: ShareMet, Within: &within}, " (not enforced)", "met, within 6 points over 10 s",
		},
		"of an MPS server":            {LeaseShare{Advisory: true}, " (advisory)", ""},
		"of a daemon before this one": {LeaseShare{Enforced: true}, "", ""},
	} {
		if q, text := c.share.Qualifier(), c.share.StateText(); q != c.qualifier || text != c.text {
			t.Errorf("%s: %q, %q; want %q, %q", name, q, text, c.qualifier, c.text)
		}
	}
}
