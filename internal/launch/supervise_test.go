package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// fifo is a named pipe on which a program waits.
func fifo(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // Programs that still wait read its end, and one that opens it only now does not find it.
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err = errors.Join(err, os.Remove(name)); err != nil {
			t.Error(err)
		}
		_ = f.Close()
	})
	return name
}

// pass lets the program that reads a named pipe go on.
func pass(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(name, []byte("on\n"), 0); err != nil {
		t.Fatal(err)
	}
}

// awaitRecord waits for what a supervisor writes.
func awaitRecord(t *testing.T, k *Supervisors, id string, is func(*record) bool) *record {
	t.Helper()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for ctx := deadline(t); ; {
		r, err := k.record(id)
		if err == nil && is(r) {
			return r
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("the record is %+v: %v", r, err)
		}
	}
}

func ended(r *record) bool { return !procfs.Alive(r.Supervisor.PID, r.Supervisor.Start) }

// A process outside of the lease that holds the output, and writes without end, neither delays the result nor keeps the supervisor.
// All that the program printed is there.
func TestOutsidersDoNotKeepASupervisor(t *testing.T) {
	for _, c := range []struct {
		name   string
		pause  time.Duration // between two writes; negative: it writes at the end alone
		output bool          // all of it is kept: a flood replaces it
	}{{"it writes at the end", -1, true}, {"it writes all the time", time.Millisecond, true}, {"it floods", 0, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k, closed := supervisors(t), fifo(t)
			if err := begin(
				t,
				k,
				"a",
				shellProgram(
					t,
					"echo before; read x <"+closed+"; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo after; exit 3",
				),
			); err != nil {
				t.Fatal(err)
			}
			main, err := k.Main("a")
			if err != nil {
				t.Fatal(err)
			}
			outside, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", main.PID), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer outside.Close()
			written := make(chan error, 1)
			write := func() error { _, err := outside.WriteString(strings.Repeat("outside\n", 64)); return err }
			if c.pause >= 0 {
				go func() { // ends with the supervisor
					for {
						<-time.After(c.pause)
						if err := write(); err != nil {
							written <- err
							return
						}
					}
				}()
			}
			pass(t, closed)
			awaitRecord(t, k, "a", ended)
			if r, err := k.Result(deadline(t), "a"); err != nil || r.Code != 3 {
				t.Errorf("it ended as %+v: %v", r, err)
			}
			if c.pause < 0 {
				written <- write()
			}
			if err := <-written; !errors.Is(err, unix.EPIPE) {
				t.Errorf("writing to the output of a program that has ended: %v", err)
			}
			got := strings.ReplaceAll(output(t, k, "a", -1), "outside\n", "")
			if c.output && (!strings.HasPrefix(got, "before\nline 0\n") || !strings.HasSuffix(got, "\nline 1999\nafter\n")) {
				t.Errorf("its output has %d bytes and ends with %q", len(got), got[max(0, len(got)-40):])
			}
		})
	}
}

// The result is recorded when the program ends. The output of what it left behind is kept until that has ended too, although its parent
// has exited.
func TestOrphansKeepTheirOutput(t *testing.T) {
	t.Parallel()
	k, closed := supervisors(t), fifo(t)
	if err := begin(t, k, "a", shellProgram(t, "(setsid sh -c 'read x <"+closed+"; echo late' & ); echo early; exit 5")); err != nil {
		t.Fatal(err)
	}
	r := awaitRecord(t, k, "a", func(r *record) bool { return r.Result != nil })
	if r.Result.Code != 5 || ended(r) {
		t.Errorf("the result is %v, and its supervisor has ended: %t", r.Result, ended(r))
	}
	pass(t, closed)
	awaitRecord(t, k, "a", ended)
	if got := output(t, k, "a", -1); got != "early\nlate\n" {
		t.Errorf("it printed %q", got)
	}
}

// A lease that has ended leaves no supervisor, also if a process outside of it keeps that from ending: one that descends from the
// program and is in another lease by now, or a signal that stopped it. Other supervisors stay.
func TestSupervisorsAreEndedWithTheirLease(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*Supervisors, context.Context) error
	}{
		{"at its end", func(k *Supervisors, ctx context.Context) error { _, err := k.Result(ctx, "a"); return err }},
		{"at a restart", func(k *Supervisors, ctx context.Context) error {
			k.Finish(ctx, func(id string) bool { return id == "a" })
			return nil
		}},
	} {
		for _, stopped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stopped=%t", c.name, stopped), func(t *testing.T) {
				t.Parallel()
				k, closed := supervisors(t), fifo(t)
				for _, id := range []string{"a", "other"} {
					if err := begin(t, k, id, shellProgram(t, "echo early; (read x <"+closed+") & exit 6")); err != nil {
						t.Fatal(err)
					}
				}
				var all []*record
				for _, id := range []string{"a", "other"} {
					all = append(all, awaitRecord(t, k, id, func(r *record) bool { return r.Result != nil }))
				}
				if stopped {
					if err := unix.Kill(all[0].Supervisor.PID, unix.SIGSTOP); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.end(k, deadline(t)); err != nil {
					t.Fatal(err)
				}
				if !ended(all[0]) || ended(all[1]) {
					t.Errorf("ended are %t and %t, want the first alone", ended(all[0]), ended(all[1]))
				}
				if r, err := k.Result(deadline(t), "a"); err != nil || r.Code != 6 {
					t.Errorf("it ended as %+v: %v", r, err)
				}
				if got := output(t, k, "a", -1); got != "early\n" {
					t.Errorf("it printed %q", got)
				}
				if _, err := k.Result(deadline(t), "other"); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
