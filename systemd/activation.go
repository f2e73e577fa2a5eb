package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/coreos/go-systemd/v22/activation"
)

// Sockets are the descriptors that the service manager passed to this process, by FileDescriptorName=.
type Sockets map[string][]*os.File

// PassedSockets takes over the passed descriptors. They are passed once: a second call returns none.
func PassedSockets() Sockets { return group(activation.Files(true)) }

func group(files []*os.File) Sockets {
	s := Sockets{}
	for _, f := range files {
		s[f.Name()] = append(s[f.Name()], f)
	}
	return s
}

// Listener takes the one stream socket of this name out of the set. It returns nil without an error when none was passed:
// the caller then creates its own.
func (s Sockets) Listener(name string) (net.Listener, error) {
	files := s[name]
	if len(files) == 0 {
		return nil, nil //nolint:nilnil // absence is an ordinary result here
	}
	if len(files) > 1 {
		return nil, fmt.Errorf("cannot take socket %s from the service manager: %d were passed, 1 is expected", name, len(files))
	}
	delete(s, name)
	l, err := net.FileListener(files[0]) // a duplicate
	if err := errors.Join(err, files[0].Close()); err != nil {
		return nil, fmt.Errorf("cannot take socket %s from the service manager: %w", name, err)
	}
	// The socket belongs to its unit and is kept: clients that connect while the daemon restarts wait in it.
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return l, nil
}

// Close closes the sockets that were not taken, and returns their names.
func (s Sockets) Close() (left []string) {
	for name, files := range s {
		for _, f := range files {
			f.Close()
		}
		left = append(left, name)
		delete(s, name)
	}
	return left
}
