package spec

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChanges(t *testing.T) {
	const base = `version: v1
node: {enforce: observe}
gpus:
  - {select: {index: 0}, mode: timeslice}
  - {select: {index: [1, 2]}, mode: exclusive}
tenants:
  - name: vision
    members: {users: [alice, bob]}
    grants:
      - {name: dev, timeslice: {share: 40%, gpu_memory: 4GiB}}
`
	edit := func(old, new string) string {
		if !strings.Contains(base, old) {
			t.Fatalf("the spec has no %q", old)
		}
		return strings.Replace(base, old, new, 1)
	}
	many := "version: v1\ntenants:\n"
	for i := range 30 {
		many += fmt.Sprintf("  - {name: t%02d}\n", i)
	}
	for _, c := range []struct {
		name, before, after string
		want                []string
	}{
		{"nothing", base, base, nil},
		{"the first", "", "version: v1\nnode: {enforce: on}\ntenants: [{name: a}]\n", []string{"node.enforce: on", "+ tenants.a"}},
		{"a setting of the node", base, edit("observe", "on"), []string{"node.enforce: observe → on"}},
		{"another mode", base, edit("mode: exclusive", "mode: mps"), []string{"gpus.1,2.mode: exclusive → mps"}},
		{"another selector", base, edit("[1, 2]", "[1]"), []string{"+ gpus.1", "- gpus.1,2"}},
		{"a kind of board", base, edit("{index: 0}", `{pci_id: ["10de:20b0"]}`), []string{"- gpus.0", "+ gpus.10de:20b0"}},
		{
			"a layout by properties", edit("mode: timeslice", "mode: mig, mig: {layout: [3g.20gb, 1g.5gb]}"),
			edit("mode: timeslice", "mode: mig, mig: {layout: [3g.20gb, {slices: 1, gpu_memory: '>=8GiB'}]}"),
			[]string{`gpus.0.mig.layout: + {"gpu_memory":">=8GiB","slices":1}, - 1g.5gb`},
		},
		{"members", base, edit("[alice, bob]", "[carol, alice]"), []string{"tenants.vision.members.users: + carol, - bob"}},
		{"their order", base, edit("[alice, bob]", "[bob, alice]"), []string{"tenants.vision.members.users: another order"}},
		{"a share", base, edit("40%", "50%"), []string{"tenants.vision.grants.dev.timeslice.share: 40% → 50%"}},
		{"another grant", base, base + "      - {name: whole, exclusive: 1}\n", []string{"+ tenants.vision.grants.whole"}},
		{"a value that was not there", base, edit("    grants:", "    tasks: 100\n    grants:"), []string{"tenants.vision.tasks: 100"}},
		{"a tenant less", base + "  - {name: speech}\n", base, []string{"- tenants.speech"}},
		{"an unreadable one", "version: v9\n", base, []string{"the spec before cannot be read by this version"}},
		{"into an unreadable one", base, "x", []string{"this version cannot read it"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Changes(c.before, c.after)); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := Changes("", many); len(got) != mostChanges+1 || got[mostChanges] != "and 10 more" {
		t.Errorf("many changes are %q", got)
	}
}
