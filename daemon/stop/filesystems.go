package stop

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/fuse"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// A user may serve a file system of their own (FUSE). A process that has a request there waits until the server answers, and once
// the server has read the request not even SIGKILL ends the wait (request_wait_answer of the kernel). So the connection between the
// kernel and the server of a file system that a killed process waits for is aborted, and the processes that serve it are stopped.

const (
	// mostExamined is how many processes are examined in one check. When what they wait for is aborted, others are freed with them.
	mostExamined = 64
	// surelyAfter is after how many checks a connection is aborted that the process may use: it is its user's, and it has had requests
	// without an answer all the time. What a process used is not known any more when it exits, nor after its mounts were detached.
	surelyAfter = 2
	// searchTime bounds a search of servers in all processes, and lastSearchTime the one after their connection was aborted, if the
	// first ones did not get through: on a busy host with many processes.
	searchTime     = time.Second
	lastSearchTime = 10 * time.Second
)

// fileSystems are the FUSE file systems that killed processes wait for. The zero value is ready to use.
type fileSystems struct {
	checks   map[uint32]int                 // in how many checks a connection had requests without an answer
	aborted  map[uint32]bool                // the connections that were aborted
	stopping map[cgroup.Process]fuse.Server // the servers that got SIGTERM: they get SIGKILL next
	missed   map[uint32]fileSystem          // those that were aborted, and whose servers were not searched in every process
}

// fileSystem is a FUSE file system that a killed process waits for.
type fileSystem struct {
	of      cgroup.Process
	conn    fuse.Connection
	point   string // where it is mounted for the process; empty: its mount is detached, or in another namespace
	call    string // with which the process waits, and the file; empty: not known
	sure    bool   // the process uses it, or it was waited for in surelyAfter checks
	kept    string // why it is not aborted; empty: it is
	servers []fuse.Server
	// possible may serve it, where the kernel does not report which process does. They are named, and not stopped.
	possible []fuse.Server
	all      bool     // they were searched in every process
	users    []uint32 // whose servers may be stopped
}

// find returns the file systems that killed processes wait for. owner is the user of their lease, nil without one.
func (x *fileSystems) find(ctx context.Context, killed []cgroup.Process, owner *uint32) []fileSystem {
	var hanging []cgroup.Process
	for _, p := range killed {
		if len(hanging) < mostExamined && hangs(p) {
			hanging = append(hanging, p)
		}
	}
	if len(hanging) == 0 {
		return nil
	}
	control, err := fuse.Open()
	if err != nil {
		return nil // The kernel has no FUSE, or a daemon without root may not know. What it waits for is described by its call.
	}
	defer control.Close()
	waiting, err := control.Waiting()
	if err != nil || len(waiting) == 0 {
		return nil
	}
	now := map[uint32]int{}
	for _, c := range waiting {
		now[c.Number] = x.checks[c.Number] + 1
	}
	x.checks = now
	var found []fileSystem
	for _, p := range hanging {
		found = append(found, x.ofProcess(p, waiting, owner)...)
	}
	findServers(ctx, found, searchTime)
	return found
}

// hangs reports whether a thread of the process is in a call that no signal ends.
func hangs(p cgroup.Process) bool {
	threads, err := procfs.Threads(p.PID)
	return err == nil && slices.ContainsFunc(threads, func(t procfs.Thread) bool { return t.State == 'D' })
}

// ofProcess returns those of the waiting connections that a process waits for: those that it uses, and those that it may use. Of the
// connections of others only those that it uses are named.
func (x *fileSystems) ofProcess(p cgroup.Process, waiting []fuse.Connection, owner *uint32) []fileSystem {
	where := whereabouts(p.PID)
	users := usersOf(p.PID, owner)
	var found, others []fileSystem
	for _, c := range waiting {
		mount, mounted := where.points[c.Number]
		f := fileSystem{
			of:    p,
			conn:  c,
			point: mount,
			call:  where.calls[c.Number],
			kept:  whyConnectionKept(c.Owner, users),
			users: users.list,
		}
		f.sure = where.uses[c.Number] || x.checks[c.Number] >= surelyAfter
		switch {
		case where.uses[c.Number]:
			found = append(found, f)
		case f.kept == "" && where.unclear: // Else others of the user are not what it waits for.
			found = append(found, f)
		case mounted && where.inFUSE:
			f.sure = false
			others = append(others, f)
		}
	}
	if start, err := procfs.Start(p.PID); err != nil || start != p.Start {
		return nil // The pid is another process by now.
	}
	if len(found) == 0 {
		return others
	}
	return found
}

// users are whose connections a killed process may have aborted.
type users struct {
	list   []uint32
	ranges [][2]uint32 // first and last of the ids that its user namespace maps: those of its user alone
}

// usersOf returns the users of a process, the user of its lease, and the ids that they may use in a user namespace.
func usersOf(pid int, owner *uint32) users {
	var u users
	if owner != nil {
		u.list = append(u.list, *owner)
	}
	ids, err := procfs.UIDs(pid)
	if err != nil {
		ids = nil // It exits.
	}
	for _, id := range ids {
		if !slices.Contains(u.list, uint32(id)) {
			u.list = append(u.list, uint32(id))
		}
	}
	u.ranges = procfs.MappedUsers(pid)
	return u
}

// has reports whether an id is one of them.
func (u users) has(id uint32) bool {
	return slices.Contains(u.list, id) || slices.ContainsFunc(u.ranges, func(r [2]uint32) bool { return r[0] <= id && id <= r[1] })
}

// whyConnectionKept returns why a connection is not aborted; empty: it is. It has to be one of the user whose process was killed.
func whyConnectionKept(owner uint32, of users) string {
	switch {
	case owner == 0:
		return "it belongs to root"
	case !of.has(owner):
		return "it belongs to another user"
	}
	return ""
}

// place is what is known of where a process waits.
type place struct {
	uses   map[uint32]bool   // the connections of files that it has open or mapped, or that its call names
	points map[uint32]string // where connections are mounted for it
	calls  map[uint32]string // the call that waits for a connection
	inFUSE bool              // a thread waits in a function of FUSE
	// unclear: a thread waits in a call whose file is on no FUSE file system by its name, as through a link, or is not known.
	unclear bool
}

// whereabouts reads where a process has files and which calls of it wait. It asks no file system.
func whereabouts(pid int) place {
	w := place{uses: map[uint32]bool{}, points: map[uint32]string{}, calls: map[uint32]string{}}
	thread, calls := waitingCalls(pid)
	if thread == 0 {
		return w
	}
	used := procfs.ReadUsedFiles(thread)
	paths := map[string]procfs.Mount{} // the mount of each path: the last one that holds it, of those with the longest point
	for _, path := range used.Paths {
		paths[path] = procfs.Mount{}
	}
	for _, c := range calls {
		w.inFUSE = w.inFUSE || c.Function == "request_wait_answer" || strings.HasPrefix(c.Function, "fuse_")
		paths[c.File] = procfs.Mount{}
	}
	_ = procfs.WalkMounts(thread, func(m procfs.Mount) { // Without mounts the process exits, and nothing is known of it.
		number := fuse.NumberOf(m.Major, m.Minor)
		if isFUSE(m.Type) {
			w.points[number] = m.Point
		}
		if used.Mounts[m.ID] || used.Devices[[2]uint32{m.Major, m.Minor}] {
			w.uses[number] = true
		}
		for path, last := range paths {
			if m.Has(path) && len(m.Point) >= len(last.Point) {
				paths[path] = m
			}
		}
	})
	for _, m := range paths {
		w.uses[fuse.NumberOf(m.Major, m.Minor)] = true
	}
	for _, c := range calls {
		if m := paths[c.File]; isFUSE(m.Type) {
			w.calls[fuse.NumberOf(m.Major, m.Minor)] = c.Call + " of " + shown(c.File)
		} else {
			w.unclear = true
		}
	}
	return w
}

// waitingCalls returns what the threads of a process wait for that no signal reaches, and one of these threads. A thread that has
// exited, as the first one may have, has no files and no mounts.
func waitingCalls(pid int) (thread int, calls []procfs.Wait) {
	threads, err := procfs.Threads(pid)
	if err != nil {
		return 0, nil
	}
	for _, t := range threads {
		if t.State == 'D' && len(calls) < mostExamined {
			thread, calls = t.TID, append(calls, procfs.ReadWait(pid, t.TID))
		}
	}
	return thread, calls
}

// isFUSE reports whether a type of file systems is served by a process: "fuse", "fuse.sshfs", "fuseblk".
func isFUSE(kind string) bool {
	return kind == "fuse" || kind == "fuseblk" || strings.HasPrefix(kind, "fuse.") || strings.HasPrefix(kind, "fuseblk.")
}

// findServers finds the processes that serve the file systems, among all processes of their owners and of root, in one search.
func findServers(ctx context.Context, found []fileSystem, most time.Duration) {
	if len(found) == 0 {
		return
	}
	// The last check, whose outcome is the error, is made when ctx has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	defer cancel()
	numbers, of := map[uint32]bool{}, []uint32{0}
	for i := range found {
		numbers[found[i].conn.Number] = true
		of = append(of, found[i].conn.Owner)
		of = append(of, found[i].users...)
	}
	got := fuse.Servers(ctx, of, numbers)
	for i := range found {
		found[i].all, found[i].servers = got.All, nil
		found[i].possible = slices.DeleteFunc(slices.Clone(got.Possible), func(s fuse.Server) bool {
			uid := uidOf(s.PID)
			return uid == nil || *uid != found[i].conn.Owner && !slices.Contains(found[i].users, *uid)
		})
		for _, s := range got.Servers {
			if s.Connection == found[i].conn.Number {
				found[i].servers = append(found[i].servers, s)
			}
		}
	}
}

// end aborts the connections, once, and stops their servers: SIGTERM first, and SIGKILL when it is called again. It returns the
// servers, which may wait for something themselves.
func (x *fileSystems) end(ctx context.Context, found []fileSystem, w *watcher) (servers []cgroup.Process) {
	for i := range found {
		f := &found[i]
		if f.kept != "" || !f.sure {
			continue
		}
		if !x.aborted[f.conn.Number] {
			x.abort(f, w)
		}
		if f.all {
			delete(x.missed, f.conn.Number)
		} else if x.aborted[f.conn.Number] {
			if x.missed == nil {
				x.missed = map[uint32]fileSystem{}
			}
			x.missed[f.conn.Number] = *f
		}
		for _, s := range f.servers {
			if x.stopServer(ctx, s, f, w) {
				servers = append(servers, cgroup.Process{PID: s.PID, Start: s.Start})
			}
		}
	}
	return servers
}

// abort aborts one connection.
func (x *fileSystems) abort(f *fileSystem, w *watcher) {
	control, err := fuse.Open()
	if err != nil {
		return // The next check tries again.
	}
	defer control.Close()
	what, waits := f.name()+f.served(), nameOf(f.of.PID) // They may end with the connection.
	if err := control.Abort(f.conn); err != nil {
		w.report(w.aborted, fmt.Sprintf("%v: %s, which was killed, waits for it", err, waits))
		return
	}
	if x.aborted == nil {
		x.aborted = map[uint32]bool{}
	}
	x.aborted[f.conn.Number] = true
	w.report(w.aborted, fmt.Sprintf("%s is aborted: %s, which was killed, waits for it", what, waits))
}

// stopServer stops one server, if the rule allows it.
func (x *fileSystems) stopServer(ctx context.Context, s fuse.Server, f *fileSystem, w *watcher) bool {
	p := cgroup.Process{PID: s.PID, Start: s.Start}
	h, err := procfs.OpenPidfd(s.PID, s.Start)
	if err != nil {
		return false // It has exited.
	}
	defer h.Close()
	if whyServerKept(s, f) != "" {
		return false
	}
	if _, again := x.stopping[p]; again {
		_ = h.Signal(ctx, unix.SIGKILL) // A failure shows in the next check.
		return true
	}
	name := nameOf(s.PID)
	if h.Terminate(ctx) != nil {
		return false // It has exited.
	}
	if x.stopping == nil {
		x.stopping = map[cgroup.Process]fuse.Server{}
	}
	x.stopping[p] = s
	w.report(
		w.stopped,
		fmt.Sprintf("%s is stopped: it serves %s, for which %s, which was killed, waits", name, f.name(), nameOf(f.of.PID)),
	)
	return true
}

// whyServerKept returns why a server is not stopped; empty: it is. It is read while its pidfd is open.
func whyServerKept(s fuse.Server, f *fileSystem) string {
	uid := uidOf(s.PID)
	if uid != nil && slices.Contains(append([]uint32{f.conn.Owner}, f.users...), *uid) {
		return whyTracerKept(DecidePID(s.PID), uid, *uid)
	}
	return whyTracerKept(DecidePID(s.PID), uid, f.conn.Owner)
}

// finish gives the servers that got SIGTERM a moment, and then SIGKILL: what they serve has ended. Those that were missed are searched
// once, for all connections together.
func (x *fileSystems) finish(ctx context.Context, w *watcher) {
	missed := slices.Collect(maps.Values(x.missed))
	findServers(ctx, missed, lastSearchTime)
	for i := range missed {
		for _, s := range missed[i].servers {
			if _, again := x.stopping[cgroup.Process{PID: s.PID, Start: s.Start}]; !again {
				x.stopServer(context.WithoutCancel(ctx), s, &missed[i], w)
			}
		}
	}
	kill := context.WithoutCancel(ctx) // The relay of signals has its own deadlines.
	ctx, cancel := context.WithTimeout(kill, killInterval)
	defer cancel()
	for p := range x.stopping {
		h, err := procfs.OpenPidfd(p.PID, p.Start)
		if err != nil {
			continue // It has exited.
		}
		if h.Wait(ctx) != nil {
			_ = h.Signal(kill, unix.SIGKILL) // It may exit now.
		}
		_ = h.Close() // Nothing is written through it.
	}
}

// name names the file system.
func (f *fileSystem) name() string {
	at := ""
	if f.point != "" {
		at = " at " + shown(f.point)
	}
	return fmt.Sprintf("the FUSE file system%s (connection %d) of %s", at, f.conn.Number, userName(&f.conn.Owner))
}

// served names the processes that serve it, or those that may.
func (f *fileSystem) served() string {
	by, servers := ", served by ", f.servers
	if len(servers) == 0 {
		by, servers = ", which may be served by ", f.possible
	}
	names := make([]string, 0, len(servers))
	for _, s := range servers {
		names = append(names, nameOf(s.PID)+" of "+userOf(s.PID))
	}
	switch {
	case len(names) == 0:
		return ""
	case len(names) > mostAlive:
		names = append(names[:mostAlive], fmt.Sprintf("%d more processes", len(names)-mostAlive))
	}
	return by + strings.Join(names, " and ")
}

// text says that the process waits for it, and what is done about that.
func (f *fileSystem) text() string {
	text := "it waits for "
	switch {
	case !f.sure:
		text = "it may wait for "
	case f.call != "":
		text = "it waits in " + f.call + " for "
	}
	text += f.name() + f.served()
	switch {
	case f.kept != "":
		text += ": it is not aborted, because " + f.kept
	case f.sure:
		text += ": it is aborted"
	}
	return text
}

// hint is a command that ends the wait. It has no path of a user, which may lead elsewhere when the command runs.
func (f *fileSystem) hint() string {
	command := fmt.Sprintf("echo 1 > %s/%d/abort", fuse.ControlFiles, f.conn.Number)
	if !fuse.Mounted() {
		command = fmt.Sprintf("mount -t fusectl none %s && %s", fuse.ControlFiles, command)
	}
	return fmt.Sprintf("end its requests: '%s'", command)
}

// shown is a path of a user in a text: one with spaces or control characters is quoted.
func shown(path string) string {
	if q := strconv.Quote(path); q != `"`+path+`"` || strings.ContainsAny(path, " ,;:'") {
		return q
	}
	return path
}
