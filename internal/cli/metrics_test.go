package cli_test

import (
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

// The file is replaced as a whole: a failure leaves the old one, and nothing else is left in the directory.
func TestTextfile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "gpushare.prom")
	check := func(what, want string) {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil || string(b) != want {
			t.Errorf("%s: the file has %q: %v", what, b, err)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("%s: the directory has %v: %v", what, list, err)
		}
	}
	for _, text := range []string{"a 1\n", "a 2\n"} {
		if r := run(t, routes{"GET /metrics": printing(text)}, "", "metrics", "--textfile", file); r.code != 0 || r.all != "" {
			t.Fatalf("it ends with %d: %s", r.code, r.all)
		}
		check("a writing", text)
	}
	if i, err := os.Stat(file); err != nil || i.Mode().Perm() != 0o644 {
		t.Errorf("node_exporter may not read it: %v, %v", i, err)
	}
	refused := routes{"GET /metrics": &api.Error{Kind: api.KindDenied, Message: "you may not read the metrics"}}
	if r := run(t, refused, "", "metrics", "--textfile", file); r.code != api.ExitDenied {
		t.Errorf("a refusal ends with %d: %s", r.code, r.all)
	}
	check("a refusal", "a 2\n")
	if r := run(
		t, routes{"GET /metrics": printing("a 3\n")}, "", "metrics", "--textfile", filepath.Join(dir, "none", "gpushare.prom"),
	); r.code != api.ExitFailed {
		t.Errorf("without the directory it ends with %d: %s", r.code, r.all)
	}
}

// What another user may have put at the name is neither followed nor written to, and the caller's own file keeps its mode.
func TestTextfileIsWrittenNew(t *testing.T) {
	for _, c := range []struct {
		name    string
		plant   func(file, secret string) error
		refused string
		mode    fs.FileMode
	}{
		{"a link to a file", func(file, secret string) error { return os.Symlink(secret, file) }, "it is a symbolic link", 0},
		{"a link to nothing", func(file, secret string) error { return os.Symlink(secret+"-none", file) }, "it is a symbolic link", 0},
		{"a named pipe", func(file, _ string) error { return unix.Mkfifo(file, 0o666) }, "it is a named pipe", 0},
		{"a hard link", func(file, secret string) error { return os.Link(secret, file) }, "", 0o644},
		{"a directory", func(file, _ string) error { return os.Mkdir(file, 0o755) }, "it is a directory", 0},
		{"an own file", func(file, _ string) error { return errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o640)) }, "", 0o640},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
			file := filepath.Join(dir, "gpushare.prom")
			if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), c.plant(file, secret)); err != nil {
				t.Fatal(err)
			}
			ended := make(chan result, 1)
			go func() {
				ended <- run(t, routes{"GET /metrics": printing("a 1\n")}, "", "metrics", "--textfile", file)
			}()
			select {
			case r := <-ended:
				if (r.code == api.ExitFailed) != (c.refused != "") || !strings.Contains(r.all, c.refused) ||
					c.refused != "" && !strings.Contains(r.all, "hint: 'ls -ld ") {
					t.Errorf("it ends with %d: %s", r.code, r.all)
				}
			case <-time.After(time.Minute):
				t.Fatal("it waits for a reader of the pipe")
			}
			if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
				t.Errorf("the other file has %q, %v", b, err)
			}
			if i, err := os.Stat(secret); err != nil || i.Mode() != 0o600 {
				t.Errorf("the other file has the mode %v, %v", i.Mode(), err)
			}
			if _, err := os.Lstat(secret + "-none"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a file was made elsewhere: %v", err)
			}
			if c.refused != "" {
				return
			}
			if i, err := os.Stat(file); err != nil || i.Mode() != c.mode {
				t.Errorf("the mode is %v, %v", i.Mode(), err)
			}
		})
	}
}
