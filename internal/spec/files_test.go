package spec_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/spec"
)

// Findings of the whole are about the file that has the place.
func TestReadFiles(t *testing.T) {
	dir := t.TempDir()
	main, dropIns := filepath.Join(dir, "node.yaml"), filepath.Join(dir, spec.DropIns)
	if err := os.Mkdir(dropIns, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tenant := func(name string) string {
		return fmt.Sprintf(
			"version: v1\ntenants:\n  - name: %s\n    members: {users: [alice]}\n    adopt: {logins: g}\n    grants: [{name: g, exclusive: 1}]\n",
			name,
		)
	}
	fails := func(want string) {
		t.Helper()
		if d, err := spec.ReadFiles(main); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it gives %v, %v; want %q", d, err, want)
		}
	}
	fails("cannot read the spec: open " + main)
	write(main, "base: 3\nversion: v1\n")
	fails(main + ":1:7: base: is not read in a file that the daemon applies by itself")
	write(main, tenant("red"))
	write(filepath.Join(dropIns, "a.yaml"), "version: v1\ntenants: [{name: blue}, {name: green, members: {users: [bob]}}]\n")
	for _, ignored := range []string{"b.yaml~", ".b.yaml", "b.txt"} {
		write(filepath.Join(dropIns, ignored), "nonsense")
	}
	d, err := spec.ReadFiles(main)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(d.Spec.Tenants); n != 3 {
		t.Errorf("it has %d tenants: %+v", n, d.Spec)
	}
	placed := d.Locate(api.FieldErrors{
		{Path: "tenants[2].members.users[0]", Message: "x"},
		{Path: "tenants[0].grants", Message: "y"},
		{Path: "node", Message: "z"},
	})
	for i, want := range []string{dropIns + "/a.yaml:2:57: tenants[1].members.users[0]: x", main + ":6:5: tenants[0].grants: y", main + ":1:1: node: z"} {
		if got := placed[i].Error(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	second := filepath.Join(dropIns, "c.yaml")
	write(second, tenant("black"))
	fails(second + ":4:23: tenants[0].members.users[0]: the logins of alice are adopted by tenant red already")
	write(second, strings.Repeat("#", spec.MaxSize))
	fails(second + ": with this file the spec has more than 1 MiB")
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(second, 0o600); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	go func() { defer close(begun); fails(second + " is no regular file") }()
	select {
	case <-begun:
	case <-time.After(time.Minute):
		t.Fatal("a FIFO makes it wait")
	}
}

// A directory of drop-ins that cannot be listed is not one without drop-ins: a spec without their tenants would be applied.
func TestDropInsThatCannotBeListed(t *testing.T) {
	for name, c := range map[string]struct {
		make func(dir string) error
		want error // nil: there are none
	}{
		"none":                     {func(string) error { return nil }, nil},
		"no directory":             {func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, syscall.ENOTDIR},
		"links that lead nowhere":  {func(dir string) error { return os.Symlink(spec.DropIns, dir) }, syscall.ELOOP},
		"others may not read them": {func(dir string) error { return os.Mkdir(dir, 0) }, syscall.EACCES},
	} {
		t.Run(name, func(t *testing.T) {
			if errors.Is(c.want, syscall.EACCES) && os.Geteuid() == 0 {
				t.Skip("root may read every directory")
			}
			dir := t.TempDir()
			main := filepath.Join(dir, "node.yaml")
			if err := errors.Join(
				os.WriteFile(main, []byte("version: v1\n"), 0o600), c.make(filepath.Join(dir, spec.DropIns)),
			); err != nil {
				t.Fatal(err)
			}
			d, err := spec.ReadFiles(main)
			var e *api.Error
			switch {
			case c.want == nil && err != nil:
				t.Errorf("without drop-ins: %v", err)
			case c.want != nil && (!errors.As(err, &e) || e.Kind != api.KindInvalid || !strings.Contains(err.Error(), c.want.Error()) || !strings.Contains(err.Error(), filepath.Join(dir, spec.DropIns))):
				t.Errorf("it gives %v, %v", d, err)
			}
		})
	}
}
