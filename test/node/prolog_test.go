package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// runExample runs a script of the example.
func runExample(t *testing.T, n *harness.Node, script string, env ...string) (code int, out, errs string) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, "examples/prolog", script))
	if err != nil {
		t.Fatal(err)
	}
	return runIn(t, n, exec.CommandContext(soon(t), "sh", path), env...)
}

// runIn runs a command with these variables, and with those of the node's shell but for the ones that say where notes are.
func runIn(t *testing.T, n *harness.Node, cmd *exec.Cmd, env ...string) (code int, out, errs string) {
	t.Helper()
	cmd.Env = slices.DeleteFunc(n.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "JOB_NOTES=") || strings.HasPrefix(v, "XDG_RUNTIME_DIR=")
	})
	cmd.Env = append(cmd.Env, env...) // A later value of a variable counts.
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	_ = cmd.Run() // The exit code is checked.
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// The notes are in JOB_NOTES, else in XDG_RUNTIME_DIR, which a batch system does not set, else in a directory of /run. Who cannot
// write there gets no lease, and reads why.
func TestPrologNotes(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	job := startOutside(t, n, 0, "sleep", "60")
	const fallback = "/run/gpushare-prolog"
	named, runtime, run := t.TempDir(), t.TempDir(), t.TempDir()
	// The directory in /run is one for the whole host: root has a /run of its own for the example.
	const ownRun = `mount --bind "$1" /run && exec sh "$2"`
	if os.Geteuid() == 0 {
		if out, err := exec.CommandContext(soon(t), "unshare", "--mount", "sh", "-c", ownRun, "sh", run, os.DevNull).
			CombinedOutput(); err != nil {
			t.Skipf("root needs a mount namespace for a /run of its own: %v: %s", err, out)
		}
	}
	example := func(script string, env ...string) (code int, out, errs string) {
		if os.Geteuid() != 0 {
			return runExample(t, n, script, env...)
		}
		path, err := filepath.Abs(filepath.Join(root, "examples/prolog", script))
		if err != nil {
			t.Fatal(err)
		}
		return runIn(t, n, exec.CommandContext(
			soon(t), "unshare", "--mount", "sh", "-c", ownRun, "sh", run, path,
		), env...)
	}
	for i, c := range []struct {
		name string
		env  []string
		dir  string
	}{
		{"both are set", []string{"JOB_NOTES=" + named, "XDG_RUNTIME_DIR=" + runtime}, named},
		{"without JOB_NOTES", []string{"XDG_RUNTIME_DIR=" + runtime}, runtime},
		{"an empty JOB_NOTES", []string{"JOB_NOTES=", "XDG_RUNTIME_DIR=" + runtime}, runtime},
		{"with neither", nil, fallback},
		{"both are empty", []string{"JOB_NOTES=", "XDG_RUNTIME_DIR="}, fallback},
	} {
		id := fmt.Sprintf("%d.%d", os.Getpid(), i)
		dir := c.dir
		if dir == fallback {
			dir = filepath.Join(run, filepath.Base(fallback))
		}
		note := filepath.Join(dir, "gpushare-lease."+id)
		env := append(c.env, "JOB_ID="+id)
		code, out, errs := example(
			"prolog.sh", append(env, "JOB_TENANT=red", "JOB_GRANT=whole", fmt.Sprintf("JOB_PID=%d", job.pid()))...)
		if c.dir == fallback && os.Geteuid() != 0 {
			if leases := status(t, n).Leases; code == 0 || !strings.Contains(errs, fallback) || len(leases) > 0 {
				t.Errorf("%s: as an ordinary user it exits with %d, and the leases are %+v: %s", c.name, code, leases, errs)
			}
			continue
		}
		b, err := os.ReadFile(note)
		leases := status(t, n).Leases
		if code != 0 || err != nil || len(leases) != 1 || strings.TrimSpace(string(b)) != leases[0].ID {
			t.Errorf("%s: it exits with %d, the note is %q, %v, and the leases are %+v: %s%s", c.name, code, b, err, leases, out, errs)
		}
		code, _, errs = example("epilog.sh", env...)
		if _, err := os.Stat(note); code != 0 || !errors.Is(err, fs.ErrNotExist) || len(status(t, n).Leases) > 0 {
			t.Errorf("%s: the epilog exits with %d, and leaves a note (%v) or a lease: %s", c.name, code, err, errs)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Remove(filepath.Join(run, filepath.Base(fallback))); err != nil {
			t.Errorf("the example leaves more than its directory, or has not used it: %v", err)
		}
	}
}

// The example of a job prolog and epilog works.
func TestPrologAndEpilog(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	notes := t.TempDir()
	run := func(script string, env ...string) (code int, out, errs string) {
		t.Helper()
		return runExample(t, n, script, append([]string{"JOB_NOTES=" + notes}, env...)...)
	}
	job := startOutside(t, n, 0, "sleep", "60")
	mine := []string{"JOB_ID=42", "JOB_TENANT=red", "JOB_GRANT=whole", fmt.Sprintf("JOB_PID=%d", job.pid())}
	code, out, errs := run("prolog.sh", mine...)
	if code != 0 || !strings.Contains(errs, "not enforced: device rules") {
		t.Fatalf("the prolog exits with %d: %s%s", code, out, errs)
	}
	s := status(t, n)
	if len(s.Leases) != 1 || s.Leases[0].PID != job.pid() || s.Leases[0].Origin != api.OriginAttached ||
		s.Leases[0].Command[0] != "job-42" {
		t.Fatalf("the leases are %+v", s.Leases)
	}
	for _, want := range []string{"export CUDA_VISIBLE_DEVICES=" + s.GPUs[3].UUID, "export GPUSHARE_LEASE=" + s.Leases[0].ID, "unset CUDA_MPS_PIPE_DIRECTORY"} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("the prolog does not print %q:\n%s", want, out)
		}
	}

	// The next job finds no free GPU, and its epilog does nothing.
	other := startOutside(t, n, 0, "sleep", "60")
	next := []string{"JOB_ID=43", "JOB_TENANT=red", "JOB_GRANT=whole", fmt.Sprintf("JOB_PID=%d", other.pid())}
	if code, _, errs := run("prolog.sh", next...); code != api.ExitUnreachable {
		t.Errorf("a prolog without a free GPU exits with %d: %s", code, errs)
	}
	if code, _, errs := run("epilog.sh", "JOB_ID=43"); code != 0 {
		t.Errorf("its epilog exits with %d: %s", code, errs)
	}
	if code, _, _ := run("prolog.sh", "JOB_TENANT=red"); code == 0 {
		t.Error("a prolog without a job exits with 0")
	}
	if left, err := filepath.Glob(notes + "/*"); err != nil || len(left) != 1 {
		t.Errorf("a prolog without a lease leaves notes: %q, %v", left, err)
	}

	// Slurm drains a node whose prolog fails, and runs a task prolog for the script and for each of its tasks: no lease is taken.
	for _, env := range [][]string{{"SLURM_JOB_ID=44"}, append([]string{"SLURM_JOB_ID=44", "SLURM_PROCID=0", fmt.Sprintf("SLURM_TASK_PID=%d", other.pid())}, next...)} {
		for _, script := range []string{"prolog.sh", "epilog.sh"} {
			if code, out, errs := run(script, env...); code != 0 || out != "" {
				t.Errorf("under Slurm %s exits with %d: %s%s", script, code, out, errs)
			}
		}
	}
	if s := status(t, n); len(s.Leases) != 1 {
		t.Errorf("under Slurm there are the leases %+v", s.Leases)
	}

	for range 2 { // The second time the lease has already ended.
		if code, _, errs := run("epilog.sh", "JOB_ID=42"); code != 0 {
			t.Errorf("the epilog exits with %d: %s", code, errs)
		}
	}
	if s := status(t, n); len(s.Leases) != 0 || !job.living() {
		t.Errorf("after the epilog: leases %+v, the job runs: %v", s.Leases, job.living())
	}

	// Where no note can be written, no lease is taken: the epilog could not release it.
	file := filepath.Join(notes, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := run("prolog.sh", append(mine, "JOB_NOTES="+file+"/none")...); code == 0 {
		t.Errorf("a prolog without notes exits with 0: %s", errs)
	}
	if s := status(t, n); len(s.Leases) != 0 {
		t.Errorf("a prolog that failed left the leases %+v", s.Leases)
	}
}
