package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gpushare/gpushare/gpusim"
)

// The shim and the server run on the same machine and use its byte order.
var order = binary.NativeEndian

// maxFrame bounds a request: a function's name, eight numbers or a list of field ids, and a UUID.
const maxFrame = 4096

// readRequest reads one call: length (4 bytes, of what follows), name length (1), name, number of arguments (1), the
// arguments (8 each), and the rest as text.
func readRequest(r io.Reader) (gpusim.Request, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return gpusim.Request{}, err
	}
	size := order.Uint32(head[:])
	if size < 2 || size > maxFrame {
		return gpusim.Request{}, fmt.Errorf("cannot read request: %d bytes", size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return gpusim.Request{}, err
	}
	return decodeRequest(b)
}

var errShort = errors.New("cannot read request: it ends early")

func decodeRequest(b []byte) (gpusim.Request, error) {
	var q gpusim.Request
	n := int(b[0])
	if len(b) < 1+n+1 {
		return q, errShort
	}
	q.Func = string(b[1 : 1+n])
	b = b[1+n:]
	args := int(b[0])
	if b = b[1:]; len(b) < 8*args {
		return q, errShort
	}
	for i := range args {
		q.Args = append(q.Args, order.Uint64(b[8*i:]))
	}
	q.Text = string(b[8*args:])
	return q, nil
}

// encodeReply writes one answer: length (4 bytes, of what follows), code (4), number of values (4), the values (8 each),
// and the rest as text.
func encodeReply(r gpusim.Reply) []byte {
	b := make([]byte, 0, 12+8*len(r.Values)+len(r.Text))
	b = order.AppendUint32(b, uint32(8+8*len(r.Values)+len(r.Text)))
	b = order.AppendUint32(b, uint32(r.Ret))
	b = order.AppendUint32(b, uint32(len(r.Values)))
	for _, v := range r.Values {
		b = order.AppendUint64(b, v)
	}
	return append(b, r.Text...)
}
