package front

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/kernel/passed"
	"github.com/gpushare/gpushare/internal/request"
)

// Route is what the front knows of a route of the daemon.
type Route struct {
	Method  string
	Pattern string
	What    string        `json:",omitempty"` // "read the spec": for refusals
	Admin   bool          `json:",omitempty"` // only administrators may use it: the daemon refuses it, and nothing but its path is passed on
	Query   request.Query `json:",omitempty"`
	Body    string        `json:",omitempty"` // the name of its type; empty: none is read
}

// Table is the first message of the daemon.
type Table struct{ Routes []Route }

// Ready is the answer to it. After it the front reads what callers send.
type Ready struct {
	Landlock int      // the version of Landlock that confines it; 0: none
	Missing  []string `json:",omitempty"` // what could not be restricted, and why
}

// Refusal is what the front sends to the daemon instead of a request that it does not understand: the daemon counts it, and answers.
type Refusal struct {
	Status int       `json:"status"`
	Route  string    `json:"route,omitempty"` // its method and pattern; empty: it reaches none
	Allow  []string  `json:"allow,omitempty"`
	Error  api.Error `json:"error"`
}

// RefusalPath is where the daemon takes a refusal. No caller reaches it: it is on the pairs of the front only, and in no table.
const RefusalPath = "/front/refusal"

// bodies are the types of bodies that callers who are not administrators may send.
var bodies = map[string]reflect.Type{
	"LeaseRequest":  reflect.TypeFor[api.LeaseRequest](),
	"AttachRequest": reflect.TypeFor[api.AttachRequest](),
	"EngineRequest": reflect.TypeFor[api.EngineRequest](),
}

// BodyName returns the name of a body's type in a table; ok is false for one that the front does not decode.
func BodyName(body any) (name string, ok bool) {
	t := reflect.TypeOf(body)
	return t.Name(), bodies[t.Name()] == t
}

const (
	mostMessage = 128 << 10 // bytes of a message; the table of routes is the longest
	uidSize     = 4
)

// Send writes a message of the control socket.
func Send(control *net.UnixConn, message any) error {
	b, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("cannot encode a message of the front: %w", err)
	}
	if _, err := control.Write(b); err != nil {
		return fmt.Errorf("cannot send a message of the front: %w", err)
	}
	return nil
}

// Receive reads a message of the control socket.
func Receive(control *net.UnixConn, message any) error {
	b := make([]byte, mostMessage)
	n, err := control.Read(b)
	if err == nil && n == 0 {
		err = io.EOF // of a socket of packets
	}
	if err != nil {
		return fmt.Errorf("cannot receive a message of the front: %w", err)
	}
	if err := json.Unmarshal(b[:n], message); err != nil {
		return fmt.Errorf("cannot decode a message of the front: %w", err)
	}
	return nil
}

// HandOver passes a connection of a user with that uid to the front, and returns the daemon's end of the pair. The caller keeps its own
// descriptor of the connection, and closes it. After an error nothing was passed.
func HandOver(control *net.UnixConn, client *net.UnixConn, uid int) (*net.UnixConn, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	own, theirs := os.NewFile(uintptr(pair[0]), "front"), os.NewFile(uintptr(pair[1]), "front")
	defer own.Close()
	defer theirs.Close()
	raw, err := client.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot access a connection: %w", err)
	}
	var sent error
	c, err := net.FileConn(own)
	if err != nil {
		return nil, fmt.Errorf("cannot use a pair of sockets: %w", err)
	}
	err = raw.Control(func(fd uintptr) {
		_, _, sent = control.WriteMsgUnix(binary.NativeEndian.AppendUint32(nil, uint32(uid)), unix.UnixRights(int(fd), pair[1]), nil)
	})
	if err = errors.Join(err, sent); err != nil {
		c.Close()
		return nil, fmt.Errorf("cannot pass a connection to the front: %w", err)
	}
	return c.(*net.UnixConn), nil
}

// acknowledged is the message of the front that it has taken a connection: the next one, in order.
var acknowledged = []byte{1}

// AwaitTaken waits until the front has taken the next connection. io.EOF: there are no more acknowledgements.
func AwaitTaken(control *net.UnixConn) error {
	b := make([]byte, len(acknowledged)+1)
	n, err := control.Read(b)
	if errors.Is(err, unix.ECONNRESET) { // The front ended with connections that it did not take. What it sent before is still there.
		n, err = control.Read(b)
	}
	if err == nil && n == 0 {
		err = io.EOF // of a socket of packets
	}
	if err == nil && !bytes.Equal(b[:n], acknowledged) {
		err = errors.New("it is no acknowledgement")
	}
	if err != nil {
		return fmt.Errorf("cannot receive a message of the front: %w", err)
	}
	return nil
}

// take receives a connection: that of a caller, the pair to the daemon, and the uid of the caller.
func take(control *net.UnixConn) (client *passed.Conn, daemon *net.UnixConn, uid int, err error) {
	b, oob := make([]byte, uidSize+1), make([]byte, unix.CmsgSpace(2*4))
	n, oobn, flags, _, err := control.ReadMsgUnix(b, oob)
	if errors.Is(err, unix.ECONNRESET) {
		return nil, nil, 0, io.EOF // The daemon has ended, and did not read all acknowledgements.
	}
	if err != nil {
		return nil, nil, 0, fmt.Errorf("cannot receive a connection: %w", err)
	}
	if n == 0 && oobn == 0 {
		return nil, nil, 0, io.EOF // The daemon has ended.
	}
	var fds []int
	if all, parsed := unix.ParseSocketControlMessage(oob[:oobn]); parsed == nil {
		for i := range all {
			if got, bad := unix.ParseUnixRights(&all[i]); bad == nil {
				fds = append(fds, got...)
			}
		}
	}
	var conns []*net.UnixConn
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "connection")
		if c, bad := net.FileConn(f); bad == nil {
			if u, ok := c.(*net.UnixConn); ok {
				conns = append(conns, u)
			}
		}
		f.Close()
	}
	if n == uidSize && len(conns) == 2 && flags&unix.MSG_CTRUNC == 0 {
		if client, err = passed.New(conns[0]); err == nil {
			return client, conns[1], int(binary.NativeEndian.Uint32(b)), nil
		}
	}
	for _, c := range conns {
		go c.Close() // It ends with what it waits for: a caller may have passed it.
	}
	return nil, nil, 0, errIncomplete
}

// errIncomplete: there was no free descriptor for a connection. Both of its ends are closed, and others are served.
var errIncomplete = errors.New("a connection did not arrive whole")
