package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/programs"
	"github.com/gpushare/gpushare/test/silentfs"
)

// The Epilog of Slurm writes the reason of an end where the job's user wants its output, with the rights of that user, and ends where that
// never returns: Slurm keeps the node until its Epilog has ended.
func TestSlurmEpilogEndsWhateverTheOutputIs(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("it becomes the user of the job, which needs root")
	}
	script, err := filepath.Abs(filepath.Join(root, "examples/slurm/epilog.sh"))
	if err != nil {
		t.Fatal(err)
	}
	fs := silentfs.Start(t, 65534)
	own := filepath.Join(t.TempDir(), "output")
	if err := os.WriteFile(own, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, output, says string }{
		{"a file system that never answers", fs.Path(silentfs.Lost), "this is not in its output"},
		{"a file of another user", own, "this is not in its output"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bin := t.TempDir()
			said := filepath.Join(bin, "said")
			for name, body := range map[string]string{
				"gpushare": `case $2 in show) echo "reason  it had 20 GiB of 12 GiB" ;; *) echo released >>"$SAID" ;; esac`,
				"scontrol": fmt.Sprintf(`echo "   StdErr=%s"`, c.output),
				"logger":   `echo "$*" >>"$SAID"`,
			} {
				if err := programs.Write(filepath.Join(bin, name), "#!/bin/sh\n"+body+"\n"); err != nil {
					t.Fatal(err)
				}
			}
			// It may take its two seconds for each of a few commands, and a busy host some more.
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", script)
			cmd.Env = []string{
				"PATH=" + bin + ":" + os.Getenv("PATH"), "SAID=" + said,
				"SLURM_CLUSTER_NAME=lab", "SLURM_JOB_ID=1", "SLURM_JOB_UID=65534", "SLURM_JOB_GID=65534",
			}
			cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
			cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
			cmd.WaitDelay = time.Second
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			b, err := os.ReadFile(said)
			if err != nil || !strings.HasPrefix(string(b), "released\n") || !strings.Contains(string(b), c.says) {
				t.Errorf("it did and said %q, %v", b, err)
			}
		})
	}
	if b, err := os.ReadFile(own); err != nil || len(b) > 0 {
		t.Errorf("it wrote %q with the rights of root, %v", b, err)
	}
}

// Slurm ends a job by SIGTERM to all processes of its cgroup, where the Prolog and the Epilog run too: one that it ends drains the node.
func TestSlurmScriptsOutliveTheEndOfTheirJob(t *testing.T) {
	t.Parallel()
	for script, did := range map[string]string{"prolog.sh": "has a lease", "epilog.sh": "released"} {
		path, err := filepath.Abs(filepath.Join(root, "examples/slurm", script))
		if err != nil {
			t.Fatal(err)
		}
		bin := t.TempDir()
		said := filepath.Join(bin, "said")
		for name, body := range map[string]string{
			"gpushare": `case $2 in
			prolog) kill -TERM "$SCRIPT" && echo "has a lease" >>"$SAID" ;;
			show) kill -TERM "$SCRIPT" ;;
			*) echo released >>"$SAID" ;;
			esac`,
			"scontrol": `exit 1`,
			"logger":   `echo "$*" >>"$SAID"`,
		} {
			if err := programs.Write(filepath.Join(bin, name), "#!/bin/sh\n"+body+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		// It may take its two seconds for each of a few commands, and a busy host some more.
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c", `SCRIPT=$$ exec sh "$1"`, "sh", path)
		cmd.Env = []string{
			"PATH=" + bin + ":" + os.Getenv("PATH"), "SAID=" + said, "GPUSHARE_PROLOG_SECONDS=60",
			"SLURM_CLUSTER_NAME=lab", "SLURM_JOB_ID=1", "SLURM_JOB_UID=65534", "SLURM_JOB_GID=65534",
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
		if b, err := os.ReadFile(said); err != nil || !strings.Contains(string(b), did) {
			t.Errorf("%s did %q, %v", script, b, err)
		}
	}
}
