package attribution

import (
	"testing"

	"github.com/gpushare/gpushare/cgroup"
)

// countedPort counts how often the lease of a process is read.
type countedPort struct {
	cgroup.Port
	reads int
}

func (p *countedPort) ScopeOf(pid int) (string, bool) {
	p.reads++
	return "red-1", pid == 7
}

// A process that is in a list many times is read once, also one that is in no lease.
func TestALookupReadsAProcessOnce(t *testing.T) {
	p := &countedPort{}
	attr := &Attribution{Port: p, Follow: cgroup.NewProcesses("a test"), Attachments: cgroup.NewAttachments(cgroup.AttachmentsOptions{})}
	leaseOf := attr.LeaseLookup(10)
	for range 5 {
		if id, ok := leaseOf(7); !ok || id != "red-1" {
			t.Fatalf("%q, %v", id, ok)
		}
		if id, ok := leaseOf(1 << 30); ok {
			t.Fatalf("a process of no lease is in %q", id)
		}
	}
	if p.reads != 2 {
		t.Errorf("two processes were read %d times", p.reads)
	}
}
