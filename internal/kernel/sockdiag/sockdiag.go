// Package sockdiag lists the connected unix sockets of this network namespace, as the kernel reports them (NETLINK_SOCK_DIAG). It
// knows no process.
package sockdiag

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Socket is one end of a connection.
type Socket struct {
	Inode uint64
	Peer  uint64 // inode of the other end; 0 while it has none, as before it was accepted
	Name  string // path that it is bound to; that of the listener for the accepted end
}

// Of include/uapi/linux/unix_diag.h of Linux.
const (
	requestSize = 24
	messageSize = 16
	showName    = 0x01
	showPeer    = 0x04
	attrName    = 0
	attrPeer    = 2
	established = 1 << 1 // of the states in tcp_states.h
)

// timeout bounds the wait for the kernel, which answers at once.
const timeout = 1 // seconds

// Connected lists the connected unix sockets.
func Connected() ([]Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("cannot list unix sockets: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: timeout}); err != nil {
		return nil, fmt.Errorf("cannot list unix sockets: %w", err)
	}
	if err := unix.Sendto(fd, request(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("cannot list unix sockets: %w", err)
	}
	var found []Socket
	b := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list unix sockets: %w", err)
		}
		done, err := parse(b[:n], func(s Socket) { found = append(found, s) })
		if err != nil || done {
			return found, err
		}
	}
}

func request() []byte {
	b := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+requestSize)
	b = binary.NativeEndian.AppendUint16(b, unix.SOCK_DIAG_BY_FAMILY)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = append(b, make([]byte, 8)...) // sequence and port
	b = append(b, unix.AF_UNIX, 0, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, established)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint32(b, showName|showPeer)
	return append(b, make([]byte, 8)...) // cookie
}

// parse reads one datagram of messages. done: it has the last one.
func parse(b []byte, found func(Socket)) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, fmt.Errorf("cannot list unix sockets: a message of %d bytes in %d", size, len(b))
		}
		body := b[unix.SizeofNlMsghdr:size]
		switch kind := binary.NativeEndian.Uint16(b[4:]); kind {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, fmt.Errorf("cannot list unix sockets: %w", unix.EBADMSG)
			}
			return false, fmt.Errorf("cannot list unix sockets: %w", unix.Errno(-int32(binary.NativeEndian.Uint32(body))))
		default:
			if len(body) >= messageSize {
				found(socket(body))
			}
		}
		b = b[min(align(size), len(b)):]
	}
	return false, nil
}

func socket(b []byte) Socket {
	s := Socket{Inode: uint64(binary.NativeEndian.Uint32(b[4:]))}
	for b = b[messageSize:]; len(b) >= 4; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			break
		}
		switch value := b[4:size]; binary.NativeEndian.Uint16(b[2:]) {
		case attrName:
			s.Name = string(bytes.TrimRight(value, "\x00"))
		case attrPeer:
			if len(value) == 4 {
				s.Peer = uint64(binary.NativeEndian.Uint32(value))
			}
		}
		b = b[min(align(size), len(b)):]
	}
	return s
}

func align(n int) int { return (n + 3) &^ 3 }
