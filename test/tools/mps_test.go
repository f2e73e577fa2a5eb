//go:build tools

package tools

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim/mpsd/mpstest"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
	"github.com/gpushare/gpushare/mps/detached"
)

// realMPS are NVIDIA's MPS control programs of Debian, by the branch of the driver.
var realMPS = sync.OnceValues(func() (string, error) { return unpack("mps") })

// eachMPS runs a test for each of them. It fails where they cannot be downloaded.
func eachMPS(t *testing.T, f func(t *testing.T, branch int, s *control.Supervisor)) {
	dir, err := realMPS()
	if err != nil {
		t.Fatalf("cannot get the MPS control programs: %v", err)
	}
	for name, branch := range map[string]int{"535": 535, "550": 550} {
		t.Run(name, func(t *testing.T) {
			// A short path: a socket's has at most 107 bytes.
			run, err := os.MkdirTemp("", "mps-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(run) })
			units := &detached.Services{Dir: filepath.Join(run, "s")}
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				if err := units.StopService(ctx, mps.UnitName(mps.Whole(oneGPU)), time.Second); err != nil {
					t.Errorf("cannot clean up: %v", err)
				}
			})
			f(t, branch, &control.Supervisor{
				Units: units, Control: filepath.Join(dir, name, "usr/bin/nvidia-cuda-mps-control"), RunDir: filepath.Join(run, "m"),
				Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
			})
		})
	}
}

const oneGPU = gpu.UUID("GPU-0123456789ab-4000-8000-0000000000aa")

// TestRealMPSCommands sends the table of the stand-in's tests to daemons that gpushare has started.
func TestRealMPSCommands(t *testing.T) {
	eachMPS(t, func(t *testing.T, branch int, s *control.Supervisor) {
		if err := s.Start(t.Context(), mps.Settings{GPU: oneGPU}); err != nil {
			t.Fatal(err)
		}
		env, err := s.Environment(mps.Whole(oneGPU), mps.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		tenants := strings.TrimPrefix(env[0], "CUDA_MPS_PIPE_DIRECTORY=")
		privileged := filepath.Join(filepath.Dir(tenants), "p")
		for _, c := range mpstest.Cases(t) {
			dir := privileged
			if c.Tenants() {
				dir = tenants
			}
			if code, out := query(t, s.Control, dir, c.In); code != 0 || out != c.Want(branch) {
				t.Errorf("%q (%s) answers %q with %d, want %q with 0", c.In, c.Socket, out, code, c.Want(branch))
			}
		}
	})
}

// query sends one command to a control daemon.
func query(t *testing.T, program, pipe, command string) (code int, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe}
	cmd.Stdin = strings.NewReader(command + "\n")
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	if err := cmd.Run(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Fatal(err)
		}
	}
	return cmd.ProcessState.ExitCode(), strings.TrimSuffix(b.String(), "\n")
}

// TestRealMPSUnderTheSupervisor starts, observes and stops the real control daemons with the arguments of the product.
func TestRealMPSUnderTheSupervisor(t *testing.T) {
	eachMPS(t, func(t *testing.T, branch int, s *control.Supervisor) {
		set := mps.Settings{GPU: oneGPU, Threads: 30, Memory: 1500 << 20}
		if err := s.Start(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		st := s.Observe(t.Context(), mps.Whole(oneGPU))
		if !st.Healthy() || !st.SingleUser || st.Settings == nil || *st.Settings != set {
			t.Fatalf("observed %+v", st)
		}
		if want := map[int]string{535: "535.", 550: "550."}[branch]; !strings.HasPrefix(st.Version, want) {
			t.Errorf("version %q, want %s", st.Version, want)
		}
		if err := s.Stop(t.Context(), mps.Whole(oneGPU)); err != nil {
			t.Fatal(err)
		}
		if err := s.Forget(mps.Whole(oneGPU)); err != nil {
			t.Fatal(err)
		}
		if st := s.Observe(t.Context(), mps.Whole(oneGPU)); st != nil {
			t.Errorf("after the stop: %+v", st)
		}
	})
}
