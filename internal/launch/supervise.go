package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/internal/procfs"
)

// The supervisor's descriptors after the standard ones.
const (
	supervisorConnFD   = 3 // the connection to the daemon, for the program
	supervisorCgroupFD = 4 // the directory of the cgroup to start the program in; not open without one
)

// recordedFD is the descriptor on which a supervised program gets one byte when its record is written.
const recordedFD = 3

// Supervise is gpushare-start --supervise DIR ID BYTES: the parent of a program on hosts without a service manager. It writes the
// program's output to files of so many bytes together and its result to the record, and ends when no process can write output.
func Supervise(dir, id string, kept int64, inCgroup bool) int {
	// It must not end before the program, not even when an init script stops all processes. The signals are caught and not
	// ignored, because the program would inherit ignored signals.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	conn := os.NewFile(supervisorConnFD, "the daemon")
	if err := supervise(dir, id, kept, conn, inCgroup); err != nil {
		_ = json.NewEncoder(conn).Encode(greeting{Failure: &Failure{Code: ExitCannot, Message: "cannot supervise the program: " + err.Error()}}) // The daemon may have ended.
		return 1
	}
	return 0
}

func supervise(dir, id string, kept int64, conn *os.File, inCgroup bool) error {
	if err := closeOnExec(supervisorConnFD); err != nil {
		return err
	}
	boot, err := procfs.BootID("/")
	if err != nil {
		return err
	}
	r := record{Boot: boot}
	if r.Supervisor, err = self(); err != nil {
		return err
	}
	out, err := newRotatingFile(outputPath(dir, id), kept/2)
	if err != nil {
		return err
	}
	defer out.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	recordedPipe, recordedEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd, err := pendingCommand(conn, write, recordedPipe, inCgroup)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	write.Close()
	recordedPipe.Close()
	r.Main.PID = cmd.Process.Pid
	if r.Main.Start, err = procfs.Start(r.Main.PID); err == nil {
		err = r.write(dir, id)
	}
	if err == nil {
		// The program sends nothing to the daemon before this, so that the record exists when the daemon gets its message.
		_, err = recordedEnd.Write([]byte{1})
	}
	if err != nil {
		_ = cmd.Process.Kill() // It has no program yet.
		_ = cmd.Wait()
		return err
	}
	recordedEnd.Close()
	conn.Close() // From now on only the program has this end.
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		out.fill(read)
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	r.Result = resultOf(cmd.ProcessState)
	if err := r.write(dir, id); err != nil {
		return err
	}
	<-drained
	return nil
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
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = conn, out, out, []*os.File{recordedPipe}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if inCgroup {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, supervisorCgroupFD
	}
	return cmd, nil
}

func resultOf(s *os.ProcessState) *Result {
	ws, ok := s.Sys().(syscall.WaitStatus)
	if !ok {
		panic(fmt.Sprintf("a process ended with a %T", s.Sys()))
	}
	if ws.Signaled() {
		return &Result{Code: int(ws.Signal()), At: time.Now()}
	}
	return &Result{Exited: true, Code: ws.ExitStatus(), At: time.Now()}
}
