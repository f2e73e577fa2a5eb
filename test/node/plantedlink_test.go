package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
)

// Root writes a file into a directory in which another user has made links and pipes: no other file is written to, made or changed,
// and no command waits.
func TestCommandsFollowNoLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a link of another user needs root")
	}
	n := inDirectory(t)
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	dir, secret := filepath.Join(n.Dir, "shared"), filepath.Join(n.Dir, "secret")
	if err := errors.Join(
		os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777|fs.ModeSticky), os.WriteFile(secret, []byte("secret"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		plant   func(name string) error
		refused string
	}{
		{"a-link.prom", func(name string) error { return os.Symlink(secret, name) }, "it is a symbolic link of uid 65533"},
		{"a-dangling-link.prom", func(name string) error { return os.Symlink(secret+"-new", name) }, "it is a symbolic link of uid 65533"},
		{"a-pipe.prom", func(name string) error { return unix.Mkfifo(name, 0o666) }, "it is a named pipe of uid 65533"},
		{"a-file.prom", func(name string) error { return os.WriteFile(name, []byte("planted"), 0o666) }, ""},
		{"new.prom", nil, ""},
	} {
		name := filepath.Join(dir, c.name)
		if c.plant != nil {
			if err := errors.Join(c.plant(name), os.Lchown(name, 65533, 65533)); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // A command that waits for the pipe ends then.
		r := n.CLI(ctx, "metrics", "--textfile", name)
		cancel()
		if (r.Code == api.ExitFailed) != (c.refused != "") || !strings.Contains(r.Err, c.refused) {
			t.Errorf("%s: it exits with %d: %s%s", c.name, r.Code, r.Out, r.Err)
		}
		i, err := os.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		if regular := i.Mode().IsRegular(); regular != (c.refused == "") || regular && i.Mode() != 0o644 {
			t.Errorf("%s: the mode is %v", c.name, i.Mode())
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil || (st.Uid == 0) != (c.refused == "") {
			t.Errorf("%s: it is of uid %d, %v", c.name, st.Uid, err)
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
}
