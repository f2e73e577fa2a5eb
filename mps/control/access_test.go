package control

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/acl"
	"github.com/gpushare/gpushare/mps"
)

// as runs f in a thread of another user, without groups. The kernel takes the credentials of a thread.
func as(t *testing.T, uid, gid int, f func() error) error {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming other users needs root")
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // It ends with its thread, whose credentials are never used again.
		_, _, e1 := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		_, _, e2 := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid))
		_, _, e3 := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		if e1|e2|e3 != 0 {
			result <- errors.Join(e1, e2, e3)
			return
		}
		result <- f()
	}()
	return <-result
}

// dial connects to a socket without a word.
func dial(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// passable lets other users pass the directory of the test.
func (f *fixture) passable(t *testing.T) {
	t.Helper()
	if err := os.Chmod(f.node.Root, 0o711); err != nil {
		t.Fatal(err)
	}
}

// reaches reports whether a user reaches the tenants' socket.
func (f *fixture) reaches(t *testing.T, uid, gid int) error {
	t.Helper()
	return as(t, uid, gid, func() error {
		c, err := dial(filepath.Join(f.layout(deviceA).tenant(), "control"))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

func (f *fixture) restrict(t *testing.T, r Reach) []string {
	t.Helper()
	changed, err := f.Restrict(deviceA, r, f.Now())
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// Only the users and groups that Restrict names connect to the tenants' socket, and no user opens another file.
func TestWhoReachesTheSocket(t *testing.T) {
	t.Parallel()
	for _, driver := range onEveryBranch(t) {
		t.Run(driver, func(t *testing.T) {
			f := newFixtureOf(t, driver)
			f.passable(t)
			f.start(t, mps.Settings{GPU: gpuA})
			if err := f.reaches(t, 471301, 471301); !errors.Is(err, unix.EACCES) {
				t.Errorf("before it is opened a user reaches it: %v", err)
			}
			if changed := f.restrict(t, Reach{Users: []int{471301, 471302}, Groups: []int{471350}}); len(changed) > 0 {
				t.Errorf("its own setting counts as a change from outside: %q", changed)
			}
			for _, c := range []struct {
				who      string
				uid, gid int
				want     error
			}{
				{"a member", 471301, 471301, nil},
				{"another member", 471302, 471302, nil},
				{"a member of the group", 471303, 471350, nil},
				{"another user", 471304, 471304, unix.EACCES},
				{"a system user", 65534, 65534, unix.EACCES},
			} {
				if err := f.reaches(t, c.uid, c.gid); !errors.Is(err, c.want) {
					t.Errorf("%s: %v, want %v", c.who, err, c.want)
				}
			}
			if err := f.Admit(deviceA, 471304); err != nil || f.reaches(t, 471304, 471304) != nil {
				t.Errorf("the user of a lease that starts does not reach it: %v", err)
			}
			f.restrict(t, Reach{Users: []int{471302}}) // Of leases that were read at the moment of the admission.
			if err := f.reaches(t, 471304, 471304); err != nil {
				t.Errorf("the user of a lease that starts does not reach it after what was read before: %v", err)
			}
			f.clock.pass(time.Nanosecond)
			f.restrict(t, Reach{Users: []int{471302}})
			for uid, want := range map[int]error{471301: unix.EACCES, 471302: nil, 471304: unix.EACCES} {
				if err := f.reaches(t, uid, uid); !errors.Is(err, want) {
					t.Errorf("after the reach was reduced, user %d: %v, want %v", uid, err, want)
				}
			}
			for _, name := range []string{"control_privileged", "log", "control_lock"} {
				path := filepath.Join(f.pipe(), name)
				if err := as(t, 471302, 471302, func() error { return unix.Access(path, unix.R_OK) }); !errors.Is(err, unix.EACCES) {
					t.Errorf("a member reaches %s: %v", name, err)
				}
			}
			f.running(t)
		})
	}
}

// What was changed by hand is restored, and said once.
// The kernel lets in a process that has a group of its start. Of a user who left the group it is closed out by name.
func TestWhoLeftAGroupIsClosedOut(t *testing.T) {
	t.Parallel()
	f := newFixtureOf(t, onEveryBranch(t)[0])
	f.passable(t)
	f.start(t, mps.Settings{GPU: gpuA})
	f.restrict(t, Reach{Users: []int{471302}, Groups: []int{471350}, Left: []int{471301, 471302}})
	for uid, want := range map[int]error{471301: unix.EACCES, 471302: nil, 471303: nil} {
		if err := f.reaches(t, uid, 471350); !errors.Is(err, want) {
			t.Errorf("user %d with the group: %v, want %v", uid, err, want)
		}
	}
	f.restrict(t, Reach{Groups: []int{471350}})
	if err := f.reaches(t, 471301, 471350); err != nil {
		t.Errorf("a user who is back: %v", err)
	}
}

func TestChangedPermissionsAreRestored(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"550.163.01", "580.178.04"} {
		t.Run(driver, func(t *testing.T) {
			f := newFixtureOf(t, driver)
			f.start(t, mps.Settings{GPU: gpuA})
			reach := Reach{Users: []int{471301}, Groups: []int{471350}}
			f.restrict(t, reach)
			l := f.layout(deviceA)
			rec := l.readRecord()
			for _, p := range l.permissions(reach, rec.SingleUser) {
				if _, err := os.Stat(p.path); err != nil {
					t.Fatal(err)
				}
				for what, change := range map[string]func() error{
					"mode": func() error { return os.Chmod(p.path, 0o777) },
					"list": func() error {
						return acl.Write(p.path, acl.List{Owner: 7, Mask: 7, Named: []acl.Named{{ID: 471399, Perm: 7}}})
					},
					"owner": func() error { return os.Lchown(p.path, 471399, 471399) },
				} {
					if what == "owner" && os.Geteuid() != 0 {
						continue
					}
					if err := change(); err != nil {
						t.Fatalf("%s of %s: %v", what, p.name, err)
					}
					if changed := f.restrict(t, reach); len(changed) != 1 || !strings.Contains(changed[0], p.name) {
						t.Errorf("a changed %s of %s is reported as %q", what, p.name, changed)
					}
					if is, err := acl.Read(p.path); err != nil || !is.Equal(p.list) {
						t.Errorf("a changed %s of %s was not restored: %s, want %s (%v)", what, p.name, describe(is), describe(p.list), err)
					}
					if changed := f.restrict(t, reach); len(changed) > 0 {
						t.Errorf("said again: %q", changed)
					}
				}
			}
			f.running(t)
		})
	}
}

// Without access control lists the socket is open to all, and that is said.
func TestAFileSystemWithoutLists(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	f := newFixture(t)
	f.passable(t)
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", f.dir, "ramfs", 0, ""); err != nil {
		t.Skipf("needs ramfs, which has no lists: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(f.dir, unix.MNT_DETACH) })
	f.start(t, mps.Settings{GPU: gpuA})
	for range 2 {
		changed, err := f.Restrict(deviceA, Reach{Users: []int{471301}}, f.Now())
		if !errors.Is(err, ErrOpen) || !errors.Is(err, acl.ErrUnsupported) || len(changed) > 0 {
			t.Errorf("restricted: %q, %v", changed, err)
		}
	}
	if err := f.reaches(t, 471301, 471301); err != nil {
		t.Errorf("a member does not reach it: %v", err)
	}
	if err := as(t, 471301, 471301, func() error {
		_, err := net.Dial("unixpacket", filepath.Join(f.pipe(), "control"))
		return err
	}); !errors.Is(err, unix.EACCES) {
		t.Errorf("a member reaches the privileged directory: %v", err)
	}
}
