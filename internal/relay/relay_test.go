package relay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/leftover"
	"golang.org/x/sys/unix"
)

// serving makes this test the program of the relay: it ends after as long without a signal.
const serving = "GPUSHARE_TEST_RELAY_IDLE"

func TestMain(m *testing.M) {
	if text := os.Getenv(serving); text != "" {
		wait, err := time.ParseDuration(text)
		if err == nil {
			err = serve(0, wait)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(leftover.Main(m))
}

// started is a client whose programs are processes of their own.
type started struct {
	Client
	starts atomic.Int32
	ended  chan error // of each program
}

func start(t *testing.T, idle time.Duration) *started {
	t.Helper()
	s := &started{ended: make(chan error, 8)}
	s.Start = func(_ context.Context, stdin *os.File) error {
		s.starts.Add(1)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), serving+"="+idle.String())
		cmd.Stdin, cmd.Stderr = stdin, os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() { s.ended <- cmd.Wait() }()
		return nil
	}
	t.Cleanup(func() {
		s.Close()
		for range s.starts.Load() {
			s.await(t)
		}
	})
	return s
}

// await waits until one program has ended.
func (s *started) await(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("the program fails: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the program does not end")
	}
}

// target is a process that waits, and its pidfd.
func target(t *testing.T) (cmd *exec.Cmd, pidfd int) {
	t.Helper()
	cmd = exec.Command("cat")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pidfd); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, pidfd
}

// Each signal reaches its process by another one, which is started once.
func TestSignals(t *testing.T) {
	t.Parallel()
	s := start(t, time.Minute)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		cmd, pidfd := target(t)
		if err := s.Signal(t.Context(), pidfd, sig); err != nil {
			t.Fatalf("signal %d: %v", sig, err)
		}
		err := cmd.Wait()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != sig {
			t.Errorf("after signal %d it ended with %v", sig, err)
		}
		if err := s.Signal(t.Context(), pidfd, sig); !errors.Is(err, unix.ESRCH) {
			t.Errorf("a process that was reaped: %v", err)
		}
	}
	if n := s.starts.Load(); n != 1 {
		t.Errorf("%d programs were started", n)
	}
}

// It sends what stops processes, to what a pidfd refers to, and nothing else.
func TestRefusesOthers(t *testing.T) {
	t.Parallel()
	s := start(t, time.Minute)
	cmd, pidfd := target(t)
	if err := s.Signal(t.Context(), pidfd, unix.SIGUSR1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("SIGUSR1: %v", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := s.Signal(t.Context(), int(null.Fd()), unix.SIGKILL); !errors.Is(err, unix.EBADF) {
		t.Errorf("a file that is no pidfd: %v", err)
	}
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); err != nil {
		t.Errorf("%s does not run any more: %v", cmd.Path, err)
	}
}

// A message of another kind ends it, and so does the end of the daemon.
func TestOtherMessages(t *testing.T) {
	t.Parallel()
	_, pidfd := target(t)
	for name, c := range map[string]struct {
		text   string
		rights []byte
		want   error
	}{
		"no process":      {"\x09", nil, errMessage},
		"two processes":   {"\x09", unix.UnixRights(pidfd, pidfd), errMessage},
		"too long":        {"\x09\x09\x09", unix.UnixRights(pidfd), errMessage},
		"the daemon ends": {"", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			local, remote, err := pair()
			if err != nil {
				t.Fatal(err)
			}
			defer remote.Close()
			if name != "the daemon ends" {
				if err := unix.Sendmsg(int(local.Fd()), []byte(c.text), c.rights, nil, 0); err != nil {
					t.Fatal(err)
				}
			}
			local.Close()
			if err := serve(int(remote.Fd()), time.Minute); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("it ends with %v, want %v", err, c.want)
			}
		})
	}
}

// A program without work ends, and the next signal starts another one.
func TestEndsWhenIdle(t *testing.T) {
	t.Parallel()
	s := start(t, 50*time.Millisecond)
	for i := range 3 {
		cmd, pidfd := target(t)
		if err := s.Signal(t.Context(), pidfd, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("it was not killed")
		}
		s.await(t)
		if n := int(s.starts.Load()); n != i+1 {
			t.Errorf("%d programs were started for %d signals", n, i+1)
		}
	}
	s.starts.Store(0) // All were awaited.
}

// What cannot start, or ends without an answer, is said, and the next signal tries again.
func TestProgramThatFails(t *testing.T) {
	t.Parallel()
	s := start(t, time.Minute)
	works := s.Start
	_, pidfd := target(t)
	starts := 0
	s.Start = func(context.Context, *os.File) error { starts++; return errors.New("systemd does not answer") }
	for range 100 { // as many processes as a lease has
		if err := s.Signal(t.Context(), pidfd, unix.SIGKILL); err == nil || !strings.Contains(err.Error(), "systemd does not answer") {
			t.Errorf("a program that does not start: %v", err)
		}
	}
	if starts != 1 {
		t.Errorf("it is started %d times at once, want one attempt", starts)
	}
	later := func() {
		if err := s.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer s.give()
		s.tried = s.tried.Add(-retryAfter)
	}
	later()
	s.Start = func(context.Context, *os.File) error { return nil } // Its standard input closes.
	if err := s.Signal(t.Context(), pidfd, unix.SIGKILL); err == nil {
		t.Error("a program that ended at once is no error")
	}
	later()
	s.Start = works
	if err := s.Signal(t.Context(), pidfd, unix.SIGKILL); err != nil {
		t.Errorf("the next signal: %v", err)
	}
}

// A signal ends with its caller, wherever it waits, and what that caller did not wait for says nothing of the program.
func TestCallersThatEnd(t *testing.T) {
	t.Parallel()
	_, pidfd := target(t)
	// ends sends a signal whose caller ends when it waits.
	ends := func(t *testing.T, s *started, waits <-chan struct{}) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			select {
			case <-waits:
			case <-t.Context().Done():
			}
			cancel()
		}()
		if err := s.Signal(ctx, pidfd, unix.SIGCONT); !errors.Is(err, context.Canceled) {
			t.Errorf("a signal whose caller has ended: %v", err)
		}
	}
	works := func(t *testing.T, s *started) {
		t.Helper()
		if err := s.Signal(t.Context(), pidfd, unix.SIGCONT); err != nil {
			t.Errorf("the next signal: %v", err)
		}
	}
	t.Run("in the start", func(t *testing.T) {
		t.Parallel()
		s := start(t, time.Minute)
		program, waits := s.Start, make(chan struct{})
		s.Start = func(ctx context.Context, _ *os.File) error {
			close(waits)
			<-ctx.Done()
			return ctx.Err()
		}
		ends(t, s, waits)
		s.Start = program
		works(t, s)
	})
	t.Run("for the answer", func(t *testing.T) {
		t.Parallel()
		s := start(t, time.Minute)
		program, waits := s.Start, make(chan struct{})
		s.Start = func(_ context.Context, stdin *os.File) error {
			fd, err := unix.FcntlInt(stdin.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { unix.Close(fd) })
			close(waits) // It is there, and does not answer.
			return nil
		}
		ends(t, s, waits)
		s.Start = program
		works(t, s)
	})
	t.Run("for another signal", func(t *testing.T) {
		t.Parallel()
		s := start(t, time.Minute)
		if err := s.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		waits := make(chan struct{})
		close(waits)
		ends(t, s, waits)
		s.give()
		works(t, s)
	})
}

// The message is one byte and one descriptor: what is written fits what is read.
func TestMessage(t *testing.T) {
	t.Parallel()
	local, remote, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	defer remote.Close()
	_, pidfd := target(t)
	if err := unix.Sendmsg(int(local.Fd()), []byte{byte(unix.SIGKILL)}, unix.UnixRights(pidfd), nil, 0); err != nil {
		t.Fatal(err)
	}
	sig, fd, err := receive(int(remote.Fd()))
	if err != nil || sig != unix.SIGKILL || fd < 0 {
		t.Fatalf("received are signal %d, descriptor %d, %v", sig, fd, err)
	}
	defer unix.Close(fd)
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("its flags are %#x, %v", flags, err)
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || !strings.Contains(name, "pidfd") {
		t.Errorf("it is %q, %v", name, err)
	}
}
