package durable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOneCallOpensTheSameDirectory opens directories in one call and component by component. With a link on the way the one call fails,
// and the rules of links are those of openEach.
func TestOneCallOpensTheSameDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "a/b"), 0o700), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		os.Symlink("a", filepath.Join(dir, "link")), os.Symlink("b", filepath.Join(dir, "a/last")),
	); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	direct, err := filepath.EvalSymlinks(dir) // TMPDIR may have links.
	if err != nil {
		t.Fatal(err)
	}
	inode := func(fd int, err error) (uint64, error) {
		if err != nil {
			return 0, err
		}
		var st unix.Stat_t
		err = errors.Join(unix.Fstat(fd, &st), unix.Close(fd))
		return st.Ino, err
	}
	probe, supported := openWithoutLinks("/")
	if supported == nil {
		_ = unix.Close(probe)
	}
	for _, tt := range []struct {
		name      string
		one, each bool
	}{
		{"/", true, true},
		{".", true, true},
		{"a/b", true, true},
		{"a/../a/b", true, true},
		{direct + "/a/b", true, true},
		{direct + "//a/./b", true, true},
		{"link/b", false, true},
		{"a/last", false, true},
		{direct + "/link", false, true},
		{"file", false, false},
		{"file/b", false, false},
		{"missing", false, false},
	} {
		one, oneErr := inode(openWithoutLinks(tt.name))
		each, eachErr := inode(openEach(tt.name))
		all, allErr := inode(openDirectory(tt.name))
		if supported == nil && (oneErr == nil) != tt.one {
			t.Errorf("%s: in one call: %v", tt.name, oneErr)
		}
		if (eachErr == nil) != tt.each || (allErr == nil) != tt.each || all != each || oneErr == nil && one != each {
			t.Errorf("%s: in one call %d, component by component %d, %v; opened %d, %v", tt.name, one, each, eachErr, all, allErr)
		}
	}
}
