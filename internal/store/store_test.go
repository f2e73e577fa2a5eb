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

var at = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

func accept(yaml string) func(*State) error {
	return func(s *State) error {
		s.Accept(yaml, "root", at, Resolved{GPUs: map[gpu.UUID]int{"GPU-0": 0}})
		s.Epoch = Epoch{Boot: "boot", Driver: "driver", Resets: map[gpu.UUID]uint64{"GPU-0": 1}}
		return nil
	}
}

// with returns a disk on which n specs were accepted, "1" to "n".
func with(t *testing.T, n int) (*disk, *Store) {
	t.Helper()
	d := newDisk()
	s, r, err := open(d)
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
	t.Parallel()
	d, s := with(t, 25)
	if err := s.Update(func(st *State) error { st.Change = json.RawMessage(`{"id": "c1"}`); return nil }); err != nil {
		t.Fatal(err)
	}
	s, r, err := open(d)
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
		t.Errorf("an empty change wrote %d times (%v)", s.Writes(), err)
	}
	boom := errors.New("boom")
	if err := s.Update(func(st *State) error { st.Accepted = nil; st.Revisions[0].YAML = "x"; return boom }); !errors.Is(err, boom) {
		t.Errorf("the error is %v", err)
	}
	if st := s.State(); st.Accepted == nil || st.Revisions[0].YAML == "x" || s.Writes() != 0 {
		t.Error("a failed change left traces")
	}
}

// TestPowerCut cuts the power before every operation of a write and checks everything that may be left.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(*Store, func(*State) error) error{
		"update": (*Store).Update, "finish": (*Store).Finish,
		"finish from the reserve": func(s *Store, f func(*State) error) error {
			s.d.(*disk).free = 0
			return s.Finish(f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			images := 0
			for cut, acknowledged := 1, false; !acknowledged; cut++ {
				d, s := with(t, 2)
				d.fail, d.dead = d.op+cut, true
				acknowledged = write(s, accept("3")) == nil
				d.afterPowerCut(func(left *disk) {
					images++
					again, r, err := open(left)
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
				t.Errorf("only %d outcomes were checked", images)
			}
		})
	}
}

// TestFailingOperation lets every operation of a write fail once.
func TestFailingOperation(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
		t.Run(fault.Error(), func(t *testing.T) {
			t.Parallel()
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
					// After the next write the state in memory must be the one on disk.
					if err := s.Update(func(*State) error { return nil }); err != nil {
						t.Fatalf("operation %d: the next write gives %v", n, err)
					}
				}
				again, r, err := open(d)
				if err != nil || generation(again) != generation(s) || r.Reason != "" {
					t.Fatalf("operation %d: read back generation %d, known %d (%+v, %v)", n, generation(again), generation(s), r, err)
				}
			}
		})
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	d, s := with(t, 2)
	d.free = 0
	if err := s.Update(accept(strings.Repeat("x", 1000))); !errors.Is(err, syscall.ENOSPC) || generation(s) != 2 {
		t.Fatalf("a full disk gives %v, generation %d", err, generation(s))
	}
	// A restart on the full disk must not lose the reserve.
	s, _, err := open(d)
	if err != nil {
		t.Fatal(err)
	}
	closing := func(st *State) error {
		st.Closures = []Closure{{Where: Where{GPU: "GPU-0"}, Kind: ClosureHeld, Reason: strings.Repeat("y", 2000)}}
		return nil
	}
	if err := s.Finish(closing); err != nil {
		t.Fatalf("the reserve did not help: %v", err)
	}
	again, r, err := open(d)
	if err != nil || len(again.State().Closures) != 1 || r.Reason != "" {
		t.Fatalf("read back %+v (%+v, %v)", again.State(), r, err)
	}
	d.free = 0
	if err := s.Update(accept("4")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("an update succeeded without a reserve: %v", err)
	}
	d.free = 10 << 20
	if err := s.Update(accept("4")); err != nil || s.spare == 0 {
		t.Errorf("with space again: %v, reserve %d", err, s.spare)
	}
}

// TestFlippedBits flips every bit of a file: it is detected, or has no effect.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	d, s := with(t, 2)
	want := s.State()
	good := d.names[current].data
	for bit := range len(good) * 8 {
		left := newDisk()
		left.names = maps.Clone(d.names)
		bad := append([]byte(nil), good...)
		bad[bit/8] ^= 1 << (bit % 8)
		left.names[current] = &inode{data: bad}
		s, r, err := open(left)
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
	t.Parallel()
	damaged := func() *inode { return &inode{data: []byte("{}\n")} }
	t.Run("both", func(t *testing.T) {
		d, _ := with(t, 2)
		d.names[current], d.names[previous] = damaged(), damaged()
		s, r, err := open(d)
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
			s, _, err := open(d)
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
	t.Run("the current is missing", func(t *testing.T) {
		d, _ := with(t, 2)
		delete(d.names, current)
		s, r, err := open(d)
		if err != nil || !r.FellBack || generation(s) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

// TestFailingOpen lets every operation of opening a directory fail once: opening fails, or what is read is correct, and the
// next start finds everything that the first would have found.
func TestFailingOpen(t *testing.T) {
	t.Parallel()
	damaged := func() *inode { return &inode{data: []byte("{}\n")} }
	for name, c := range map[string]struct {
		spoil func(*disk)
		want  []uint64 // the generations that may be read
	}{
		"healthy": {func(*disk) {}, []uint64{2, 1}}, // an unreadable file is a damaged one
		"damaged": {func(d *disk) { d.names[current] = damaged() }, []uint64{1, 0}},
		"both":    {func(d *disk) { d.names[current], d.names[previous] = damaged(), damaged() }, []uint64{0}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, fault := range []error{syscall.EIO, syscall.EACCES, syscall.ENOSPC} {
				for n, done := 1, false; !done; n++ {
					d, _ := with(t, 2)
					c.spoil(d)
					d.fail, d.err = d.op+n, fault
					s, r, err := open(d)
					done = d.op < d.fail
					if err != nil {
						if !errors.Is(err, fault) {
							t.Fatalf("%v at operation %d became %v", fault, n, err)
						}
						d.fail = 0
						if s, r, err = open(d); err != nil {
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
	s, _, err := open(d)
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Update(accept("1")); err != nil {
		f.Fatal(err)
	}
	f.Add(d.names[current].data)
	f.Add([]byte("{}\n{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := unmarshal(b)
		if (s == nil) == (err == nil) ||
			err != nil && !errors.Is(err, errCorrupt) && !errors.Is(err, ErrNewerFormat) && !errors.Is(err, ErrOlderFormat) {
			t.Fatalf("%v, %v", s, err)
		}
	})
}

// A file of another format is refused, and no file is changed.
func TestFormats(t *testing.T) {
	t.Parallel()
	encode := func(format int) *inode {
		b := fmt.Appendf(nil, `{"format":%d,"epoch":{}}`+"\n", format)
		return &inode{data: append(fmt.Appendf(nil, `{"format":%d,"generation":0,"epoch":{},"sha256":%q}`+"\n", format, checksum(b)), b...)}
	}
	damaged := &inode{data: []byte("damaged")}
	for name, c := range map[string]struct {
		format int
		want   error
	}{
		"newer": {Format + 1, ErrNewerFormat},
		"older": {Format - 1, ErrOlderFormat},
	} {
		for where, names := range map[string]map[string]*inode{
			"the newest":               {current: encode(c.format)},
			"the newest and the other": {current: encode(c.format), previous: encode(c.format)},
			"next to damage":           {current: damaged, previous: encode(c.format)},
			"the other alone":          {previous: encode(c.format)},
		} {
			t.Run(name+", "+where, func(t *testing.T) {
				d := newDisk()
				d.names = maps.Clone(names)
				if _, _, err := open(d); !errors.Is(err, c.want) {
					t.Fatalf("format %d returns %v", c.format, err)
				}
				if !maps.Equal(d.names, names) {
					t.Error("files were changed")
				}
			})
		}
	}
	t.Run("format 0", func(t *testing.T) {
		d := newDisk()
		d.names[current] = encode(0)
		if _, r, err := open(d); err != nil || !r.Lost {
			t.Errorf("it returns %+v, %v", r, err)
		}
	})
}

// TestFormatFiles reads a file of each format. Format 1 is of builds from before the first release: it is refused.
func TestFormatFiles(t *testing.T) {
	t.Parallel()
	for format := 1; format <= Format; format++ {
		file := fmt.Sprintf("../../testdata/state/format-%d.json", format)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := unmarshal(b)
		if format < 2 {
			if !errors.Is(err, ErrOlderFormat) || !strings.Contains(err.Error(), "gpushare release") ||
				!strings.Contains(err.Error(), "state.json") {
				t.Errorf("%s returns %v", file, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		a := s.Achieved["GPU-0"]
		if s.Accepted.Generation != 3 || s.Accepted.By != "root" || len(s.Revisions) != 3 || a.Layout[0].Placement.Size != 4 ||
			s.Change == nil ||
			len(s.Closures) != 1 || s.Closures[0].GPU != "GPU-1" || s.Closures[0].Reason == "" {
			t.Errorf("%s reads as %+v", file, s)
		}
		if len(a.Instances) != 1 || a.Instances[0].Generation != 7 || !a.Instances[0].Imported || s.LastInstanceGeneration != 7 ||
			s.LastOperation != 7 ||
			s.StepDurations["A100"]["mig.create"].MeanSeconds != 0.5 ||
			s.OriginalModes["GPU-0"].MIG == nil ||
			!s.ActiveRestrictions ||
			!s.CreatedSlices["vision"] ||
			s.StoppedUnits[0] != "dcgm.service" {
			t.Errorf("%s reads as %+v", file, s)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "deep", "state")
	s, r, err := Open(path)
	if err != nil || !r.Fresh {
		t.Fatal(r, err)
	}
	if err := s.Update(accept("1")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(path); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d (", os.Getpid())) {
		t.Errorf("a second daemon gets %v", err)
	}
	// The lock of a killed daemon may last for a moment longer than the daemon.
	closed, first := make(chan error, 1), s
	time.AfterFunc(lockWait/5, func() { closed <- first.Close() })
	s, r, err = Open(path)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
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
		t.Errorf("a directory that all users may write to returns %v", err)
	}
}

// TestFullFilesystem fills a real filesystem.
func TestFullFilesystem(t *testing.T) {
	t.Parallel()
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
		t.Errorf("with space again: %v", err)
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
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
	if err := Replace(filepath.Join(dir, "no", "such"), nil, 0o600); !errors.Is(err, os.ErrNotExist) ||
		!strings.HasPrefix(err.Error(), "cannot write "+dir) {
		t.Errorf("a missing directory gives %v", err)
	}
}
