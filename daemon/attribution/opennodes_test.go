package attribution

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// What a process has open is its own if its user opened it, or if it is mapped. Where the kernel does not say who opened it, only what is
// mapped is.
func TestOwn(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "node"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pid, uid, key := os.Getpid(), uint32(os.Getuid()), fileKey{ino: 1}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	node := openNode{
		file: procfs.OpenFile{PID: pid, Dev: st.Dev, Ino: st.Ino}, key: key,
		at: nodeTarget{InstanceKey: planner.InstanceKey{GPU: "GPU-a"}, whole: true},
	}
	unknown := errors.New("no BPF")
	check := func(name string, by *openedBy, failed error, want bool) {
		t.Helper()
		n := &OpenNodes{nodes: []openNode{node}, failed: failed}
		n.byPID, n.owns = map[int][]openNode{pid: {node}}, map[int]planner.OpenDevices{}
		if by != nil {
			n.openers = map[openedBy]bool{*by: true}
		}
		own, err := n.Own(t.Context(), pid)
		if got := slices.Contains(own.Users("GPU-a"), pid); got != want || !errors.Is(err, failed) {
			t.Errorf("%s: its own: %v, want %v: %v", name, got, want, err)
		}
		if all := n.Devices(); !slices.Contains(all.Users("GPU-a"), pid) {
			t.Errorf("%s: it is not open", name)
		}
	}
	check("opened by its user", &openedBy{pid, uid, key}, nil, true)
	check("opened by another user", &openedBy{pid, uid + 1, key}, nil, false)
	check("another device opened by its user", &openedBy{pid, uid, fileKey{ino: 2}}, nil, false)
	check("unknown", nil, unknown, false)
	b, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	check("mapped", &openedBy{pid, uid + 1, key}, nil, true)
	check("mapped, and unknown", nil, unknown, true)
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	check("not mapped any more", nil, nil, false)
}
