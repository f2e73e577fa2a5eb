package launch

import "testing"

// A process sets its name and its groups, which are in its status, and most of its limits.
func FuzzAttributes(f *testing.F) {
	f.Add("Name:\tpython\nGroups:\t4 24 \nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\nCapBnd:\t000001ffffffffff\n")
	f.Add(
		"Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 unlimited            files     \n",
	)
	f.Fuzz(func(t *testing.T, text string) {
		var c Confinement
		if err := c.parseStatus(text); err == nil && c.Filters < 0 {
			t.Errorf("%d filters of %q", c.Filters, text)
		}
		for number, l := range parseLimits(text) {
			if number < 0 || number > 15 {
				t.Errorf("limit %d is %v of %q", number, l, text)
			}
		}
	})
}
