package node

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/enumeration"
)

// A damaged state file is set aside and reported. No instance is destroyed, and no process is stopped.
func TestDamagedState(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	apply(t, n, replaced(t, shared, "share: 30%", "share: 31%"))
	was := truth(t, n)
	job, id := begin(t, n, "red", "part", "sleep", "60")
	state := filepath.Join(n.Dir, "state")
	for _, c := range []struct {
		name  string
		files []string // that are damaged
		keeps bool     // the spec before the last is in force
	}{
		{"the newest", []string{"state.json"}, true},
		{"all", []string{"state.json", "state.previous.json"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.KillDaemon()
			for _, f := range c.files {
				path := filepath.Join(state, f)
				b, err := os.ReadFile(path)
				if !c.keeps && errors.Is(err, fs.ErrNotExist) {
					continue // The damaged one was set aside, and nothing was written since.
				}
				if err != nil {
					entries, _ := os.ReadDir(state) // For the failure message only.
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
			s := awaitChange(t, n)
			reported := false
			for _, cond := range s.Node.Conditions {
				reported = reported || cond.Kind == "state" && cond.Hint != ""
			}
			if !reported {
				t.Errorf("no condition reports it: %+v", s.Node.Conditions)
			}
			if (s.Node.Generation > 0) != c.keeps {
				t.Errorf("generation %d is in force", s.Node.Generation)
			}
			if got := truth(t, n); got != was {
				t.Errorf("the layout was changed\n got %s\nwant %s", got, was)
			}
			if leaseByID(s, id) == nil {
				t.Errorf("the lease is lost: %+v", s.Leases)
			}
			select {
			case <-job.Done():
				t.Errorf("a process was stopped: %s", job.Output())
			default:
			}
		})
	}
	if r := n.CLIIn(soon(t), shared, "apply", "-f", "-"); r.Code != 0 {
		t.Errorf("a second apply exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	if got := truth(t, n); got != was {
		t.Errorf("applying again changed the layout\n got %s\nwant %s", got, was)
	}
}

// A state of a format that this version does not read is refused, and nothing is changed: no file, no layout, no process.
func TestStateOfAnotherFormat(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	was := truth(t, n)
	job, _ := begin(t, n, "red", "part", "sleep", "60")
	n.StopDaemon()
	older, err := os.ReadFile("../../testdata/state/format-1.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(n.Dir, "state")
	for _, name := range []string{"state.json", "state.previous.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), older, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{}, {"-attach-login-filter"}} {
		cmd := exec.CommandContext(
			soon(t),
			filepath.Join(n.Bin, "gpushared"),
			append([]string{"--settings", filepath.Join(n.Dir, "gpushared.yaml")}, args...)...)
		cmd.Env = append(os.Environ(), n.Env...)
		out, _ := cmd.CombinedOutput() // The exit code is checked.
		if code := cmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(string(out), "format 1, this one reads 2") ||
			!strings.Contains(string(out), "gpushare release") {
			t.Errorf("gpushared %v exits with %d: %s", args, code, out)
		}
	}
	for _, name := range []string{"state.json", "state.previous.json"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != string(older) {
			t.Errorf("%s was changed (%v): %s", name, err, b)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "state.corrupt-1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was put aside as damaged: %v", err)
	}
	if r := n.CLI(soon(t), "unmanage", "--check", "--settings", filepath.Join(n.Dir, "gpushared.yaml")); r.Code != 5 ||
		!strings.Contains(r.Err, "format 1, this one reads 2") {
		t.Errorf("unmanage --check exits with %d: %s%s", r.Code, r.Out, r.Err)
	}
	select {
	case <-job.Done():
		t.Errorf("a lease's command was stopped: %s", job.Output())
	default:
	}
	for _, name := range []string{"state.json", "state.previous.json"} {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(n.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	awaitChange(t, n)
	if got := truth(t, n); got != was {
		t.Errorf("the layout was changed\n got %s\nwant %s", got, was)
	}
}
