package enter

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
)

// patience is how long an answer may take until the command line waits for it, which says for what, and until when.
var patience = unix.Timeval{Sec: 2}

// send requests a lease and returns the connection with its answer. A request that may have been sent has a connection, also with an
// error: the daemon may have carried it out, and the same key gets its answer.
func send(socket string, r *api.LeaseRequest) (fd int, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return -1, err
	}
	// With a full backlog it fails, and the command line waits for a place.
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
	if err == nil {
		// Each look at the answer begins where the last one ended.
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience),
			unix.SetNonblock(fd, false),
		)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	message := append(
		[]byte("POST /v1/leases HTTP/1.1\r\nHost: gpushare\r\nContent-Type: application/json\r\nContent-Length: "+
			strconv.Itoa(len(body))+"\r\n\r\n"), body...,
	)
	for len(message) > 0 {
		n, err := unix.SendmsgN(fd, message, nil, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fd, err
		}
		message = message[n:]
	}
	return fd, nil
}

// newKey is the identifier of a request: the daemon gives the same lease to the same key.
func newKey() (string, error) {
	b := make([]byte, 16)
	if n, err := unix.Getrandom(b, 0); err != nil || n != len(b) {
		return "", errors.Join(err, errOther)
	}
	return hex.EncodeToString(b), nil
}
