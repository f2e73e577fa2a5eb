package lease

import (
	"strings"
	"testing"
)

// While a spec that gives a grant less is being accepted, no lease is promised what it would not have under it.
func TestAmountsOfAComingSpec(t *testing.T) {
	t.Parallel()
	tab, _ := table(t, ownView())
	next := ownView()
	next.Generation, next.Grants = 2, []Grant{timeslice("a", "x", 20, 6*gib)}
	submit := func(key string, own Own) error {
		_, err := tab.Submit(Request{Tenant: "a", Admin: true, Origin: OriginAttached, Engine: &Engine{Key: key}, Own: own})
		return err
	}
	expect := func() func() { return tab.Expect(2, map[Key]Grant{next.Grants[0].Key(): next.Grants[0]}) }
	withdraw := expect()
	for _, c := range []struct {
		key  string
		own  Own
		says string
	}{
		{"slurm:1", Own{Memory: 8 * gib}, "under the spec that is being applied grant x has 6 GiB"},
		{"slurm:2", Own{Share: 25}, "under the spec that is being applied grant x has 20%"},
		{"slurm:3", Own{Memory: 4 * gib}, ""},
		{"slurm:4", Own{Memory: 4 * gib}, "under the spec that is being applied grant x has 2 GiB of its 6 GiB left"},
	} {
		if err := submit(c.key, c.own); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.key, err, c.says)
		}
	}
	withdraw()
	if err := submit("slurm:4", Own{Memory: 4 * gib}); err != nil {
		t.Errorf("after the spec was refused: %v", err)
	}
	expect()
	tab.Update(ownView()) // Not that one.
	if err := submit(
		"slurm:5",
		Own{Memory: 1 * gib},
	); err == nil ||
		!strings.Contains(err.Error(), "under the spec that is being applied") {
		t.Errorf("before the table has the spec: %v", err)
	}
	tab.Update(next)
	if err := submit("slurm:5", Own{Memory: 1 * gib}); err == nil || strings.Contains(err.Error(), "under the spec that is being applied") {
		t.Errorf("when the table has the spec: %v", err)
	}
}
