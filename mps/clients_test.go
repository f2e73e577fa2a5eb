package mps

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseClients(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, answer string
		servers      int
		want         []int
		fails        bool
	}{
		{"one server", "30.0\n12\n11\n30.0\n", 1, []int{11, 12}, false},
		{"no client", "100.0\n100.0\n", 1, nil, false},
		{"two servers", "100.0\n7\n100.0\n100.0\n8\n100.0\n", 2, []int{7, 8}, false},
		{"a busy server answers nothing", "", 1, nil, true},
		{"one of two servers is busy", "100.0\n7\n100.0\n", 2, nil, true},
		{"it became busy in between", "100.0\n", 1, nil, true},
		{"it has ended", "Server 7 not found\nServer 7 not found\nServer 7 not found\n", 1, nil, true},
		{"not a pid", "100.0\nx\n100.0\n", 1, nil, true},
		{"not a percentage", "100.0\n7.5.3\n100.0\n", 1, nil, true},
	} {
		got, err := ParseClients([]byte(c.answer), c.servers)
		if d := cmp.Diff(c.want, got); d != "" && !c.fails || (err != nil) != c.fails {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

// The most clients follow the version of the program that is installed; of an unknown one the least is assumed.
func TestMaxClients(t *testing.T) {
	t.Parallel()
	for branch, want := range map[int]int{535: 48, 550: 48, 570: 48, 580: 48, 595: 48, 600: 48, 615: 60, 700: 48, 0: 48} {
		if got := (&State{Program: Release{Branch: branch}}).MaxClients(); got != want {
			t.Errorf("branch %d: %d clients, want %d", branch, got, want)
		}
	}
}
