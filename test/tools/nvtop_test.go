//go:build tools

package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim/server"
)

// shown is the content of the screen of nvtop.
type shown struct {
	Devices   []shownDevice
	Processes []shownProcess
}

type shownDevice struct {
	Name        string
	Used, Total string // GiB with three decimals
	Busy        string // percent, or "N/A"
	Temperature string
}

type shownProcess struct {
	PID     int
	Device  int
	Type    string
	Memory  string
	Command string
}

// shows returns the expected content. Older versions do not show MPS clients.
func (w expected) shows(s server.Status, mps bool) (out shown) {
	gib := func(bytes uint64) string { return fmt.Sprintf("%.3f", float64(bytes)/(1<<30)) }
	for i, g := range s.GPUs {
		d := shownDevice{
			Name:        w.board.Name,
			Used:        gib(g.Memory.Used + g.Memory.Reserved),
			Total:       gib(g.Memory.Total),
			Busy:        "N/A",
			Temperature: "34",
		}
		if g.Utilization != nil {
			d.Busy = fmt.Sprint(*g.Utilization, "%")
		}
		out.Devices = append(out.Devices, d)
		for _, p := range g.Processes {
			if p.Kind == gpu.MPSProcess && !mps {
				continue
			}
			out.Processes = append(out.Processes, shownProcess{p.PID, i, "Compute", fmt.Sprint(*p.Memory/mib, "MiB"), program(p.PID)})
		}
	}
	slices.SortFunc(out.Processes, func(a, b shownProcess) int { return a.PID - b.PID })
	return out
}

var (
	deviceName  = regexp.MustCompile(`Device (\d+) +\[([^\]]+)\]`)
	memoryBar   = regexp.MustCompile(`MEM\[[| ]*([0-9.]+)Gi/([0-9.]+)Gi\]`)
	busyBar     = regexp.MustCompile(`GPU\[[| ]*([0-9]+%|N/A)\]`)
	temperature = regexp.MustCompile(`TEMP +(\d+)`)
	processRow  = regexp.MustCompile(`^ *(\d+) +\S+ +(\d+) +(\w+) .*? (\d+MiB) +\d+% +\d+% +\d+MiB +(\S+)`)
)

// parse parses a screen of nvtop. A device uses three lines in some columns of the screen: the name is in the first, the
// bars are in the third.
func parse(screen string) (out shown) {
	lines := strings.Split(screen, "\n")
	for i, line := range lines {
		names := deviceName.FindAllStringSubmatchIndex(line, -1)
		for k, at := range names {
			end := columns
			if k+1 < len(names) {
				end = names[k+1][0]
			}
			d := shownDevice{Name: line[at[4]:at[5]]}
			if i+2 < len(lines) {
				if m := memoryBar.FindStringSubmatch(part(lines[i+2], at[0], end)); m != nil {
					d.Used, d.Total = m[1], m[2]
				}
				if m := busyBar.FindStringSubmatch(part(lines[i+2], at[0], end)); m != nil {
					d.Busy = m[1]
				}
				if m := temperature.FindStringSubmatch(part(lines[i+1], at[0], end)); m != nil {
					d.Temperature = m[1]
				}
			}
			out.Devices = append(out.Devices, d)
		}
		if m := processRow.FindStringSubmatch(line); m != nil {
			pid, _ := strconv.Atoi(m[1])
			device, _ := strconv.Atoi(m[2])
			out.Processes = append(out.Processes, shownProcess{pid, device, m[3], m[4], m[5]})
		}
	}
	slices.SortFunc(out.Processes, func(a, b shownProcess) int { return a.PID - b.PID })
	return out
}

// part returns some columns of a line.
func part(line string, from, to int) string {
	letters := []rune(line)
	return string(letters[min(from, len(letters)):min(to, len(letters))])
}

// showsAll runs nvtop on a terminal until it shows the state of the node.
func (l *fixture) showsAll(t *testing.T) {
	screen, cmd := l.nvtop(t)
	program, err := os.ReadFile(l.clients.nvtop)
	if err != nil {
		t.Fatal(err)
	}
	want := l.shows(l.status(t), bytes.Contains(program, []byte("nvmlDeviceGetMPSComputeRunningProcesses")))
	ctx := shortContext(t)
	for {
		text, changed, err := screen.now()
		diff := cmp.Diff(want, parse(text))
		if diff == "" {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("(-state of the node +shown by nvtop):\n%s\n%s\n%v", diff, text, err)
		}
	}
	if _, err := screen.keys.Write([]byte("q")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("nvtop ended with %v", err)
	}
}

// terminal is a screen with a keyboard.
type terminal struct {
	keys *os.File

	mu      sync.Mutex // guards what follows
	screen  Screen
	err     error
	changed chan struct{} // closed when there is new output
}

func (s *terminal) now() (string, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.String(), s.changed, s.err
}

func (s *terminal) show(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		_, s.err = s.screen.Write(b)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// nvtop starts nvtop on its own pseudo terminal.
func (l *fixture) nvtop(t *testing.T) (*terminal, *exec.Cmd) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("cannot open a pseudo terminal: %v", err)
	}
	s := &terminal{keys: os.NewFile(uintptr(fd), "ptmx"), changed: make(chan struct{})}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err := errors.Join(
		err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}),
	); err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()

	dir := t.TempDir()
	description := filepath.Join(dir, "screen.ti")
	if err := os.WriteFile(description, []byte(Terminfo()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(
		shortContext(t), "tic", "-x", "-o", filepath.Join(dir, "terminfo"), description,
	).CombinedOutput(); err != nil {
		t.Fatalf("cannot run tic of the package ncurses-bin: %v\n%s", err, out)
	}
	ctx, cancel := context.WithCancel(shortContext(t))
	cmd := exec.CommandContext(
		ctx, l.clients.nvtop, "--no-plot", "--no-color", "--delay", "2", "--config-file", filepath.Join(dir, "nvtop.ini"),
	)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.Env = l.clients.environ(l.Node, "TERM="+Terminal, "TERMINFO="+filepath.Join(dir, "terminfo"), "LC_ALL=C.UTF-8")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		buf := make([]byte, 16<<10)
		for {
			k, err := s.keys.Read(buf)
			if err != nil {
				return
			}
			s.show(buf[:k])
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		s.keys.Close()
		reader.Wait()
	})
	return s, cmd
}
