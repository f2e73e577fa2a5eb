package remote_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/remote"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/programs"
)

// long is a deadline that no test reaches.
const long = 3 * time.Minute

// site is a directory with a stand-in of ssh, and a pipe in which that reports.
type site struct {
	dir     string
	reports *bufio.Scanner
}

// newSite writes a stand-in of ssh. $host and $command are its last words, and 'report TEXT' writes a line to the test.
func newSite(t *testing.T, script string) *site {
	t.Helper()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "reports")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(pipe, os.O_RDWR, 0) // With a writer of its own it does not end.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.SetReadDeadline(time.Now().Add(long)); err != nil {
		t.Fatal(err)
	}
	text := "#!/bin/sh\ndir='" + dir + "'\nall=\"$*\"\nwhile [ $# -gt 2 ]; do shift; done\nhost=$1 command=$2\n" +
		"report() { echo \"$@\" >>\"$dir/reports\"; }\n" + script
	if err := programs.Write(filepath.Join(dir, "ssh"), text); err != nil {
		t.Fatal(err)
	}
	return &site{dir, bufio.NewScanner(f)}
}

func (s *site) query(timeout time.Duration, command ...string) *remote.Query {
	return &remote.Query{
		Dirs:     []string{"relative", "/nonexistent", s.dir},
		Env:      os.Environ(),
		Command:  command,
		Timeout:  timeout,
		Parallel: 20,
	}
}

// report is the next line that a stand-in reported.
func (s *site) report(t *testing.T) string {
	t.Helper()
	if !s.reports.Scan() {
		t.Fatalf("no stand-in of ssh reports anything: %v", s.reports.Err())
	}
	return s.reports.Text()
}

// Hosts answer in the order in which they were named, each with its exit code and both outputs; ssh gets a host that is no option, and one
// text for the shell there.
func TestAll(t *testing.T) {
	t.Parallel()
	s := newSite(t, `case $host in
slow) read -r _ <"$dir/go"; echo slow;;
fails) echo out; echo "no such thing" >&2; exit 7;;
refused) echo "Permission denied (publickey)." >&2; exit 255;;
*) echo "$all" >"$dir/words"; sh -c "$command"; echo >"$dir/go";;
esac
`)
	if err := syscall.Mkfifo(filepath.Join(s.dir, "go"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := s.query(long, "echo", "a  b", "$HOME;'").All(t.Context(), []string{"slow", "fails", "refused", "u@gpu1"})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, a := range got {
		fmt.Fprintf(&text, "%s %d %v %q %q\n", a.Host, a.Code, a.Err, a.Output, a.Errors)
	}
	const want = `slow 0 <nil> "slow\n" ""
fails 7 <nil> "out\n" "no such thing\n"
refused 255 <nil> "" "Permission denied (publickey).\n"
u@gpu1 0 <nil> "a  b $HOME;'\n" ""
`
	if text.String() != want {
		t.Errorf("the hosts answered\n%swant\n%s", text.String(), want)
	}
	b, err := os.ReadFile(filepath.Join(s.dir, "words"))
	if want := `-T -o BatchMode=yes -o ConnectTimeout=10 -- u@gpu1 echo a\ \ b \$HOME\;\'` + "\n"; err != nil || string(b) != want {
		t.Errorf("ssh got %q, %v; want %q", b, err, want)
	}
}

// A host that does not answer has its deadline, and no other host waits for it longer.
func TestDeadline(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	s := newSite(t, `[ $host = hangs ] || { echo well; exit; }
echo some
sleep 600 &
report $!
wait
`)
	got, err := s.query(10*time.Second, "true").All(t.Context(), []string{"hangs"})
	if err != nil || got[0].Err == nil || got[0].Err.Error() != "it did not answer within 10s" {
		t.Errorf("a host that hangs: %+v, %v", got, err)
	}
	ended(t, s.report(t))
	got, err = s.query(long, "true").All(t.Context(), []string{"well"})
	if err != nil || got[0].Err != nil || string(got[0].Output) != "well\n" {
		t.Errorf("a host that answers: %+v, %v", got, err)
	}
}

// ended waits until a process has ended. What has no parent may stay a zombie.
func ended(t *testing.T, pid string) {
	t.Helper()
	for until := time.Now().Add(long); ; {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || bytes.Contains(b, []byte(") Z ")) {
			return
		}
		if time.Now().After(until) {
			t.Errorf("pid %s still runs: %s", pid, b)
			return
		}
		<-time.After(10 * time.Millisecond) // The kernel has no event for a process that is no child.
	}
}

// An interrupt ends every ssh with what it started, also one that ignores signals.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	s := newSite(t, `trap '' INT TERM HUP
sleep 600 &
report "$$ $!"
wait
`)
	ctx, interrupt := context.WithCancel(t.Context())
	var pids []string
	done := make(chan error, 1)
	go func() {
		got, err := s.query(long, "true").All(ctx, []string{"a", "b", "c"})
		for _, a := range got {
			if !errors.Is(a.Err, context.Canceled) {
				err = fmt.Errorf("%s: %w", a.Host, a.Err)
			}
		}
		done <- err
	}()
	for range 3 {
		pids = append(pids, strings.Fields(s.report(t))...)
	}
	interrupt()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it returns %v", err)
	}
	for _, pid := range pids {
		ended(t, pid)
	}
}

// No more hosts than the bound are connected at once.
func TestParallel(t *testing.T) {
	t.Parallel()
	s := newSite(t, `report begins
read -r _ <"$dir/go"
report ends
`)
	pipe := filepath.Join(s.dir, "go")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	q := s.query(long, "true")
	q.Parallel = 3
	hosts := strings.Fields("a b c d e f g h i j")
	done := make(chan error, 1)
	go func() {
		_, err := q.All(t.Context(), hosts)
		done <- err
	}()
	running, most := 0, 0
	for n := 0; n < 2*len(hosts); n++ {
		if s.report(t) == "begins" {
			running++
		} else {
			running--
		}
		most = max(most, running)
		if running == q.Parallel || n >= 2*len(hosts)-q.Parallel-1 { // As many as may run, or the last ones.
			fmt.Fprintln(f)
		}
	}
	if err := <-done; err != nil || most != q.Parallel {
		t.Errorf("%d hosts at once, %v; want %d", most, err, q.Parallel)
	}
}

// A host that answers without an end is ended, and what it wrote to standard error has a bound.
func TestLongAnswers(t *testing.T) {
	t.Parallel()
	s := newSite(t, `case $host in
out) exec yes;;
err) head -c 1000000 /dev/zero >&2; echo well;;
esac
`)
	got, err := s.query(long, "true").All(t.Context(), []string{"out", "err"})
	if err != nil || got[0].Err == nil || got[0].Err.Error() != "its answer has more than 4 MiB" || len(got[0].Output) > 4<<20 {
		t.Errorf("a long answer: %d bytes, %v, %v", len(got[0].Output), got[0].Err, err)
	}
	if got[1].Err != nil || string(got[1].Output) != "well\n" || len(got[1].Errors) != 64<<10 {
		t.Errorf("a long text on standard error: %q and %d bytes, %v", got[1].Output, len(got[1].Errors), got[1].Err)
	}
}

// What a kept connection has open is not waited for: ControlPersist leaves standard error to it in older versions of ssh.
func TestKeptConnection(t *testing.T) {
	t.Parallel()
	s := newSite(t, `setsid sh -c 'exec sleep 600' </dev/null >/dev/null &
report $!
echo well
`)
	got, err := s.query(long, "true").All(t.Context(), []string{"a"})
	if err != nil || got[0].Err != nil || got[0].Code != 0 || string(got[0].Output) != "well\n" {
		t.Errorf("it answers %+v, %v", got, err)
	}
	var pid int
	if _, err := fmt.Sscan(s.report(t), &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the kept connection was ended: %v", err)
	}
}

func TestNoProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	q := remote.Query{Dirs: []string{dir, ".", ""}, Command: []string{"true"}, Timeout: long, Parallel: 1}
	if _, err := q.All(t.Context(), []string{"a"}); !errors.Is(err, remote.ErrNoProgram) {
		t.Errorf("without ssh: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ssh"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := q.All(t.Context(), []string{"a"}); !errors.Is(err, remote.ErrNoProgram) {
		t.Errorf("with a file that cannot be executed: %v", err)
	}
}

// shells are those of users on hosts, with the options that read a text and no file of the user.
var shells = [][]string{
	{"sh", "-c"},
	{"dash", "-c"},
	{"bash", "-c"},
	{"ksh", "-c"},
	{"zsh", "-f", "-c"},
	{"csh", "-f", "-c"},
	{"tcsh", "-f", "-c"},
	{"fish", "-N", "-c"},
}

// Every shell of this host reads the words that were quoted. sh is on each.
func TestQuote(t *testing.T) {
	t.Parallel()
	words := []string{
		"plain",
		"",
		"a b",
		"  ",
		"it's",
		`"x"`,
		`back\slash`,
		`DOMAIN\user`,
		"$HOME",
		"`id`",
		"$(id)",
		"a;b|c&d",
		"<in>out",
		"*",
		"?",
		"[a-z]",
		"{a,b}",
		"~",
		"~root",
		"!!",
		"#no",
		"a=b",
		"=ls",
		"%self",
		"^x^y",
		"-o",
		"--tenant=vi sion",
		"ünïcode €",
	}
	text, err := remote.Quote(append([]string{"printf", "%s\\n"}, words...))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, shell := range shells {
		if _, err := exec.LookPath(shell[0]); err != nil {
			continue
		}
		read++
		out, err := exec.CommandContext(t.Context(), shell[0], append(shell[1:], text)...).Output()
		if want := strings.Join(words, "\n") + "\n"; err != nil || string(out) != want {
			t.Errorf("%s: %v, it reads\n%swant\n%s", shell[0], err, out, want)
		}
	}
	if read == 0 {
		t.Error("there is no shell")
	}
	for _, word := range []string{"a\nb", "a\x00b", "\x1b[2J", "\u0085", "a\xffb"} {
		if text, err := remote.Quote([]string{word}); err == nil {
			t.Errorf("%q is quoted as %q", word, text)
		}
	}
}
