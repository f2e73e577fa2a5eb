package mpsd

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cut splits an environment entry.
func cut(e string) (name, value string, ok bool) { return strings.Cut(e, "=") }

// ui is one connected command line.
type ui struct {
	uid        uint32
	privileged bool // connected through the privileged socket; without it even root cannot change settings
}

// owns reports whether the peer is the owner or root on the privileged socket.
func (u ui) owns(d *control) bool { return u.privileged && (u.uid == 0 || u.uid == d.owner) }

// serveUI answers commands until the peer closes or quits the daemon.
func (d *control) serveUI(conn net.Conn, uid uint32, privileged bool) (quit bool) {
	u := ui{uid: uid, privileged: privileged}
	for {
		n, err := receiveUint64(conn)
		if err != nil || n == 0 {
			return false
		}
		b, err := receive(conn)
		if err != nil {
			return false
		}
		status, text, quit := d.command(u, strings.TrimRight(string(b), "\n\x00"))
		for line := range strings.SplitSeq(text, "\n") {
			if line != "" {
				d.line("%s", line)
			}
		}
		if err := sendInt32(conn, int32(status)); err != nil && !quit {
			return false
		}
		// At least one byte: an empty packet looks like the end of the connection.
		if _, err := conn.Write([]byte(text + "\x00")); err != nil && !quit {
			return false
		}
		if quit {
			return true
		}
	}
}

// permitted reports whether the peer may change settings, and returns the answer if not. The status of the answer is 0.
func (d *control) permitted(u ui) (string, bool) {
	if u.owns(d) || !d.cfg.branch.checksSetter() {
		return "", true
	}
	return d.cfg.branch.ownSettings(u.uid), false
}

// command runs one command. Its status is always 0, except for quit.
func (d *control) command(u ui, text string) (status int, answer string, quit bool) {
	text = strings.TrimRight(text, "\r")
	d.line("Cmd:%s", strings.TrimLeft(text, " \t"))
	words := strings.Fields(text)
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	perServer := name == "shutdown_server" || name == "terminate_client" || name == "set_active_thread_percentage" ||
		name == "set_device_pinned_mem_limit"
	if strings.HasPrefix(name, "set_default_") || perServer && d.cfg.branch.needsOwner() {
		if why, ok := d.permitted(u); !ok {
			return 0, why, false
		}
	}
	switch name {
	case "get_server_list":
		var list []string
		for _, s := range d.servers {
			list = append(list, strconv.Itoa(s.pid))
		}
		return 0, strings.Join(list, "\n"), false
	case "get_server_status":
		if !d.cfg.branch.knowsStatus() {
			break
		}
		pid, _, ok := leadingInt(arg(1))
		if !ok {
			return 0, "A server PID is required", false
		}
		s := d.serverByPID(pid)
		switch {
		case s == nil:
			return 0, fmt.Sprintf("Server %d not found", pid), false
		case s.ready:
			return 0, s.state(), false
		default:
			return 0, "INITIALIZING", false
		}
	case "start_server":
		return 0, d.startServer(u, words[1:]), false
	case "shutdown_server":
		return 0, d.withServer(arg(1), func(s *server) string {
			if why := d.mayEnd(u, s); why != "" {
				return why
			}
			if arg(2) == "-f" {
				d.line("Force shutting down server %d", s.pid)
				_ = s.process.Kill()
			} else if s.ready {
				s.send("drain")
			}
			return ""
		}), false
	case "get_client_list":
		return 0, d.withReady(arg(1), func(s *server) string { return pids(s.clients()) }), false
	case "get_device_client_list":
		if arg(1) == "" {
			var all []string
			for _, s := range d.servers {
				if s.ready {
					all = append(all, deviceClients(s.clients()))
				}
			}
			return 0, strings.Join(all, "\n"), false
		}
		return 0, d.withReady(arg(1), func(s *server) string { return deviceClients(s.clients()) }), false
	case faultCommand:
		return 0, d.fault(arg(1)), false
	case "ps":
		return 0, d.ps(words[1:]), false
	case "terminate_client":
		return 0, d.terminate(arg(1), arg(2)), false
	case "get_default_active_thread_percentage":
		return 0, percent(d.percent), false
	case "set_default_active_thread_percentage":
		d.setPercent(&d.percent, arg(1))
		return 0, percent(d.percent), false
	case "get_active_thread_percentage":
		return 0, d.withReady(arg(1), func(s *server) string { return percent(s.percent) }), false
	case "set_active_thread_percentage":
		return 0, d.withReady(arg(1), func(s *server) string {
			d.setPercent(&s.percent, arg(2))
			return percent(s.percent)
		}), false
	case "get_default_device_pinned_mem_limit":
		return 0, formatLimit(d.limits[d.cfg.branch.device(arg(1))]), false
	case "set_default_device_pinned_mem_limit":
		d.setLimit(d.limits, words[1:])
		return 0, "", false
	case "get_device_pinned_mem_limit":
		return 0, d.withReady(arg(1), func(s *server) string { return formatLimit(s.limits[d.cfg.branch.device(arg(2))]) }), false
	case "set_device_pinned_mem_limit":
		return 0, d.withReady(arg(1), func(s *server) string {
			if len(s.clients()) > 0 {
				// The real programs have this message; whether they write it here was not seen.
				d.line("Ignoring pinned memory setting as a client already requested to run on server")
				return ""
			}
			d.setLimit(s.limits, words[2:])
			return ""
		}), false
	case "get_default_client_priority":
		return 0, strconv.Itoa(d.priority), false
	case "set_default_client_priority":
		v, _, ok := leadingInt(arg(1))
		if ok && v != 0 && v != 1 {
			return 0, "Invalid priority value - must be 0 or 1!", false
		}
		d.priority = int(v)
		return 0, "", false
	case "device_query":
		if !d.cfg.branch.queriesGPUs() {
			break
		}
		return 0, "Failed to query devices", false
	case "lspart", "sm_partition":
		if !d.cfg.branch.partitions() {
			break
		}
		return 0, "Static partitioning mode is not enabled", false
	case "quit":
		if !u.owns(d) {
			return 0, "Not enough privilege to execute quit command", false
		}
		seconds, _, forced := leadingInt(arg(2))
		forced = forced && arg(1) == "-t"
		if forced {
			d.line("quit command issued with timeout of %d", seconds)
		}
		return d.quit(time.Duration(seconds)*time.Second, forced), "", true
	}
	return 0, fmt.Sprintf("Unknown command \"%s\"", name), false
}

func percent(p float64) string { return strconv.FormatFloat(p, 'f', 1, 64) }

// setPercent changes a percentage if the value is valid; otherwise it only writes to the log.
func (d *control) setPercent(p *float64, s string) {
	v, ok := leadingFloat(s)
	if !ok || !(v > 0 && v <= 100) {
		d.line("Invalid percentage, expected between (0.0, 100.0]")
		return
	}
	*p = v
}

func (d *control) setLimit(l limits, words []string) {
	dev, bytes, why := d.cfg.branch.limit(words)
	switch {
	case why != "":
		d.line("%s", why)
	case bytes > 0:
		l[dev] = bytes
	case dev != "":
		delete(l, dev)
	}
}

func (d *control) serverByPID(pid int64) *server {
	for _, s := range d.servers {
		if int64(s.pid) == pid {
			return s
		}
	}
	return nil
}

// withServer calls f with the server of a pid.
func (d *control) withServer(pid string, f func(*server) string) string {
	n, _, _ := leadingInt(pid)
	if s := d.serverByPID(n); s != nil {
		return f(s)
	}
	return fmt.Sprintf("Server %d not found", n)
}

// withReady is withServer for ready servers. For a busy server the answer is empty with status 0.
func (d *control) withReady(pid string, f func(*server) string) string {
	return d.withServer(pid, func(s *server) string {
		if !s.ready {
			d.line("Server %d is <busy>", s.pid)
			return ""
		}
		return f(s)
	})
}

func (d *control) startServer(u ui, args []string) string {
	missing := "A user id (UID) is required to start a new server"
	if d.cfg.branch.partitions() {
		missing = "Invalid start_server cmd. Expected cmd: start_server -uid <user id> [-mlopart]"
	}
	if len(args) < 2 || args[0] != "-uid" {
		return missing
	}
	n, rest, ok := leadingInt(args[1])
	if !ok || rest != "" || n < 0 {
		if d.cfg.branch.partitions() {
			missing = "Invalid UID: " + args[1] + "\n" + missing
		}
		return missing
	}
	uid := uint32(n)
	if uid != u.uid {
		switch {
		case !d.cfg.branch.needsOwner() && u.uid != 0:
			return d.cfg.branch.insufficient(u.uid, "start server for another user")
		case d.cfg.branch.needsOwner() && !u.owns(d):
			why, _ := d.permitted(u)
			return why
		}
	}
	switch {
	case d.serverOf(uid) != nil:
		if !d.cfg.branch.partitions() {
			return ""
		}
		return fmt.Sprintf("Server with UID %d already exists", uid)
	case len(d.servers) > 0:
		if !slices.Contains(d.queued, uid) {
			d.queued = append(d.queued, uid) // it starts after the other has ended
		}
		return ""
	}
	d.start(uid)
	return ""
}

// mayEnd returns why a peer may not end a server; empty if it may. Up to 550 a user may end the own server, and root any, through
// any socket.
func (d *control) mayEnd(u ui, s *server) string {
	if d.cfg.branch.needsOwner() || u.uid == 0 || u.uid == s.uid {
		return ""
	}
	return d.cfg.branch.insufficient(u.uid, "shutdown another user's server")
}

// clientRow is one client in the list of its server.
type clientRow struct{ pid, gpu string }

func (s *server) clients() []clientRow {
	answer, err := s.request("list")
	if err != nil {
		return nil
	}
	var rows []clientRow
	for line := range strings.SplitSeq(answer, "\n") {
		if pid, gpu, ok := strings.Cut(line, " "); ok {
			rows = append(rows, clientRow{pid, gpu})
		}
	}
	return rows
}

func pids(rows []clientRow) string {
	var out []string
	for _, r := range rows {
		out = append(out, r.pid)
	}
	return strings.Join(out, "\n")
}

func deviceClients(rows []clientRow) string {
	var out []string
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.gpu] {
			continue
		}
		seen[r.gpu] = true
		out = append(out, r.gpu)
		for _, q := range rows {
			if q.gpu == r.gpu {
				out = append(out, q.pid)
			}
		}
	}
	return strings.Join(out, "\n")
}

// ps returns the table of clients. The UUID of the device is shortened and the namespace is its inode number, as in the
// manual.
func (d *control) ps(args []string) string {
	servers := d.servers
	if len(args) == 2 && args[0] == "-p" {
		n, _, _ := leadingInt(args[1])
		s := d.serverByPID(n)
		if s == nil {
			return fmt.Sprintf("Server %d not found\nServer %d not found\n", n, n)
		}
		servers = []*server{s}
	}
	out := []string{fmt.Sprintf("%-9s %-5s %-9s %-24s %-14s %s", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")}
	ready := 0
	for _, s := range servers {
		if !s.ready {
			d.line("Server %d is <busy>", s.pid)
			continue
		}
		ready++
		for i, r := range s.clients() {
			out = append(
				out, fmt.Sprintf("%-9s %-5d %-9d %-24s %-14s %s", r.pid, i, s.pid, short(r.gpu), namespaceOf(r.pid), commandOf(r.pid)),
			)
		}
	}
	if ready == 0 {
		if len(args) == 2 && len(servers) == 1 {
			return fmt.Sprintf("Server %d not found", servers[0].pid)
		}
		return "Server not found"
	}
	return strings.Join(out, "\n")
}

func short(gpu string) string {
	if len(gpu) > 22 {
		return gpu[:22]
	}
	return gpu
}

func namespaceOf(pid string) string {
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+pid+"/ns/pid", &st); err != nil {
		return "-"
	}
	return strconv.FormatUint(st.Ino, 10)
}

func commandOf(pid string) string {
	b := make([]byte, 256)
	fd, err := unix.Open("/proc/"+pid+"/cmdline", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "-"
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, b)
	if err != nil || n <= 0 {
		return "-"
	}
	name, _, _ := strings.Cut(string(b[:n]), "\x00")
	return name
}

func (d *control) terminate(server, client string) string {
	n, _, _ := leadingInt(server)
	s := d.serverByPID(n)
	switch {
	case s == nil:
		return fmt.Sprintf("Server %d not found\nServer %d not found!\n1", n, n)
	case !s.ready:
		d.line("Server %d is <busy>", s.pid)
		return fmt.Sprintf("Server %d not found!\n1", n)
	}
	answer, err := s.request("terminate " + client)
	if err != nil || answer != "ok" {
		return "1"
	}
	return "0"
}
