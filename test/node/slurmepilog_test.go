package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/enumeration"
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

// What writes to the output has the limit of a command too: it would be in the cgroup of slurmd for good without.
func TestSlurmEpilogLeavesNothing(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	bin := t.TempDir()
	fifo := filepath.Join(bin, "fifo") // It ends when the last process that writes to it has.
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	end, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	for name, body := range map[string]string{
		"gpushare": `case $2 in show) echo "reason  it had 20 GiB of 12 GiB" ;; esac`,
		"scontrol": "echo '   StdErr=/dev/null'",
		"logger":   "",
		"setpriv":  `exec 3>"$FIFO"; echo begun >&3; exec sleep 3600`,
	} {
		if err := programs.Write(filepath.Join(bin, name), "#!/bin/sh\n"+body+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", filepath.Join(root, "examples/slurm/epilog.sh"))
	cmd.Env = []string{
		"PATH=" + bin + ":" + os.Getenv(
			"PATH",
		),
		"FIFO=" + fifo,
		"GPUSHARE_PROLOG_SECONDS=5",
		"SLURM_CLUSTER_NAME=lab",
		"SLURM_JOB_ID=1",
		"SLURM_JOB_UID=65534",
		"SLURM_JOB_GID=65534",
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := end.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(end); string(b) != "begun\n" || err != nil {
		t.Errorf("what wrote to the output said %q, and has not ended: %v", b, err)
	}
}

// Every node of a cluster has the scripts, also one without GPUs and without gpushare: there they do nothing, and succeed.
func TestSlurmScriptsWithoutGpushare(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"/usr/local/bin", "/opt/slurm/bin"} { // The scripts look there too.
		if _, err := os.Stat(filepath.Join(dir, "gpushare")); err == nil {
			t.Skipf("gpushare is installed in %s", dir)
		}
	}
	bin := t.TempDir()
	said := filepath.Join(bin, "said")
	for _, name := range []string{"logger", "timeout", "scontrol"} {
		if err := programs.Write(filepath.Join(bin, name), "#!/bin/sh\necho \"$0 $*\" >>\"$SAID\"\nexit 127\n"); err != nil {
			t.Fatal(err)
		}
	}
	for _, script := range []string{"prolog.sh", "epilog.sh", "health.sh"} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/bin/sh", filepath.Join(root, "examples/slurm", script))
		cmd.Env = []string{
			"PATH=" + bin, "SAID=" + said, "SLURM_CLUSTER_NAME=lab", "SLURM_JOB_ID=1", "SLURM_JOB_UID=65534", "SLURM_JOB_GID=65534",
		}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	if b, err := os.ReadFile(said); err == nil {
		t.Errorf("they ran %s", b)
	}
}

// Slurm ends a job by SIGTERM to all processes of its cgroup, and sends what 'scancel --signal' says, where the Prolog and the Epilog run too:
// one that a signal ends drains the node.
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
			prolog) for s in TERM HUP INT QUIT USR1 USR2; do kill -$s "$SCRIPT"; done && echo "has a lease" >>"$SAID" ;;
			show) for s in TERM HUP INT QUIT USR1 USR2; do kill -$s "$SCRIPT"; done ;;
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
