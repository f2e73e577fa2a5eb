package slurm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// spankInclude is where the headers of Slurm are: SPANK_INCLUDE, or where packages put them.
func spankInclude(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("SPANK_INCLUDE")
	if dir == "" {
		dir = "/usr/include"
	}
	if _, err := os.Stat(filepath.Join(dir, "slurm/spank.h")); err != nil {
		t.Skipf(
			"needs the headers of Slurm, of Debian's libslurm-dev or slurm-wlm-basic-plugins-dev; SPANK_INCLUDE names where they are: %v",
			err,
		)
	}
	return dir
}

// buildSpank builds the plug-in as a site does, and a host for it.
func buildSpank(t *testing.T) (plugin, host string) {
	t.Helper()
	include, out := spankInclude(t), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), deadlineOfMake)
	defer cancel()
	host = filepath.Join(out, "host")
	for _, argv := range [][]string{
		{"make", "-s", "-C", "../../examples/slurm/spank", "INCLUDE=" + include, "OUT=" + out},
		{"cc", "-std=gnu11", "-Wextra", "-Werror", "-isystem", include, "-rdynamic", "-o", host, "testdata/spankhost.c", "-ldl"},
	} {
		if b, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, b)
		}
	}
	return filepath.Join(out, "gpushare.so"), host
}

// deadlineOfMake is for a compiler on a busy host.
const deadlineOfMake = 2 * time.Minute

// The SPANK plug-in gives amounts to the Prolog in one form, refuses others with a line before the job is submitted, and does nothing
// where the job runs.
func TestSpankPlugin(t *testing.T) {
	t.Parallel()
	plugin, host := buildSpank(t)
	const memory, share = "is an invalid amount of GPU memory: write it as 12G or 512M", "is an invalid share of GPU time: write it as 30%, from 1% to 100%"
	for _, c := range []struct {
		context string
		args    []string
		out     string // besides the number of options
		says    string // on stderr, with an exit code of 1
		env     string
	}{
		{"allocator", nil, "", "", ""},
		{"allocator", []string{"gpu-memory=12G"}, "SPANK_GPUSHARE_MEMORY=12GiB\n", "", ""},
		{"local", []string{"gpu-memory=512MiB", "gpu-share=30"}, "SPANK_GPUSHARE_MEMORY=512MiB\nSPANK_GPUSHARE_SHARE=30%\n", "", ""},
		{"local", []string{"gpu-share=1%"}, "SPANK_GPUSHARE_SHARE=1%\n", "", ""},
		{"local", []string{"gpu-share=100%"}, "SPANK_GPUSHARE_SHARE=100%\n", "", ""},
		{"local", []string{"gpu-memory=12G", "gpu-memory=13G"}, "SPANK_GPUSHARE_MEMORY=13GiB\n", "", ""},
		{"local", []string{"gpu-memory=999999999MiB"}, "SPANK_GPUSHARE_MEMORY=999999999MiB\n", "", ""},
		{"remote", []string{"gpu-memory=12G", "gpu-share=x"}, "", "", ""},
		{"local", []string{"gpu-memory=12G"}, "", "cannot give --gpu-memory to the job: refused by the test", "REFUSE=1"},
		{"local", []string{"gpu-memory="}, "", memory, ""},
		{"local", []string{"gpu-memory=12"}, "", memory, ""},
		{"local", []string{"gpu-memory=12GB"}, "", memory, ""},
		{"local", []string{"gpu-memory=12g"}, "", memory, ""},
		{"local", []string{"gpu-memory=0G"}, "", memory, ""},
		{"local", []string{"gpu-memory=-1G"}, "", memory, ""},
		{"local", []string{"gpu-memory=1.5G"}, "", memory, ""},
		{"local", []string{"gpu-memory=1234567890G"}, "", memory, ""},
		{"local", []string{"gpu-memory=12GiBx"}, "", memory, ""},
		{"local", []string{"gpu-memory=12G\nSPANK_X=1"}, "", memory, ""},
		{"local", []string{"gpu-share="}, "", share, ""},
		{"local", []string{"gpu-share=0"}, "", share, ""},
		{"local", []string{"gpu-share=101"}, "", share, ""},
		{"local", []string{"gpu-share=1000"}, "", share, ""},
		{"local", []string{"gpu-share=30%%"}, "", share, ""},
		{"local", []string{"gpu-share=" + strings.Repeat("9", 4096)}, "", share, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), deadlineOfMake)
		cmd := exec.CommandContext(ctx, host, append([]string{plugin, c.context}, c.args...)...)
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr, cmd.Env = &out, &said, append(os.Environ(), c.env)
		err := cmd.Run()
		cancel()
		failed, _ := errors.AsType[*exec.ExitError](err)
		if err != nil && (failed == nil || failed.ExitCode() != 1) || (c.says != "") != (err != nil) {
			t.Errorf("%s %.60q: %v: %s", c.context, c.args, err, said.String())
		}
		if got := strings.TrimPrefix(out.String(), "2 options\n"); got != c.out {
			t.Errorf("%s %.60q sets %q, want %q", c.context, c.args, got, c.out)
		}
		if s := said.String(); !strings.Contains(s, c.says) || (c.says == "") != (s == "") || len(s) > 160 {
			t.Errorf("%s %.60q says %q, want %q", c.context, c.args, s, c.says)
		}
	}
}

// The program of a daemon gets no options: nothing reads them there.
func TestSpankPluginInTheDaemon(t *testing.T) {
	t.Parallel()
	plugin, host := buildSpank(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadlineOfMake)
	defer cancel()
	if b, err := exec.CommandContext(ctx, host, plugin, "slurmd").CombinedOutput(); err != nil || string(b) != "0 options\n" {
		t.Errorf("%v: %s", err, b)
	}
}
