package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// startIn starts a process in the given cgroup.
func startIn(t *testing.T) Spawn {
	return func(_ context.Context, cgroup, _ *os.File) (Process, error) {
		cmd := exec.Command("sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if cgroup != nil {
			cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
		}
		return start(t, cmd), nil
	}
}

// programs is an adapter that starts processes.
type programs interface {
	Port
	StartProgram(ctx context.Context, s Scope, spawn Spawn) (ScopeState, Process, error)
}

func TestProgramsStartInTheirScope(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) programs{
		"cgroupfs":  func(t *testing.T) programs { return newTree(t) },
		"processes": func(*testing.T) programs { return NewProcesses("a test") },
	} {
		t.Run(name, func(t *testing.T) {
			port := open(t)
			ctx := within(t, 20*time.Second)
			s := Scope{ID: "p1", Slice: SliceName{Tenant: "red", Grant: "dev"}}
			broken := errors.New("broken")
			if _, _, err := port.StartProgram(
				ctx, s, func(context.Context, *os.File, *os.File) (Process, error) { return Process{}, broken },
			); !errors.Is(err, broken) {
				t.Fatalf("a failing spawn: %v", err)
			}
			if left, err := port.Scopes(ctx); err != nil || len(left) > 0 {
				t.Fatalf("left are %v, %v", left, err)
			}
			_, p, err := port.StartProgram(ctx, s, startIn(t))
			if err != nil {
				t.Fatal(err)
			}
			if members, err := port.Members(ctx, "p1"); err != nil || len(members) != 1 || members[0] != p {
				t.Errorf("its members are %v, %v; want %v", members, err, p)
			}
			if id, ok := port.ScopeOf(p.PID); !ok || id != "p1" {
				t.Errorf("its scope is %q", id)
			}
			if err := port.KillScope(ctx, "p1"); err != nil {
				t.Error(err)
			}
			if left, err := port.Scopes(ctx); err != nil || len(left) > 0 {
				t.Errorf("after KillScope left are %v, %v", left, err)
			}
		})
	}
}
