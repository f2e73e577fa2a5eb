package stop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/step"
)

// A tracer that asked for it (PTRACE_O_TRACEEXIT, ptrace(2)) keeps a process in its exit, with its memory and its open
// devices, also after SIGKILL, until the tracer continues it or ends. A user may trace their own processes, from outside of the
// lease too. So a tracer that keeps a killed process is stopped with it.

// killInterval is the time after which a process that was killed and has not exited is checked for what keeps it.
const killInterval = 500 * time.Millisecond

// watcher gets what a kill waits for. The zero value reports nothing.
type watcher struct {
	waits   func(*AliveError)           // after each check
	ended   func()                      // all have exited
	gaveUp  func(left []cgroup.Process) // the deadline of the kill passed
	stopped func(text string)           // for each tracer or server that is stopped
	aborted func(text string)           // for each file system that is aborted, or cannot be
	owner   *uint32                     // the user of the lease; nil: that of each process
}

// report reports to one of its functions.
func (w *watcher) report(to func(string), text string) {
	if to != nil {
		to(text)
	}
}

// tracers are the tracers of killed processes, and what else these wait for. The zero value is ready to use.
type tracers struct {
	terminated map[cgroup.Process]bool // those that got SIGTERM: they get SIGKILL next
	files      fileSystems
	watcher    watcher
}

// end ends what killed processes wait for: the file systems that their user serves, and their tracers.
func (x *tracers) end(ctx context.Context, killed []cgroup.Process, found []fileSystem) {
	servers := x.files.end(ctx, found, &x.watcher)
	x.stop(ctx, slices.Concat(killed, servers))
}

// stop stops the tracers of processes that were killed, and the tracers of these: SIGTERM first, and SIGKILL when it is called
// again.
func (x *tracers) stop(ctx context.Context, killed []cgroup.Process) {
	seen := map[int]bool{}
	for next := killed; len(next) > 0; {
		var found []cgroup.Process
		for _, p := range next {
			for _, tracer := range tracersOf(p) {
				if !seen[tracer.PID] {
					seen[tracer.PID] = true
					x.signal(ctx, tracer, p)
					found = append(found, tracer)
				}
			}
		}
		next = found
	}
}

// signal stops one tracer, if the rule allows it.
func (x *tracers) signal(ctx context.Context, tracer, of cgroup.Process) {
	p, err := procfs.OpenPidfd(tracer.PID, tracer.Start)
	if err != nil {
		return // It has exited.
	}
	defer p.Close()
	// The pidfd is open: it still traces the process, so it is this tracer whose user is read.
	if !slices.Contains(tracersOf(of), tracer) || whyKept(tracer, of) != "" {
		return
	}
	if x.terminated[tracer] {
		_ = p.Signal(ctx, unix.SIGKILL) // A failure shows in the next check.
		return
	}
	if p.Terminate(ctx) != nil {
		return // It has exited. A failure shows in the next check.
	}
	if x.terminated == nil {
		x.terminated = map[cgroup.Process]bool{}
	}
	x.terminated[tracer] = true
	x.watcher.report(
		x.watcher.stopped,
		fmt.Sprintf("%s is stopped: it traces %s, which was killed, and keeps it in its exit", nameOf(tracer.PID), nameOf(of.PID)),
	)
}

// tracersOf returns the processes that trace a thread of a process.
func tracersOf(p cgroup.Process) []cgroup.Process {
	threads, err := procfs.Threads(p.PID)
	if err != nil {
		return nil
	}
	var out []cgroup.Process
	for _, t := range threads {
		if t.Tracer == 0 {
			continue
		}
		if start, err := procfs.Start(t.Tracer); err == nil {
			out = append(out, cgroup.Process{PID: t.Tracer, Start: start})
		}
	}
	if start, err := procfs.Start(p.PID); err != nil || start != p.Start {
		return nil // The pid is another process by now.
	}
	return out
}

// whyKept returns why the tracer of a killed process is not stopped; empty: it is. It has to be of the same user, whose
// processes they both are, in whatever lease of that user it runs. Another tracer is one of root: no other user may trace it.
func whyKept(tracer, of cgroup.Process) string {
	own, err := procfs.UID(of.PID)
	if err != nil {
		return "the user of " + nameOf(of.PID) + " cannot be read"
	}
	return whyTracerKept(DecidePID(tracer.PID), uidOf(tracer.PID), own)
}

func uidOf(pid int) *uint32 {
	uid, err := procfs.UID(pid)
	if err != nil {
		return nil
	}
	return &uid
}

// whyTracerKept is the rule.
func whyTracerKept(d Decision, tracer *uint32, own uint32) string {
	switch {
	case d == Unknown || tracer == nil:
		return "its user cannot be read"
	case d == IsRoot:
		return "it belongs to root"
	case d == IsSystem:
		return "it belongs to the system"
	case *tracer != own:
		return "it belongs to another user"
	}
	return ""
}

// untilEnded waits until killed processes have ended, and ends what they wait for. kill sends SIGKILL and waits; left lists
// those that have not ended. When ctx ends first, the error says what keeps each of them.
func (x *tracers) untilEnded(ctx context.Context, kill func(context.Context) error, left func() []cgroup.Process) error {
	for {
		short, cancel := context.WithTimeout(ctx, killInterval)
		err := kill(short)
		cancel()
		if err == nil {
			if x.watcher.ended != nil {
				x.watcher.ended()
			}
			x.files.finish(ctx, &x.watcher)
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			return err
		}
		remaining := left()
		found := x.files.find(ctx, remaining, x.watcher.owner)
		waits := &AliveError{Processes: describeAll(remaining, found), err: ctx.Err()}
		if x.watcher.waits != nil {
			x.watcher.waits(waits)
		}
		step.ReportWait(ctx, waits.Error())
		if ctx.Err() != nil {
			if x.watcher.gaveUp != nil {
				x.watcher.gaveUp(remaining)
			}
			return waits
		}
		x.end(ctx, remaining, found)
	}
}

// AliveError says that processes were killed and have not exited, and what keeps each of them.
type AliveError struct {
	Processes []Alive
	err       error
}

// Alive is a process that was killed and has not exited.
type Alive struct {
	Process cgroup.Process
	Text    string // the process and what keeps it
	Hint    string // a command that helps
}

func (e *AliveError) Error() string {
	texts := make([]string, 0, len(e.Processes))
	for _, h := range e.Processes {
		texts = append(texts, h.Text)
	}
	if len(texts) == 0 {
		texts = []string{"a process that was killed still exits"}
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the error of the context.
func (e *AliveError) Unwrap() error { return e.err }

// Hint returns a command that helps.
func (e *AliveError) Hint() string {
	for _, h := range e.Processes {
		if h.Hint != "" {
			return h.Hint
		}
	}
	return "see the kernel's log: 'journalctl -k'"
}

// mostAlive is how many processes an error names.
const mostAlive = 3

// describeAll describes processes that were killed and have not exited.
func describeAll(killed []cgroup.Process, found []fileSystem) []Alive {
	var out []Alive
	for _, p := range killed {
		if len(out) == mostAlive {
			break
		}
		out = append(out, describe(p, found))
	}
	return out
}

// describe says what keeps a process: what is ended first is named first.
func describe(p cgroup.Process, found []fileSystem) Alive {
	h := Alive{Process: p, Text: nameOf(p.PID) + " was killed and has not exited"}
	for i := range found {
		if f := &found[i]; f.of == p {
			h.Text += ": " + f.text()
			h.Hint = f.hint()
			return h
		}
	}
	threads, err := procfs.Threads(p.PID)
	if err != nil {
		return h
	}
	for _, t := range threads {
		if t.Tracer == 0 {
			continue
		}
		h.Text += ": it is traced by " + nameOf(t.Tracer) + " of " + userOf(t.Tracer)
		if start, err := procfs.Start(t.Tracer); err == nil {
			if why := whyKept(cgroup.Process{PID: t.Tracer, Start: start}, p); why != "" {
				h.Text += ", which is not stopped: " + why
			}
		}
		h.Hint = fmt.Sprintf("end the tracer: 'kill -9 %d'", t.Tracer)
		return h
	}
	for _, t := range threads {
		if t.State == 'D' {
			h.describeWait(p.PID, t.TID)
			return h
		}
	}
	if len(threads) > 0 {
		h.Text += fmt.Sprintf(": it is in state %c", threads[len(threads)-1].State)
	}
	return h
}

// nameOf is a process as texts name it.
func nameOf(pid int) string { return fmt.Sprintf("pid %d (%s)", pid, procfs.Name(pid)) }

// userOf is the user of a process as texts name it. A name service is not asked: it may hang.
func userOf(pid int) string {
	return userName(uidOf(pid))
}

func userName(uid *uint32) string {
	switch {
	case uid == nil:
		return "a user that cannot be read"
	case *uid == 0:
		return "root"
	}
	return "uid " + strconv.Itoa(int(*uid))
}
