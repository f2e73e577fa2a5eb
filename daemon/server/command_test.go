package server

import (
	"testing"

	"github.com/gpushare/gpushare/api"
)

func TestFirstWord(t *testing.T) {
	for _, c := range []struct {
		name    string
		command []string
		want    string
	}{
		{"a command", []string{"/usr/bin/python3", "train.py", "--token=x"}, "python3"},
		{"a title", []string{"python3 --token=/a/x"}, "python3"},
		{"a path with a space", []string{"/opt/my tools/run"}, "my"},
		{"a cgroup", []string{"/user.slice/jobs"}, "jobs"},
		{"spaces", []string{"  ", "x"}, ""},
		{"an empty word", []string{"", "x"}, ""},
		{"nothing", nil, ""},
	} {
		if got := FirstWord(c.command); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestWhoReadsCommands(t *testing.T) {
	leases := []api.Lease{{ID: "a", UID: 1001, Command: []string{"/bin/sh", "-c", "secret"}}, {ID: "b", UID: 1002}}
	for _, c := range []struct {
		name   string
		caller Caller
		words  int
	}{
		{"an administrator", Caller{Peer: &Peer{UID: 1002}, Admin: true}, 3},
		{"its user", Caller{Peer: &Peer{UID: 1001}}, 3},
		{"its user, who observes too", Caller{Peer: &Peer{UID: 1001}, Observer: true}, 3},
		{"an observer", Caller{Peer: &Peer{UID: 1002}, Observer: true}, 1},
		{"a colleague", Caller{Peer: &Peer{UID: 1002}, Tenants: []string{"vision"}}, 1},
	} {
		got := c.caller.HideCommands(leases)
		if len(got[0].Command) != c.words || len(got[1].Command) != 0 {
			t.Errorf("%s reads %q and %q", c.name, got[0].Command, got[1].Command)
		}
	}
	if len(leases[0].Command) != 3 {
		t.Error("the list was changed")
	}
}
