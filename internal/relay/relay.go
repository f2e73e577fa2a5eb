// Package relay has both sides of the relay of signals. The daemon has a profile of AppArmor, and processes with a profile of their
// own, as those of containers, may not take signals of it: they take those of a process without one. gpushare-start --signals is that
// process. It runs while there are signals to send, is given a pidfd and the number of a signal, and sends it. It decides nothing and
// looks nothing up: whom to signal, and why, was decided by the daemon.
package relay

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Flag is the argument of the program.
const Flag = "--signals"

// idle is how long the program waits for the next signal before it ends.
const idle = 30 * time.Second

// A message is the number of a signal, with one pidfd; the answer is the kernel's error number, 0 if it was sent.

// pair creates the connection: the daemon's end, and the standard input of the program. Its messages keep their bounds.
func pair() (local, remote *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "the relay of signals"), os.NewFile(uintptr(fds[1]), "the daemon"), nil
}

// Serve sends the signals that it is asked for on a descriptor, until the daemon closes its end or asks for none for a while.
func Serve(fd int) error { return serve(fd, idle) }

func serve(fd int, wait time.Duration) error {
	for {
		ready, err := readable(fd, wait)
		if err != nil || !ready {
			return err
		}
		sig, pidfd, err := receive(fd)
		if err != nil || pidfd < 0 {
			return err
		}
		errno := send(pidfd, sig)
		unix.Close(pidfd)
		if err := unix.Sendmsg(fd, []byte{byte(errno)}, nil, nil, unix.MSG_NOSIGNAL); err != nil {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// readable waits for a message. false: there was none.
func readable(fd int, wait time.Duration) (bool, error) {
	deadline := time.Now().Add(wait)
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(time.Until(deadline), 0).Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n == 1, os.NewSyscallError("poll", err)
	}
}

// errMessage says that a message is not of a daemon of this version.
var errMessage = errors.New("a message is no signal with a process")

// receive reads one message. The pidfd is -1 when the daemon has closed its end.
func receive(fd int) (sig unix.Signal, pidfd int, err error) {
	buf, oob := make([]byte, 2), make([]byte, unix.CmsgSpace(4))
	n, oobn, flags, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, -1, os.NewSyscallError("recvmsg", err)
	}
	if n == 0 && oobn == 0 {
		return 0, -1, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return 0, -1, errMessage
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 || n != 1 || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return 0, -1, errMessage // It ends, which closes them.
	}
	return unix.Signal(buf[0]), fds[0], nil
}

// send sends one of the signals that the daemon stops processes with.
func send(pidfd int, sig unix.Signal) unix.Errno {
	switch sig {
	case unix.SIGTERM, unix.SIGCONT, unix.SIGKILL, unix.SIGSTOP: //nolint:forbidigo // Terminate of a pidfd sends both.
	default:
		return unix.EINVAL
	}
	err := unix.PidfdSendSignal(pidfd, sig, nil, 0)
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return 0
}
