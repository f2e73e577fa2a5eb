package mpsd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// control is the control daemon. One goroutine serves one peer at a time and waits for it without a deadline. A silent
// peer can therefore block the real daemon, and this one must behave the same.
type control struct {
	cfg     config
	log     *logger
	pid     int
	owner   uint32
	events  chan any
	sockets []*net.UnixListener
	fifo    *os.File

	percent    float64
	priority   int
	limits     limits
	fixed      limits // from the environment; they cannot be read back
	servers    []*server
	pending    []client
	queued     []uint32 // users whose servers were requested while another ran
	failed     bool     // a server has failed
	unanswered []net.Conn
}

// server is one server process.
type server struct {
	pid     int
	uid     uint32
	process *os.Process
	conn    *net.UnixConn // for the daemon's requests; used after ready
	ready   bool
	percent float64
	limits  limits
}

// client is a program that connects to a server.
type client struct {
	conn  net.Conn
	pid   int
	uid   uint32
	hello hello
}

// The events of the daemon.
type (
	connected struct {
		conn       net.Conn
		privileged bool
	}
	serverReady struct{ s *server }
	serverEnded struct {
		s      *server
		status int
	}
)

// runControl runs the daemon in the foreground.
func runControl(ctx context.Context, cfg config, stdout io.Writer) int {
	d := &control{
		cfg: cfg, log: &logger{out: stdout, branch: cfg.branch}, pid: os.Getpid(), owner: uint32(os.Getuid()),
		events: make(chan any), percent: 100, limits: limits{},
	}
	starter := newStarter(cfg.readyFD)
	if code := d.open(ctx, starter, stdout); code != 0 {
		starter.fail()
		return code
	}
	starter.ready()
	done := make(chan int, 1)
	go func() { done <- d.loop() }()
	select {
	case code := <-done:
		return code
	case <-ctx.Done():
		return exitTerm
	}
}

// open creates the files and listens.
func (d *control) open(ctx context.Context, starter *starter, stdout io.Writer) int {
	dir := d.cfg.pipeDir
	first, last := d.cfg.branch.needsGPU()
	if first && !d.cfg.lazy {
		if code := d.cfg.initCUDA(ctx); code != 0 {
			return code
		}
	}
	if len(filepath.Join(dir, "control_privileged")) > 107 {
		return 1
	}
	if mode := d.cfg.branch.directoryMode(); os.Mkdir(dir, mode) == nil {
		// Independent of the umask, and without the sticky bit. The real daemon does the same.
		_ = os.Chmod(dir, mode)
	} else if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		if d.cfg.branch.namesDirectory() {
			fmt.Fprintf(starter.or(stdout), "Cannot access CUDA_MPS_PIPE_DIRECTORY=%s\n", dir)
		}
		return 1
	}
	if !d.lock(ctx) {
		fmt.Fprintln(starter.or(stdout), "An instance of this daemon is already running")
		return 1
	}
	for name, mode := range map[string]os.FileMode{"control": 0o666, "control_privileged": 0o755} {
		path := filepath.Join(dir, name)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return 1
		}
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			return 1
		}
		l.SetUnlinkOnClose(false)
		if err := os.Chmod(path, mode); err != nil {
			return 1
		}
		d.sockets = append(d.sockets, l)
		privileged := name == "control_privileged"
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				d.events <- connected{c, privileged}
			}
		}()
	}
	if d.cfg.readyFD != "" {
		out, err := d.logFile("control.log")
		if err == nil {
			d.log.out = out
			_, err = d.logFile("server.log")
		}
		if err != nil {
			d.log.out = io.Discard
		}
	}
	if err := d.openFIFO(); err != nil {
		return 1
	}
	if d.cfg.branch.writesPID() {
		if err := d.writePID(); err != nil {
			return 1
		}
	}
	d.environment()
	d.line("Starting control daemon using socket %s/control", dir)
	d.line("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", dir)
	if v := d.cfg.branch.version(); v != 0 {
		d.line("CUDA MPS Control binary version: %d", v)
	}
	if last && !d.cfg.lazy {
		if code := d.cfg.initCUDA(ctx); code != 0 {
			starter.ready() // a start in the background reports success, and the files stay
			d.line("Failed to initialize CUDA: %d", code)
			return 1 // the real code was not seen
		}
	}
	return 0
}

func (d *control) line(format string, args ...any) { d.log.line("Control", d.pid, format, args...) }

// lock makes this the only daemon of its directory until the process ends. It locks a file, or else looks for a daemon.
func (d *control) lock(ctx context.Context) bool {
	if !d.cfg.branch.locksFile() {
		c, err := dial(ctx, "unixpacket", d.cfg.pipeDir, "control_privileged")
		if err == nil {
			c.Close()
		}
		return err != nil
	}
	path := filepath.Join(d.cfg.pipeDir, "control_lock")
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o666)
	if err != nil {
		return false
	}
	_ = unix.Fchmod(fd, 0o666)
	// The descriptor is never closed: closing any descriptor of the file would release a lock of this kind.
	return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}) == nil
}

func (d *control) logFile(name string) (*os.File, error) {
	if err := os.MkdirAll(d.cfg.logDir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(d.cfg.logDir, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
}

func (d *control) openFIFO() error {
	path := filepath.Join(d.cfg.pipeDir, "log")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := unix.Mkfifo(path, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	d.fifo = f
	go d.log.readFIFO(f)
	return nil
}

// writePID writes the pid without truncating the file: 360 over 32764 gives 36064, as in the real daemon.
func (d *control) writePID() error {
	mode := d.cfg.branch.pidMode()
	f, err := os.OpenFile(filepath.Join(d.cfg.pipeDir, ControlName+".pid"), os.O_WRONLY|os.O_CREATE, mode)
	if err != nil {
		return err
	}
	_ = f.Chmod(mode)
	_, err = f.WriteString(strconv.Itoa(d.pid))
	return errors.Join(err, f.Close())
}

// environment reads the defaults from the environment. Invalid values are ignored without a message.
func (d *control) environment() {
	c := config{env: d.cfg.env}
	for _, e := range c.env {
		switch name, v, _ := cut(e); name {
		case "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE":
			if p, ok := leadingFloat(v); ok && p > 0 && p <= 100 {
				d.percent = p
			}
		case "CUDA_MPS_CLIENT_PRIORITY":
			if v == "1" {
				d.priority = 1
			}
		case "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT":
			d.fixed = d.cfg.branch.environmentLimits(v)
		}
	}
}

// loop handles events one after the other until quit.
func (d *control) loop() int {
	for e := range d.events {
		switch e := e.(type) {
		case connected:
			if d.serve(e) {
				return 0 // always 0: only the caller of quit is informed about failed servers
			}
		case serverReady:
			d.serverIsReady(e.s)
		case serverEnded:
			d.serverHasEnded(e)
		}
	}
	return 0
}

// serve serves one peer, without any deadline, as the real daemon does.
func (d *control) serve(e connected) (quit bool) {
	d.line("Accepting connection...")
	pid, uid, err := peer(e.conn)
	from := e.conn
	if uc, ok := e.conn.(*net.UnixConn); ok {
		from = awaiting{uc}
	}
	if err == nil {
		_, err = e.conn.Write([]byte(greeting))
	}
	if err == nil {
		var b []byte
		if b, err = receive(from); err == nil && string(b) != credential {
			err = errPeer
		}
	}
	if err != nil {
		d.line("User did not send valid credentials")
		e.conn.Close()
		return false
	}
	b, err := receive(from)
	switch {
	case err == nil && len(b) == 4 && binary.NativeEndian.Uint32(b) == typeUI:
		d.line("NEW UI")
		quit = d.serveUI(from, uid, e.privileged)
		if !quit {
			d.line("UI closed")
		}
		e.conn.Close()
		return quit
	case err == nil && len(b) == helloSize && binary.NativeEndian.Uint32(b) == typeClient:
		d.accept(client{conn: e.conn, pid: pid, uid: uid, hello: parseHello(b)})
	default:
		d.line("User did not send valid credentials")
		e.conn.Close()
	}
	return false
}

// accept finds a server for a client. Only one server runs at a time: a client of another user waits until it has ended.
func (d *control) accept(c client) {
	uid := c.uid
	if d.cfg.multiuser {
		uid = d.owner
	}
	s := d.serverOf(uid)
	switch {
	case s != nil && s.ready:
		d.line("NEW CLIENT %d from user %d: Server already exists", c.pid, c.uid)
		d.handOver(s, c)
		return
	case s == nil && len(d.servers) == 0:
		d.start(uid)
	case s == nil:
		for _, other := range d.servers {
			if other.ready {
				other.send("drain")
			}
		}
	}
	d.line("NEW CLIENT %d from user %d: Server is not ready, push client to pending list", c.pid, c.uid)
	d.pending = append(d.pending, c)
}

func (d *control) serverOf(uid uint32) *server {
	i := slices.IndexFunc(d.servers, func(s *server) bool { return s.uid == uid })
	if i < 0 {
		return nil
	}
	return d.servers[i]
}

// start starts a server process, which does not end with this process.
func (d *control) start(uid uint32) {
	conn, childEnd, err := pair()
	if err != nil {
		d.line("Failed to start server: %v", err)
		return
	}
	defer childEnd.Close()
	argv0 := filepath.Join(filepath.Dir(d.cfg.argv0), ServerName)
	p, err := os.StartProcess("/proc/self/exe", []string{argv0}, &os.ProcAttr{
		Env:   append(slices.Clone(d.cfg.env), "GPUSIM_ROOT="+d.cfg.root, "CUDA_MPS_PIPE_DIRECTORY="+d.cfg.pipeDir),
		Files: []*os.File{nil, os.Stdout, os.Stderr, childEnd},
	})
	if err != nil {
		conn.Close()
		d.line("Failed to start server: %v", err)
		return
	}
	l := limits{}
	for dev, v := range d.fixed {
		l[dev] = v
	}
	for dev, v := range d.limits {
		l[dev] = v
	}
	s := &server{pid: p.Pid, uid: uid, process: p, conn: conn, percent: d.percent, limits: l}
	d.servers = append(d.servers, s)
	d.line("Starting new server %d for user %d", s.pid, uid)
	go func() {
		if b, err := receive(conn); err == nil && string(b) == "ready" {
			d.events <- serverReady{s}
		}
		status := 1
		if state, err := p.Wait(); err == nil {
			status = max(state.ExitCode(), 0) // the real log shows 0 for a server killed by a signal
		}
		d.events <- serverEnded{s, status}
	}()
}

func (d *control) serverIsReady(s *server) {
	s.ready = true
	d.line("NEW SERVER %d: Ready", s.pid)
	var rest []client
	for _, c := range d.pending {
		if d.cfg.multiuser || c.uid == s.uid {
			d.handOver(s, c)
		} else {
			rest = append(rest, c)
		}
	}
	d.pending = rest
}

func (d *control) serverHasEnded(e serverEnded) {
	e.s.conn.Close()
	d.servers = slices.DeleteFunc(d.servers, func(s *server) bool { return s == e.s })
	if e.status != 0 {
		d.failed = true
		d.line("Server encountered a fatal exception. Shutting down")
	}
	d.line("Server %d exited with status %d", e.s.pid, e.status)
	if e.status != 0 && !e.s.ready {
		// It never became ready: waiting clients get an error, and no server is started again.
		for _, c := range d.pending {
			c.refuse(errnoConnect)
		}
		d.pending = nil
	}
	if len(d.pending) > 0 && len(d.servers) == 0 {
		uid := d.pending[0].uid
		if d.cfg.multiuser {
			uid = d.owner
		}
		d.start(uid)
	} else if len(d.queued) > 0 && len(d.servers) == 0 {
		uid := d.queued[0]
		d.queued = d.queued[1:]
		d.start(uid)
	}
}

// The CUDA error numbers for a failed connection to MPS, and for a device that the server does not see. Which one the real server
// answers to a client of another device is not known.
const (
	errnoConnect  = 805
	errnoNoDevice = 100
)

func (c client) refuse(errno int32) {
	_, _ = c.conn.Write(welcome{errno: errno}.bytes())
	c.conn.Close()
}

// handOver passes a client's connection to the server, which keeps it until the client ends.
func (d *control) handOver(s *server, c client) {
	defer c.conn.Close()
	if !d.cfg.sees(c.hello.gpu) {
		d.line("Client %d requested a device that is not visible here", c.pid)
		_, _ = c.conn.Write(welcome{errno: errnoNoDevice}.bytes())
		return
	}
	limit := s.limits.of(c.hello.gpu, d.cfg.visible)
	if err := s.handOver(c, limit); err != nil {
		d.line("Failed to pass client %d to server %d: %v", c.pid, s.pid, err)
		_, _ = c.conn.Write(welcome{errno: errnoConnect}.bytes())
	}
}

func (s *server) handOver(c client, limit uint64) error {
	uc, ok := c.conn.(*net.UnixConn)
	if !ok {
		return errPeer
	}
	f, err := uc.File()
	if err != nil {
		return err
	}
	defer f.Close()
	msg := fmt.Sprintf("client %d %d %g %s", c.pid, limit, s.percent, strconv.Quote(c.hello.gpu))
	_, _, err = s.conn.WriteMsgUnix([]byte(msg), unix.UnixRights(int(f.Fd())), nil)
	return err
}

// send sends a request without an answer.
func (s *server) send(request string) { _, _ = s.conn.Write([]byte(request)) }

// request sends a request and waits for the answer, without a deadline.
func (s *server) request(request string) (string, error) {
	if _, err := s.conn.Write([]byte(request)); err != nil {
		return "", err
	}
	b, err := receive(s.conn)
	return string(b), err
}

// quit ends the servers and then the daemon. Without a timeout it waits until all clients have ended, and all peers wait
// too.
func (d *control) quit(timeout time.Duration, forced bool) int {
	for _, l := range d.sockets {
		l.Close()
	}
	for _, s := range d.servers {
		if s.ready {
			s.send("drain")
		}
	}
	var expired <-chan time.Time
	if forced {
		t := time.NewTimer(timeout)
		defer t.Stop()
		expired = t.C
	}
	d.pending, d.queued = nil, nil
	for len(d.servers) > 0 {
		select {
		case e := <-d.events:
			switch e := e.(type) {
			case serverEnded:
				d.serverHasEnded(e)
			case serverReady:
				e.s.ready = true
				e.s.send("drain")
			case connected:
				d.unanswered = append(d.unanswered, e.conn) // keep it open without an answer
			}
		case <-expired:
			for _, s := range d.servers {
				d.line("Force shutting down server %d", s.pid)
				d.failed = true
				_ = s.process.Kill()
			}
			expired = nil
		}
	}
	_ = os.Remove(filepath.Join(d.cfg.pipeDir, "log"))
	_ = os.Remove(filepath.Join(d.cfg.pipeDir, ControlName+".pid"))
	d.line("Exit with status 0")
	if d.failed {
		return 1
	}
	return 0
}

// starter is the process that waits for the start of a background daemon.
type starter struct{ pipe *os.File }

func newStarter(fd string) *starter {
	n, err := strconv.Atoi(fd)
	if err != nil {
		return &starter{}
	}
	unix.CloseOnExec(n)
	return &starter{pipe: os.NewFile(uintptr(n), "starter")}
}

// or returns where a message for the user goes: to the starter, which prints it, or else to out.
func (s *starter) or(out io.Writer) io.Writer {
	if s.pipe != nil {
		return s.pipe
	}
	return out
}

func (s *starter) ready() {
	if s.pipe != nil {
		_, _ = s.pipe.WriteString("ready")
		s.pipe.Close()
	}
}

func (s *starter) fail() {
	if s.pipe != nil {
		s.pipe.Close()
	}
}
