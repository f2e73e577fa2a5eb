//go:build tools

package tools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
	"github.com/gpushare/gpushare/test/programs"
)

// TestRealMPSWithASilentPeer finds a process that connects to the real control daemons and says nothing: they serve no other.
func TestRealMPSWithASilentPeer(t *testing.T) {
	eachMPS(t, func(t *testing.T, _ int, s *control.Supervisor) {
		if err := s.Start(t.Context(), mps.Settings{GPU: oneGPU}); err != nil {
			t.Fatal(err)
		}
		id := mps.Whole(oneGPU)
		env, err := s.Environment(id, mps.Limits{})
		if err != nil || !s.Observe(t.Context(), id).Healthy() {
			t.Fatalf("it is not healthy: %v", err)
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Connect(
			fd, &unix.SockaddrUnix{Name: filepath.Join(strings.TrimPrefix(env[0], "CUDA_MPS_PIPE_DIRECTORY="), "control")},
		); err != nil {
			t.Fatal(err)
		}
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		var found []control.Peer
		// What another test starts has the connection too between its fork and its exec.
		for end := time.Now().Add(30 * time.Second); len(found) == 0 || len(found[0].Processes) > 1; <-tick.C {
			if found, err = s.SilentPeers(t.Context(), id); err != nil || time.Now().After(end) {
				t.Fatalf("not found: %v", err)
			}
		}
		if len(found) != 1 || len(found[0].Processes) != 1 || found[0].Processes[0].PID != os.Getpid() || found[0].UID != os.Geteuid() {
			t.Errorf("found %+v, want this process", found)
		}
		if st := s.Observe(t.Context(), id); st.MissedGreetings == 0 {
			t.Errorf("it serves others meanwhile: %+v", st)
		}
		if err := found[0].Disconnect(); err != nil {
			t.Fatal(err)
		}
		if st := s.Await(t.Context(), id); !st.Healthy() {
			t.Errorf("after its end: %+v", st)
		}
	})
}

// TestRealMPSServerReachesItsFiles starts a program in the place of the server, as another user, and looks what it may use.
func TestRealMPSServerReachesItsFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a server of another user needs root")
	}
	eachMPS(t, func(t *testing.T, _ int, s *control.Supervisor) {
		dir, err := os.MkdirTemp("", "mps-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		program, err := os.ReadFile(s.Control)
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{
			"nvidia-cuda-mps-control": string(program),
			"nvidia-cuda-mps-server": `#!/bin/sh
{ id -u; id -g; cd "$CUDA_MPS_PIPE_DIRECTORY"
for f in control log control_privileged; do test -w $f && echo $f; done
ls; echo end; } >` + dir + `/out 2>/dev/null
`,
		} {
			if err := programs.Write(filepath.Join(dir, name), content); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // The server writes what it found here.
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Dir(s.RunDir), 0o711); err != nil {
			t.Fatal(err)
		}
		s.Control = filepath.Join(dir, "nvidia-cuda-mps-control")
		if err := s.Start(t.Context(), mps.Settings{GPU: oneGPU}); err != nil {
			t.Fatal(err)
		}
		if changed, err := s.Restrict(mps.Whole(oneGPU), control.Reach{Users: []int{65534}}, time.Now()); err != nil || len(changed) > 0 {
			t.Fatalf("restricted: %q, %v", changed, err)
		}
		env, err := s.Environment(mps.Whole(oneGPU), mps.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		pipe := filepath.Join(filepath.Dir(strings.TrimPrefix(env[0], "CUDA_MPS_PIPE_DIRECTORY=")), "p")
		if code, out := query(t, s.Control, pipe, "start_server -uid 65534"); code != 0 || out != "" {
			t.Fatalf("no server: %d %q", code, out)
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		var got string
		for end := time.Now().Add(30 * time.Second); !strings.HasSuffix(got, "end\n") && time.Now().Before(end); <-tick.C {
			b, _ := os.ReadFile(filepath.Join(dir, "out")) // It is not there before the server runs.
			got = string(b)
		}
		// It has the group of root and may search the directory, but not list it.
		if want := "65534\n0\ncontrol\nlog\nend\n"; got != want {
			t.Errorf("the server says %q, want %q", got, want)
		}
	})
}
