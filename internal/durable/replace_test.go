package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// other is a user without rights.
const other = 65533

// shared is a directory as /tmp: others may make files in it, and not replace those of the caller.
func shared(t *testing.T) (dir, secret string) {
	t.Helper()
	parent := t.TempDir()
	dir, secret = filepath.Join(parent, "shared"), filepath.Join(parent, "secret")
	if err := errors.Join(
		os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777|fs.ModeSticky), os.WriteFile(secret, []byte("secret"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return dir, secret
}

// owned makes a file one of another user, where the test may do that.
func owned(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(path, other, other)
}

// What another user has put at the name is neither written to nor changed, and the file that it leads to neither.
func TestWhatIsPlantedAtTheName(t *testing.T) {
	for _, c := range []struct {
		name    string
		plant   func(name, secret string) error
		refused string // the reason; empty: it is replaced
		mode    fs.FileMode
	}{
		{"nothing", func(string, string) error { return nil }, "", 0o644},
		{"a link to a file of root", func(name, secret string) error { return errors.Join(os.Symlink(secret, name), owned(name)) }, "it is a symbolic link of uid", 0},
		{"a link to nothing", func(name, secret string) error { return errors.Join(os.Symlink(secret+"-new", name), owned(name)) }, "it is a symbolic link of uid", 0},
		{"a link to a device", func(name, _ string) error { return errors.Join(os.Symlink("/dev/full", name), owned(name)) }, "it is a symbolic link of uid", 0},
		{"a named pipe", func(name, _ string) error { return errors.Join(unix.Mkfifo(name, 0o666), owned(name)) }, "it is a named pipe of uid", 0},
		{"a hard link to a file of root", func(name, secret string) error { return os.Link(secret, name) }, "", 0o644},
		{"a directory", func(name, _ string) error { return os.Mkdir(name, 0o777) }, "it is a directory", 0},
		{"a file of another user", func(name, _ string) error {
			if os.Geteuid() != 0 {
				return errors.Join(os.WriteFile(name, []byte("old"), 0o644), os.Chmod(name, 0o644))
			}
			return errors.Join(os.WriteFile(name, []byte("old"), 0o666), os.Chmod(name, 0o666), owned(name))
		}, "", 0o644},
		{"the caller's own file", func(name, _ string) error {
			return errors.Join(os.WriteFile(name, []byte("old"), 0o600), os.Chmod(name, 0o640))
		}, "", 0o640},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, secret := shared(t)
			name := filepath.Join(dir, "image.svg")
			if err := c.plant(name, secret); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(name) // Where there is none, it is nil.
			err := Replace(name, []byte("new"), Options{Mode: 0o644, Keep: true, Prefix: ".unfinished-"})
			if (err != nil) != (c.refused != "") ||
				err != nil && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.refused)) {
				t.Fatalf("the error is %v, want %q", err, c.refused)
			}
			after, errAfter := os.Lstat(name)
			switch {
			case errAfter != nil:
				t.Error(errAfter)
			case c.refused != "" && (!os.SameFile(before, after) || before.Mode() != after.Mode()):
				t.Errorf("it was changed from %v to %v", before.Mode(), after.Mode())
			case c.refused == "":
				if b, err := os.ReadFile(name); err != nil || string(b) != "new" || after.Mode() != c.mode ||
					after.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
					t.Errorf("the file has %q, mode %v, %v", b, after.Mode(), err)
				}
			}
			if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
				t.Errorf("the file of root has %q, %v", b, err)
			}
			if i, err := os.Stat(secret); err != nil || i.Mode() != 0o600 {
				t.Errorf("the file of root has the mode %v, %v", i.Mode(), err)
			}
			if _, err := os.Lstat(secret + "-new"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a file was made elsewhere: %v", err)
			}
			if list, err := filepath.Glob(filepath.Join(dir, ".unfinished-*")); err != nil || len(list) != 0 {
				t.Errorf("%v is left, %v", list, err)
			}
			// The daemon's own files are replaced whatever was put there, except a directory.
			if err := Replace(
				name, []byte("any"), Options{Mode: 0o600, Any: true, Temp: "unfinished"},
			); (err == nil) == (c.name == "a directory") {
				t.Errorf("with Any: %v", err)
			}
			if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
				t.Errorf("with Any the file of root has %q, %v", b, err)
			}
		})
	}
}

// What is planted at the name that the file has until it is complete is not followed either.
func TestWhatIsPlantedAtTheTemporaryName(t *testing.T) {
	dir, secret := shared(t)
	if err := os.Symlink(secret, filepath.Join(dir, "record.new")); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "record"), []byte("new")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
		t.Errorf("the file of root has %q, %v", b, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%v is left, %v", list, err)
	}
}

// A directory of the path may be a link of root or of the caller, and not one of another user.
func TestLinksToTheDirectory(t *testing.T) {
	parent := t.TempDir()
	real := filepath.Join(parent, "real", "below")
	if err := os.MkdirAll(real, 0o755); err != nil {
		t.Fatal(err)
	}
	link := func(name, target string) string {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(parent, name)); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(parent, name)
	}
	foreign := link("foreign", real)
	if err := owned(foreign); err != nil {
		t.Fatal(err)
	}
	loop := link("loop", "loop")
	t.Chdir(parent)
	for _, c := range []struct{ name, refused string }{
		{real + "/f", ""},
		{link("own", real) + "/f", ""},
		{link("relative", "real/../real/below") + "/f", ""},
		{"real/below/f", ""},
		{"./own/f", ""},
		{"f", ""},
		{loop + "/f", "too many levels"},
		{real + "/none/f", "no such file"},
		{real + "/f/f", "f is no directory"},
		{real + "/", "it is a directory"},
		{real + "/..", "it is a directory"},
		{foreign + "/f", fmt.Sprintf("foreign is a symbolic link of uid %d, which is not followed", other)},
	} {
		if c.name == foreign+"/f" && os.Geteuid() != 0 {
			continue // The test could not make the link one of another user.
		}
		if err := Replace(c.name, nil, Options{}); (err != nil) != (c.refused != "") ||
			err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v, want %q", c.name, err, c.refused)
		}
	}
}

// A directory that is made has its mode whatever the umask; one that is there keeps its own.
func TestMakeDirectory(t *testing.T) {
	mask := syscall.Umask(0o077)
	defer syscall.Umask(mask)
	top := t.TempDir()
	for _, c := range []struct {
		about string
		do    func(string, fs.FileMode) error
		name  string
		mode  fs.FileMode
		want  fs.FileMode // 0: it cannot be made
	}{
		{"one below none", MakeDirectory, "above/below", 0o755, 0},
		{"both", MakeDirectories, "above/below", 0o755, 0o755},
		{"the one above", MakeDirectory, "above", 0o711, 0o755},
		{"both are there", MakeDirectories, "above/below", 0o711, 0o755},
		{"one", MakeDirectory, "alone", 0o711, 0o711},
		{"it is there", MakeDirectory, "alone", 0o755, 0o711},
	} {
		name := filepath.Join(top, c.name)
		if err := c.do(name, c.mode); (err == nil) != (c.want != 0) {
			t.Errorf("%s: %v", c.about, err)
		}
		if i, err := os.Stat(name); c.want != 0 && (err != nil || i.Mode().Perm() != c.want) {
			t.Errorf("%s: the mode is %v, %v, want %v", c.about, i.Mode(), err, c.want)
		}
	}
}

// Without a mode a new file has that of the umask; a file of the caller keeps its group.
func TestModesOfNewFiles(t *testing.T) {
	mask := syscall.Umask(0o027)
	defer syscall.Umask(mask)
	name := filepath.Join(t.TempDir(), "image.svg")
	check := func(about string, o Options, want fs.FileMode) {
		t.Helper()
		if err := Replace(name, nil, o); err != nil {
			t.Fatal(err)
		}
		if i, err := os.Stat(name); err != nil || i.Mode() != want {
			t.Errorf("%s: the mode is %v, %v, want %v", about, i.Mode(), err, want)
		}
	}
	check("the umask", Options{Keep: true}, 0o640)
	if err := os.Chmod(name, 0o604|fs.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	check("a file that is kept", Options{Keep: true, Mode: 0o644}, 0o604)
	check("a mode", Options{Mode: 0o644}, 0o644)
	if os.Geteuid() != 0 {
		t.Skip("giving a file another group needs root")
	}
	if err := errors.Join(os.Chown(name, -1, other), os.Chmod(name, 0o660)); err != nil {
		t.Fatal(err)
	}
	check("a file with another group", Options{Keep: true}, 0o660)
	if i, err := os.Stat(name); err != nil || i.Sys().(*syscall.Stat_t).Gid != other {
		t.Errorf("the group was not kept: %v", err)
	}
}

// On a full disk the old file stays.
func TestReplaceOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skipf("no small filesystem to fill: mounting one needs root and a mount namespace that permits it (%v)", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	name := filepath.Join(dir, "image.svg")
	if err := os.WriteFile(name, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Replace(name, make([]byte, 1<<20), Options{}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the error is %v", err)
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != "old" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%v is left, %v", list, err)
	}
}
