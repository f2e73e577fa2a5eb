package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Exit codes, as those of a shell that cannot run a program.
const (
	ExitWaiting  = 125 // the connection ended before the program arrived
	ExitCannot   = 126
	ExitNotFound = 127
)

// greeting is the first message, from gpushare-start.
type greeting struct {
	Process
	Failure *Failure `json:"failure,omitempty"`
}

// Failure is the reason why the program was not started.
type Failure struct {
	Code    int    `json:"code"` // ExitCannot or ExitNotFound
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Warning string `json:"warning,omitempty"` // alone: it is no failure, and the program is about to be executed
}

func (f *Failure) Error() string { return f.Message }

// Exec is gpushare-start: it sends a greeting, waits on its standard input for the program, and executes it. A supervised one
// first waits until its record is written. It returns only on failure, with the exit code.
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
	// The whole line is read: unread data would reset the connection at the daemon.
	message := boundedread.Scanner(conn, 8*maxBytes)
	if !message.Scan() || json.Unmarshal(message.Bytes(), &p) != nil {
		return ExitWaiting
	}
	runtime.LockOSThread()
	if warning := p.Credentials.keepLogin(); warning != "" {
		_ = json.NewEncoder(outcome).Encode(&Failure{Warning: warning})
	}
	f := execProgram(&p)
	_ = json.NewEncoder(outcome).Encode(f) // If the daemon has ended, the exit code reports it too.
	return f.Code
}

// recorded waits until the supervisor has written the record. It is false when the supervisor could not write, or was killed.
func recorded() bool {
	f := os.NewFile(recordedFD, "the supervisor")
	defer f.Close()
	n, _ := f.Read(make([]byte, 1))
	return n == 1
}

// greet sends the greeting with one end of a pipe. This process alone has the other end: when it closes, the daemon learns
// that the program runs. The connection cannot report that, because a service manager keeps a copy of the standard input.
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

// takeConnection moves the connection away from the standard input, which becomes /dev/null, so that the program does not
// get the connection.
func takeConnection() (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(0, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, errors.New("the standard input is not a connection to gpushared")
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

// closeOnExec closes the descriptors from a number on when the program is executed: the parent may have left some open.
func closeOnExec(from int) error {
	entries, _, err := boundedread.Entries("/proc/self/fd", boundedread.Names)
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

// execProgram returns only on failure.
func execProgram(p *Program) *Failure {
	cannot := func(what string, err error) *Failure {
		return &Failure{Code: ExitCannot, Message: fmt.Sprintf("cannot %s: %v", what, reason(err))}
	}
	if err := p.Check(); err != nil {
		return &Failure{Code: ExitCannot, Message: err.Error()}
	}
	// Attributes that the kernel has for each thread must be set on the thread that executes.
	runtime.LockOSThread()
	p.Credentials.Confinement.limitCapabilities()
	if f := p.Credentials.Confinement.check(p.Path); f != nil {
		return f
	}
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
		f.Message += ": a script needs a first line with its interpreter, such as #!/bin/sh"
	}
	return f
}

// reason is an error without the path, which the message has already.
func reason(err error) error {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// apply takes the credentials. The order matters: what needs privileges comes before they are dropped.
func (o *Credentials) apply() error {
	if os.Geteuid() != 0 && os.Geteuid() != o.UID {
		return fmt.Errorf("gpushared runs as user %d, and only root can start programs of other users", os.Geteuid())
	}
	if b := strconv.Itoa(o.OOMScore); os.WriteFile("/proc/self/oom_score_adj", []byte(b), 0) != nil {
		// A lower value needs privileges. Without them the daemon and the program have the same user, and the daemon's value.
		if os.Geteuid() == 0 {
			return errors.New("its oom_score_adj cannot be set")
		}
	}
	for number, l := range o.Limits {
		// Not prlimit: only after this call does the Go runtime not restore its own limit of open files at exec.
		if err := syscall.Setrlimit(number, &syscall.Rlimit{Cur: l.Cur, Max: l.Max}); err != nil && os.Geteuid() == 0 {
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
	// The session keyring of the parent is not the user's. A kernel without keyrings needs nothing.
	_, _ = unix.KeyctlJoinSessionKeyring("")
	return nil
}
