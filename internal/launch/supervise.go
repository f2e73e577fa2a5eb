package launch

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// The supervisor's descriptors after the standard ones.
const (
	supervisorConnFD   = 3 // the connection to the daemon, for the program
	supervisorCgroupFD = 4 // the directory of the cgroup to start the program in; not open without one
)

// recordedFD is the descriptor on which a supervised program gets one byte when its record is written.
const recordedFD = 3

// Supervise is gpushare-start --supervise DIR ID BYTES: the parent of a program on hosts without a service manager. It writes the
// program's output to files of so many bytes together and its result to the record, and ends with the last process of the lease.
func Supervise(dir, id string, kept int64, inCgroup bool) int {
	// It must not end before the program, not even when an init script stops all processes. The signals are caught and not
	// ignored, because the program would inherit ignored signals.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	conn := os.NewFile(supervisorConnFD, "the daemon")
	s := &supervisor{id: id, inCgroup: inCgroup, signals: signals}
	err := s.start(dir, kept, conn)
	if err == nil {
		err = s.untilEnd()
	} else {
		_ = json.NewEncoder(conn).Encode(
			greeting{Failure: &Failure{Code: ExitCannot, Message: "cannot supervise the program: " + err.Error()}},
		) // The daemon may have ended.
	}
	if err != nil {
		return 1
	}
	return 0
}

// supervisor is the parent of a program.
type supervisor struct {
	id       string
	inCgroup bool
	signals  <-chan os.Signal

	record  record
	out     *rotatingFile
	output  *os.File       // the end of the program's output that is read here
	members *cgroupMembers // of the program's cgroup; nil without one
}

// start starts the program's process. The working directory becomes that of the records: what is opened later is found there
// without privileges.
func (s *supervisor) start(dir string, kept int64, conn *os.File) (err error) {
	if err := closeOnExec(supervisorConnFD); err != nil {
		return err
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	protectFromOOM()
	reserveThreads(spareThreads)
	if s.record.Boot, err = procfs.BootID("/"); err != nil {
		return err
	}
	if s.record.Supervisor, err = self(); err != nil {
		return err
	}
	if s.out, err = newRotatingFile(outputPath("", s.id), kept/2); err != nil {
		return err
	}
	if s.inCgroup {
		if s.members, err = openMembers(supervisorCgroupFD); err != nil {
			return err
		}
	} else if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	s.output = read
	defer write.Close()
	if err := s.startProgram(conn, write); err != nil {
		return err
	}
	conn.Close() // From now on only the program has this end.
	return nil
}

// startProgram starts the process that waits for its program.
func (s *supervisor) startProgram(conn, out *os.File) error {
	recordedPipe, recordedEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer recordedEnd.Close()
	defer recordedPipe.Close()
	cmd, err := pendingCommand(conn, out, recordedPipe, s.inCgroup)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.record.Main.PID = cmd.Process.Pid
	if s.record.Main.Start, err = procfs.Start(s.record.Main.PID); err == nil {
		err = s.record.write("", s.id)
	}
	if err == nil {
		err = dropCapabilities()
	}
	if err == nil {
		// The program sends nothing to the daemon before this, so that the record exists when the daemon gets its message.
		_, err = recordedEnd.Write([]byte{1})
	}
	if err != nil {
		_ = cmd.Process.Kill() // It has no program yet.
		_ = cmd.Wait()
	}
	return err
}

// untilEnd keeps the output and the result of the program, and returns when the lease has ended. The result is recorded first:
// nothing that a process of the lease or outside of it does can delay it.
func (s *supervisor) untilEnd() error {
	read := make(chan struct{})
	go func() { // ends with the output, or with stopReading
		defer close(read)
		s.out.fill(s.output)
	}()
	ended, childless := make(chan *Result, 1), make(chan struct{})
	go func() { // ends with the last child
		defer close(childless)
		reap(s.record.Main.PID, ended)
	}()
	s.record.Result = <-ended
	discard(s.signals) // Those from before the end are not the daemon's.
	err := s.record.write("", s.id)
	s.awaitLeaseEnd(childless)
	stopReading(s.output)
	<-read
	s.out.drain(s.output)
	return err
}

// awaitLeaseEnd returns when no process of the lease is left, or when the daemon says so by a signal.
func (s *supervisor) awaitLeaseEnd(childless <-chan struct{}) {
	empty := childless // Without a cgroup all orphans of the lease become children of this process.
	if s.members != nil {
		left := make(chan struct{})
		go func() { // ends with the last process of the cgroup
			defer close(left)
			s.members.awaitNone()
		}()
		empty = left
	}
	select {
	case <-empty:
	case <-s.signals:
	}
}

func discard(signals <-chan os.Signal) {
	for {
		select {
		case <-signals:
		default:
			return
		}
	}
}

// reap waits for all children and reports how the program ended. There are others than the program's process: those that were
// started with CLONE_PARENT, and without a cgroup the orphans.
func reap(main int, ended chan<- *Result) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return // There is no child.
		case pid == main && (ws.Exited() || ws.Signaled()):
			ended <- resultOf(ws)
		}
	}
}

// SupervisedFlag is the argument of a gpushare-start whose parent is a supervisor.
const SupervisedFlag = "--supervised"

// pendingCommand is a gpushare-start that will wait for its program.
func pendingCommand(conn, out, recordedPipe *os.File, inCgroup bool) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, SupervisedFlag)
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = conn, out, out, []*os.File{recordedPipe}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if inCgroup {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, supervisorCgroupFD
	}
	return cmd, nil
}

func resultOf(ws unix.WaitStatus) *Result {
	if ws.Signaled() {
		return &Result{Code: int(ws.Signal()), At: time.Now()}
	}
	return &Result{Exited: true, Code: ws.ExitStatus(), At: time.Now()}
}
