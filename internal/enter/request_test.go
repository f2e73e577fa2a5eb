package enter

import (
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
)

// A daemon that does not answer is not waited for here: the command line does it, with its deadline.
func TestNoAnswer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := send(socket, &api.LeaseRequest{Key: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if g, err := peek(fd); err == nil {
		t.Errorf("the answer is %+v", g)
	}
}
