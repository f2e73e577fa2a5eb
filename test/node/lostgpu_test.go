package node

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// A GPU that is lost is reported to its leases: in the output of a detached one, in 'lease show' and 'lease list', also after the daemon was
// killed and in the list of ended leases. A lease of another GPU has nothing of it.
func TestALostGPUIsReportedToItsTenant(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, small)
	const waits = "while :; do sleep 0.1; done"
	id, other := detach(t, n, waits, "-t", "red", "--grant", "part"), detach(t, n, waits, "-t", "red", "--grant", "whole")
	if err := n.Ctl(soon(t), nil, "xid", "2", "79"); err != nil {
		t.Fatal(err)
	}
	reported := func(when string) {
		t.Helper()
		s := awaitStatus(t, n, when+" the lease does not say that its GPU is lost", func(s *api.Status) bool {
			l := findLease(s, id)
			return l != nil && l.GPULost() != nil && len(l.XIDs) == 1 && l.XIDs[0].XID == 79 && len(l.Notices) > 0
		})
		if l := findLease(s, other); l == nil || l.LostGPUs != nil || l.XIDs != nil || len(l.Notices) > 0 {
			t.Errorf("%s a lease of another GPU is %+v", when, l)
		}
		show := n.CLI(soon(t), "lease", "show", id)
		for _, want := range []string{"lost       GPU 2 since ", "XID 79 (", "notice: GPU 2 is lost: "} {
			if !strings.Contains(show.Out, want) {
				t.Errorf("%s lease show lacks %q: %+v", when, want, show)
			}
		}
		if list := n.CLI(soon(t), "lease", "list"); !strings.Contains(list.Out, "GPU lost") || !strings.Contains(list.Out, "79") {
			t.Errorf("%s lease list: %+v", when, list)
		}
	}
	reported("after the loss")
	err := harness.Await(soon(t), 10*time.Millisecond, "the notice is not in the output of the lease", func() (bool, error) {
		return strings.Contains(n.CLI(soon(t), "lease", "logs", id).Out, "gpushare: lease "+id+": GPU 2 is lost: "), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	was := findLease(status(t, n), id)
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	reported("after a kill of the daemon")
	if l := findLease(status(t, n), id); !l.LostGPUs[0].Since.Equal(was.LostGPUs[0].Since) || len(l.LostGPUs) != 1 {
		t.Errorf("after a kill of the daemon it is lost since %+v, and was since %+v", l.LostGPUs, was.LostGPUs)
	}
	if r := n.CLI(soon(t), "lease", "stop", id); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if l := awaitResult(t, n, id); len(l.XIDs) != 1 || len(l.LostGPUs) != 1 {
		t.Errorf("the ended lease is %+v", l)
	}
}

// An XID that comes as soon as the daemon is ready is its lease's, and counted once: no event of the driver and no line of the kernel's
// log is missed.
func TestAnXIDAtTheStartOfTheDaemonIsNotMissed(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, small)
	job, id := begin(t, n, "red", "part", "sleep", "600")
	for _, number := range []uint64{8, 11, 13, 31, 69} {
		n.KillDaemon()
		if err := n.StartDaemon(soon(t)); err != nil {
			t.Fatal(err)
		}
		xid := strconv.FormatUint(number, 10)
		if err := n.Ctl(soon(t), nil, "xid", "2", xid, "--pid", strconv.Itoa(job.PID()), "--name", "sleep"); err != nil {
			t.Fatal(err)
		}
		awaitStatus(t, n, "XID "+xid+" is not recorded", func(s *api.Status) bool {
			l := findLease(s, id)
			return l != nil && slices.ContainsFunc(l.XIDs, func(x api.LeaseXID) bool {
				return x.XID == number && x.Count == 1 && x.Relation == api.XIDCaused
			})
		})
	}
}
