package fuse

import (
	"context"
	"os"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// Server is a process that has a connection open.
type Server struct {
	PID   int
	Start uint64
	// Connection is the number of its connection; 0 where the kernel does not report it.
	Connection uint32
}

// Found are the processes that a search found.
type Found struct {
	// Servers have one of the connections open.
	Servers []Server
	// Possible have the device of FUSE open by its name, where the kernel reports no number (before Linux 6.16). Any file may have that
	// name, and no request is made for it: it may be on a file system that never answers. So they are for texts only.
	Possible []Server
	// All: every descriptor of every process was read.
	All bool
}

// The bounds of a search. A user may have as many descriptors as they like.
const (
	mostFiles    = 4096 // of one process
	mostServers  = 64
	mostPossible = 16
)

// Servers finds the processes of these users that have a connection with one of these numbers open. It reads names of descriptors and what
// the kernel says of them, and no file.
func Servers(ctx context.Context, users []uint32, numbers map[uint32]bool) Found {
	pids, err := procfs.PIDs()
	if err != nil {
		return Found{}
	}
	of := map[uint32]bool{}
	for _, uid := range users {
		of[uid] = true
	}
	found, numbered := Found{All: true}, false // numbered: the kernel reports numbers
	for _, pid := range pids {
		if ctx.Err() != nil || len(found.Servers) >= mostServers {
			found.All = false
			break
		}
		if uid, err := procfs.UID(pid); err != nil || !of[uid] {
			continue
		}
		start, err := procfs.Start(pid)
		if err != nil {
			continue // It has exited.
		}
		connections, cut := openConnections(pid)
		found.All = found.All && !cut
		for number := range connections {
			s := Server{PID: pid, Start: start, Connection: number}
			numbered = numbered || number != 0
			switch {
			case numbers[number]:
				found.Servers = append(found.Servers, s)
			case number == 0 && len(found.Possible) < mostPossible:
				found.Possible = append(found.Possible, s)
			}
		}
	}
	if numbered {
		found.Possible = nil // Theirs are not mounted.
	}
	return found
}

// openConnections returns the numbers of the connections that a process has open; 0: the kernel does not report it. A server may have many
// descriptors of one. cut: it has more descriptors than are read.
func openConnections(pid int) (numbers map[uint32]bool, cut bool) {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	d, err := os.Open(dir)
	if err != nil {
		return nil, false
	}
	defer d.Close()
	names, err := boundedread.FirstNames(d, mostFiles+1)
	if err != nil {
		return nil, false
	}
	numbers = map[uint32]bool{}
	for _, name := range names[:min(len(names), mostFiles)] {
		if link, err := os.Readlink(dir + "/" + name); err == nil && isDevice(link) {
			numbers[connectionOf(pid, name)] = true
		}
	}
	return numbers, len(names) > mostFiles
}

// isDevice reports whether the name of a descriptor may be that of the device. In another root directory its path is longer.
func isDevice(link string) bool { return strings.HasSuffix(link, "/dev/fuse") }

// connectionOf reads the number of a connection from its descriptor; 0: the kernel does not report it, or it is not mounted. The kernel
// writes it for the device alone, whatever name another file has.
func connectionOf(pid int, fd string) uint32 {
	b, _, err := boundedread.OfProcess(pid, "fdinfo/"+fd, boundedread.Process)
	if err != nil {
		return 0
	}
	return parseConnection(string(b))
}

func parseConnection(fdinfo string) uint32 {
	for line := range strings.Lines(fdinfo) {
		if rest, ok := strings.CutPrefix(line, "fuse_connection:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 32)
			if err == nil {
				return uint32(n)
			}
		}
	}
	return 0
}
