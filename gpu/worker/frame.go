package worker

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// maxFrame bounds one message: a snapshot with 950 processes in each of three lists is under 300 KiB.
const maxFrame = 4 << 20

// writeFrame writes v as one message: its length in four bytes, high byte first, and then JSON. It calls Write once, so
// that concurrent writers only need a lock around the call.
func writeFrame(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot encode message: %w", err)
	}
	if len(body) > maxFrame {
		return fmt.Errorf("cannot send message: %d bytes is over the limit of %d", len(body), maxFrame)
	}
	frame := make([]byte, 4, 4+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(body)))
	_, err = w.Write(append(frame, body...))
	return err
}

// readFrame reads one message into v. io.EOF means that the other end closed between two messages.
func readFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return fmt.Errorf("cannot read message: %d bytes is over the limit of %d", n, maxFrame)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("cannot decode message: %w", err)
	}
	return nil
}
