package gpushare_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gpushare/gpushare"

// rule says what a folder may import directly: of ours, and of others. The standard library and golang.org/x are free
// unless strict. The table is the design's; the reason is what a reader of a failure needs.
type rule struct {
	ours   []string
	others []string
	strict bool // the standard library only
	wiring bool // any of ours: it composes
	pure   bool // nothing that reads a file, a process or the network, and no clock
	why    string
}

// values are what every part of the daemon may speak of, and locks have one order for all.
var values = []string{"api", "cgroup", "gpu", "internal/locks", "lease"}

// floor is what every manager may stand on.
var floor = join(values, "daemon/attribution", "daemon/devicepolicy", "daemon/planner", "daemon/report", "daemon/server", "daemon/state",
	"daemon/stop", "internal/loop", "internal/observe", "internal/step", "internal/store")

const manager = "no manager imports a manager, and no adapter: what it needs of one is an interface of its own, which the wiring fills"

func join(base []string, more ...string) []string { return slices.Concat(base, more) }

var rules = map[string]rule{
	"api":               {strict: true, why: "api is the wire format: every program reads it, so it must cost nothing and decide nothing"},
	"client":            {ours: []string{"api"}, why: "the client is for other programs too: it must not drag the daemon in"},
	"gpu":               {strict: true, why: "gpu is a port: an implementation behind it must not leak into it"},
	"gpu/worker":        {ours: []string{"gpu", "internal/procfs"}, why: "the worker carries the port across a process, whatever is behind it"},
	"gpu/nvml":          {ours: []string{"gpu"}, others: []string{"github.com/NVIDIA/go-nvml"}, why: "gpu/nvml is the only place that knows NVML"},
	"cgroup":            {ours: []string{"internal/procfs", "cgroup/device"}, others: []string{"github.com/containerd/cgroups"}, why: "cgroup is a port and the adapters that need no service manager"},
	"cgroup/device":     {others: []string{"github.com/cilium/ebpf"}, why: "cgroup/device is the only place that speaks BPF, and it knows numbers of devices only"},
	"systemd":           {ours: []string{"cgroup", "internal/procfs"}, others: []string{"github.com/coreos/go-systemd", "github.com/godbus/dbus"}, why: "systemd is an adapter of cgroup's port and the only place that speaks D-Bus"},
	"mig":               {ours: []string{"gpu", "internal/step", "internal/text"}, why: "the planner is pure: the command line embeds it, without a daemon or a GPU"},
	"mps":               {ours: []string{"gpu", "cgroup", "internal/step", "internal/procfs"}, why: "mps supervises control daemons; who may use them is decided elsewhere"},
	"isolation":         {ours: []string{"gpu", "cgroup", "cgroup/device", "internal/step", "internal/text"}, others: []string{"tags.cncf.io/container-device-interface/specs-go"}, why: "isolation turns a grant into walls; it must not know the wire format or the daemon"},
	"lease":             {ours: []string{"gpu", "api", "internal/locks", "internal/text"}, why: "the lease table asks small interfaces: it must not know who implements them"},
	"quota":             {ours: []string{"gpu", "internal/text"}, why: "quota decides and never acts"},
	"daemon/state":      {ours: []string{"api", "cgroup", "gpu", "internal/engine", "internal/locks", "internal/observe", "internal/spec", "internal/step", "internal/store", "lease", "mig"}, why: "state is values and the questions one may ask them: it plans nothing"},
	"daemon/planner":    {ours: []string{"api", "cgroup", "cgroup/device", "daemon/state", "gpu", "internal/observe", "internal/spec", "internal/step", "internal/store", "internal/text", "isolation", "lease", "mig", "mps"}, pure: true, why: "planner makes steps of values: what it needs to know is read before it is asked"},
	"internal/step":     {strict: true, why: "a step is data that must decode after a restart"},
	"internal/store":    {ours: []string{"gpu", "internal/faultpoint", "internal/locks"}, why: "the store keeps bytes and their checksums; what they mean is its users' business"},
	"internal/locks":    {strict: true, why: "the order of locks knows none of those who take them"},
	"internal/ledger":   {why: "the ledger appends lines"},
	"internal/engine":   {ours: []string{"gpu", "internal/locks", "internal/step", "internal/store", "internal/faultpoint"}, why: "the engine runs steps of any kind: it must know none of them"},
	"internal/spec":     {ours: []string{"api", "gpu"}, others: []string{"go.yaml.in/yaml/v3"}, why: "spec reads documents and resolves selectors; it plans nothing"},
	"internal/observe":  {ours: []string{"cgroup", "cgroup/device", "gpu", "internal/locks", "mps"}, why: "observe reads; nothing that plans or acts belongs to it"},
	"internal/board":    {ours: []string{"gpu"}, others: []string{module, "go.yaml.in/yaml/v3"}, why: "board reads the compiled-in list of boards; what to do with one is its users' business"},
	"internal/slurm":    {strict: true, why: "slurm reads the text of a file: who else shares out GPUs is all that it can tell"},
	"internal/names":    {strict: true, why: "names tells who is called what; who may what is the daemon's"},
	"internal/text":     {strict: true, why: "text writes amounts for everybody, and so may know nobody"},
	"internal/procfs":   {why: "procfs reads /proc for everybody and so may know nobody"},
	"internal/cli":      {ours: []string{"api", "client", "gpu", "internal/board", "internal/cli/migparted", "internal/spec", "internal/store", "internal/text", "internal/version", "mig"}, others: []string{"github.com/spf13/cobra"}, why: "the command line must build without cgo and reach no driver, no cgroup and no D-Bus; it reads the state only to say what a daemon that is gone has left"},
	"internal/terminal": {ours: []string{"internal/procfs"}, why: "a line on somebody's terminal: what it says is others' business"},
	"test/enumeration":  {strict: true, why: "how much of an enumeration is gone through is asked by tests of every package"},
	"test/scenarios":    {strict: true, why: "a scenario is a description: what carries it out differs from test to test"},
	"gpusim/engine":     {why: "the time engine is arithmetic over an injected clock"},
	"cmd/gpushare":      {ours: []string{"internal/cli"}, why: "main is wiring"},
	"cmd/gpushared":     {ours: []string{"daemon", "internal/version"}, why: "main is wiring"},
	"cmd/gpushare-nvml": {ours: []string{"gpu/nvml", "gpu/worker", "gpu", "internal/version"}, why: "main is wiring"},
	"cmd/gpushare-thaw": {ours: []string{"cgroup", "internal/version"}, why: "the thawer must outlive every other part: it may depend on the least"},

	"internal/cli/migparted": {ours: []string{"internal/board", "mig"}, others: []string{"go.yaml.in/yaml/v3"}, why: "migparted reads another tool's file and says it in our words; it asks no GPU and writes nothing"},
	"internal/launch":        {ours: []string{"internal/procfs"}, why: "launch becomes a tenant's program: it must be small enough to be read whole, and know no lease"},
	"cmd/gpushare-start":     {ours: []string{"internal/launch", "internal/version"}, why: "it runs as root until it becomes the tenant's program: it may depend on the least"},

	// The daemon's rooms. Managers stand side by side: what one needs of another is an interface of its own.
	"internal/loop":       {strict: true, why: "loop runs what others decide"},
	"internal/external":   {ours: []string{"internal/slurm"}, why: "external reads who else shares out GPUs; what follows is others' business"},
	"internal/version":    {strict: true, why: "a version is a word"},
	"internal/faultpoint": {strict: true, why: "a fault point must be free where none is asked for"},
	"daemon/report":       {ours: []string{"api", "gpu", "internal/ledger", "internal/locks"}, why: "report is told what happened: it must know nobody who tells"},
	"daemon/server":       {ours: []string{"api", "cgroup", "daemon/report", "internal/locks", "internal/loop", "internal/names", "internal/procfs", "lease"}, why: "server knows who is asking; what is asked is the managers' business"},
	"daemon/attribution":  {ours: join(values, "daemon/planner", "daemon/report", "daemon/state", "daemon/stop", "internal/observe", "internal/procfs", "internal/step", "isolation", "mps"), why: "attribution says whose a process is; it stops nobody"},
	"daemon/stop":         {ours: join(values, "daemon/report", "internal/loop", "internal/procfs", "internal/terminal"), why: "stop is the one way to stop a process; whom to stop is the managers' business"},
	"daemon/devicepolicy": {ours: join(values, "cgroup/device", "daemon/planner", "daemon/report", "daemon/state", "internal/loop", "internal/observe", "internal/procfs", "internal/spec", "internal/step", "internal/store", "isolation", "mig", "mps"), why: "devicepolicy says what may be opened; who acts on it is the managers' business"},
	"daemon/change":       {ours: join(floor, "internal/engine", "internal/external", "internal/procfs", "internal/spec", "isolation", "mig", "mps"), why: manager},
	"daemon/converge":     {ours: join(floor, "cgroup/device", "internal/engine", "isolation", "mps"), why: manager},
	"daemon/leases":       {ours: join(floor, "internal/launch", "internal/procfs", "internal/terminal"), why: manager},
	"daemon/adoption":     {ours: join(floor, "internal/procfs"), why: manager},
	"daemon/enforce":      {ours: join(floor, "internal/procfs", "quota"), why: manager},
	"daemon/escape":       {ours: join(floor, "internal/procfs", "mps"), why: manager},
	"daemon/status":       {ours: join(floor, "cgroup/device", "gpu/worker", "internal/external", "internal/names", "internal/procfs", "internal/text", "internal/version", "isolation", "mps", "quota"), why: manager},
	"daemon/host":         {wiring: true, why: "host says which adapter serves which manager"},
	"daemon":              {wiring: true, others: []string{"go.yaml.in/yaml/v3"}, why: "daemon is the wiring"},
}

// onlyIn names modules that one folder alone may import directly.
var onlyIn = map[string]string{
	"github.com/NVIDIA/go-nvml":     "gpu/nvml",
	"github.com/coreos/go-systemd":  "systemd",
	"github.com/godbus/dbus":        "systemd",
	"github.com/containerd/cgroups": "cgroup",
	"github.com/cilium/ebpf":        "cgroup/device",
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func list(t *testing.T, env string) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports", "./...")
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImportsPointOneWay(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t, "CGO_ENABLED=1") {
		dir := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		seen[dir] = true
		for _, imp := range p.Imports {
			for foreign, home := range onlyIn {
				if strings.HasPrefix(imp, foreign) && dir != home {
					t.Errorf("%s imports %s: only %s may: %s", dir, imp, home, rules[home].why)
				}
			}
			if (imp == module+"/daemon") && dir != "cmd/gpushared" {
				t.Errorf("%s imports daemon: only cmd/gpushared may, because the daemon is the composition and nothing stands on it", dir)
			}
			if r, ok := rules[dir]; ok && !r.allows(imp) {
				t.Errorf("%s imports %s, which is forbidden: %s", dir, imp, r.why)
			}
			if testOnly[path.Base(imp)] && !testOnly[path.Base(dir)] {
				t.Errorf("%s imports %s, which is for tests alone", dir, imp)
			}
		}
	}
	for dir := range seen {
		if _, ok := rules[dir]; !ok && dir != "" && !ruledByItsHome(dir) {
			t.Errorf("%s has no rule: say in the table what it may import, and why", dir)
		}
	}
	for dir := range rules {
		if !seen[dir] {
			t.Errorf("the table has a rule for %s, which does not exist", dir)
		}
	}
}

// What is pure tells no time: whoever asks it says what time it is.
func TestPurePackagesHaveNoClock(t *testing.T) {
	for dir, r := range rules {
		if !r.pure {
			continue
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has %d files: %v", dir, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if from, ok := s.X.(*ast.Ident); ok && from.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}, s.Sel.Name) {
					t.Errorf("%s asks time.%s: %s", file, s.Sel.Name, r.why)
				}
				return true
			})
		}
	}
}

// testOnly are packages for tests, by the ends of their names.
var testOnly = map[string]bool{
	"observetest": true, "leasetest": true, "plannertest": true, "servertest": true, "burntest": true, "cgrouptest": true,
}

// ruledByItsHome tells whether a package needs no row: programs and packages of tests and of the virtual node may import
// what they like, because nothing of the product stands on them.
func ruledByItsHome(dir string) bool {
	return testOnly[path.Base(dir)] || strings.HasPrefix(dir, "test/") || dir == "gpusim" || strings.HasPrefix(dir, "gpusim/") || dir == "cmd/gpusim"
}

func (r rule) allows(imp string) bool {
	if imp == "C" || imp == "unsafe" {
		return !r.strict
	}
	if rest, ok := strings.CutPrefix(imp, module+"/"); ok {
		if r.wiring {
			return rest != "daemon"
		}
		for _, o := range r.ours {
			if rest == o {
				return true
			}
		}
		return false
	}
	first, _, _ := strings.Cut(imp, "/")
	if !strings.Contains(first, ".") {
		return !r.pure || !slices.Contains([]string{"bufio", "context", "io", "log", "net", "os", "syscall"}, first)
	}
	if strings.HasPrefix(imp, "golang.org/x/") {
		return !r.strict && !r.pure
	}
	for _, o := range r.others {
		if strings.HasPrefix(imp, o) {
			return true
		}
	}
	return false
}

// deps lists everything that a package reaches.
func deps(t *testing.T, p string) string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", p)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v", p, err)
	}
	return string(out)
}

func TestWhatProgramsReach(t *testing.T) {
	for _, c := range []struct{ program, forbidden, why string }{
		{"./cmd/gpushare", "github.com/NVIDIA/go-nvml", "the command line is static"},
		{"./cmd/gpushare", "github.com/godbus/dbus", "the command line speaks to the daemon only"},
		{"./cmd/gpushare", "github.com/containerd/cgroups", "the command line touches no cgroup"},
		{"./cmd/gpushared", "github.com/NVIDIA/go-nvml", "the daemon must not die when a library lacks a symbol"},
		{"./cmd/gpushare", "testing\n", "testing does not belong into production"},
		{"./cmd/gpushared", "testing\n", "testing does not belong into production"},
	} {
		if strings.Contains(deps(t, c.program)+"\n", c.forbidden) {
			t.Errorf("%s reaches %s: %s", c.program, strings.TrimSpace(c.forbidden), c.why)
		}
	}
}

// How large a part of the daemon may become: what is larger is several.
const (
	mostLines       = 2500 // of a package below daemon, without tests
	mostWiringLines = 1000
	mostFields      = 24 // of a struct
)

func TestRoomsStaySmall(t *testing.T) {
	lines := map[string]int{}
	err := filepath.WalkDir("daemon", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		lines[filepath.Dir(file)] += bytes.Count(b, []byte("\n"))
		f, err := parser.ParseFile(token.NewFileSet(), file, b, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if st, ok := spec.Type.(*ast.StructType); ok && st.Fields.NumFields() > mostFields {
				t.Errorf("%s: %s has %d fields, and %d are many enough: bundle those that belong together", file, spec.Name, st.Fields.NumFields(), mostFields)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, n := range lines {
		most := mostLines
		if dir == "daemon" {
			most = mostWiringLines
		}
		if n > most {
			t.Errorf("%s has %d lines without its tests, and may have %d", dir, n, most)
		}
	}
	if len(lines) < 10 {
		t.Errorf("only %d packages were seen below daemon", len(lines))
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	comments := map[string]int{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); path != "." && (strings.HasPrefix(n, ".") || n == "testdata" || n == "build" || n == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		comments[dir] += 0
		if f.Doc != nil {
			comments[dir]++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, n := range comments {
		if n != 1 {
			t.Errorf("%s has %d package comments, want exactly one that says what it is and what it is not", dir, n)
		}
	}
}
