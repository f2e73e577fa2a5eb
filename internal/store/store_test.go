package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpu"
)

var first = codec{format: 1}

var at = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

func accept(yaml string) func(*State) error {
	return func(s *State) error {
		s.Accept(yaml, "root", at, Resolved{GPUs: map[gpu.UUID]int{"GPU-0": 0}})
		s.Epoch = Epoch{Boot: "boot", Driver: "driver", Resets: map[gpu.UUID]uint64{"GPU-0": 1}}
		return nil
	}
}

// with gives a disk on which n specs were accepted, "1" to "n".
func with(t *testing.T, n int) (*disk, *Store) {
	t.Helper()
	d := newDisk()
	s, r, err := open(d, first)
	if err != nil || !r.Fresh {
		t.Fatal(r, err)
	}
	for i := range n {
		if err := s.Update(accept(fmt.Sprint(i + 1))); err != nil {
			t.Fatal(err)
		}
	}
	return d, s
}

func generation(s *Store) uint64 { return s.State().generation() }

func TestUpdate(t *testing.T) {
	d, s := with(t, 25)
	if err := s.Update(func(st *State) error { st.Change = json.RawMessage(`{"id": "c1"}`); return nil }); err != nil {
		t.Fatal(err)
	}
	s, r, err := open(d, first)
	if err != nil || r.Reason != "" || r.Fresh {
		t.Fatal(r, err)
	}
	st := s.State()
	if st.Accepted.Generation != 25 || st.Accepted.YAML != "25" || len(st.Revisions) != 20 || string(st.Change) != `{"id":"c1"}` {
		t.Errorf("read back %+v", st)
	}
	kept := map[uint64]string{}
	for _, r := range st.Revisions {
		kept[r.Generation] = r.YAML
	}
	if kept[7] != "7" {
		t.Errorf("revision 7 is %q", kept[7])
	}
	if _, ok := kept[5]; ok {
		t.Error("revision 5 is still there")
	}
	if err := s.Update(func(*State) error { return nil }); err != nil || s.Writes() != 0 {
		t.Errorf("a change of nothing wrote %d times (%v)", s.Writes(), err)
	}
	boom := errors.New("boom")
	if err := s.Update(func(st *State) error { st.Accepted = nil; st.Revisions[0].YAML = "x"; return boom }); !errors.Is(err, boom) {
		t.Errorf("the error became %v", err)
	}
	if st := s.State(); st.Accepted == nil || st.Revisions[0].YAML == "x" || s.Writes() != 0 {
		t.Error("a refused change left its traces")
	}
}

// TestPowerCut cuts the power before every operation of a write and looks at everything that may be left.
func TestPowerCut(t *testing.T) {
	for name, write := range map[string]func(*Store, func(*State) error) error{
		"update": (*Store).Update, "finish": (*Store).Finish,
		"finish from the reserve": func(s *Store, f func(*State) error) error {
			s.d.(*disk).free = 0
			return s.Finish(f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			images := 0
			for cut, acknowledged := 1, false; !acknowledged; cut++ {
				d, s := with(t, 2)
				d.fail, d.dead = d.op+cut, true
				acknowledged = write(s, accept("3")) == nil
				d.afterPowerCut(func(left *disk) {
					images++
					again, r, err := open(left, first)
					if err != nil || r.Fresh || r.Lost || r.FellBack {
						t.Fatalf("cut before operation %d: %+v, %v", cut, r, err)
					}
					if g := generation(again); g != 3 && (g != 2 || acknowledged) {
						t.Fatalf("cut before operation %d (acknowledged: %v): generation %d", cut, acknowledged, g)
					}
					if err := again.Update(accept("4")); err != nil || again.State().Accepted.YAML != "4" {
						t.Fatalf("cut before operation %d: the next write gives %v", cut, err)
					}
				})
			}
			if images < 20 {
				t.Errorf("only %d outcomes were seen", images)
			}
		})
	}
}

// TestFailingOperation lets every operation of a write fail once.
func TestFailingOperation(t *testing.T) {
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
		t.Run(fault.Error(), func(t *testing.T) {
			for n, done := 1, false; !done; n++ {
				d, s := with(t, 2)
				d.fail, d.err = d.op+n, fault
				err := s.Update(accept("3"))
				done = d.op < d.fail
				d.fail = 0
				if err != nil && (!errors.Is(err, fault) || generation(s) != 2) {
					t.Fatalf("operation %d: %v, generation %d", n, err, generation(s))
				}
				if err == nil && generation(s) != 3 {
					t.Fatalf("operation %d: acknowledged, but generation %d", n, generation(s))
				}
				if err != nil {
					// Whatever is on the disk now, what is known must be what is there after the next write.
					if err := s.Update(func(*State) error { return nil }); err != nil {
						t.Fatalf("operation %d: the next write gives %v", n, err)
					}
				}
				again, r, err := open(d, first)
				if err != nil || generation(again) != generation(s) || r.Reason != "" {
					t.Fatalf("operation %d: read back generation %d, known %d (%+v, %v)", n, generation(again), generation(s), r, err)
				}
			}
		})
	}
}

func TestFullDisk(t *testing.T) {
	d, s := with(t, 2)
	d.free = 0
	if err := s.Update(accept(strings.Repeat("x", 1000))); !errors.Is(err, syscall.ENOSPC) || generation(s) != 2 {
		t.Fatalf("a full disk gives %v, generation %d", err, generation(s))
	}
	// A restart on the full disk must not lose the reserve.
	s, _, err := open(d, first)
	if err != nil {
		t.Fatal(err)
	}
	closing := func(st *State) error {
		st.Held = map[gpu.UUID]Held{"GPU-0": {Reason: strings.Repeat("y", 2000)}}
		return nil
	}
	if err := s.Finish(closing); err != nil {
		t.Fatalf("the reserve did not help: %v", err)
	}
	again, r, err := open(d, first)
	if err != nil || len(again.State().Held) != 1 || r.Reason != "" {
		t.Fatalf("read back %+v (%+v, %v)", again.State(), r, err)
	}
	d.free = 0
	if err := s.Update(accept("4")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("something was begun that cannot be ended: %v", err)
	}
	d.free = 10 << 20
	if err := s.Update(accept("4")); err != nil || s.spare == 0 {
		t.Errorf("with room again: %v, reserve %d", err, s.spare)
	}
}

// TestFlippedBits flips every bit of a file: it is found, or it means nothing.
func TestFlippedBits(t *testing.T) {
	d, s := with(t, 2)
	want := s.State()
	good := d.names[current].data
	for bit := range len(good) * 8 {
		left := newDisk()
		left.names = maps.Clone(d.names)
		bad := append([]byte(nil), good...)
		bad[bit/8] ^= 1 << (bit % 8)
		left.names[current] = &inode{data: bad}
		s, r, err := open(left, first)
		if err != nil {
			t.Fatalf("bit %d (%q): %v", bit, good[bit/8], err)
		}
		if r.FellBack {
			if generation(s) != 1 || len(r.Quarantined) != 1 || r.Reason == "" || left.names[r.Quarantined[0]] == nil {
				t.Fatalf("bit %d: generation %d, %+v", bit, generation(s), r)
			}
		} else if d := cmp.Diff(want, s.State()); d != "" || r.Lost {
			t.Fatalf("bit %d (%q) was not found: %+v\n%s", bit, good[bit/8], r, d)
		}
	}
}

func TestDamage(t *testing.T) {
	damaged := func() *inode { return &inode{data: []byte("{}\n")} }
	t.Run("both", func(t *testing.T) {
		d, _ := with(t, 2)
		d.names[current], d.names[previous] = damaged(), damaged()
		s, r, err := open(d, first)
		if err != nil || !r.Lost || len(r.Quarantined) != 2 || generation(s) != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if err := s.Update(accept("new")); err != nil || generation(s) != 1 {
			t.Fatal(err)
		}
	})
	t.Run("again and again", func(t *testing.T) {
		d, _ := with(t, 2)
		for range 20 {
			d.names[current] = damaged()
			s, _, err := open(d, first)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Update(accept("more")); err != nil {
				t.Fatal(err)
			}
		}
		if len(d.names) > 10 {
			t.Errorf("there are %d files", len(d.names))
		}
	})
	t.Run("the current is gone", func(t *testing.T) {
		d, _ := with(t, 2)
		delete(d.names, current)
		s, r, err := open(d, first)
		if err != nil || !r.FellBack || generation(s) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

// TestFailingOpen lets every operation of opening a directory fail once: it is refused, or what is read is true, and the
// next start finds everything that the first would have found.
func TestFailingOpen(t *testing.T) {
	damaged := func() *inode { return &inode{data: []byte("{}\n")} }
	second := codec{format: 2, upgrades: map[int]func([]byte) ([]byte, error){1: func(b []byte) ([]byte, error) { return b, nil }}}
	for name, c := range map[string]struct {
		spoil func(*disk)
		codec codec
		want  []uint64 // the generations that may be read
	}{
		"healthy":                      {func(*disk) {}, first, []uint64{2, 1}}, // an unreadable file is a damaged one
		"damaged":                      {func(d *disk) { d.names[current] = damaged() }, first, []uint64{1, 0}},
		"both":                         {func(d *disk) { d.names[current], d.names[previous] = damaged(), damaged() }, first, []uint64{0}},
		"upgraded":                     {func(*disk) {}, second, []uint64{2, 1}},
		"upgraded from the one before": {func(d *disk) { d.names[current] = damaged() }, second, []uint64{1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, fault := range []error{syscall.EIO, syscall.EACCES, syscall.ENOSPC} {
				for n, done := 1, false; !done; n++ {
					d, _ := with(t, 2)
					c.spoil(d)
					d.fail, d.err = d.op+n, fault
					s, r, err := open(d, c.codec)
					done = d.op < d.fail
					if err != nil {
						if !errors.Is(err, fault) {
							t.Fatalf("%v at operation %d became %v", fault, n, err)
						}
						d.fail = 0
						if s, r, err = open(d, c.codec); err != nil {
							t.Fatalf("%v at operation %d: the next start gives %v", fault, n, err)
						}
					}
					if !slices.Contains(c.want, generation(s)) || generation(s) == 0 && !r.Lost || r.Fresh {
						t.Fatalf("%v at operation %d: generation %d, %+v", fault, n, generation(s), r)
					}
					d.fail = 0
					if err := s.Update(accept("next")); err != nil {
						t.Fatalf("%v at operation %d: the next write gives %v", fault, n, err)
					}
				}
			}
		})
	}
}

func FuzzUnmarshal(f *testing.F) {
	d := newDisk()
	s, _, err := open(d, first)
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Update(accept("1")); err != nil {
		f.Fatal(err)
	}
	f.Add(d.names[current].data)
	f.Add([]byte("{}\n{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, _, err := first.unmarshal(b)
		if (s == nil) == (err == nil) || err != nil && !errors.Is(err, errCorrupt) && !errors.Is(err, ErrNewerFormat) {
			t.Fatalf("%v, %v", s, err)
		}
	})
}

func TestFormats(t *testing.T) {
	encode := func(format int) []byte {
		b := []byte(fmt.Sprintf(`{"format":%d,"epoch":{},"old_name":"kept"}`+"\n", format))
		return append([]byte(fmt.Sprintf(`{"format":%d,"generation":0,"epoch":{},"sha256":%q}`+"\n", format, checksum(b))), b...)
	}
	t.Run("newer", func(t *testing.T) {
		d := newDisk()
		d.names[current] = &inode{data: encode(Format + 1)}
		before := maps.Clone(d.names)
		if _, _, err := open(d, first); !errors.Is(err, ErrNewerFormat) {
			t.Fatalf("a newer format gives %v", err)
		}
		if len(d.names) != len(before) || d.names[current] != before[current] {
			t.Error("the newer version's file was touched")
		}
		d.names[previous], d.names[current] = d.names[current], &inode{data: []byte("damaged")}
		if _, _, err := open(d, first); !errors.Is(err, ErrNewerFormat) || d.names[current] == nil {
			t.Errorf("a newer format beside damage gives %v", err)
		}
	})
	t.Run("older", func(t *testing.T) {
		d := newDisk()
		d.names[current] = &inode{data: encode(1)}
		old := d.names[current]
		third := codec{format: 3, upgrades: map[int]func([]byte) ([]byte, error){
			1: func(b []byte) ([]byte, error) {
				return []byte(strings.ReplaceAll(string(b), "old_name", "middle_name")), nil
			},
			2: func(b []byte) ([]byte, error) {
				return []byte(strings.ReplaceAll(string(b), `"middle_name":"kept"`, `"operations":7`)), nil
			},
		}}
		s, r, err := open(d, third)
		if err != nil || r.Upgraded != 1 || s.State().LastOperation != 7 {
			t.Fatalf("%+v, %+v, %v", s.State(), r, err)
		}
		if d.names["state.1.json"] != old {
			t.Error("the older version's file was not kept")
		}
		if s, r, err = open(d, third); err != nil || r.Upgraded != 0 || s.State().LastOperation != 7 {
			t.Errorf("the second time: %+v, %v", r, err)
		}
		if _, _, err := open(d, first); !errors.Is(err, ErrNewerFormat) {
			t.Errorf("the older version gets %v", err)
		}
		d.names[current] = old
		if _, r, err := open(d, codec{format: 3}); err != nil || !r.FellBack && !r.Lost {
			t.Errorf("a format that nobody can convert gives %+v, %v", r, err)
		}
	})
	t.Run("never was", func(t *testing.T) {
		d := newDisk()
		d.names[current] = &inode{data: encode(0)}
		if _, r, err := open(d, first); err != nil || !r.Lost {
			t.Errorf("format 0 gives %+v, %v", r, err)
		}
	})
}

// TestReleasedFiles reads what every released version has written.
func TestReleasedFiles(t *testing.T) {
	files, err := filepath.Glob("../../testdata/state/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		s, _, err := first.unmarshal(b)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		if s.Accepted.Generation != 3 || len(s.Revisions) != 3 || s.Achieved["GPU-0"].Layout[0].Placement.Size != 4 || s.Change == nil || s.Held["GPU-1"].Reason == "" {
			t.Errorf("%s reads as %+v", f, s)
		}
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "state")
	s, r, err := Open(path)
	if err != nil || !r.Fresh {
		t.Fatal(r, err)
	}
	if err := s.Update(accept("1")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(path); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d (", os.Getpid())) {
		t.Errorf("a second daemon gets %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, r, err = Open(path)
	if err != nil || r.Reason != "" || generation(s) != 1 {
		t.Fatal(r, err)
	}
	for name, mode := range map[string]os.FileMode{"": 0o700, current: 0o600, reserve: 0o600} {
		if info, err := os.Stat(filepath.Join(path, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q has mode %v (%v)", name, info.Mode(), err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(path); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("a directory that everybody may write to gives %v", err)
	}
}

// TestFullFilesystem fills a real filesystem.
func TestFullFilesystem(t *testing.T) {
	path := t.TempDir()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		t.Skipf("no small filesystem to fill: mounting one needs root and a mount namespace that permits it (%v)", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, 0); err != nil {
			t.Errorf("cannot unmount: %v", err)
		}
	})
	s, _, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Update(accept("1")); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(path, "filler")
	if err := os.WriteFile(filler, make([]byte, 4<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the filesystem is not full: %v", err)
	}
	if err := s.Update(accept(strings.Repeat("x", 100_000))); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk gives %v", err)
	}
	if err := s.Finish(accept(strings.Repeat("x", 100_000))); err != nil || generation(s) != 2 {
		t.Errorf("the reserve did not help: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(accept("3")); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "leases.json")
	for _, content := range []string{"a longer first", "second"} {
		if err := Replace(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, _ := os.Stat(path)
		if err != nil || string(got) != content || info.Mode().Perm() != 0o640 {
			t.Errorf("read back %q, %v (%v)", got, info.Mode(), err)
		}
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
	if err := Replace(filepath.Join(dir, "no", "such"), nil, 0o600); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "cannot write "+dir) {
		t.Errorf("a missing directory gives %v", err)
	}
}
