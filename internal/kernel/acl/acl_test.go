package acl

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The attribute is what the kernel reads: setfacl writes the same, and the mode is that of the mask.
func TestLists(t *testing.T) {
	dir := t.TempDir()
	l := List{Owner: 7, Mask: 1, Named: []Named{{ID: 1000, Perm: 1}, {ID: 1001, Perm: 5}, {Group: true, ID: 50, Perm: 1}}}
	if err := Write(dir, l); err != nil {
		t.Fatal(err)
	}
	is, err := Read(dir)
	if err != nil || !is.Equal(l) {
		t.Errorf("read %+v, %v, want %+v", is, err, l)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o710 || l.Mode() != 0o710 {
		t.Errorf("the mode is %v, %v, want 0710", info.Mode(), err)
	}
	if getfacl, err := exec.LookPath("getfacl"); err == nil {
		out, err := exec.CommandContext(t.Context(), getfacl, "--numeric", "--absolute-names", "--omit-header", "--no-effective", dir).
			Output()
		if want := "user::rwx\nuser:1000:--x\nuser:1001:r-x\ngroup::---\ngroup:50:--x\nmask::--x\nother::---\n\n"; err != nil ||
			string(out) != want {
			t.Errorf("getfacl prints %q, %v", out, err)
		}
	}
	// A mode that is set by hand is the mask of the list.
	if err := os.Chmod(dir, 0o705); err != nil {
		t.Fatal(err)
	}
	if is, err := Read(dir); err != nil || is.Equal(l) || is.Mask != 0 || is.Other != 5 || len(is.Named) != 3 {
		t.Errorf("after chmod %+v, %v", is, err)
	}
	for range 2 {
		if err := Write(dir, Of(0o711)); err != nil {
			t.Fatal(err)
		}
		if is, err := Read(dir); err != nil || !is.Equal(Of(0o711)) {
			t.Errorf("without names %+v, %v", is, err)
		}
	}
	if _, err := unix.Lgetxattr(dir, attribute, nil); err == nil {
		t.Error("the attribute is still there")
	}
}

func TestUnknownAttributes(t *testing.T) {
	for _, b := range [][]byte{nil, {1, 0, 0, 0}, {2, 0, 0, 0, 1}, append([]byte{2, 0, 0, 0}, strings.Repeat("\x40", entrySize)...)} {
		if l, err := decode(b); err == nil {
			t.Errorf("%x is read as %+v", b, l)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("a missing file: %v", err)
	}
}
