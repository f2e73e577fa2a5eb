package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

const wholeSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: exclusive}
  - {select: {index: 3}, mode: exclusive}
tenants:
  - name: red
    members: {users: [root]}
    grants: [{name: whole, exclusive: 1, gpus: {index: 2}}, {name: other, exclusive: 1, gpus: {index: 3}}]
`

// The record of the leases is lost while the daemon does not run. The place of a lease that still runs is not granted again
// before it ends, and the places of no lease are.
func TestLostRecordOfLeases(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for name, lose := range map[string]func(string) error{
		"removed": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("damage\n"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, quick)
			if s := status(t, n); !strings.HasPrefix(s.Node.Adapter, "cgroupfs") {
				t.Skipf("needs root and a cgroup v2 hierarchy: a lease without cgroups cannot be found again (%s)", s.Node.Adapter)
			}
			apply(t, n, wholeSpec)
			job, err := n.Run("-q", "-t", "red", "--grant", "whole", "--", "sh", "-c", "echo lease=$GPUSHARE_LEASE.; exec sleep 600")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(job.Kill)
			if err := job.AwaitLine(soon(t), "."); err != nil {
				t.Fatal(err)
			}
			id := leaseOf(job)
			n.StopDaemon()
			for _, file := range []string{"leases.json", "leases.json.previous"} {
				if err := lose(filepath.Join(n.Dir, "run", file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
			}
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatal(err)
			}
			unknown := func() (found []api.Condition) {
				for _, c := range status(t, n).Node.Conditions {
					if c.Kind == "unknown-lease" {
						found = append(found, c)
					}
				}
				return found
			}
			if c := unknown(); len(c) != 1 || !strings.Contains(c[0].Message, id) || !strings.Contains(c[0].Message, "GPU 2 ") {
				t.Errorf("the conditions are %+v", c)
			}
			run := func(grant string) harness.Result {
				return n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", grant, "--", "true")
			}
			if r := run("whole"); r.Code != 125 || !strings.Contains(r.Err, "record was lost") {
				t.Errorf("a second lease of the GPU exits with %d: %s", r.Code, r.Err)
			}
			if r := run("other"); r.Code != 0 {
				t.Errorf("a lease of the other GPU exits with %d: %s", r.Code, r.Err)
			}
			if name == "damaged" {
				if _, err := os.Stat(filepath.Join(n.Dir, "run", "leases.json.corrupt")); err != nil {
					t.Errorf("the damaged file is not kept: %v", err)
				}
			}
			if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
				t.Errorf("its stop exits with %d: %s", r.Code, r.Err)
			}
			select {
			case <-job.Done():
			case <-soon(t).Done():
				t.Fatal("the job of the stopped lease still runs")
			}
			var r harness.Result
			if err := harness.Await(soon(t), 20*time.Millisecond, "the GPU is not open after its end", func() (bool, error) {
				r = run("whole")
				return r.Code == 0 && len(unknown()) == 0, nil
			}); err != nil {
				t.Errorf("%v: %s %+v", err, r.Err, unknown())
			}
		})
	}
}

// The newest record is damaged: the one before it is used, and leases that run are recovered.
func TestDamagedRecordOfLeases(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, wholeSpec)
	job, err := n.Run("-q", "-t", "red", "--grant", "whole", "--", "sh", "-c", "echo lease=$GPUSHARE_LEASE.; exec sleep 600")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(job.Kill)
	if err := job.AwaitLine(soon(t), "."); err != nil {
		t.Fatal(err)
	}
	id := leaseOf(job)
	if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "other", "--", "true"); r.Code != 0 { // The record is written again.
		t.Fatal(r.Err)
	}
	n.KillDaemon()
	record := filepath.Join(n.Dir, "run", "leases.json")
	// In a file of its own: the daemon may have been killed while both names were of one file.
	if err := errors.Join(os.Remove(record), os.WriteFile(record, []byte("damage"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	s := status(t, n)
	if l := harness.Lease(s, "red", "whole"); l == nil || l.ID != id {
		t.Errorf("the leases are %+v", s.Leases)
	}
	if text := fmt.Sprint(s.Node.Conditions); !strings.Contains(text, "the one before it is used") ||
		strings.Contains(text, "unknown-lease") {
		t.Errorf("the conditions are %s", text)
	}
}

// A second daemon with another state directory and the same run directory.
func TestSecondDaemonOnTheRunDirectory(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	other, first := *n, n.DaemonPID()
	other.Settings = map[string]string{"state_dir": t.TempDir()}
	if err := other.StartDaemon(soon(t)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", first)) {
		t.Errorf("a second daemon: %v", err)
	}
}
