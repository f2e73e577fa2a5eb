package capabilities

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The test runs itself again: first to drop capabilities, then to act.
const (
	dropEnv = "GPUSHARE_TEST_KEEP" // the capabilities that remain
	actEnv  = "GPUSHARE_TEST_ACT"
	onEnv   = "GPUSHARE_TEST_ON"
)

func TestMain(m *testing.M) {
	name, on := os.Getenv(actEnv), os.Getenv(onEnv)
	if name == "" {
		os.Exit(m.Run())
	}
	if keep, ok := os.LookupEnv(dropEnv); ok {
		fmt.Fprintln(os.Stderr, dropAndExecute(strings.Fields(keep)))
		os.Exit(3)
	}
	for _, a := range acts() {
		if a.name == name {
			if err := a.do(on); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(3)
}

// dropAndExecute executes this program with these capabilities alone: of a process of root, execve leaves those of the bounding
// set.
func dropAndExecute(keep []string) error {
	runtime.LockOSThread()
	for name, number := range numbers() {
		if slices.Contains(keep, name) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(number), 0, 0, 0); err != nil {
			return fmt.Errorf("cannot drop %s: %w", name, err)
		}
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, dropEnv+"=") })
	return syscall.Exec("/proc/self/exe", os.Args, env)
}

// numbers are all capabilities that this kernel has.
func numbers() map[string]int {
	all := map[string]int{
		"CAP_KILL": unix.CAP_KILL, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN,
		"CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE, "CAP_SYSLOG": unix.CAP_SYSLOG, "CAP_MKNOD": unix.CAP_MKNOD,
		"CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH,
		"CAP_BPF": unix.CAP_BPF, "CAP_PERFMON": unix.CAP_PERFMON, "CAP_CHOWN": unix.CAP_CHOWN, "CAP_FOWNER": unix.CAP_FOWNER,
	}
	for n := 0; n <= unix.CAP_LAST_CAP; n++ {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(n), 0, 0, 0); err == nil && !slices.Contains(values(all), n) {
			all[fmt.Sprintf("capability %d", n)] = n
		}
	}
	return all
}

func values(m map[string]int) (all []int) {
	for _, n := range m {
		all = append(all, n)
	}
	return all
}

// unit is the bounding set of the unit.
func unit(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../packaging/systemd/gpushared.service")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindAllStringSubmatch(string(b), -1)
	if len(m) != 1 {
		t.Fatalf("the unit has %d bounding sets", len(m))
	}
	return strings.Fields(m[0][1])
}

// perform returns why the act fails with these capabilities, and nil if it succeeds.
func perform(t *testing.T, name, on string, keep []string) error {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), actEnv+"="+name, onEnv+"="+on, dropEnv+"="+strings.Join(keep, " "))
	out, err := cmd.CombinedOutput()
	switch cmd.ProcessState.ExitCode() {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s", strings.TrimSpace(string(out)))
	}
	t.Fatalf("%s: %v\n%s", name, err, out)
	return nil
}

// With the capabilities of the unit every act succeeds. Without one of them exactly those fail that need it, and each capability is
// needed by one: what no act needs is not in the unit.
func TestEachCapabilityIsNeeded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it starts processes of other users")
	}
	has := unit(t)
	for _, name := range has {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(numbers()[name]), 0, 0, 0); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	k := running(t)
	needed := map[string][]string{}
	for _, a := range acts() {
		t.Run(a.name, func(t *testing.T) {
			on := a.prepare(t)
			if err := perform(t, a.name, on, has); err != nil {
				t.Fatalf("with the capabilities of the unit: %v", err)
			}
			for _, without := range has {
				err := perform(t, a.name, on, slices.DeleteFunc(slices.Clone(has), func(s string) bool { return s == without }))
				needs := slices.Contains(a.needs(k), without)
				if (err != nil) != needs {
					t.Errorf("without %s: %v; needed: %v", without, err, needs)
				}
				if err != nil {
					needed[without] = append(needed[without], a.name)
					t.Logf("without %s: %v", without, err)
				}
			}
		})
	}
	if t.Failed() {
		return
	}
	for _, name := range has {
		if len(needed[name]) == 0 {
			t.Errorf("no act needs %s: take it out of the unit", name)
		}
	}
}

// With CAP_BPF and CAP_PERFMON instead of CAP_SYS_ADMIN a program is loaded and attached, but none is found again.
func TestBPFDoesNotReplaceSysAdmin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it attaches device programs")
	}
	a := acts()[0]
	on := a.prepare(t)
	has := append(slices.DeleteFunc(unit(t), func(s string) bool { return s == "CAP_SYS_ADMIN" }), "CAP_BPF", "CAP_PERFMON")
	if err := perform(t, a.name, on, has); err == nil || !strings.Contains(err.Error(), "operation not permitted") {
		t.Errorf("with CAP_BPF: %v", err)
	}
}

// docs/security.md has a row for each capability of the unit, and for no other.
func TestTheDocumentationHasEachCapability(t *testing.T) {
	b, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(CAP_[A-Z_]+)` \\|").FindAllStringSubmatch(string(b), -1) {
		if !slices.Contains(rows, m[1]) {
			rows = append(rows, m[1])
		}
	}
	has := unit(t)
	slices.Sort(has)
	slices.Sort(rows)
	if !slices.Equal(has, rows) {
		t.Errorf("the unit has %v, and docs/security.md %v", has, rows)
	}
}

func running(t *testing.T) (k kernel) {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &k.major, &k.minor); err != nil {
		t.Fatal(err)
	}
	return k
}
