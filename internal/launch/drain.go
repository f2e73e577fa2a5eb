package launch

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// stopReading ends a read of the output, and all later ones.
func stopReading(output *os.File) { _ = output.SetReadDeadline(time.Unix(1, 0)) } // A pipe supports deadlines.

// drain writes what is in the pipe, and no more: processes outside of the lease may hold the other end, and write without end.
// What the processes of the lease have written is in it when the last one has ended.
func (r *rotatingFile) drain(output *os.File) {
	raw, err := output.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ) // FIONREAD
		for err == nil && left > 0 {
			n, rerr := unix.Read(int(fd), r.buf[:min(left, len(r.buf))])
			if n <= 0 || rerr != nil {
				return // Another process, which has opened this end, has read it.
			}
			r.write(r.buf[:n])
			left -= n
		}
	})
	output.Close()
}
