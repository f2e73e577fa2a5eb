package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A state that cannot be read is put aside and told of. Nothing is destroyed for it, and nobody is stopped.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	apply(t, n, strings.Replace(shared, "share: 30%", "share: 31%", 1))
	was := truth(t, n)
	job, id := begin(t, n, "red", "part", "sleep", "60")
	state := filepath.Join(n.Dir, "state")
	for _, c := range []struct {
		name  string
		files []string // that are damaged
		keeps bool     // the spec before the last is in force
	}{
		{"the newest", []string{"state.json"}, true},
		{"the one before it too", []string{"state.previous.json"}, false}, // there is no other now
	} {
		t.Run(c.name, func(t *testing.T) {
			n.KillDaemon()
			for _, f := range c.files {
				path := filepath.Join(state, f)
				b, err := os.ReadFile(path)
				if err != nil {
					entries, _ := os.ReadDir(state) // It is for the eyes only.
					t.Fatalf("%v, there is %v", err, entries)
				}
				b[len(b)/2] ^= 0xff
				if err := os.WriteFile(path, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatal(err)
			}
			s := settled(t, n)
			told := false
			for _, cond := range s.Node.Conditions {
				told = told || cond.Kind == "state" && cond.Hint != ""
			}
			if !told {
				t.Errorf("nobody is told: %+v", s.Node.Conditions)
			}
			if (s.Node.Generation > 0) != c.keeps {
				t.Errorf("generation %d is in force", s.Node.Generation)
			}
			if got := truth(t, n); got != was {
				t.Errorf("the layout was changed\n got %s\nwant %s", got, was)
			}
			if leaseByID(s, id) == nil {
				t.Errorf("the lease is forgotten: %+v", s.Leases)
			}
			select {
			case <-job.Done():
				t.Errorf("somebody was stopped: %s", job.Output())
			default:
			}
		})
	}
	if r := n.CLIIn(soon(t), shared, "apply", "-f", "-"); r.Code != 0 {
		t.Errorf("to apply again exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if got := truth(t, n); got != was {
		t.Errorf("applying again changed the layout\n got %s\nwant %s", got, was)
	}
}
