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

// born starts a process in the cgroup that it is given.
func born(t *testing.T) Spawn {
	return func(_ context.Context, cgroup *os.File) (Process, error) {
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

func TestProgramsAreBornInside(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) programs{
		"cgroupfs":  func(t *testing.T) programs { return newTree(t) },
		"processes": func(*testing.T) programs { return NewProcesses("a test") },
	} {
		t.Run(name, func(t *testing.T) {
			port := open(t)
			ctx := within(t, 20*time.Second)
			s := Scope{ID: "p1", Slice: SliceName{Tenant: "red", Grant: "dev"}}
			broken := errors.New("broken")
			if _, _, err := port.StartProgram(ctx, s, func(context.Context, *os.File) (Process, error) { return Process{}, broken }); !errors.Is(err, broken) {
				t.Fatalf("a spawn that fails: %v", err)
			}
			if left, err := port.Scopes(ctx); err != nil || len(left) > 0 {
				t.Fatalf("it leaves %v, %v", left, err)
			}
			_, p, err := port.StartProgram(ctx, s, born(t))
			if err != nil {
				t.Fatal(err)
			}
			if members, err := port.Members(ctx, "p1"); err != nil || len(members) != 1 || members[0] != p {
				t.Errorf("its members are %v, %v; want %v", members, err, p)
			}
			if owner, ok := port.ScopeOf(p.PID); !ok || owner != "p1" {
				t.Errorf("its owner is %q", owner)
			}
			if err := port.KillScope(ctx, "p1"); err != nil {
				t.Error(err)
			}
			if left, err := port.Scopes(ctx); err != nil || len(left) > 0 {
				t.Errorf("killing it leaves %v, %v", left, err)
			}
		})
	}
}
