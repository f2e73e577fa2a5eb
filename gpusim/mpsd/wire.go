package mpsd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The handshake on the control sockets, which are SOCK_SEQPACKET: the daemon sends the greeting, the peer sends the
// credential and its type.
const (
	greeting   = "OUTBHELL\x00"
	credential = "OUTBCRED\x00"
	typeClient = 1 // specific to the virtual node: the vendor's value is not published
	typeUI     = 4
)

// maxText is the longest command or answer.
const maxText = 64 << 10

var errPeer = errors.New("the peer violates the protocol")

func sendInt32(c net.Conn, v int32) error {
	_, err := c.Write(binary.NativeEndian.AppendUint32(nil, uint32(v)))
	return err
}

func sendUint64(c net.Conn, v uint64) error {
	_, err := c.Write(binary.NativeEndian.AppendUint64(nil, v))
	return err
}

// receive reads one packet.
func receive(c net.Conn) ([]byte, error) {
	b := make([]byte, maxText)
	n, err := c.Read(b)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return b[:n], err
}

// awaiting is a connection on which a read waits in the kernel, as the real program does: its thread is in recvmsg(2) on this
// descriptor, which is how a process that keeps it waiting is found. Seen with 535.261.03 and 550.163.01.
type awaiting struct{ *net.UnixConn }

func (a awaiting) Read(b []byte) (n int, err error) {
	raw, err := a.SyscallConn()
	if err != nil {
		return 0, err
	}
	var got error
	err = raw.Control(func(fd uintptr) {
		if got = unix.SetNonblock(int(fd), false); got != nil {
			return
		}
		for {
			if n, _, got = unix.Recvfrom(int(fd), b, 0); !errors.Is(got, unix.EINTR) {
				break
			}
		}
		got = errors.Join(got, unix.SetNonblock(int(fd), true)) // a server's reads are ordinary ones
	})
	return max(n, 0), errors.Join(err, got)
}

func receiveInt32(c net.Conn) (int32, error) {
	b, err := receive(c)
	if err == nil && len(b) != 4 {
		err = errPeer
	}
	if err != nil {
		return 0, err
	}
	return int32(binary.NativeEndian.Uint32(b)), nil
}

func receiveUint64(c net.Conn) (uint64, error) {
	b, err := receive(c)
	if err == nil && len(b) != 8 {
		err = errPeer
	}
	if err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(b), nil
}

// hello is the first message of a client: struct mps_hello of gpusim/burn.
type hello struct {
	gpu string
}

const helloSize = 4 + 4 + 80

func parseHello(b []byte) hello {
	gpu, _, _ := strings.Cut(string(b[8:helloSize]), "\x00")
	return hello{gpu: gpu}
}

// welcome is the server's answer to a client: struct mps_welcome of gpusim/burn.
type welcome struct {
	errno   int32 // CUDA's number
	server  int32
	limit   uint64
	percent float64
	pipe    string // the daemon's pipe directory, which identifies the server
}

const pipeSize = 256

func (w welcome) bytes() []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(w.errno))
	b = binary.NativeEndian.AppendUint32(b, uint32(w.server))
	b = binary.NativeEndian.AppendUint64(b, w.limit)
	b = binary.NativeEndian.AppendUint64(b, math.Float64bits(w.percent))
	pipe := make([]byte, pipeSize)
	copy(pipe[:pipeSize-1], w.pipe)
	return append(b, pipe...)
}

// peer returns pid and uid of the peer from the kernel.
func peer(c net.Conn) (pid int, uid uint32, err error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return 0, 0, errPeer
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var got error
	if err := raw.Control(func(fd uintptr) {
		cred, got = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, 0, err
	}
	if got != nil {
		return 0, 0, got
	}
	return int(cred.Pid), cred.Uid, nil
}

// pair returns two connected ends: a connection for this process and a file for a child process.
func pair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot create a socket pair: %w", err)
	}
	childEnd := os.NewFile(uintptr(fds[1]), "server")
	ownEnd, err := fileConn(os.NewFile(uintptr(fds[0]), "control"))
	if err != nil {
		childEnd.Close()
		return nil, nil, err
	}
	return ownEnd, childEnd, nil
}

// fileConn converts a file to a connection and closes the file.
func fileConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("cannot use a descriptor as a socket: %w", err)
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errPeer
	}
	return uc, nil
}
