package mpsd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The names of the program. It is one program: the control daemon starts itself as the server.
const (
	ControlName = "nvidia-cuda-mps-control"
	ServerName  = "nvidia-cuda-mps-server"
)

// Exit codes of a failed start, as in the control binary of the 580 branch.
const (
	exitNoDevice = 100 // cuInit's error
	exitNoCUDA   = 244 // libcuda not found
	exitTerm     = 128 + 15
)

// readyEnv is the descriptor on which the starter of a background daemon waits.
const readyEnv = "GPUSIM_MPS_READY_FD"

// config is the configuration from the command line and the environment.
type config struct {
	foreground, background, multiuser, lazy bool

	branch       branch
	argv0        string   // how this program was called
	env          []string // environment of the server
	root         string   // host root of the virtual node; empty when not found
	pipeDir      string
	logDir       string
	visible      []string // CUDA_VISIBLE_DEVICES
	readyFD      string
	readyDevices bool // -q
}

// Main runs the program. args[0] is its name, as in os.Args: with ServerName it is the server. When ctx ends it returns
// 143 and removes nothing, like the real program after a signal.
func Main(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		return 1
	}
	// The program must survive a closed log reader, as the real one does.
	signal.Ignore(unix.SIGPIPE)
	c := config{argv0: args[0], env: env}
	c.environment()
	if filepath.Base(args[0]) == ServerName {
		return runServer(ctx, c)
	}
	if !c.branch.hasOptions() {
		return runEarly(ctx, c, args, stdin, stdout, stderr)
	}
	for _, arg := range args[1:] {
		switch arg {
		case "-d":
			c.background = true
		case "-f":
			c.foreground = true
		case "-M", "--multiuser-server", "-multiuser-server":
			c.multiuser = true
		case "-L", "--lazy-init":
			c.lazy = true
		case "-q", "--ready-devices":
			c.readyDevices = true
		case "-v", "--version":
			fmt.Fprintf(
				stdout, "CUDA MPS Control for Linux/Unix/QNX. Binary version: %d\n(stand-in of a virtual node)\n", c.branch.version(),
			)
			return 0
		case "-h", "--help":
			fmt.Fprint(stdout, help)
			return 0
		default:
			// Success, and a zero byte in the text, both as in the real program.
			fmt.Fprintf(stdout, "Unrecognized option\n\x00\n%s", help)
			return 0
		}
	}
	switch {
	case c.foreground:
		return runControl(ctx, c, stdout)
	case c.background:
		return startBackground(ctx, c, args, stdout)
	default:
		return runUI(ctx, c, stdin, stdout, stderr)
	}
}

// runEarly runs the program of a branch without options: one argument starts a daemon or prints the help, anything else reads
// commands.
func runEarly(ctx context.Context, c config, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 2 {
		switch args[1] {
		case "-f":
			return runControl(ctx, c, stdout)
		case "-d":
			return startBackground(ctx, c, args, stdout)
		case "-h", "--help":
			fmt.Fprint(stdout, "CUDA MPS Control, stand-in of a virtual node.\n")
			return 0
		}
	}
	if len(args) > 1 && c.branch.printsHelp() {
		fmt.Fprint(stdout, "CUDA MPS Control, stand-in of a virtual node.\n")
		return 1
	}
	return runUI(ctx, c, stdin, stdout, stderr)
}

const help = `CUDA MPS Control, stand-in of a virtual node.
  (no option)              read commands from the standard input
  -d                       run as a daemon in the background
  -f                       run as a daemon in the foreground
  -M, --multiuser-server   one server for all users
  -L, --lazy-init          start without a GPU
  -v, --version            print the version
`

func (c *config) environment() {
	get := func(name string) string {
		v := ""
		for _, e := range c.env {
			if k, val, ok := strings.Cut(e, "="); ok && k == name {
				v = val
			}
		}
		return v
	}
	c.pipeDir = get("CUDA_MPS_PIPE_DIRECTORY")
	if c.pipeDir == "" {
		c.pipeDir = "/tmp/nvidia-mps"
	}
	c.logDir = get("CUDA_MPS_LOG_DIRECTORY")
	if c.logDir == "" {
		c.logDir = "/var/log/nvidia-mps"
	}
	if v := get("CUDA_VISIBLE_DEVICES"); v != "" {
		c.visible = strings.Split(v, ",")
	}
	c.readyFD = get(readyEnv)
	c.root = get("GPUSIM_ROOT")
	if c.root == "" && strings.Contains(c.argv0, "/") {
		// Called as ROOT/usr/bin/nvidia-cuda-mps-control without GPUSIM_ROOT.
		root := filepath.Dir(filepath.Dir(filepath.Dir(c.argv0)))
		if _, err := os.Stat(filepath.Join(root, "run/gpusim")); err == nil {
			c.root = root
		}
	}
	c.branch = branchOf(c.root)
}

// sees reports whether a client's device is visible to the daemon: a client gives a UUID, or an ordinal among the devices that the
// daemon sees.
func (c config) sees(device string) bool {
	_, err := strconv.Atoi(device)
	return err == nil || len(c.visible) == 0 || slices.Contains(c.visible, device)
}

// initCUDA returns the result of cuInit as an exit code.
func (c config) initCUDA(ctx context.Context) int {
	if c.root == "" {
		return exitNoCUDA
	}
	conn, err := dial(ctx, "unix", filepath.Join(c.root, "run/gpusim"), "cuda.sock")
	if err != nil {
		return exitNoDevice
	}
	conn.Close()
	return 0
}

// dial connects to a socket. If its path is too long for an address, it uses a descriptor of the directory.
func dial(ctx context.Context, network, dir, name string) (net.Conn, error) {
	var d net.Dialer
	path := filepath.Join(dir, name)
	if len(path) < 108 {
		return d.DialContext(ctx, network, path)
	}
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return d.DialContext(ctx, network, fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), name))
}

// startBackground starts the daemon in its own session and waits until it serves or has failed.
func startBackground(ctx context.Context, c config, args []string, stdout io.Writer) int {
	r, w, err := os.Pipe()
	if err != nil {
		return 1
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return 1
	}
	defer null.Close()
	childArgs := []string{args[0], "-f"}
	for _, a := range args[1:] {
		if a != "-d" {
			childArgs = append(childArgs, a)
		}
	}
	p, err := os.StartProcess("/proc/self/exe", childArgs, &os.ProcAttr{
		Env:   append(append([]string{}, c.env...), readyEnv+"=3"),
		Files: []*os.File{null, null, null, w},
		Sys:   &unix.SysProcAttr{Setsid: true},
	})
	w.Close()
	if err != nil {
		return 1
	}
	answer := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(r)
		answer <- b
	}()
	select {
	case b := <-answer:
		if string(b) == "ready" {
			// The daemon runs without its starter from now on.
			_ = p.Release()
			return 0
		}
		_, _ = stdout.Write(b)
		state, err := p.Wait()
		if err != nil {
			return 1
		}
		return state.ExitCode()
	case <-ctx.Done():
		return exitTerm
	}
}

// runUI is the command line: it sends each line of its input to the daemon and prints the answers.
func runUI(ctx context.Context, c config, stdin io.Reader, stdout, stderr io.Writer) int {
	// The privileged socket first; a user who may not use it, or who has only the other socket, is an ordinary user.
	conn, err := dial(ctx, "unixpacket", c.pipeDir, "control_privileged")
	if err != nil {
		conn, err = dial(ctx, "unixpacket", c.pipeDir, "control")
	}
	if err != nil {
		fmt.Fprintln(stderr, "Cannot find MPS control daemon process")
		return 1
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	code, err := talk(conn, stdin, stdout)
	switch {
	case ctx.Err() != nil:
		return exitTerm
	case err != nil:
		fmt.Fprintln(stderr, "Cannot find MPS control daemon process")
		return 1
	}
	return code
}

func talk(conn net.Conn, stdin io.Reader, stdout io.Writer) (int, error) {
	b, err := receive(conn)
	if err != nil || string(b) != greeting {
		return 1, errors.Join(errPeer, err)
	}
	if _, err := conn.Write([]byte(credential)); err != nil {
		return 1, err
	}
	if err := sendInt32(conn, typeUI); err != nil {
		return 1, err
	}
	code := 0
	for line := range lines(stdin) {
		if err := sendUint64(conn, uint64(len(line)+2)); err != nil {
			return 1, err
		}
		if _, err := conn.Write([]byte(line + "\n\x00")); err != nil {
			return 1, err
		}
		status, err := receiveInt32(conn)
		if err != nil {
			return 1, err
		}
		text, err := receive(conn)
		if err != nil {
			return 1, err
		}
		if s := strings.TrimSuffix(string(text), "\x00"); s != "" {
			fmt.Fprintln(stdout, s)
		}
		if status != 0 {
			code = int(status)
		}
	}
	// The daemon may have quit; it does not need the end of the input then.
	_ = sendUint64(conn, 0)
	return code, nil
}

// lines yields the lines of the input as they are read.
func lines(r io.Reader) func(func(string) bool) {
	return func(yield func(string) bool) {
		var line []byte
		b := make([]byte, 4096)
		for {
			n, err := r.Read(b)
			for _, ch := range b[:n] {
				if ch != '\n' {
					line = append(line, ch)
					continue
				}
				if !yield(string(line)) {
					return
				}
				line = line[:0]
			}
			if err != nil {
				if len(line) > 0 {
					yield(string(line))
				}
				return
			}
		}
	}
}
