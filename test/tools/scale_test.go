//go:build tools

package tools

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// The simulation of many nodes measures the real Prometheus and the real ansible-core, small: a few targets and hosts.
func TestScaleOfManyNodes(t *testing.T) {
	prometheus, err := realPrometheus()
	if err != nil {
		t.Fatalf("cannot get Prometheus: %v", err)
	}
	a := newAnsible(t, "2.19")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	program := filepath.Join(t.TempDir(), "scale")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./test/scale")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build it: %v\n%s", err, out)
	}
	directory := func(path string) string {
		abs, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		return abs
	}
	cmd := exec.CommandContext(
		ctx, program, "-leases", "2", "-readings", "2", "-targets", "3", "-scrapes", "2", "-hosts", "3", "-forks", "3",
		"-prometheus", directory(prometheus), "-ansible", directory(a.root),
	)
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("it ends with %v\n%s", err, out)
	}
	for _, line := range []string{
		`\nPrometheus with 3 such targets, \d+ series: [1-9]\d* MB of memory, [\d.]+ kB a series; [\d.]+ µs`,
		`\n  a limit of each tenant changed: \d+ s; [\d.]+ s of processor time a host; 1000 nodes with 8 processors: [\d.]+ min\n`,
		`\n  without a change: \d+ s; `,
	} {
		if !regexp.MustCompile(line).Match(out) {
			t.Errorf("%q is not in:\n%s", line, out)
		}
	}
}
