package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRunDirFallsBackToThePreviousFile(t *testing.T) {
	t.Parallel()
	written := func(t *testing.T, contents ...string) RunDir {
		t.Helper()
		d := RunDir(t.TempDir())
		for _, c := range contents {
			if err := d.Write("leases.json", []byte(c)); err != nil {
				t.Fatal(err)
			}
		}
		return d
	}
	overwrite := func(t *testing.T, d RunDir, name, content string) {
		t.Helper()
		if err := os.WriteFile(d.Path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(t *testing.T, d RunDir, want string, damaged, lost bool) {
		t.Helper()
		b, damage, err := d.Read("leases.json")
		if err != nil || string(b) != want || (damage != nil) != damaged || (damage.Err() != nil) != lost {
			t.Errorf("read %q, %+v, %v", b, damage, err)
		}
	}
	t.Run("undamaged", func(t *testing.T) { read(t, written(t, `{"n":1}`, `{"n":2}`), `{"n":2}`, false, false) })
	t.Run("missing", func(t *testing.T) {
		if _, damage, err := RunDir(t.TempDir()).Read("leases.json"); !errors.Is(err, fs.ErrNotExist) || damage != nil {
			t.Errorf("%+v, %v", damage, err)
		}
	})
	t.Run("every byte", func(t *testing.T) {
		d := written(t, `{"n":1}`, `{"n":2}`)
		whole, err := os.ReadFile(d.Path("leases.json"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range whole {
			for _, damaged := range []string{string(whole[:i]), string(whole[:i]) + string(whole[i]^1) + string(whole[i+1:])} {
				overwrite(t, d, "leases.json", damaged)
				b, damage, err := d.Read("leases.json")
				// The header may be readable after a flip that does not change its meaning, as in the name of an unknown field.
				if err != nil || string(b) != `{"n":1}` && !(damage == nil && string(b) == `{"n":2}`) {
					t.Errorf("byte %d: read %q, %+v, %v", i, b, damage, err)
				}
			}
		}
		if kept, err := os.ReadFile(d.Path("leases.json.corrupt")); err != nil || len(kept) == 0 {
			t.Errorf("the damaged file was not kept: %v", err)
		}
	})
	t.Run("removed", func(t *testing.T) {
		d := written(t, `{"n":1}`, `{"n":2}`)
		if err := os.Remove(d.Path("leases.json")); err != nil {
			t.Fatal(err)
		}
		read(t, d, `{"n":1}`, true, false)
	})
	t.Run("both damaged", func(t *testing.T) {
		d := written(t, `{"n":1}`, `{"n":2}`)
		overwrite(t, d, "leases.json", "x\n")
		overwrite(t, d, "leases.json.previous", "x\n")
		read(t, d, "", true, true)
	})
	t.Run("of a version without checksums", func(t *testing.T) {
		d := written(t)
		overwrite(t, d, "leases.json", `{"format":1,"leases":[]}`)
		read(t, d, `{"format":1,"leases":[]}`, false, false)
	})
}

// Two daemons with different state directories and the same run directory.
func TestOpenLocksTheOtherDirectories(t *testing.T) {
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	s, _, err := Open(filepath.Join(t.TempDir(), "state"), run)
	if err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(t.TempDir(), "state")
	if _, _, err := Open(second, run); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "cannot lock "+run) ||
		!strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
		t.Errorf("a second lock gives %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, _, err := Open(second, run)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
