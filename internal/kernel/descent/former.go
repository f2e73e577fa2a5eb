package descent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Earlier versions kept the record in a cgroup v1 hierarchy, and had a second one for a mount option. A hierarchy is in
// /proc/PID/cgroup of every process while it is mounted or has a cgroup, and other programs mind that.

// FormerMounts returns where hierarchies of an earlier version are mounted. The sandbox of the service does not allow to unmount them.
func FormerMounts() ([]string, error) {
	b, _, err := boundedread.TrustedPrefix("/proc/self/mountinfo", boundedread.Mounts)
	if err != nil {
		return nil, fmt.Errorf("cannot list the mounts of an earlier version: %w", err)
	}
	return formerMounts(string(b)), nil
}

// formerMounts reads a mountinfo file (proc_pid_mountinfo(5)).
func formerMounts(mountinfo string) (found []string) {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		at, kind := strings.Fields(before), strings.Fields(after)
		if len(at) < 5 || len(kind) < 3 || kind[0] != "cgroup" || at[3] != "/" {
			continue
		}
		for option := range strings.SplitSeq(kind[2], ",") {
			if option == "name=gpushare" || option == "name=gpushare-moves" {
				found = append(found, at[4])
			}
		}
	}
	return found
}

// EmptyFormer removes the cgroups of these hierarchies, so that each ends when it is unmounted.
func EmptyFormer(mounts []string) error {
	var err error
	for _, top := range mounts {
		err = errors.Join(err, emptyBelow(top, top, 3))
	}
	return err
}

// emptyBelow removes what is below a cgroup. Its processes go to the top.
func emptyBelow(dir, top string, depth int) error {
	entries, _, err := boundedread.Entries(dir, boundedread.Files)
	if err != nil || depth == 0 {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		below := filepath.Join(dir, e.Name())
		err = errors.Join(err, emptyBelow(below, top, depth-1), removeCgroup(below, top))
	}
	return err
}

func removeCgroup(dir, top string) error {
	const rounds = 100 // Each round moves what was started during the one before.
	for range rounds {
		b, err := boundedread.Trusted(filepath.Join(dir, procs), boundedread.IDs)
		if err != nil {
			return err
		}
		for _, pid := range slices.Collect(strings.FieldsSeq(string(b))) {
			err := os.WriteFile(filepath.Join(top, procs), []byte(pid), 0) // The kernel has made the file.
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if err := unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return fmt.Errorf("%s: its processes start others without end", dir)
}

// procs lists the processes of a cgroup, and takes those that are written to it.
const procs = "cgroup.procs"
