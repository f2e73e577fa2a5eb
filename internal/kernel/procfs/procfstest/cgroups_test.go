package procfstest

import (
	"strings"
	"testing"
)

func TestChangedCgroups(t *testing.T) {
	t.Parallel()
	const cpu, systemd, unified = "2:cpu:/\n", "1:name=systemd:/user\n", "0::/user\n"
	const before = cpu + systemd + unified
	for _, c := range []struct{ name, now, want string }{
		{"nothing", before, ""},
		{"others mounted a hierarchy", "3:name=other:/\n" + before, ""},
		{"others unmounted one", systemd + unified, ""},
		{"others mounted one again", "7:cpu:/\n" + systemd + unified, ""},
		{"in a cgroup of a new hierarchy", "3:name=other:/gpushare\n" + before, "name=other"},
		{"in another cgroup of an old one", "2:cpu:/gpushare\n" + systemd + unified, "cpu"},
		{"at the top of an old one", cpu + "1:name=systemd:/\n" + unified, "name=systemd"},
		{"in another cgroup of version 2", cpu + systemd + "0::/gpushare\n", `""`},
		{"the hierarchy of earlier versions", "3:name=gpushare:/\n" + before, "name=gpushare"},
		{"the other one of earlier versions", "3:name=gpushare-moves:/\n" + before, "name=gpushare-moves"},
	} {
		got := parseCgroups(before).Changed(parseCgroups(c.now))
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
