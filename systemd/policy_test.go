package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/gpushare/gpushare/test/programs"
)

// attachEnv is set for the test program that calls for a process to be moved.
const attachEnv = "GPUSHARE_TEST_ATTACH"

// TestAttachAsUser is no test: TestMigrationPolicy runs it as another user.
func TestAttachAsUser(t *testing.T) {
	address, iface, _ := strings.Cut(os.Getenv(attachEnv), " ")
	if address == "" {
		t.Skip("needs to be run by TestMigrationPolicy")
	}
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	method := "AttachProcessesToUnit"
	if iface != "" {
		method = iface + "." + method
	}
	if err := conn.Object(busName, managerPath).Call(method, 0, "user.slice", "/", []uint32{1}).Err; err != nil {
		t.Fatalf("refused: %v", err)
	}
}

func TestMigrationPolicy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to be another user")
	}
	f, address := startFake(t, nil)
	socket := socketOf(t, address)
	for dir := filepath.Dir(socket); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	a := open(t, Options{Address: address, Mount: fakeMount(t), Policy: policyDir(socket)})
	// The test program is in a directory of root.
	self := filepath.Join(filepath.Dir(socket), "other")
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = programs.Write(self, b)
	}
	if err != nil {
		t.Fatal(err)
	}
	attach := func(uid uint32, iface string) (denied bool) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestAttachAsUser$", "-test.v")
		cmd.Env, cmd.Dir = []string{attachEnv + "=" + address + " " + iface}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		elapsed := slices.ContainsFunc(f.taken(), func(c string) bool { return strings.HasPrefix(c, "AttachProcessesToUnit user.slice") })
		refused := strings.Contains(string(out), "org.freedesktop.DBus.Error.AccessDenied") ||
			strings.Contains(string(out), "Rejected send message")
		if elapsed == refused || (err == nil) != elapsed {
			t.Fatalf("user %d was neither allowed nor denied: %v: %s", uid, err, out)
		}
		return refused
	}
	check := func(when string, want bool) {
		t.Helper()
		if is, err := a.MigrationDenied(); err != nil || is != want {
			t.Errorf("%s: denied %v, %v", when, is, err)
		}
		for _, iface := range []string{managerIface, ""} {
			if iface == "" && !want {
				continue // the fake answers only calls that name it
			}
			if got := attach(65534, iface); got != want {
				t.Errorf("%s: a user is denied by %q: %v", when, iface, got)
			}
		}
		if attach(0, managerIface) {
			t.Errorf("%s: root is denied", when)
		}
	}
	ctx := within(t, 30*time.Second)
	check("before", false)
	for range 2 { // the second call changes nothing
		if err := a.DenyMigration(ctx); err != nil {
			t.Fatal(err)
		}
		check("denied", true)
	}
	if err := os.WriteFile(a.policyFile(), []byte("<busconfig/>"), 0o600); err != nil {
		t.Fatal(err)
	}
	if is, err := a.MigrationDenied(); err != nil || is {
		t.Errorf("a modified file counts as the policy: %v, %v", is, err)
	}
	for range 2 {
		if err := a.AllowMigration(ctx); err != nil {
			t.Fatal(err)
		}
		check("allowed again", false)
	}
	if left, err := os.ReadDir(policyDir(socket)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
