package cgroup

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// DmemController is the kernel's controller of device memory (Linux 6.14). Service managers do not enable it, and disable it
// when they are reloaded.
const DmemController = "dmem"

// EnableController enables a controller in every cgroup above this one, from the root, so that the cgroup has the
// controller's files. It writes nothing where it is enabled already. ErrNotSupported when the kernel lacks the controller.
func (h Hierarchy) EnableController(cg, controller string) (wrote bool, err error) {
	for _, at := range ancestors(cg) {
		has, err := readWords(h.Dir(at), "cgroup.controllers")
		if err != nil {
			return wrote, fmt.Errorf("cannot read the controllers of %s: %w", at, err)
		}
		if !slices.Contains(has, controller) {
			return wrote, fmt.Errorf("cannot enable %s in %s: the kernel does not offer it: %w", controller, at, ErrNotSupported)
		}
		on, err := readWords(h.Dir(at), "cgroup.subtree_control")
		if err != nil {
			return wrote, fmt.Errorf("cannot read the controllers of %s: %w", at, err)
		}
		if slices.Contains(on, controller) {
			continue
		}
		if err := writeFile(filepath.Join(h.Dir(at), "cgroup.subtree_control"), "+"+controller); err != nil {
			return wrote, fmt.Errorf("cannot enable %s in %s: %w", controller, at, err)
		}
		wrote = true
	}
	return wrote, nil
}

// ancestors lists the cgroups above one, the root first.
func ancestors(cg string) []string {
	var out []string
	for at := path.Clean("/" + cg); at != "/"; {
		at = path.Dir(at)
		out = append(out, at)
	}
	slices.Reverse(out)
	return out
}

// HasDmemLimit reports whether the kernel limits device memory of the cgroup: a limit that the driver keeps for itself is not
// there.
func (h Hierarchy) HasDmemLimit(cg string) bool {
	b, err := boundedread.Trusted(filepath.Join(h.Dir(cg), "dmem.max"), boundedread.Value)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) { // "region limit", one for each device
		if f := strings.Fields(line); len(f) == 2 && f[1] != "max" {
			return true
		}
	}
	return false
}
