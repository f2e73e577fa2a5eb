package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// confinedEnv makes this binary a process that restricts itself and then tries what it must not be able to do.
const confinedEnv = "SANDBOX_TEST_CONFINED"

func TestMain(m *testing.M) {
	how := os.Getenv(confinedEnv)
	if how == "" {
		os.Exit(m.Run())
	}
	dir, inside := os.Getenv("SANDBOX_TEST_DIR"), os.Getenv("SANDBOX_TEST_INSIDE") != ""
	switch {
	case how == "filter":
		filtered()
	case !inside:
		confineAndExec(dir)
	default:
		confined(dir)
	}
}

// report prints what happened to an attempt.
func report(what string, err error) {
	text := "done"
	if err != nil {
		text = "refused"
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EXDEV) {
			text = err.Error()
		}
	}
	fmt.Println(what+":", text)
}

func filtered() {
	f := Filter{
		Never:  []Call{{Number: unix.SYS_EXECVE}, {Number: unix.SYS_SOCKET, Arg: 0, Mask: 0xffffffff, Value: unix.AF_UNIX, Other: true}},
		Absent: []Call{{Number: unix.SYS_PIDFD_OPEN}},
	}
	if err := f.Apply(); err != nil {
		fmt.Println("apply:", err)
		return
	}
	s, err := StateOf(os.Getpid())
	fmt.Println("state:", s.Filtered, s.NoNewPrivs, err)
	report("exec", unix.Exec("/bin/true", []string{"true"}, nil))
	_, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	report("internet", err)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	report("unix", err)
	unix.Close(fd)
	_, err = unix.PidfdOpen(os.Getpid(), 0)
	fmt.Println("absent:", errors.Is(err, unix.ENOSYS))
	done := make(chan error) // Another thread has the filter too.
	go func() {
		runtime.LockOSThread()
		done <- unix.Exec("/bin/true", []string{"true"}, nil)
	}()
	report("thread", <-done)
}

func confineAndExec(dir string) {
	runtime.LockOSThread()
	if _, err := LandlockThread(
		Files{Read: []string{"/"}, Write: []string{filepath.Join(dir, "own"), filepath.Join(dir, "absent")}}, Options{Alone: true},
	); err != nil {
		fmt.Println("apply:", err)
		return
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(unix.Exec(self, os.Args, append(os.Environ(), "SANDBOX_TEST_INSIDE=1")))
}

func confined(dir string) {
	report("own", os.WriteFile(filepath.Join(dir, "own", "new"), nil, 0o600))
	report("foreign", os.WriteFile(filepath.Join(dir, "foreign", "new"), nil, 0o600))
	report("change", os.WriteFile(filepath.Join(dir, "foreign", "old"), []byte("x"), 0o600))
	_, err := os.ReadFile(filepath.Join(dir, "foreign", "old"))
	report("read", err)
	c, err := net.Dial("tcp", os.Getenv("SANDBOX_TEST_TCP"))
	if err == nil {
		c.Close()
	}
	report("connect", err)
}

func run(t *testing.T, env ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// A filter refuses what it lists, in all threads, and is read back.
func TestFilter(t *testing.T) {
	got := run(t, confinedEnv+"=filter")
	if strings.HasPrefix(got, "apply:") {
		t.Skipf("this kernel filters no calls: %s", got)
	}
	want := "state: true true <nil>\nexec: refused\ninternet: refused\nunix: done\nabsent: true\nthread: refused\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// A domain of Landlock lets a program change what is listed, and nothing else; also after an exec.
func TestLandlock(t *testing.T) {
	version := LandlockVersion()
	if version == 0 {
		t.Skip(ErrNoLandlock)
	}
	dir := t.TempDir()
	for _, name := range []string{"own", "foreign"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "foreign", "old"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connect := "done"
	if version >= 4 {
		connect = "refused"
	}
	want := "own: done\nforeign: refused\nchange: refused\nread: done\nconnect: " + connect + "\n"
	if got := run(t, confinedEnv+"=landlock", "SANDBOX_TEST_DIR="+dir, "SANDBOX_TEST_TCP="+l.Addr().String()); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Each version of Landlock knows more rights, and is asked for none that it does not know.
func TestRightsOfVersions(t *testing.T) {
	for version, want := range map[int]uint64{1: 1<<13 - 1, 2: 1<<14 - 1, 3: 1<<15 - 1, 4: 1<<15 - 1, 5: 1<<16 - 1, 9: 1<<16 - 1} {
		if got := rights(version); got != want {
			t.Errorf("version %d has the rights %x, want %x", version, got, want)
		}
	}
}

func TestStateIsReadWhole(t *testing.T) {
	const whole = "Name:\tx\nTgid:\t7\nUid:\t1\t2\t3\t4\nCapPrm:\t00000000000000ff\nCapEff:\t0000000000000001\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	s, err := parseStatus([]byte(whole))
	if want := (State{UID: 2, Effective: 1, Permitted: 0xff, NoNewPrivs: true, Filtered: true, ThreadGroup: 7}); err != nil || s != want {
		t.Errorf("%+v, %v", s, err)
	}
	for name, text := range map[string]string{
		"without seccomp": strings.Replace(whole, "Seccomp:\t2\n", "", 1), "no number": strings.Replace(whole, "Tgid:\t7", "Tgid:\tx", 1), "one uid": strings.Replace(whole, "\t1\t2\t3\t4", "\t1", 1),
	} {
		if s, err := parseStatus([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
