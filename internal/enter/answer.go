package enter

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
)

// grant is what is read of an answer. Its types are those of api.LeaseGrant: a test compares them.
type grant struct {
	Lease *struct {
		State     string           `json:"state"`
		GPUMemory *api.LeaseMemory `json:"gpu_memory"`
	} `json:"lease"`
	Environment map[string]string `json:"environment"`
	Unset       []string          `json:"unset"`
	Selected    string            `json:"selected"`
	Warnings    []json.RawMessage `json:"warnings"`
	Error       json.RawMessage   `json:"error"`
}

// plain reports whether the answer is a lease that runs, and there is nothing to say but which grant was selected.
func (g *grant) plain(silent bool) bool {
	return g.Error == nil && len(g.Warnings) == 0 && g.Lease != nil && g.Lease.State == api.LeaseRunning &&
		(silent || g.Lease.GPUMemory.Qualifier() == "")
}

// mostPeeked is the length of an answer that is read here.
const mostPeeked = 32 << 10

var (
	errMore  = errors.New("the answer is not complete")
	errOther = errors.New("it is another answer")
)

// peek returns the first line of the answer without taking it from the socket: the command line reads it again if it is not plain.
func peek(fd int) (*grant, error) {
	b, n := make([]byte, mostPeeked), 0
	for n < len(b) {
		k, _, err := unix.Recvfrom(fd, b[n:], unix.MSG_PEEK)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || k == 0 {
			return nil, errOther
		}
		n += k
		line, err := firstLine(b[:n])
		if errors.Is(err, errMore) {
			continue
		}
		if err != nil {
			return nil, err
		}
		g := new(grant)
		if json.Unmarshal(line, g) != nil {
			return nil, errOther
		}
		return g, nil
	}
	return nil, errOther
}

// firstLine returns the first line of the body of an answer in chunks, as the daemon and the front send it to a request of a lease.
// errMore: the rest of it is on its way. errOther: it is no such answer.
func firstLine(b []byte) ([]byte, error) {
	head, rest, whole := bytes.Cut(b, []byte("\r\n\r\n"))
	if !whole {
		return nil, errMore
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) || !bytes.Contains(head, []byte("\r\nTransfer-Encoding: chunked")) {
		return nil, errOther
	}
	var line []byte
	for {
		size, after, whole := bytes.Cut(rest, []byte("\r\n"))
		if !whole {
			return nil, errMore
		}
		n, err := strconv.ParseUint(string(size), 16, 20)
		if err != nil || n == 0 {
			return nil, errOther
		}
		if uint64(len(after)) < n+2 {
			return nil, errMore
		}
		line = append(line, after[:n]...)
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			return line[:i], nil
		}
		rest = after[n+2:]
	}
}
