package screen

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"

	"github.com/gdamore/tcell/v3"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// device is the terminal of this process. That of the library reads without an end: a read that nothing ends would take a key of the
// shell after top.
type device struct {
	in, out  *os.File
	saved    *term.State
	stop     *os.File // a byte in it ends each read
	stopped  *os.File
	resizes  chan os.Signal
	notified chan struct{} // closed when no more resizes are passed on

	mu    sync.Mutex // guards ended, and the first of reads
	ended bool
	reads sync.WaitGroup // the library starts a read that it may not wait for
}

// Start implements tcell.Tty.
func (d *device) Start() error {
	if d.saved != nil {
		return nil
	}
	var err error
	if d.stopped, d.stop, err = os.Pipe(); err != nil {
		return fmt.Errorf("cannot use the terminal: %w", err)
	}
	if d.saved, err = term.MakeRaw(int(d.in.Fd())); err != nil {
		return fmt.Errorf("cannot use the terminal: %w", err)
	}
	return nil
}

// Drain implements tcell.Tty: it ends reads, and none begins any more.
func (d *device) Drain() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended || d.stop == nil {
		return nil
	}
	d.ended = true
	_, err := d.stop.Write([]byte{0})
	return err
}

// Stop implements tcell.Tty.
func (d *device) Stop() error {
	if d.saved == nil {
		return nil
	}
	err := term.Restore(int(d.in.Fd()), d.saved)
	d.saved = nil
	d.NotifyResize(nil)
	return err
}

// Close implements tcell.Tty. It waits for reads.
func (d *device) Close() error {
	if d.stop == nil {
		return nil
	}
	err := d.Drain()
	d.reads.Wait()
	return errors.Join(err, d.stop.Close(), d.stopped.Close())
}

// begin begins a read, unless there are to be none any more.
func (d *device) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.reads.Add(1)
	}
	return !d.ended
}

// Read implements tcell.Tty. It ends with the terminal, or with Drain.
func (d *device) Read(b []byte) (int, error) {
	if !d.begin() {
		return 0, io.EOF
	}
	defer d.reads.Done()
	fds := []unix.PollFd{{Fd: int32(d.in.Fd()), Events: unix.POLLIN}, {Fd: int32(d.stopped.Fd()), Events: unix.POLLIN}}
	for {
		switch _, err := unix.Poll(fds, -1); {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, os.NewSyscallError("poll", err)
		case fds[1].Revents != 0:
			return 0, io.EOF
		}
		n, err := d.in.Read(b)
		if n == 0 && err == nil {
			err = io.EOF
		}
		return n, err
	}
}

// Write implements tcell.Tty.
func (d *device) Write(b []byte) (int, error) { return d.out.Write(b) }

// WindowSize implements tcell.Tty.
func (d *device) WindowSize() (tcell.WindowSize, error) {
	w, h, err := term.GetSize(int(d.out.Fd()))
	if err != nil || w == 0 || h == 0 { // a serial line does not say
		w, h = 80, 24
	}
	return tcell.WindowSize{Width: w, Height: h}, nil
}

// NotifyResize implements tcell.Tty.
func (d *device) NotifyResize(to chan<- bool) {
	if d.resizes != nil {
		signal.Stop(d.resizes)
		close(d.resizes)
		<-d.notified
		d.resizes = nil
	}
	if to == nil {
		return
	}
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	d.resizes, d.notified = signals, done
	signal.Notify(signals, unix.SIGWINCH)
	go func() { // ends with the next NotifyResize, which waits for it
		defer close(done)
		for range signals {
			select {
			case to <- true:
			default: // One is waiting already.
			}
		}
	}()
}
