package planner

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
)

// A hint names only options that its command has, and leads to a change that is not refused again.
func TestTheDrainHintIsACommandThatHelps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		engine, command string
		says, not       string
	}{
		{engine: api.OwnerSlurm, command: "gpushare apply -f a", says: "'gpushare apply -f a --drain' drains the node in Slurm"},
		{engine: api.OwnerSlurm, command: "gpushare rollback 3", says: "then 'gpushare rollback 3' when its jobs have ended", not: "--drain"},
		{engine: api.OwnerSlurm, command: "gpushare gpu retry 0", says: "then 'gpushare gpu retry 0' when its jobs have ended", not: "--drain"},
		{engine: api.OwnerKubernetes, command: "gpushare apply -f a", says: "then 'gpushare apply -f a --drained kubernetes' when", not: "--drain'"},
		{engine: api.OwnerKubernetes, command: "gpushare rollback 3", says: "then 'gpushare rollback 3 --drained kubernetes' when"},
		{engine: api.OwnerKubernetes, command: "gpushare gpu retry 0", says: "then 'gpushare gpu retry 0 --drained kubernetes' when", not: "--drain'"},
		{engine: api.OwnerSlurm, command: "gpushare unmanage --all", says: "then 'gpushare unmanage --all' when its jobs have ended", not: "--drain"},
	} {
		hint := DrainHint([]string{c.engine}, "node1", c.command)
		if !strings.Contains(hint, c.says) || c.not != "" && strings.Contains(hint, c.not) || strings.Contains(hint, "  ") {
			t.Errorf("%s, %s: %q", c.engine, c.command, hint)
		}
	}
}

// The lease of a local user, on a GPU that no engine places on, is in the way of no engine.
func TestEnginesRefusedAreThoseInTheWay(t *testing.T) {
	t.Parallel()
	live := []lease.Lease{
		{ID: "red-1"},
		{ID: "red-2", Engine: &lease.Engine{Key: "slurm:lab:1:0"}},
	}
	for id, want := range map[string]string{"red-1": "", "red-2": "slurm"} {
		got := EnginesRefused(nil, live, []api.LeaseEnd{{Lease: id}}, nil, map[gpu.UUID]error{})
		if strings.Join(got, ",") != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
}
