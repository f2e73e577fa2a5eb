//go:build vm

package vm

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/machine"
)

// bootDeadline is for one whole boot with checks and power-off: three times the longest on two idle cores.
const bootDeadline = 35 * time.Minute

// wordDeadline is for the guest's first line: a kernel that is stuck in the emulator reports nothing.
const wordDeadline = 4 * time.Minute

// guest is one machine with its disks. Booting it twice is a reboot.
type guest struct {
	sys     machine.System
	img     machine.Image
	disk    string
	payload string
}

// boot starts the machine, runs the phases, and returns the report and the duration from the last check to the power-off.
//
// A kernel that crashes or gets stuck in the emulator before the first line is booted again: nothing of gpushare ran. One
// that crashes later is a failure.
func (m guest) boot(t *testing.T, name string, phases []string) (Report, time.Duration) {
	t.Helper()
	for try := 1; ; try++ {
		rep, off, console := m.bootOnce(t, name, phases)
		if try < 4 && !rep.Done && len(rep.Outcomes) == 0 && (kernelDied(console) || rep.Stuck) {
			t.Logf("boot %d: the kernel died or got stuck in the emulator before any check; booting again", try)
			continue
		}
		if !rep.Done {
			t.Errorf("the guest did not reach the end of its %s boot; the end of its console:\n%s", name, tail(console, 40))
		}
		return rep, off
	}
}

func kernelDied(console []byte) bool {
	return slices.ContainsFunc([]string{"Oops: ", "Kernel panic", "BUG: "}, func(s string) bool {
		return bytes.Contains(console, []byte(s))
	})
}

func (m guest) bootOnce(t *testing.T, name string, phases []string) (Report, time.Duration, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootDeadline)
	defer cancel()
	var stuck atomic.Bool
	silence := time.AfterFunc(wordDeadline, func() {
		stuck.Store(true)
		cancel()
	})
	defer silence.Stop()

	logs, err := filepath.Abs(filepath.Join(machine.Builds, "logs"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	consoleFile := filepath.Join(logs, m.sys.Name+"-"+name+".console")

	// Not t.TempDir, whose path contains the test name: a socket path has at most 107 bytes.
	run, err := os.MkdirTemp("", "gpushare-vm")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(run)
	port := filepath.Join(run, "port")
	listener, err := net.Listen("unix", port)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()

	cmd := machine.Command(ctx, machine.Hardware{
		Image:   m.img,
		Disk:    m.disk,
		Payload: m.payload,
		Port:    port,
		Console: consoleFile,
		Journal: strings.TrimSuffix(consoleFile, ".console") + ".journal",
		Memory:  1024,
		Kernel:  "gpushare.lab=" + strings.Join(phases, ","),
	})
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	// The machine ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start qemu: %v", err)
	}

	type reading struct {
		rep  Report
		err  error
		done time.Time
	}
	read := make(chan reading, 1)
	go func() {
		var r reading
		conn, err := listener.Accept()
		if err != nil {
			r.err = err
			read <- r
			return
		}
		defer conn.Close()
		began := time.Now()
		r.rep, r.err = ReadReport(conn, func(line string) {
			silence.Stop()
			if line == "done" {
				r.done = time.Now()
			}
			t.Logf("%s %6.1fs %s", m.sys.Name, time.Since(began).Seconds(), line)
		})
		read <- r
	}()
	exit := cmd.Wait()
	ended := time.Now()
	// Qemu has the other end of the port, so the report ends with qemu. This also ends the wait for a qemu that never connected.
	listener.Close()
	got := <-read
	t.Logf("%s: the boot took %s, and %s of a processor", m.sys.Name, ended.Sub(start).Round(time.Second),
		(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Round(time.Second))

	console, err := os.ReadFile(consoleFile)
	if err != nil {
		t.Logf("no console: %v", err)
	}
	got.rep.Stuck = stuck.Load()
	switch {
	case got.rep.Stuck:
		t.Logf("the guest had no output after %s", wordDeadline)
	case ctx.Err() != nil:
		t.Errorf("the guest was still running after %s", bootDeadline)
	case exit != nil:
		t.Errorf("qemu failed: %v\n%s", exit, said.Bytes())
	case got.err != nil:
		t.Errorf("%v", got.err)
	}
	return got.rep, ended.Sub(got.done), console
}

func tail(b []byte, lines int) []byte {
	all := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}

// publish runs a subtest for every check of a report.
func publish(t *testing.T, rep Report) {
	t.Helper()
	if len(rep.Outcomes) == 0 {
		t.Error("the guest announced no check")
	}
	for _, o := range rep.Outcomes {
		t.Run(o.Name, func(t *testing.T) {
			switch o.State {
			case Passed:
				t.Logf("%s in the guest", o.Duration)
			case Skipped:
				t.Skip(o.Why)
			default:
				for _, line := range o.Log {
					t.Log(line)
				}
				t.Errorf("%s: %s", o.State, o.Why)
			}
		})
	}
}
