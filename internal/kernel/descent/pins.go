package descent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The names of what is pinned in the directory of a record. The links of the programs come last: without them the record has a gap.
const (
	membersPin, lostPin = "members", "lost"
	forkPin, exitPin    = "fork", "exit"
)

func pinNames() []string { return []string{membersPin, lostPin, forkPin, exitPin} }

// pinDir returns the directory in which the record with this name is pinned. systemd mounts the BPF file system of the host, and the unit
// makes the directory above, because nothing else there can be written in its sandbox.
func pinDir(hostRoot, name string) (string, error) {
	mounts := []string{filepath.Join(hostRoot, "sys/fs/bpf"), "/sys/fs/bpf"}
	for _, at := range mounts {
		var s unix.Statfs_t
		if err := unix.Statfs(at, &s); err == nil && s.Type == unix.BPF_FS_MAGIC {
			return filepath.Join(at, "gpushare", name), nil
		}
	}
	return "", fmt.Errorf("no BPF file system is mounted at %s", mounts[1])
}

// openMaps opens the pinned record and its counter, or makes new ones. begins: nothing was recorded before.
func (r *Record) openMaps(capacity uint32) (begins bool, err error) {
	if r.dir != "" && r.openPinned() {
		return false, nil
	}
	if err := unpin(r.dir); err != nil {
		return true, err
	}
	if r.members, err = ebpf.NewMap(membersSpec(capacity)); err == nil {
		r.lost, err = ebpf.NewMap(lostSpec())
	}
	if err == nil && r.dir != "" {
		if err = os.MkdirAll(r.dir, 0o700); err != nil {
			return true, err
		}
		err = errors.Join(r.members.Pin(filepath.Join(r.dir, membersPin)), r.lost.Pin(filepath.Join(r.dir, lostPin)))
	}
	return true, kernelError(err)
}

// openPinned opens what an earlier daemon has pinned, if it is all there and of this version.
func (r *Record) openPinned() bool {
	for _, name := range pinNames() {
		if _, err := os.Lstat(filepath.Join(r.dir, name)); err != nil {
			return false
		}
	}
	members, err := ebpf.LoadPinnedMap(filepath.Join(r.dir, membersPin), nil)
	if err != nil {
		return false
	}
	lost, err := ebpf.LoadPinnedMap(filepath.Join(r.dir, lostPin), nil)
	want, counts := membersSpec(1), lostSpec()
	if err != nil || members.Type() != want.Type || members.KeySize() != want.KeySize || members.ValueSize() != want.ValueSize ||
		lost.Type() != counts.Type || lost.KeySize() != counts.KeySize || lost.ValueSize() != counts.ValueSize {
		_, _ = members.Close(), lost.Close() // There is nothing to flush.
		return false
	}
	r.members, r.lost = members, lost
	return true
}

// pin pins the link of a program, which replaces that of an earlier daemon. In between both run, and both record the same.
func (r *Record) pin(a attached, name string) error {
	if r.dir == "" {
		return nil
	}
	at := filepath.Join(r.dir, name)
	if err := os.Remove(at + "-new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := a.link.Pin(at + "-new"); err != nil {
		return kernelError(err)
	}
	return os.Rename(at+"-new", at)
}

// unpin removes a record from the BPF file system.
func unpin(dir string) error {
	if dir == "" {
		return nil
	}
	var err error
	for _, name := range pinNames() {
		for _, name := range []string{name, name + "-new"} {
			if e := os.Remove(filepath.Join(dir, name)); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	if e := unix.Rmdir(dir); err == nil && !errors.Is(e, unix.ENOENT) {
		err = e
	}
	return err
}
