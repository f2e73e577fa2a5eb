package cli_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// keyedLease is a lease that waits for its cgroup.
func keyedLease() api.LeaseGrant {
	by := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	return api.LeaseGrant{
		Lease: &api.Lease{
			ID:      "vision-dev-9",
			Tenant:  "vision",
			Grant:   "dev",
			State:   api.LeasePlaced,
			Origin:  api.OriginAttached,
			Command: []string{"slurm:lab:42:0"},
			Engine:  &api.LeaseEngine{Key: "slurm:lab:42:0", Account: "physics", BindBy: &by},
		},
		Environment: map[string]string{"CUDA_VISIBLE_DEVICES": mig4},
	}
}

// What only keyed leases have is refused without a key, and what they do not have with one, before anything is requested.
func TestFlagsOfKeyedLeases(t *testing.T) {
	for name, c := range map[string]struct{ args, says string }{
		"a user without a key":   {"lease attach --pid 1 --user alice", "of keyed leases"},
		"memory without a key":   {"lease attach --pid 1 --gpu-memory 1GiB", "add --key ENGINE:NAME"},
		"a pid with a key":       {"lease attach --key slurm:1 --pid 1", "has its processes by --cgroup"},
		"a wait with a key":      {"lease attach --key slurm:1 --wait", "does not wait"},
		"a key without engine":   {"lease attach --key 1", "it is not ENGINE:NAME"},
		"a key with a slash":     {"lease attach --key slurm:a/b", "other characters"},
		"an id and a key":        {"lease release --key slurm:1 vision-dev-9", "vision-dev-9"},
		"neither id nor key":     {"lease release", "the id of a lease"},
		"memory that is none":    {"lease attach --key slurm:1 --gpu-memory 12", "invalid argument"},
		"a share without a unit": {"lease attach --key slurm:1 --share 10", "invalid argument"},
	} {
		t.Run(name, func(t *testing.T) {
			if r := run(t, nil, "", strings.Fields(c.args)...); r.code != api.ExitUsage || !strings.Contains(r.all, c.says) {
				t.Errorf("%s exits with %d: %s", c.args, r.code, r.all)
			}
		})
	}
}
