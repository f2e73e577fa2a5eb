package node

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
)

// renumbered is quick with device nodes whose numbers are not the indices of their GPUs. The driver promises no relation: an index is
// a place in the order of PCI addresses, a number comes from the order in which the driver found the boards.
const renumbered = `driver: "580"
gpus:
  - {model: A100-SXM4-40GB, mig: true, minor: 3}
  - {model: A100-SXM4-40GB, mig: true, minor: 2}
  - {model: A100-SXM4-40GB, minor: 1}
  - {model: A100-SXM4-40GB, minor: 0}
`

// A lease, a container and a login open the node of the GPU that they have, whatever its number is, and what is found open counts to
// the GPU of the node.
func TestNumbersOfDeviceNodesAreNotIndices(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	l := newLoginsOn(t, renumbered)
	apply(t, l.Node, closedLogins)
	l.expectOpens(t, "closed", nobody, "nvidia2") // that of GPU 1, which is not managed
	for grant, own := range map[string]string{"part": "nvidia1", "whole": "nvidia0"} {
		if got, want := opened(t, l.Node, grant), []string{"nvidia-uvm", own, "nvidiactl"}; !sameSet(got, want) {
			t.Errorf("%s opens %v, want %v", grant, got, want)
		}
		o := podmanIn(t, l.Node, "red", grant)
		if nodes, _ := o.opens(); !slices.Contains(nodes, "/dev/"+own) || len(nodes) != 3 {
			t.Errorf("a container of %s gets %v, want %s", grant, nodes, own)
		}
	}
	want := []string{"nvidia-uvm", "nvidia3", "nvidiactl"}
	for _, gi := range capabilitiesOf(t, l, 3, "3g.20gb") {
		want = append(want, "nvidia-caps/nvidia-cap"+gi)
	}
	if got := opened(t, l.Node, "cut"); !sameSet(got, want) {
		t.Errorf("the lease of the instance opens %v, want %v", got, want)
	}
	files, err := filepath.Glob(filepath.Join(l.Dir, "cdi", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are %d files for containers: %v", len(files), err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for grant, own := range map[string]string{"part": "nvidia1", "whole": "nvidia0", "cut": "nvidia3"} {
			if named := regexp.MustCompile(`/dev/nvidia[0-9]+`).FindAllString(string(b), -1); strings.Contains(f, grant) &&
				slices.ContainsFunc(named, func(s string) bool { return s != "/dev/"+own }) {
				t.Errorf("%s has %v, want %s", filepath.Base(f), named, own)
			}
		}
	}
	kept, killed := watch(t, l.Node, nobody, "nvidia2"), watch(t, l.Node, nobody, "nvidia0")
	<-killed.ended // It has GPU 3 open, without a lease.
	select {
	case <-kept.ended:
		t.Error("a process was stopped that only has the GPU open that is not managed")
	default:
	}
	awaitStatus(t, l.Node, "a condition of the process that was killed lasts", func(s *api.Status) bool {
		return !hasCondition(s, "unattributed", killed.pid)
	})
}

// capabilitiesOf are the numbers of the capability nodes of an instance on the GPU whose node has a number.
func capabilitiesOf(t *testing.T, l *logins, minor int, profile string) (numbers []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(l.Root(), "proc/driver/nvidia-caps/mig-minors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range status(t, l.Node).GPUs[0].MIG.Instances {
		if in.Profile != profile {
			continue
		}
		at := fmt.Sprintf("gpu%d/gi%d/", minor, in.ID)
		for line := range strings.Lines(string(b)) {
			if name, number, ok := strings.Cut(strings.TrimSpace(line), " "); ok && (name == at+"access" || name == at+"ci0/access") {
				numbers = append(numbers, number)
			}
		}
	}
	if len(numbers) != 2 {
		t.Fatalf("an instance of %s has the capabilities %v", profile, numbers)
	}
	return numbers
}
