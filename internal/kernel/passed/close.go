package passed

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// atOnce is how many threads may close. All of them are used only where no signal ends the wait: on a network file system without its
// server.
const atOnce = 16

var places = make(chan struct{}, atOnce)

// patience is how long a close may last before its wait is ended.
const patience = time.Millisecond

// Close closes a descriptor that may be the last one of what a peer passed, on a thread of its own. It returns at once.
func Close(fd int) {
	if refuses(fd) {
		_ = unix.Close(fd) // It is closed in any case.
		return
	}
	go func() { // ends with the close
		places <- struct{}{}
		defer func() { <-places }()
		closeHere(fd)
	}()
}

// closeHere closes a descriptor. A signal ends a wait of the kernel: SIGURG, which the runtime takes at any time and ignores where it has
// no use for it. A signal that comes before the wait is ignored too, so it is sent until the close has ended.
func closeHere(fd int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	process, thread := os.Getpid(), unix.Gettid()
	over := make(chan struct{})
	ended := make(chan struct{})
	defer func() { close(over); <-ended }()
	go func() { // ends with the close
		defer close(ended)
		again := time.NewTicker(patience)
		defer again.Stop()
		for {
			select {
			case <-again.C:
				_ = unix.Tgkill(process, thread, unix.SIGURG) // The thread is there until this has ended.
			case <-over:
				return
			}
		}
	}()
	_ = unix.Close(fd) // It is closed in any case.
}
