package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/enumeration"
)

// What is removed of the directories of an open store is there again after the next check, with the state of this process and locked
// against another. A check that finds all files changes nothing.
func TestRevalidate(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		remove func(dir, run string) error
		lost   []string // names below the parent of both
	}{
		"nothing":                {func(string, string) error { return nil }, nil},
		"nothing, by a link":     {func(string, string) error { return nil }, nil},
		"the directory":          {func(dir, _ string) error { return os.RemoveAll(dir) }, []string{"state", "state/state.json"}},
		"the directory is moved": {func(dir, _ string) error { return os.Rename(dir, dir+"-old") }, []string{"state", "state/state.json"}},
		"the state":              {func(dir, _ string) error { return os.Remove(filepath.Join(dir, current)) }, []string{"state/state.json"}},
		"the lock":               {func(dir, _ string) error { return os.Remove(filepath.Join(dir, "lock")) }, []string{"state/lock"}},
		"the run directory":      {func(_, run string) error { return os.RemoveAll(run) }, []string{"run"}},
		"a link to it leads elsewhere": {func(dir, _ string) error {
			return errors.Join(os.Remove(dir), os.Mkdir(dir+"-new", 0o700), os.Symlink(dir+"-new", dir))
		}, []string{"state", "state/state.json"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			dir, run := filepath.Join(top, "state"), filepath.Join(top, "run")
			if strings.Contains(name, "link") {
				if err := errors.Join(os.Mkdir(dir+"-target", 0o700), os.Symlink(dir+"-target", dir)); err != nil {
					t.Fatal(err)
				}
			}
			s, _, err := Open(dir, run)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			spec := func(text string) func(*State) error {
				return func(st *State) error {
					st.Accept(text, "root", time.Unix(1, 0), Resolved{})
					return nil
				}
			}
			if err := s.Update(spec("version: v1\n")); err != nil {
				t.Fatal(err)
			}
			if err := c.remove(dir, run); err != nil {
				t.Fatal(err)
			}
			lost, err := s.Revalidate()
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, l := range c.lost {
				want = append(want, filepath.Join(top, l))
			}
			slices.Sort(lost)
			slices.Sort(want)
			if !slices.Equal(lost, want) {
				t.Errorf("lost are %q, want %q", lost, want)
			}
			if again, err := s.Revalidate(); err != nil || len(again) != 0 {
				t.Errorf("a second check finds %q, %v", again, err)
			}
			if info, err := os.Stat(run); err != nil || info.Mode().Perm() != runMode {
				t.Errorf("other users do not reach the run directory: %v, %v", info, err)
			}
			if st, err := Peek(dir); err != nil || st.Accepted == nil || st.Accepted.YAML != "version: v1\n" {
				t.Errorf("the state on disk is %+v, %v", st, err)
			}
			if other, _, err := Open(dir, filepath.Join(top, "other")); !errors.Is(err, ErrLocked) {
				_ = other.Close()
				t.Errorf("another daemon opens the state: %v", err)
			}
			if other, _, err := Open(filepath.Join(top, "another"), run); !errors.Is(err, ErrLocked) {
				_ = other.Close()
				t.Errorf("another daemon opens the run directory: %v", err)
			}
			if err := s.Update(spec("version: v1\nnode: {}\n")); err != nil {
				t.Error(err)
			}
		})
	}
}

// A write that finds the directory removed does not fail: the spec that it acknowledges is on disk. The next check reports the loss.
func TestUpdateInARemovedDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	s, _, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(func(st *State) error { st.LastOperation = 7; return nil }); err != nil {
		t.Fatal(err)
	}
	if st, err := Peek(dir); err != nil || st.LastOperation != 7 {
		t.Errorf("the state on disk is %+v, %v", st, err)
	}
	if lost, err := s.Revalidate(); err != nil || !slices.Equal(lost, []string{dir}) {
		t.Errorf("lost are %q, %v", lost, err)
	}
}

// A directory that an administrator put in the place, with a state of its own, is not overwritten, and no spec is acknowledged that is
// nowhere.
func TestRevalidateAnotherState(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	s, _, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	set := func(n uint64) error {
		return s.Update(func(st *State) error { st.LastOperation = n; return nil })
	}
	if err := set(1); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+"-old"); err != nil {
		t.Fatal(err)
	}
	other, _, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(other.Update(func(st *State) error { st.LastOperation = 100; return nil }), other.Close()); err != nil {
		t.Fatal(err)
	}
	if lost, err := s.Revalidate(); !errors.Is(err, ErrReplaced) || len(lost) != 1 {
		t.Errorf("lost are %q, %v", lost, err)
	}
	// The directory that was open can still be written to.
	if err := set(2); !errors.Is(err, ErrReplaced) {
		t.Errorf("a write ends with %v", err)
	}
	if err := os.RemoveAll(dir + "-old"); err != nil {
		t.Fatal(err)
	}
	if err := set(2); !errors.Is(err, ErrReplaced) {
		t.Errorf("a write ends with %v, after what was open is removed", err)
	}
	if st, err := Peek(dir); err != nil || st.LastOperation != 100 {
		t.Errorf("the other state is %+v, %v", st, err)
	}
}
