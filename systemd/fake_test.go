package systemd

import (
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// signatures are the D-Bus types of the properties that may be set, from org.freedesktop.systemd1(5).
func signatures() map[string]string {
	return map[string]string{
		"CPUQuotaPerSecUSec":          "t",
		"CPUWeight":                   "t",
		"MemoryMax":                   "t",
		"MemoryHigh":                  "t",
		"MemorySwapMax":               "t",
		"TasksMax":                    "t",
		"IOWeight":                    "t",
		"AllowedCPUs":                 "ay",
		"DevicePolicy":                "s",
		"DeviceAllow":                 "a(ss)",
		"Description":                 "s",
		"Slice":                       "s",
		"PIDs":                        "au",
		"Delegate":                    "b",
		"CollectMode":                 "s",
		"TimeoutStartUSec":            "t",
		"TimeoutStopUSec":             "t",
		"ExecStartEx":                 "a(sasas)",
		"Environment":                 "as",
		"Restart":                     "s",
		"RestartUSec":                 "t",
		"Type":                        "s",
		"User":                        "s",
		"WorkingDirectory":            "s",
		"UMask":                       "u",
		"RemainAfterExit":             "b",
		"IgnoreSIGPIPE":               "b",
		"StandardOutput":              "s",
		"StandardError":               "s",
		"SyslogIdentifier":            "s",
		"AllowedMemoryNodes":          "ay",
		"StandardInputFileDescriptor": "h",
		"OOMPolicy":                   "s",
		"LimitNOFILE":                 "t",
		"LimitNOFILESoft":             "t",
		"Group":                       "s",
		"CapabilityBoundingSet":       "t",
		"NoNewPrivileges":             "b",
		"PrivateNetwork":              "b",
		"PrivateDevices":              "b",
		"PrivateTmp":                  "b",
		"ProtectSystem":               "s",
		"ProtectHome":                 "s",
		"ProtectKernelTunables":       "b",
		"ProtectControlGroups":        "b",
		"RestrictNamespaces":          "t",
	}
}

type fakeProperty struct {
	Name  string
	Value dbus.Variant
}

type fakeAux struct {
	Name  string
	Props []fakeProperty
}

type fakeStatus struct {
	Name, Description, LoadState, ActiveState, SubState, Followed string
	Path                                                          dbus.ObjectPath
	JobID                                                         uint32
	JobType                                                       string
	JobPath                                                       dbus.ObjectPath
}

type fakeChange struct{ Type, File, Destination string }

type fakeUnit struct {
	active  string
	sub     string
	cgroup  string
	mainPID uint32
	props   map[string]dbus.Variant
	loaded  bool // created by StartTransientUnit, which refuses to create it again
	main    *exec.Cmd
}

// fake is a service manager with the semantics that the adapter relies on: typed properties, DeviceAllow that appends
// and is cleared by an empty array, jobs that end with a signal. With a hierarchy, its slices and scopes are cgroups.
type fake struct {
	conn *dbus.Conn
	h    *cgroup.Hierarchy

	// mu guards all below.
	mu      sync.Mutex
	units   map[string]*fakeUnit
	queried []string // units whose properties were all read
	calls   []string // "SetUnitProperties gpushare.slice runtime DeviceAllow,DeviceAllow"
	jobs    uint32
	result  string // of all jobs; "done" when empty
	hang    bool   // no job ever ends
	// What happens before and after the processes of a new scope are moved; nil: nothing.
	beforeMove, afterMove func()
	version               string
}

func (f *fake) record(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

// taken returns the changing calls since the last call of taken.
func (f *fake) taken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

func (f *fake) property(unit, name string) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u, ok := f.units[unit]; ok {
		return u.props[name].Value()
	}
	return nil
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) unitLocked(name string) *fakeUnit {
	u, ok := f.units[name]
	if !ok {
		u = &fakeUnit{active: "inactive", sub: "dead", props: map[string]dbus.Variant{"DevicePolicy": dbus.MakeVariant("auto")}}
		for _, p := range []string{"CPUQuotaPerSecUSec", "CPUWeight", "MemoryMax", "MemoryHigh", "MemorySwapMax", "TasksMax", "IOWeight"} {
			u.props[p] = dbus.MakeVariant(infinity)
		}
		u.props["AllowedCPUs"] = dbus.MakeVariant([]byte{})
		u.props["DeviceAllow"] = dbus.MakeVariant([]deviceAllow{})
		f.units[name] = u
	}
	return u
}

func fail(name, format string, args ...any) *dbus.Error {
	return dbus.NewError(busName+"."+name, []any{fmt.Sprintf(format, args...)})
}

func (f *fake) applyLocked(u *fakeUnit, props []fakeProperty) *dbus.Error {
	for _, p := range props {
		want, ok := signatures()[p.Name]
		if !ok {
			return dbus.NewError(
				"org.freedesktop.DBus.Error.PropertyReadOnly", []any{"Cannot set property " + p.Name + ", or unknown property."},
			)
		}
		if got := p.Value.Signature().String(); got != want {
			return dbus.NewError(
				"org.freedesktop.DBus.Error.InvalidArgs", []any{fmt.Sprintf("property %s has type %s, not %s", p.Name, want, got)},
			)
		}
		if p.Name == "DeviceAllow" {
			if entries, _ := p.Value.Value().([][]any); len(entries) > 0 {
				var old [][]any
				if was, ok := u.props[p.Name].Value().([][]any); ok {
					old = was
				}
				all := make([]deviceAllow, 0, len(old)+len(entries))
				for _, e := range append(slices.Clone(old), entries...) {
					all = append(all, deviceAllow{e[0].(string), e[1].(string)})
				}
				p.Value = dbus.MakeVariant(all)
			}
			// Kept decoded, as a client reads it.
			p.Value = decoded(p.Value)
		}
		u.props[p.Name] = p.Value
	}
	return nil
}

// decoded converts entries to what the library decodes them to.
func decoded(v dbus.Variant) dbus.Variant {
	entries, ok := v.Value().([]deviceAllow)
	if !ok {
		return v
	}
	out := make([][]any, len(entries))
	for i, e := range entries {
		out[i] = []any{e.Path, e.Access}
	}
	return dbus.MakeVariantWithSignature(out, dbus.ParseSignatureMust("a(ss)"))
}

// encoded is the inverse of decoded, for a reply.
func encoded(props map[string]dbus.Variant) map[string]dbus.Variant {
	out := maps.Clone(props)
	// The library cannot encode again what it decodes structs to, and no test reads this property.
	delete(out, "ExecStartEx")
	if entries, ok := out["DeviceAllow"].Value().([][]any); ok {
		all := make([]deviceAllow, len(entries))
		for i, e := range entries {
			all[i] = deviceAllow{e[0].(string), e[1].(string)}
		}
		out["DeviceAllow"] = dbus.MakeVariant(all)
	}
	return out
}

// jobLocked creates a job that ends a moment later, unless jobs hang.
func (f *fake) jobLocked(unit string) dbus.ObjectPath {
	f.jobs++
	id := f.jobs
	job := dbus.ObjectPath(fmt.Sprintf("/org/freedesktop/systemd1/job/%d", id))
	result := f.result
	if result == "" {
		result = "done"
	}
	if !f.hang {
		// Before the reply to the call: the client must cope with that too.
		_ = f.conn.Emit(managerPath, managerIface+".JobRemoved", id, job, unit, result)
	}
	return job
}

// sweepLocked removes empty scopes, as the service manager does.
func (f *fake) sweepLocked() {
	for name, u := range f.units {
		if f.h == nil || !strings.HasSuffix(name, ".scope") || u.active != "active" {
			continue
		}
		if busy, err := f.h.Populated(u.cgroup); err != nil || !busy {
			_ = f.h.Remove(u.cgroup)
			delete(f.units, name)
		}
	}
}

// slicePath is the cgroup of a slice: each dash in its name is one level.
func slicePath(unit string) string {
	name := strings.TrimSuffix(unit, ".slice")
	cg := "/"
	for i := range name {
		if name[i] == '-' {
			cg = path.Join(cg, name[:i]+".slice")
		}
	}
	return path.Join(cg, unit)
}

func (f *fake) startSliceLocked(name string) {
	parent := strings.TrimSuffix(name, ".slice")
	for i := range parent {
		if parent[i] == '-' {
			f.unitLocked(parent[:i] + ".slice").start(slicePath(parent[:i] + ".slice"))
		}
	}
	f.unitLocked(name).start(slicePath(name))
	if f.h != nil {
		_ = os.MkdirAll(f.h.Dir(slicePath(name)), 0o755)
	}
}

func (u *fakeUnit) start(cg string) {
	u.active, u.sub, u.cgroup = "active", "active", cg
	u.props["ControlGroup"] = dbus.MakeVariant(cg)
}

// manager is the exported object: its exported methods are the D-Bus methods.
type manager struct{ f *fake }

func (m manager) Subscribe() *dbus.Error { return nil }

func (m manager) SetUnitProperties(name string, runtime bool, props []fakeProperty) *dbus.Error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	var list []string
	for _, p := range props {
		list = append(list, p.Name)
	}
	m.f.record("SetUnitProperties %s %s %s", name, map[bool]string{true: "runtime", false: "persistent"}[runtime], strings.Join(list, ","))
	return m.f.applyLocked(m.f.unitLocked(name), props)
}

func (m manager) StartUnit(name, mode string) (dbus.ObjectPath, *dbus.Error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.record("StartUnit %s %s", name, mode)
	u, known := m.f.units[name]
	switch {
	case strings.HasSuffix(name, ".slice"):
		m.f.startSliceLocked(name)
	case !known:
		return "", fail("NoSuchUnit", "Unit %s not found.", name)
	case !m.f.hang:
		u.active, u.sub = "active", "running"
	}
	return m.f.jobLocked(name), nil
}

func (m manager) StopUnit(name, mode string) (dbus.ObjectPath, *dbus.Error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.sweepLocked()
	m.f.record("StopUnit %s %s", name, mode)
	u, ok := m.f.units[name]
	if !ok {
		return "", fail("NoSuchUnit", "Unit %s not loaded.", name)
	}
	if !m.f.hang {
		u.active, u.sub, u.mainPID = "inactive", "dead", 0
		if m.f.h != nil && u.cgroup != "" {
			_ = m.f.h.Remove(u.cgroup)
		}
		if u.loaded {
			delete(m.f.units, name)
		}
	}
	return m.f.jobLocked(name), nil
}

func (m manager) StartTransientUnit(name, mode string, props []fakeProperty, _ []fakeAux) (dbus.ObjectPath, *dbus.Error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.sweepLocked()
	m.f.record("StartTransientUnit %s %s", name, mode)
	if _, ok := m.f.units[name]; ok {
		return "", fail("UnitExists", "Unit %s was already loaded or has a fragment file.", name)
	}
	known := func(p fakeProperty) bool {
		return p.Name != "OOMPolicy" || strings.HasSuffix(name, ".service") || parseVersion(m.f.version) >= 253
	}
	if i := slices.IndexFunc(props, func(p fakeProperty) bool { return !known(p) }); i >= 0 {
		return "", dbus.NewError(
			"org.freedesktop.DBus.Error.PropertyReadOnly", []any{"Cannot set property " + props[i].Name + ", or unknown property."},
		)
	}
	u := m.f.unitLocked(name)
	if err := m.f.applyLocked(u, props); err != nil {
		delete(m.f.units, name)
		return "", err
	}
	u.loaded = true
	slice, _ := u.props["Slice"].Value().(string)
	m.f.startSliceLocked(slice)
	u.start(path.Join(slicePath(slice), name))
	if strings.HasSuffix(name, ".service") {
		u.sub, u.mainPID = "running", 4711
	}
	pids, _ := u.props["PIDs"].Value().([]uint32)
	delete(u.props, "PIDs")
	if m.f.h == nil {
		return m.f.jobLocked(name), nil
	}
	if err := os.MkdirAll(m.f.h.Dir(u.cgroup), 0o755); err != nil {
		return "", fail("Failed", "%v", err)
	}
	if m.f.beforeMove != nil && len(pids) > 0 {
		m.f.beforeMove()
	}
	for _, pid := range pids {
		start, err := procfs.Start(int(pid))
		if err == nil {
			err = m.f.h.Place(cgroup.Process{PID: int(pid), Start: start}, u.cgroup)
		}
		if err != nil {
			return "", fail("Failed", "%v", err)
		}
	}
	if m.f.afterMove != nil && len(pids) > 0 {
		m.f.afterMove()
	}
	if fd, ok := u.props["StandardInputFileDescriptor"]; ok {
		delete(u.props, "StandardInputFileDescriptor")
		if err := m.f.runLocked(u, int(fd.Value().(dbus.UnixFD))); err != nil {
			return "", fail("Failed", "%v", err)
		}
	}
	return m.f.jobLocked(name), nil
}

// runLocked runs a service's program in its cgroup, on the standard input that came with the call.
func (f *fake) runLocked(u *fakeUnit, fd int) error {
	stdin := os.NewFile(uintptr(fd), "stdin")
	defer stdin.Close()
	starts, _ := u.props["ExecStartEx"].Value().([][]any)
	if len(starts) != 1 {
		return fmt.Errorf("ExecStartEx is %v", u.props["ExecStartEx"])
	}
	argv, _ := starts[0][1].([]string)
	dir, err := os.Open(f.h.Dir(u.cgroup))
	if err != nil {
		return err
	}
	defer dir.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		return err
	}
	u.main, u.mainPID = cmd, uint32(cmd.Process.Pid)
	go func() { // ends with the process, which ends with its test's cgroups
		_ = cmd.Wait() // How it ended is read from its state.
		f.set(func() {
			ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
			code, status := int32(1), int32(ws.ExitStatus())
			if ws.Signaled() {
				code, status = 2, int32(ws.Signal())
			}
			u.mainPID, u.sub = 0, "exited"
			if code != 1 || status != 0 {
				u.active, u.sub = "failed", "failed"
			}
			u.props["ExecMainCode"], u.props["ExecMainStatus"] = dbus.MakeVariant(code), dbus.MakeVariant(status)
			u.props["ExecMainExitTimestamp"] = dbus.MakeVariant(uint64(time.Now().UnixMicro()))
		})
	}()
	return nil
}

func (m manager) KillUnit(name, who string, signal int32) *dbus.Error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.record("KillUnit %s %s %d", name, who, signal)
	m.f.hang = false // jobs that hang end
	return nil
}

func (m manager) ResetFailedUnit(name string) *dbus.Error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.record("ResetFailedUnit %s", name)
	delete(m.f.units, name)
	return nil
}

func (m manager) RevertUnitFiles(names []string) ([]fakeChange, *dbus.Error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.record("RevertUnitFiles %s", strings.Join(names, ","))
	for _, n := range names {
		delete(m.f.units, n)
	}
	return []fakeChange{}, nil
}

func (m manager) AttachProcessesToUnit(name, below string, pids []uint32) *dbus.Error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.record("AttachProcessesToUnit %s %s %d", name, below, pids)
	return nil
}

func (m manager) CancelJob(id uint32) *dbus.Error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.record("CancelJob %d", id)
	return nil
}

func (m manager) ListUnitsByPatterns(_, patterns []string) ([]fakeStatus, *dbus.Error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.sweepLocked()
	list := []fakeStatus{}
	for name, u := range m.f.units {
		for _, p := range patterns {
			if ok, err := path.Match(p, name); err == nil && ok {
				list = append(
					list,
					fakeStatus{Name: name, LoadState: "loaded", ActiveState: u.active, SubState: u.sub, Path: unitPath(name), JobPath: "/"},
				)
				break
			}
		}
	}
	return list, nil
}

func (m manager) Get(iface, name string) (dbus.Variant, *dbus.Error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	return dbus.MakeVariant(m.f.version), nil
}

// unitObjects serves the properties of every unit, loaded or not.
type unitObjects struct{ f *fake }

func (o unitObjects) GetAll(msg dbus.Message, _ string) (map[string]dbus.Variant, *dbus.Error) {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	o.f.sweepLocked()
	name := unitOf(msg)
	o.f.queried = append(o.f.queried, name)
	u, known := o.f.units[name]
	if !known {
		if !strings.HasSuffix(name, ".slice") {
			return map[string]dbus.Variant{
				"LoadState":    dbus.MakeVariant("not-found"),
				"ActiveState":  dbus.MakeVariant("inactive"),
				"ControlGroup": dbus.MakeVariant(""),
			}, nil
		}
		u = o.f.unitLocked(name)
		delete(o.f.units, name)
	}
	props := encoded(u.props)
	if _, ok := props["ControlGroup"]; !ok {
		props["ControlGroup"] = dbus.MakeVariant("")
	}
	props["LoadState"] = dbus.MakeVariant("loaded")
	props["ActiveState"] = dbus.MakeVariant(u.active)
	props["SubState"] = dbus.MakeVariant(u.sub)
	props["MainPID"] = dbus.MakeVariant(u.mainPID)
	props["Result"] = dbus.MakeVariant("success")
	return props, nil
}

func (o unitObjects) Get(msg dbus.Message, iface, name string) (dbus.Variant, *dbus.Error) {
	all, err := o.GetAll(msg, iface)
	if err != nil {
		return dbus.Variant{}, err
	}
	v, ok := all[name]
	if !ok {
		return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{name})
	}
	return v, nil
}

func unitOf(msg dbus.Message) string {
	p, _ := msg.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
	var b strings.Builder
	enc := path.Base(string(p))
	for i := 0; i < len(enc); i++ {
		if enc[i] == '_' && i+2 < len(enc) {
			var c byte
			if _, err := fmt.Sscanf(enc[i+1:i+3], "%02x", &c); err == nil {
				b.WriteByte(c)
				i += 2
				continue
			}
		}
		b.WriteByte(enc[i])
	}
	return b.String()
}

func unitPath(name string) dbus.ObjectPath {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return dbus.ObjectPath("/org/freedesktop/systemd1/unit/" + b.String())
}

// privateBus starts a dbus-daemon for the test.
func privateBus(t *testing.T) (address string) {
	t.Helper()
	binary, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("needs dbus-daemon: apt-get install dbus-daemon")
	}
	// It admits only users whose groups the host's directory knows, itself included.
	if uid := strconv.Itoa(os.Geteuid()); exec.Command("getent", "passwd", uid).Run() != nil {
		t.Skipf("needs an entry of uid %s in the host's passwd: dbus-daemon admits no other user", uid)
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "bus")
	config := filepath.Join(dir, "bus.conf")
	if err := os.Mkdir(policyDir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	text := `<busconfig><type>system</type><listen>` + busAddress(socket) + `</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*" eavesdrop="true"/>
<allow receive_sender="*"/><allow send_type="signal"/><allow receive_type="signal"/></policy>
<policy user="root"><allow send_destination="` + busName + `"/></policy>
<includedir>` + policyDir(socket) + `</includedir></busconfig>`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "--config-file="+config, "--nofork", "--nopidfile", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	// It prints its address once it listens.
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("dbus-daemon prints no address: %v", err)
	}
	return busAddress(socket)
}

const unixPath = "unix:path="

// busAddress is the address of a bus on a socket. TMPDIR may have characters that an address quotes.
func busAddress(socket string) string { return unixPath + dbus.EscapeBusAddressValue(socket) }

// socketOf is the socket of an address.
func socketOf(t *testing.T, address string) string {
	t.Helper()
	socket, err := dbus.UnescapeBusAddressValue(strings.TrimPrefix(address, unixPath))
	if err != nil {
		t.Fatal(err)
	}
	return socket
}

// policyDir is the directory of a private bus's further policies.
func policyDir(socket string) string { return filepath.Join(filepath.Dir(socket), "system.d") }

// startFake starts a fake service manager on a private bus.
func startFake(t *testing.T, h *cgroup.Hierarchy) (*fake, string) {
	t.Helper()
	address := privateBus(t)
	// A bus that does not answer must fail the test, not block it.
	timeout := time.AfterFunc(20*time.Second, func() { panic("the private bus does not answer") })
	conn, err := dbus.Connect(address)
	timeout.Stop()
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{conn: conn, h: h, units: map[string]*fakeUnit{}, version: "257.9-1~deb13u1"}
	for _, export := range []error{
		conn.Export(manager{f}, managerPath, managerIface),
		conn.Export(manager{f}, managerPath, "org.freedesktop.DBus.Properties"),
		conn.ExportSubtree(unitObjects{f}, "/org/freedesktop/systemd1/unit", "org.freedesktop.DBus.Properties"),
	} {
		if export != nil {
			t.Fatal(export)
		}
	}
	if reply, err := conn.RequestName(busName, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("cannot own %s: %v, %v", busName, reply, err)
	}
	t.Cleanup(func() { conn.Close() })
	return f, address
}

// proxy is between a client and the bus, so that a test can cut the connection.
type proxy struct {
	l    net.Listener
	bus  string
	wg   sync.WaitGroup
	mu   sync.Mutex
	open []net.Conn // guarded by mu
}

func startProxy(t *testing.T, address string) (*proxy, string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "proxy")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, bus: socketOf(t, address)}
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p, busAddress(socket)
}

func (p *proxy) serve() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return
		}
		bus, err := net.Dial("unix", p.bus)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.open = append(p.open, client, bus)
		p.mu.Unlock()
		for _, pair := range [][2]net.Conn{{client, bus}, {bus, client}} {
			p.wg.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				pair[0].Close()
				pair[1].Close()
			})
		}
	}
}

// cut breaks every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
}

// eventually polls a condition that has no event.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
