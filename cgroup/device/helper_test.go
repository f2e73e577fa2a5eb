package device_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/cgroup/device"
)

// What an open of a device node without a driver returns. The kernel checks the device rules first.
const (
	allowed = "allowed" // ENXIO
	denied  = "denied"  // EPERM
)

// gpuMajor must have no driver on the test host: otherwise the tests would open its devices.
const gpuMajor = 195

const nobody = 65534

// TestMain is also the process with restricted devices (see process), and one that sets a login filter and exits.
func TestMain(m *testing.M) {
	if uid := os.Getenv("DEVICE_TEST_UID"); uid != "" {
		if err := inside(uid); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv("DEVICE_TEST_FILTER"); dir != "" {
		if _, err := device.SetLoginFilter(dir, device.LoginFilter{Closed: []device.Range{closed(0, 2)}}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// inside answers each line with a line: "open r PATH", "make PATH", "many r PATH N", "keep PATH", "kept", "sh SCRIPT".
func inside(uid string) error {
	id, err := strconv.Atoi(uid)
	if err != nil {
		return err
	}
	if id != 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(id), syscall.Setuid(id)); err != nil {
			return err
		}
	}
	opened := -1
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		f := strings.Fields(in.Text())
		switch f[0] {
		case "open":
			fmt.Println(try(f[1], f[2]))
		case "many":
			n, _ := strconv.Atoi(f[3])
			got := map[string]int{}
			for range n {
				got[try(f[1], f[2])]++
			}
			fmt.Println(got)
		case "make":
			fmt.Println(verdict(unix.Mknod(f[1], unix.S_IFCHR|0o600, int(unix.Mkdev(gpuMajor, 7)))))
		case "keep":
			fd, err := unix.Open(f[1], unix.O_RDONLY, 0)
			opened = fd
			fmt.Println(verdict(err))
		case "kept":
			var b [1]byte
			n, err := unix.Read(opened, b[:])
			fmt.Println(n, err)
		case "sh":
			out, err := exec.Command("sh", "-c", strings.TrimPrefix(in.Text(), "sh ")).CombinedOutput()
			text := strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; ")
			if text == "" {
				text = verdict(err)
			}
			fmt.Println(text)
		}
	}
	return in.Err()
}

func try(how, path string) string {
	flags := map[string]int{"r": unix.O_RDONLY, "w": unix.O_WRONLY, "rw": unix.O_RDWR}[how]
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err == nil {
		unix.Close(fd)
	}
	return verdict(err)
}

func verdict(err error) string {
	switch {
	case err == nil:
		return "opened"
	case errors.Is(err, unix.ENXIO):
		return allowed
	case errors.Is(err, unix.EPERM):
		return denied
	}
	return err.Error()
}

// hierarchy is the host's, or the test is skipped.
func hierarchy(t testing.TB) cgroup.Hierarchy {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to attach device programs")
	}
	h, err := cgroup.FindHierarchy()
	if err != nil {
		t.Skipf("needs a cgroup v2 hierarchy: %v", err)
	}
	if !h.Writable() {
		t.Skipf("needs a writable cgroup v2 hierarchy, not %s", h.Mount)
	}
	if b, _ := os.ReadFile("/proc/devices"); strings.Contains(string(b), "195 nvidia") {
		t.Skip("needs a host without the NVIDIA driver: its devices would be opened")
	}
	return h
}

// newCgroup creates a cgroup. At the end of the test it is removed and its processes are killed.
func newCgroup(t testing.TB) string {
	t.Helper()
	h := hierarchy(t)
	cg := fmt.Sprintf("/gpushare-device-%d-%s", os.Getpid(), strings.ReplaceAll(strings.ToLower(t.Name()), "/", "-"))
	if len(cg) > 200 {
		cg = cg[:200]
	}
	dir := h.Dir(cg)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(h.Kill(t.Context(), cg), h.Remove(cg)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	if err := device.Probe(dir); err != nil {
		t.Skipf("needs device programs: %v", err)
	}
	return dir
}

func sub(t testing.TB, dir, name string) string {
	t.Helper()
	dir = filepath.Join(dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// nodes creates device nodes with file mode 0666: n0 to n3 and ctl of the GPUs' major, and others.
func nodes(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpushare-nodes-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, dev := range map[string][2]uint32{
		"n0": {gpuMajor, 0}, "n1": {gpuMajor, 1}, "n2": {gpuMajor, 2}, "n3": {gpuMajor, 3}, "again0": {gpuMajor, 0}, "ctl": {gpuMajor, 255},
		"other": {gpuMajor + 1, 0}, "null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "mem": {1, 1},
	} {
		path := filepath.Join(dir, name)
		if err := unix.Mknod(path, unix.S_IFCHR, int(unix.Mkdev(dev[0], dev[1]))); err != nil {
			t.Skipf("needs device nodes in %s: %v", dir, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if got := try("rw", filepath.Join(dir, "n0")); got != allowed {
		t.Skipf("needs device nodes that can be opened in %s: %s", dir, got)
	}
	return dir
}

// process is a process in a cgroup that opens files on request.
type process struct {
	t     testing.TB
	in    *os.File
	out   *bufio.Reader
	nodes string
}

// startIn starts a process of a user inside the cgroup.
func startIn(t testing.TB, dir string, uid int, nodes string) *process {
	t.Helper()
	cg, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cg.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "DEVICE_TEST_UID="+strconv.Itoa(uid))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cg.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	stdout.Close()
	p := &process{t: t, in: in, out: bufio.NewReader(out), nodes: nodes}
	t.Cleanup(func() {
		in.Close() // the process exits
		if err := cmd.Wait(); err != nil {
			t.Errorf("the process in the cgroup: %v", err)
		}
		out.Close()
	})
	if got := p.line(); got != "ready" {
		t.Fatalf("the process in the cgroup says %q", got)
	}
	return p
}

func (p *process) line() string {
	s, err := p.out.ReadString('\n')
	if err != nil {
		return "nothing: " + err.Error()
	}
	return strings.TrimSpace(s)
}

// request sends a command; N/ stands for the directory of nodes.
func (p *process) request(format string, args ...any) string {
	p.t.Helper()
	fmt.Fprintln(p.in, strings.ReplaceAll(fmt.Sprintf(format, args...), "N/", p.nodes+"/"))
	return p.line()
}

// wants asserts the result of opening nodes for reading and writing.
func (p *process) wants(want string, names ...string) {
	p.t.Helper()
	for _, name := range names {
		if got := p.request("open rw N/%s", name); got != want {
			p.t.Errorf("opening %s returns %s, want %s", name, got, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }

func isNoCgroup(err error) bool { return errors.Is(err, device.ErrNoCgroup) }

// whileOpening calls change repeatedly, while a process for each node, in a cgroup below dir, opens that node. Each open
// must have the expected result. It continues until there were many changes and many opens.
func whileOpening(t *testing.T, dir string, uid int, n string, wants map[string]string, change func(i int)) {
	t.Helper()
	const (
		round = 500 // opens between two requests
		opens = 5000
		least = 30 // changes
	)
	type answer struct {
		node, wrong string
		opens       int
	}
	var changes atomic.Int64
	answers := make(chan answer, len(wants))
	for node, want := range wants {
		p := startIn(t, sub(t, dir, node), uid, n)
		go func() {
			a := answer{node: node}
			for a.wrong == "" && (a.opens < opens || changes.Load() < least) {
				if got := p.request("many rw N/%s %d", node, round); got != fmt.Sprintf("map[%s:%d]", want, round) {
					a.wrong = got
				}
				a.opens += round
			}
			answers <- a
		}()
	}
	for left := len(wants); left > 0; {
		select {
		case a := <-answers:
			left--
			if a.wrong != "" {
				t.Errorf("%s: %s, want %s each time", a.node, a.wrong, wants[a.node])
			}
			t.Logf("%d opens of %s", a.opens, a.node)
		default:
			change(int(changes.Add(1)))
		}
	}
	t.Logf("%d changes meanwhile", changes.Load())
}
