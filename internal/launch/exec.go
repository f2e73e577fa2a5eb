package launch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit codes, as a shell tells why it could not run something.
const (
	ExitWaiting  = 125 // the daemon went away before it said what to start
	ExitCannot   = 126
	ExitNotFound = 127
)

// greeting is the first word, of the one that waits.
type greeting struct {
	Process
	Failure *Failure `json:"failure,omitempty"`
}

// Failure is why the program could not be started.
type Failure struct {
	Code    int    `json:"code"` // ExitCannot or ExitNotFound
	Message string `json:"message"`
}

func (f *Failure) Error() string { return f.Message }

// Exec is gpushare-start: it says that it is there, waits on its standard input for what to become, and becomes it. Of
// one that is kept the keeper says first that it is written down. It returns only when that failed, with the exit code.
func Exec(supervised bool) int {
	if supervised && !recorded() {
		return ExitWaiting
	}
	conn, err := takeConnection()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpushare-start: "+err.Error())
		return ExitWaiting
	}
	outcome, err := greet(conn)
	if err != nil {
		return ExitWaiting
	}
	var p Program
	// The whole line is read: what was left unread would reach the daemon as a broken connection.
	message, err := bufio.NewReader(io.LimitReader(conn, 8*maxBytes)).ReadBytes('\n')
	if err != nil || json.Unmarshal(message, &p) != nil {
		return ExitWaiting
	}
	f := execProgram(&p)
	_ = json.NewEncoder(outcome).Encode(f) // The daemon went away: the exit code tells it too.
	return f.Code
}

// recorded waits for the keeper's word. There is none when the keeper could not write, or was killed.
func recorded() bool {
	f := os.NewFile(recordedFD, "the keeper")
	defer f.Close()
	n, _ := f.Read(make([]byte, 1))
	return n == 1
}

// greet says that we are there, and hands over the end of a pipe of which only we hold the other: that it closes is how the
// daemon learns that the program runs. The connection cannot tell it: a service manager keeps a copy of the standard input
// that it gave us.
func greet(conn *os.File) (outcome *os.File, err error) {
	me, err := self()
	if err != nil {
		return nil, err
	}
	message, err := json.Marshal(greeting{Process: me})
	if err != nil {
		return nil, err
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(ends[0])
	if err := unix.Sendmsg(int(conn.Fd()), append(message, '\n'), unix.UnixRights(ends[0]), nil, unix.MSG_NOSIGNAL); err != nil {
		unix.Close(ends[1])
		return nil, os.NewSyscallError("sendmsg", err)
	}
	return os.NewFile(uintptr(ends[1]), "the outcome"), nil
}

// takeConnection takes the connection from the standard input, so that the program does not get it, and leaves nothing there.
func takeConnection() (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(0, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, errors.New("the standard input is no connection to gpushared")
	}
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(null)
	if err := unix.Dup3(null, 0, 0); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "the daemon"), closeOnExec(3)
}

// closeOnExec keeps every descriptor from a number on from what is executed: whoever started us may have had some open
// without knowing.
func closeOnExec(from int) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= from {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

// execProgram returns only when it failed.
func execProgram(p *Program) *Failure {
	cannot := func(what string, err error) *Failure {
		return &Failure{ExitCannot, fmt.Sprintf("cannot %s: %v", what, reason(err))}
	}
	if err := p.Check(); err != nil {
		return &Failure{ExitCannot, err.Error()}
	}
	if here, err := os.Readlink("/proc/self/ns/mnt"); err != nil || p.Credentials.Mounts != "" && here != p.Credentials.Mounts {
		return &Failure{ExitCannot, fmt.Sprintf("cannot start %s: whoever asks lives among other mounts, as in a container, so that its paths mean something else here", p.Path)}
	}
	// What the kernel keeps for each thread is set on the one that executes.
	runtime.LockOSThread()
	if err := p.Credentials.apply(); err != nil {
		return cannot("start for user "+strconv.Itoa(p.Credentials.UID), err)
	}
	syscall.Umask(p.UMask)
	if err := os.Chdir(p.Dir); err != nil {
		return cannot("start in "+p.Dir, err)
	}
	err := syscall.Exec(p.Path, p.Argv, p.Env)
	f := cannot("run "+p.Path, err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Code = ExitNotFound
	case errors.Is(err, syscall.ENOEXEC):
		f.Message += ": a script needs a first line that names what runs it, such as #!/bin/sh"
	}
	return f
}

// reason is an error without the path, which its reader has been told.
func reason(err error) error {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// apply makes this process the owner's. The order matters: what needs privilege comes before it is given up.
func (o *Credentials) apply() error {
	if os.Geteuid() != 0 && os.Geteuid() != o.UID {
		return fmt.Errorf("gpushared runs as user %d, and only root can start programs of others", os.Geteuid())
	}
	if b := strconv.Itoa(o.OOMScore); os.WriteFile("/proc/self/oom_score_adj", []byte(b), 0) != nil {
		// Lower than what it is takes privilege. Without it we have the daemon's, which is the owner's own.
		if os.Geteuid() == 0 {
			return errors.New("its oom_score_adj cannot be set")
		}
	}
	for number, l := range o.Limits {
		// Not by prlimit: only this call keeps the runtime from putting back its own limit of open files.
		if err := syscall.Setrlimit(number, &syscall.Rlimit{Cur: l.Soft, Max: l.Hard}); err != nil && os.Geteuid() == 0 {
			return fmt.Errorf("resource limit %d cannot be set: %w", number, err)
		}
	}
	if os.Geteuid() == 0 {
		if err := syscall.Setgroups(slices.Clone(o.Groups)); err != nil {
			return os.NewSyscallError("setgroups", err)
		}
		if err := syscall.Setresgid(o.GID, o.GID, o.GID); err != nil {
			return os.NewSyscallError("setresgid", err)
		}
		if err := syscall.Setresuid(o.UID, o.UID, o.UID); err != nil {
			return os.NewSyscallError("setresuid", err)
		}
	}
	// The keys of whoever started us are not the owner's. A kernel without keys has none to keep from him.
	_, _ = unix.KeyctlJoinSessionKeyring("")
	if o.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl", err)
		}
	}
	return nil
}
