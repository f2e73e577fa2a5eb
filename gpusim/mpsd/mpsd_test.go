package mpsd_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/gpusim/burn/burntest"
	"github.com/gpushare/gpushare/gpusim/mpsd"
	"github.com/gpushare/gpushare/gpusim/mpsd/mpstest"
	"github.com/gpushare/gpushare/test/leftover"
)

var builder burntest.Builder

// TestMain also runs the stand-in: the tests call this binary by the names of the real programs.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case mpsd.ControlName, mpsd.ServerName:
		// Not os.Exit: with the race detector it waits for a second.
		syscall.Exit(mpsd.Main(context.Background(), os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
	}
	code := leftover.Main(m)
	builder.Remove()
	os.Exit(code)
}

const deadline = 10 * time.Second

// daemon is one control daemon with its node.
type daemon struct {
	node *burntest.Node
	bin  string
	env  []string
	pipe string
	log  *logBuffer
	cmd  *exec.Cmd
	done chan error
}

// logBuffer is the daemon's standard output, with a way to wait for a line.
type logBuffer struct {
	lines chan string
}

func (l *logBuffer) follow(r io.Reader) {
	in := bufio.NewScanner(r)
	for in.Scan() {
		l.lines <- in.Text()
	}
	close(l.lines)
}

// wait returns the first line that contains s.
func (l *logBuffer) wait(t *testing.T, s string) string {
	t.Helper()
	limit := time.After(deadline)
	for {
		select {
		case line, ok := <-l.lines:
			if !ok {
				t.Fatalf("the log ended without %q", s)
			}
			if strings.Contains(line, s) {
				return line
			}
		case <-limit:
			t.Fatalf("no line with %q in the log", s)
		}
	}
}

func node(t *testing.T) (*burntest.Node, string) {
	t.Helper()
	n := burntest.Start(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if driver != "" {
		if err := os.MkdirAll(filepath.Join(n.Root, "sys/module/nvidia"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(n.Root, "sys/module/nvidia/version"), []byte(driver+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(n.Root, "usr/bin", mpsd.ControlName)
	if err := os.Symlink(self, bin); err != nil {
		t.Fatal(err)
	}
	return n, bin
}

// start starts a control daemon in the foreground and waits until it serves.
func start(t *testing.T, env []string, args ...string) *daemon {
	t.Helper()
	n, bin := node(t)
	pipe := filepath.Join(n.Root, "p")
	d := &daemon{node: n, bin: bin, pipe: pipe, env: append([]string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe}, env...)}
	d.run(t, args...)
	return d
}

func (d *daemon) run(t *testing.T, args ...string) {
	t.Helper()
	d.cmd = exec.Command(d.bin, append([]string{"-f"}, args...)...)
	d.cmd.Env = d.env
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d.cmd.Stdout = w
	// Its own process group, so that the test can kill servers that outlive the daemon.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	d.log = &logBuffer{lines: make(chan string, 10000)}
	go d.log.follow(r)
	d.done = make(chan error, 1)
	cmd, done := d.cmd, d.done
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		r.Close()
	})
	d.log.wait(t, "To connect CUDA applications to this daemon")
}

func (d *daemon) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-d.done:
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(deadline):
		t.Fatal("the daemon does not end")
		return 0
	}
}

// ui runs the command line with this input. The code -1 means no answer in time.
func (d *daemon) ui(t *testing.T, input string) (code int, out string) {
	t.Helper()
	return d.uiIn(t, d.pipe, input, deadline)
}

func (d *daemon) uiIn(t *testing.T, pipe, input string, limit time.Duration) (code int, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	// In this process: a hundred processes are slow with the race detector.
	var b bytes.Buffer
	code = mpsd.Main(
		ctx, []string{mpsd.ControlName}, []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe, "GPUSIM_ROOT=" + d.node.Root},
		strings.NewReader(input), &b, &b,
	)
	if ctx.Err() != nil {
		code = -1
	}
	return code, strings.TrimSuffix(b.String(), "\n")
}

// answers fails the test unless the command has this answer and code 0.
func (d *daemon) answers(t *testing.T, input, want string) {
	t.Helper()
	if code, out := d.ui(t, input); code != 0 || out != want {
		t.Errorf("%q answers %q with %d, want %q with 0", input, out, code, want)
	}
}

// burn starts a GPU program as a client.
func (d *daemon) burn(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.CommandContext(t.Context(), builder.Path(t), args...)}
	p.cmd.Env = append([]string{"GPUSIM_ROOT=" + d.node.Root, "CUDA_MPS_PIPE_DIRECTORY=" + d.pipe}, env...)
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	return p
}

type program struct {
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
}

func (p *program) ready(t *testing.T) {
	t.Helper()
	if line, err := p.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("burn printed %q (%v): %s", line, err, p.stderr.String())
	}
}

func (p *program) pid() string { return strconv.Itoa(p.cmd.Process.Pid) }

func (p *program) ends(t *testing.T, code int, message string) {
	t.Helper()
	rest, _ := io.ReadAll(p.out)
	p.cmd.Wait()
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("burn ended with %d, want %d", got, code)
	}
	if all := string(rest) + p.stderr.String(); !strings.Contains(all, message) {
		t.Errorf("burn printed %q, want %q in it", all, message)
	}
}

// branches are those that the stand-in knows.
var branches = []string{"535.261.03", "550.163.01", "555.58.02", "580.178.04", "595.99.02", "615.71.09"}

// eachBranch runs a test for each branch of the driver.
func eachBranch(t *testing.T, f func(t *testing.T, branch int)) {
	for _, version := range branches {
		t.Run(version[:3], func(t *testing.T) {
			n, err := strconv.Atoi(version[:3])
			if err != nil {
				t.Fatal(err)
			}
			driver = version
			defer func() { driver = "" }()
			f(t, n)
		})
	}
}

// driver is the version of the driver of the nodes that are made next; empty for none.
var driver string

// TestCommands sends the table of the real programs to the stand-in.
func TestCommands(t *testing.T) {
	eachBranch(t, func(t *testing.T, branch int) {
		d := start(t, nil)
		tenants := d.tenants(t)
		for _, c := range mpstest.Cases(t) {
			dir := d.pipe
			if c.Tenants() {
				dir = tenants
			}
			if code, out := d.uiIn(t, dir, c.In+"\n", deadline); code != 0 || out != c.Want(branch) {
				t.Errorf("%q (%s) answers %q with %d, want %q with 0", c.In, c.Socket, out, code, c.Want(branch))
			}
		}
		if code, out := d.ui(t, "quit\n"); code != 0 || out != "" {
			t.Errorf("quit answers %q with %d", out, code)
		}
		if code := d.exit(t); code != 0 {
			t.Errorf("the daemon ended with %d", code)
		}
		if code, out := d.ui(t, "get_server_list\n"); code != 1 || out != "Cannot find MPS control daemon process" {
			t.Errorf("without a daemon: %q with %d", out, code)
		}
	})
}

// tenants makes a directory that has only the socket control.
func (d *daemon) tenants(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(d.node.Root, "t")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(d.pipe, "control"), filepath.Join(dir, "control")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func entries(t *testing.T, dir string) map[string]string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = info.Mode().String()
	}
	return out
}

func TestFiles(t *testing.T) {
	d := start(t, nil)
	want := map[string]string{
		"control": "Srw-rw-rw-", "control_privileged": "Srwxr-xr-x", "control_lock": "-rw-rw-rw-",
		"log": "prwxrwxrwx", mpsd.ControlName + ".pid": "-rw-rw-rw-",
	}
	if diff := cmp.Diff(want, entries(t, d.pipe)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(d.pipe); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky != 0 {
		t.Errorf("directory: %v %v", info.Mode(), err)
	}
	if code, out := d.ui(t, "quit\n"); code != 0 || out != "" {
		t.Errorf("quit: %q %d", out, code)
	}
	d.exit(t)
	delete(want, "log")
	delete(want, mpsd.ControlName+".pid")
	if diff := cmp.Diff(want, entries(t, d.pipe)); diff != "" {
		t.Errorf("files after quit (-want +got):\n%s", diff)
	}
}

func TestKeepsADirectoryMode(t *testing.T) {
	n, bin := node(t)
	d := &daemon{node: n, bin: bin, pipe: filepath.Join(n.Root, "p")}
	d.env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + d.pipe}
	if err := errors.Join(os.Mkdir(d.pipe, 0o711), os.Chmod(d.pipe, 0o711)); err != nil {
		t.Fatal(err)
	}
	d.run(t)
	if info, err := os.Stat(d.pipe); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("directory: %v %v", info.Mode(), err)
	}
}

func TestStartFailures(t *testing.T) {
	t.Run("second daemon", func(t *testing.T) {
		d := start(t, nil)
		out, err := command(t, d.bin, d.env, "-f")
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 ||
			out != "An instance of this daemon is already running\n" {
			t.Errorf("%q %v", out, err)
		}
		d.answers(t, "get_server_list\n", "")
	})
	t.Run("no GPU", func(t *testing.T) {
		n, bin := node(t)
		if err := os.Remove(filepath.Join(n.Root, "run/gpusim/cuda.sock")); err != nil {
			t.Fatal(err)
		}
		for _, mode := range []string{"-f", "-d"} {
			out, err := command(t, bin, []string{"CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(n.Root, "p")}, mode)
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 100 || out != "" {
				t.Errorf("%s: %q %v, want no output and 100", mode, out, err)
			}
		}
	})
	t.Run("unknown option is a success", func(t *testing.T) {
		_, bin := node(t)
		if out, err := command(t, bin, nil, "--bogus"); err != nil || !strings.HasPrefix(out, "Unrecognized option") ||
			!strings.Contains(out, "\x00") {
			t.Errorf("%q %v", out, err)
		}
	})
	t.Run("path too long", func(t *testing.T) {
		n, bin := node(t)
		dir := filepath.Join(n.Root, strings.Repeat("x", 100))
		if out, err := command(t, bin, []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir}, "-f"); err == nil || out != "" {
			t.Errorf("%q %v, want no output and a failure", out, err)
		}
	})
}

func command(t *testing.T, bin string, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append([]string{"PATH="}, env...)
	b, err := cmd.Output()
	return string(b), err
}

func TestBackground(t *testing.T) {
	n, bin := node(t)
	logs := filepath.Join(n.Root, "l")
	d := &daemon{node: n, bin: bin, pipe: filepath.Join(n.Root, "p")}
	env := []string{"CUDA_MPS_PIPE_DIRECTORY=" + d.pipe, "CUDA_MPS_LOG_DIRECTORY=" + logs}
	if out, err := command(t, bin, env, "-d"); err != nil || out != "" {
		t.Fatalf("-d: %q %v", out, err)
	}
	d.answers(t, "get_server_list\n", "")
	if code, out := d.ui(t, "quit\n"); code != 0 {
		t.Errorf("quit: %q %d", out, code)
	}
	b, err := os.ReadFile(filepath.Join(logs, "control.log"))
	if err != nil || !strings.Contains(string(b), "Exit with status 0") {
		t.Errorf("control.log: %v %s", err, b)
	}
}

func TestClients(t *testing.T) {
	d := start(t, []string{"CUDA_VISIBLE_DEVICES=GPU-x"}, "-M")
	d.answers(t, "set_default_device_pinned_mem_limit 0 2G\nset_default_active_thread_percentage 25\n", "25.0")
	a := d.burn(t, nil, "--memory", "1GiB", "--hold", "--gpu", "GPU-x")
	a.ready(t)
	_, server := d.ui(t, "get_server_list\n")
	if server == "" {
		t.Fatal("a client connected and there is no server")
	}
	d.answers(t, "get_server_status "+server+"\n", "ACTIVE")
	d.answers(t, "get_client_list "+server+"\n", a.pid())
	line := fmt.Sprintf("CTX gpu=GPU-x mps=%s mpspid=%s limit=%d share=25", d.pipe, server, 2<<30)
	if got := d.node.Contexts()[a.cmd.Process.Pid]; got != line {
		t.Errorf("the client requested %q, want %q", got, line)
	}
	_, table := d.ui(t, "ps\n")
	if rows := strings.Split(table, "\n"); len(rows) != 2 || !strings.HasPrefix(rows[0], "PID ") ||
		!strings.HasPrefix(rows[1], a.pid()+" ") {
		t.Errorf("ps: %q", table)
	}

	d.burn(t, nil, "--memory", "3GiB").ends(t, 2, "out of memory")
	b := d.burn(t, []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=512M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10"}, "--hold")
	b.ready(t)
	if got := d.node.Contexts()[b.cmd.Process.Pid]; !strings.HasSuffix(got, "limit=536870912 share=10") {
		t.Errorf("a client lowers its limits: %q", got)
	}

	d.answers(t, "terminate_client "+server+" "+b.pid()+"\n", "0")
	b.ends(t, 1, "CUDA error 810")
	a.cmd.Process.Signal(syscall.SIGTERM)
	a.ends(t, 143, "stopped by SIGTERM")
	if code, out := d.ui(t, "quit\n"); code != 0 {
		t.Errorf("quit with a server and no client: %q %d", out, code)
	}
	if code := d.exit(t); code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
}

// TestOneUserAtATime: a client of another user waits until all clients of the first user have ended. With -M it does not
// wait.
func TestOneUserAtATime(t *testing.T) {
	d := start(t, nil)
	d.answers(t, "start_server -uid 4242\n", "")
	d.log.wait(t, "Ready")
	p := d.burn(t, nil, "--hold")
	// The other user's server has no client, so it ends, and one for this user starts.
	p.ready(t)
	if line := d.log.wait(t, "Starting new server"); !strings.HasSuffix(line, fmt.Sprintf("for user %d", os.Getuid())) {
		t.Errorf("log: %s", line)
	}
}

// Until 550 there is a server for each user, and one at a time: one that is requested meanwhile starts when the first has ended.
// Root may end each of them through the tenants' socket too.
func TestServersOfUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: no other user may start servers of other users")
	}
	eachBranch(t, func(t *testing.T, branch int) {
		d := start(t, nil)
		tenants := d.tenants(t)
		d.answers(t, "start_server -uid 4242\n", "")
		d.log.wait(t, "Ready")
		_, first := d.ui(t, "get_server_list\n")
		d.answers(t, "start_server -uid 4243\n", "")
		d.answers(t, "get_server_list\n", first)
		end := fmt.Sprintf("shutdown_server %s -f\n", first)
		if _, out := d.uiIn(t, tenants, end, deadline); (out == "") != (branch < 580) {
			t.Errorf("root ends a server through the tenants' socket: %q", out)
		}
		if branch >= 580 {
			d.answers(t, end, "")
		}
		if line := d.log.wait(t, "Starting new server"); !strings.HasSuffix(line, "for user 4243") {
			t.Errorf("log: %s", line)
		}
	})
}

func TestQuitWithAClient(t *testing.T) {
	d := start(t, nil)
	p := d.burn(t, nil, "--hold")
	p.ready(t)
	if code, _ := d.uiIn(t, d.pipe, "quit\n", time.Second); code != -1 {
		t.Fatalf("quit did not wait for the client: %d", code)
	}
	// quit still waits, and new peers wait too.
	p.cmd.Process.Kill()
	p.ends(t, -1, "")
	if code := d.exit(t); code != 0 {
		t.Errorf("the daemon ended with %d after the client ended", code)
	}

	d = start(t, nil)
	p = d.burn(t, nil, "--hold")
	p.ready(t)
	if code, _ := d.ui(t, "quit -t 1\n"); code != 1 {
		t.Errorf("quit -t with a client: %d, want 1", code)
	}
	p.ends(t, 1, "CUDA error 810")
	if code := d.exit(t); code != 0 {
		t.Errorf("the daemon itself ended with %d, want 0 as in its log", code)
	}
}

func TestServerOutlivesItsControl(t *testing.T) {
	d := start(t, nil)
	p := d.burn(t, nil, "--hold")
	p.ready(t)
	_, server := d.ui(t, "get_server_list\n")
	d.cmd.Process.Kill()
	d.exit(t)
	if pid, err := strconv.Atoi(server); err != nil || syscall.Kill(pid, 0) != nil {
		t.Errorf("server %q ended with its control daemon", server)
	}
	if code, _ := d.ui(t, "get_server_list\n"); code != 1 {
		t.Errorf("a dead daemon answers with %d", code)
	}
	old := d.cmd.Process.Pid
	d.run(t) // with the files of the previous one
	d.answers(t, "get_server_list\n", "")
	if _, ok := d.node.Contexts()[p.cmd.Process.Pid]; !ok {
		t.Error("the client lost its context")
	}
	if err := syscall.Kill(-old, syscall.SIGKILL); err != nil {
		t.Errorf("cannot end the orphan: %v", err)
	}
	p.ends(t, 1, "CUDA error 810")
}

// TestControlOnlyDirectory: the permission to change settings depends on the socket. With a directory that contains only
// control, no user has it, not even root.
func TestControlOnlyDirectory(t *testing.T) {
	d := start(t, nil)
	dir := d.tenants(t)
	tests := []struct{ name, in, want string }{
		{"read", "get_default_active_thread_percentage\n", "100.0"},
		{"set", "set_default_active_thread_percentage 50\n", "Insufficient privileges"},
		{"quit", "quit\n", "Not enough privilege to execute quit command"},
	}
	for _, test := range tests {
		if code, out := d.uiIn(t, dir, test.in, deadline); code != 0 || !strings.HasPrefix(out, test.want) {
			t.Errorf("%s: %q %d, want %q with 0", test.name, out, code, test.want)
		}
	}
	d.answers(t, "get_default_active_thread_percentage\n", "100.0")
	p := &daemon{node: d.node, bin: d.bin, pipe: dir}
	b := p.burn(t, nil, "--hold")
	b.ready(t)
	if got := d.node.Contexts()[b.cmd.Process.Pid]; !strings.Contains(got, "mps="+d.pipe+" ") {
		t.Errorf("a client through the tenant's directory requested %q", got)
	}
}

func TestIdlePeerBlocksTheDaemon(t *testing.T) {
	d := start(t, nil)
	c, err := net.Dial("unixpacket", filepath.Join(d.pipe, "control"))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "OUTBHELL\x00" {
		t.Fatalf("greeting %q %v", b[:n], err)
	}
	if code, _ := d.uiIn(t, d.pipe, "get_server_list\n", 500*time.Millisecond); code != -1 {
		t.Errorf("a command during the connection of an idle peer ended with %d", code)
	}
	c.Close()
	d.answers(t, "get_server_list\n", "")
}

func TestGarbageSilencesTheLog(t *testing.T) {
	d := start(t, nil)
	d.answers(t, "foo\n", `Unknown command "foo"`)
	d.log.wait(t, "Cmd:foo")
	fifo, err := os.OpenFile(filepath.Join(d.pipe, "log"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fifo.Write(bytes.Repeat([]byte("A"), 101)); err != nil {
		t.Fatal(err)
	}
	fifo.Close()
	// The reader of the FIFO is another goroutine of the daemon: send commands until one leaves no line.
	for i := 0; ; i++ {
		name := fmt.Sprintf("probe%d", i)
		d.answers(t, name+"\n", fmt.Sprintf("Unknown command %q", name))
		d.ui(t, "quit_not\n")
		select {
		case line := <-d.log.lines:
			if i > 100 {
				t.Fatalf("the log still has lines: %s", line)
			}
		case <-time.After(300 * time.Millisecond):
			return
		}
	}
}

func TestTerminatedBySignal(t *testing.T) {
	d := start(t, nil)
	d.cmd.Process.Signal(syscall.SIGTERM)
	d.exit(t)
	if sig := d.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); sig != syscall.SIGTERM {
		t.Errorf("ended by %v", sig)
	}
	if got := entries(t, d.pipe); len(got) != 5 {
		t.Errorf("a signal must not remove files, but there is only %v", got)
	}
}
