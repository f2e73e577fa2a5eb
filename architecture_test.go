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

// reader replaces calls of the standard library that read without a bound: every package may import it that may read files.
const reader = "internal/boundedread"

// rule lists the direct imports that a package may have, of this module and of other modules. The standard library and
// golang.org/x are allowed unless strict is set. why is part of the failure message.
type rule struct {
	own    []string
	others []string
	strict bool // the standard library only
	wiring bool // any package of this module: it is the composition
	pure   bool // nothing that reads a file, a process, the network or a clock
	why    string
}

// values are the packages that every part of the daemon may import; internal/locks has the order of all locks.
var values = []string{"api", "cgroup", "gpu", "internal/locks", "internal/rename", "lease"}

// shared are the packages that every manager may import.
var shared = join(
	values,
	"daemon/adminaction",
	"daemon/attribution",
	"daemon/closing",
	"daemon/devicepolicy",
	"daemon/planner",
	"daemon/report",
	"daemon/server",
	"daemon/state",
	"daemon/stop",
	"internal/loop",
	"internal/observe",
	"internal/step",
	"internal/store",
)

const manager = "a manager imports no manager and no adapter: it declares an interface for what it needs, and the wiring fills it"

func join(base []string, more ...string) []string { return slices.Concat(base, more) }

var rules = map[string]rule{
	"api":    {strict: true, why: "api is the wire format: every program imports it, so it has no dependencies and no logic"},
	"client": {own: []string{"api"}, why: "other programs use the client too: it must not import the daemon"},
	"gpu":    {strict: true, why: "gpu is a port: it must not depend on an implementation"},
	"gpu/worker": {
		own: []string{"gpu", "internal/kernel/procfs"},
		why: "the worker carries the port across a process boundary, for every implementation",
	},
	"gpu/nvml": {
		own:    []string{"gpu"},
		others: []string{"github.com/NVIDIA/go-nvml"},
		why:    "gpu/nvml is the only package that uses NVML",
	},
	"cgroup": {
		own:    []string{"internal/faultpoint", "internal/loop", "internal/kernel/procfs", "cgroup/device"},
		others: []string{"github.com/containerd/cgroups"},
		why:    "cgroup is a port and the adapters without a service manager",
	},
	"cgroup/device": {others: []string{"github.com/cilium/ebpf"}, why: "cgroup/device uses BPF, and it knows only device numbers"},
	"systemd": {
		own:    []string{"cgroup", "internal/durable", "internal/kernel/procfs"},
		others: []string{"github.com/coreos/go-systemd", "github.com/godbus/dbus"},
		why:    "systemd is an adapter of the port of cgroup and the only package that uses D-Bus",
	},
	"mig": {
		own: []string{"gpu", "internal/step", "internal/text"},
		why: "the planner is pure: the command line uses it without a daemon or a GPU",
	},
	"mps": {
		own:  []string{"gpu", "internal/step"},
		pure: true,
		why:  "mps describes: package mps/control runs and reads",
	},
	"mps/control": {
		own: []string{
			"gpu",
			"internal/before",
			"internal/durable",
			"internal/kernel/acl",
			"internal/kernel/passed",
			"internal/kernel/procfs",
			"internal/kernel/sockdiag",
			"internal/locks",
			"internal/loop",
			"internal/step",
			"mps",
		},
		why: "mps/control supervises control daemons; other packages decide which user may use them",
	},
	"mps/detached": {
		own: []string{"internal/durable", "internal/kernel/procfs", "internal/locks", "mps"},
		why: "mps/detached runs processes: it knows a service, and not what it does",
	},
	"power": {
		own: []string{"gpu", "internal/before", "internal/locks", "internal/step"},
		why: "power sets limits of GPUs; the spec decides on them",
	},
	"isolation": {
		own:    []string{"gpu", "cgroup", "cgroup/device", "internal/locks", "internal/step", "internal/text"},
		others: []string{"tags.cncf.io/container-device-interface/specs-go"},
		why:    "isolation turns a grant into restrictions; it must not know the wire format or the daemon",
	},
	"lease": {
		own: []string{"gpu", "api", "internal/locks", "internal/owed", "internal/rename", "internal/text"},
		why: "the lease table uses small interfaces: it must not know their implementations",
	},
	"quota":  {own: []string{"gpu", "internal/owed", "internal/text"}, pure: true, why: "quota decides, other packages act"},
	"health": {own: []string{"gpu"}, pure: true, why: "health decides from values; daemon/health reads GPUs and closes them"},
	"daemon/adminaction": {
		own: join(values, "daemon/report", "daemon/server", "daemon/state", "internal/store"),
		why: "adminaction carries out what a manager decides",
	},
	"daemon/closing": {
		own:  []string{"api", "gpu", "health", "internal/store"},
		pure: true,
		why:  "closing is values: the closers decide when a place is closed, and pass the time",
	},
	"daemon/state": {
		own: []string{
			"api",
			"cgroup",
			"daemon/closing",
			"gpu",
			"internal/engine",
			"internal/locks",
			"internal/observe",
			"internal/rename",
			"internal/spec",
			"internal/step",
			"internal/store",
			"lease",
			"mig",
			"power",
		},
		why: "state is values and queries of them: it plans nothing",
	},
	"daemon/planner": {
		own: []string{
			"api",
			"cgroup",
			"cgroup/device",
			"daemon/closing",
			"daemon/state",
			"gpu",
			"internal/observe",
			"internal/rename",
			"internal/spec",
			"internal/step",
			"internal/store",
			"internal/text",
			"isolation",
			"lease",
			"mig",
			"mps",
		},
		pure: true,
		why:  "planner computes steps from values: the caller reads all input before",
	},
	"internal/rename": {strict: true, pure: true, why: "rename is values: what has a name that was replaced looks it up"},
	"internal/owed": {
		own:  []string{"internal/locks", "internal/rename"},
		pure: true,
		why:  "owed is a table of values: quota and lease write into it, and pass the time",
	},
	"internal/step": {strict: true, why: "a step is data that must be decodable after a restart"},
	"internal/store": {
		own: []string{"gpu", "internal/durable", "internal/faultpoint", "internal/locks", "internal/rename"},
		why: "the store keeps bytes and their checksums; its users interpret them",
	},
	"internal/locks": {strict: true, why: "the order of locks must not depend on packages that take locks"},
	"internal/ledger": {
		own: []string{"api", "internal/faultpoint"},
		why: "the ledger appends lines, and says in the words of the API what a verification found",
	},
	"internal/usage": {own: []string{"gpu", "internal/ledger"}, why: "usage adds up what is reported to it: it measures nothing"},
	"internal/engine": {
		own: []string{"gpu", "internal/locks", "internal/step", "internal/store", "internal/faultpoint"},
		why: "the engine runs steps of any kind: it must not know the kinds",
	},
	"internal/spec": {
		own:    []string{"api", "gpu", "internal/rename"},
		others: []string{"go.yaml.in/yaml/v3"},
		why:    "spec reads documents and resolves selectors; it plans nothing",
	},
	"internal/observe": {
		own: []string{"cgroup", "cgroup/device", "gpu", "internal/locks", "mps"},
		why: "observe reads: it does not plan or act",
	},
	"internal/board": {
		own:    []string{"gpu", "internal/boundedread"},
		others: []string{module, "go.yaml.in/yaml/v3"},
		why:    "board reads the embedded list of boards and that of the site, and decides nothing",
	},
	"internal/names":         {why: "names resolves users and groups; the daemon decides on their roles"},
	"internal/text":          {strict: true, why: "every package may import text, so text imports none"},
	"gpusim/finetime":        {why: "finetime is a clock: it knows no user of it"},
	"internal/kernel/procfs": {why: "every package may import procfs, so procfs imports none but the reader"},
	reader:                   {why: "every package that reads a file may import the reader, so it imports none"},
	"internal/cli": {
		own: []string{
			"api",
			"client",
			"examples/slurm",
			"gpu",
			"internal/board",
			"internal/chart",
			"internal/cli/miglisting",
			"internal/cli/migparted",
			"internal/durable",
			"internal/enter",
			"internal/external",
			"internal/hostlist",
			"internal/ledger",
			"internal/kernel/procfs",
			"internal/remote",
			"internal/slurm",
			"internal/spec",
			"internal/store",
			"internal/text",
			"internal/top",
			"internal/top/screen",
			"internal/version",
			"mig",
		},
		others: []string{module, "github.com/spf13/cobra"},
		why:    "the command line builds without cgo and uses no driver, no cgroup and no D-Bus; it reads the state only to report active restrictions and to verify the audit without a daemon",
	},
	"internal/enter": {
		own:    []string{"api", "internal/text"},
		others: []string{"golang.org/x/sys/unix"},
		why:    "each package that enter links adds to the time that a command waits",
	},
	"internal/terminal": {
		own: []string{"internal/kernel/procfs"},
		why: "terminal writes a line to a user's terminal; other packages write the text",
	},
	"packaging/share": {
		own:    []string{"internal/cli"},
		others: []string{"github.com/cpuguy83/go-md2man", "github.com/spf13/cobra"},
		why:    "it writes files for packages when they are built, and is in no package",
	},
	"test/enumeration": {strict: true, why: "tests of every package use it"},
	"test/scenarios":   {strict: true, why: "a scenario is a description: each test carries it out differently"},
	"gpusim/engine":    {why: "the time engine is arithmetic over an injected clock"},
	"cmd/gpushare":     {own: []string{"internal/enter"}, why: "a command waits for its start: it links nothing that a run does not need"},
	"cmd/gpushare-cli": {own: []string{"internal/cli"}, why: "main is wiring"},
	"cmd/gpushared": {
		own: []string{"daemon", "daemon/settings", "internal/loop", "internal/monitor", "internal/version"},
		why: "main is wiring",
	},
	"cmd/gpushare-nvml": {
		own: []string{"gpu/nvml", "gpu/worker", "gpu", "internal/resident", "internal/sandbox", "internal/version"},
		why: "main is wiring",
	},
	"cmd/gpushare-thaw": {
		own: []string{"cgroup", "internal/version"},
		why: "the thaw watchdog must outlive every other program: it has the fewest dependencies",
	},

	"internal/chart": {
		own:  []string{"api", "internal/text"},
		pure: true,
		why:  "chart is the values of a plot: the terminal and the image draw the same ones",
	},
	"internal/top": {
		own:    []string{"api", "internal/text"},
		others: []string{"github.com/clipperhouse/displaywidth"},
		pure:   true,
		why:    "top draws frames of values: it has no clock, no terminal and no connection",
	},
	"internal/top/screen": {
		own:    []string{"api", "internal/top"},
		others: []string{"github.com/gdamore/tcell/v3"},
		why:    "only screen knows the library of the terminal",
	},
	"internal/plotimage": {
		own:    []string{"internal/chart"},
		others: []string{"gonum.org/v1/plot"},
		why:    "plotimage is linked into gpushare-plot only, because its fonts take long to load",
	},
	"cmd/gpushare-plot": {
		own: []string{"internal/chart", "internal/plotimage", "internal/version"},
		why: "it reads a chart and writes an image: it opens nothing",
	},

	"internal/vendorcdi": {
		own:    []string{"isolation"},
		others: []string{"go.yaml.in/yaml/v3", "tags.cncf.io/container-device-interface/specs-go"},
		why:    "vendorcdi reads a file of the vendor; it writes nothing",
	},
	"internal/cli/miglisting": {
		own:    []string{"internal/board", "internal/text", "mig"},
		others: []string{"go.yaml.in/yaml/v3"},
		why:    "miglisting converts a listing of another tool; it reads no GPU and no file",
	},
	"internal/cli/migparted": {
		own:    []string{"api", "internal/board", "internal/text", "mig"},
		others: []string{"go.yaml.in/yaml/v3"},
		why:    "migparted converts the file of another tool; it reads no GPU and writes nothing",
	},
	"internal/before": {
		own: []string{"gpu", "internal/durable"},
		why: "before keeps records: what restores a setting knows whether they apply",
	},
	"internal/durable":         {why: "durable writes bytes; its callers know what they mean"},
	"internal/kernel/acl":      {why: "acl reads and writes lists; mps decides who is in one"},
	"internal/kernel/passed":   {why: "passed reads and closes connections; what they carry is for its callers"},
	"internal/kernel/sockdiag": {why: "sockdiag asks the kernel and decides nothing"},
	"internal/fuse": {
		own: []string{"internal/kernel/procfs"},
		why: "fuse reads and aborts connections; daemon/stop decides which",
	},
	"internal/request": {
		own: []string{"api", "internal/locks", "internal/version"},
		why: "request reads what a caller sent, in the daemon and in the front; it knows no route",
	},
	"internal/sandbox": {why: "sandbox restricts the process that calls it; each program has its own list"},
	"internal/front": {
		own: []string{"api", "internal/kernel/passed", "internal/request", "internal/sandbox"},
		why: "it reads what every user sends: it must be small, and have nothing of the daemon",
	},
	"cmd/gpushare-front": {own: []string{"internal/front", "internal/version"}, why: "main is wiring"},
	"internal/kernel/exits": {
		own: []string{"internal/kernel/procfs"},
		why: "exits reads messages of the kernel; the caller knows what a process is",
	},
	"internal/kernel/kernellog": {why: "kernellog reads errors of GPUs in the log; the caller decides what they mean"},
	"internal/kernel/descent": {
		own:    []string{"internal/kernel/procfs"},
		others: []string{"github.com/cilium/ebpf"},
		why:    "descent keeps the kernel's record of processes; daemon/escape decides about them",
	},
	"internal/kernel/opener": {
		own:    []string{"internal/kernel/descent", "internal/boundedread"},
		others: []string{"github.com/cilium/ebpf"},
		why:    "opener asks the kernel; daemon/attribution decides what it means",
	},
	"internal/relay": {why: "relay sends what it is given: whom to signal is decided elsewhere"},
	"internal/launch": {
		own: []string{"internal/kernel/procfs"},
		why: "launch executes a tenant's program as root until then: it must be small and know no lease",
	},
	"cmd/gpushare-start": {
		own: []string{"internal/launch", "internal/relay", "internal/version"},
		why: "it runs as root until it executes the tenant's program: it has the fewest dependencies",
	},

	// The packages of the daemon. A manager declares an interface for what it needs of another.
	"internal/loop":     {why: "loop only runs functions of other packages, when it is time"},
	"internal/resident": {why: "resident returns memory of any program"},
	"internal/monitor":  {why: "monitor relaxes a thread of any program"},
	"internal/slurm": {
		own:  []string{"api"},
		pure: true,
		why:  "what Slurm must know is a pure function of the status, and so is a comparison",
	},
	"examples/slurm":      {strict: true, why: "scripts are files: 'gpushare slurm install' writes them"},
	"internal/hostlist":   {strict: true, pure: true, why: "hostlist is text: names are resolved by ssh"},
	"internal/remote":     {why: "remote runs any command: what a host answers is read elsewhere"},
	"internal/external":   {why: "external finds other schedulers of GPUs and decides nothing"},
	"internal/version":    {strict: true, why: "version is one string"},
	"internal/faultpoint": {strict: true, why: "a fault point must cost nothing when it is not used"},
	"daemon/report": {
		own: []string{"api", "gpu", "internal/ledger", "internal/locks", "internal/text"},
		why: "every part reports to report, so report imports no part",
	},
	"daemon/server": {
		own: []string{
			"api",
			"cgroup",
			"daemon/report",
			"internal/durable",
			"internal/front",
			"internal/locks",
			"internal/loop",
			"internal/names",
			"internal/kernel/passed",
			"internal/kernel/procfs",
			"internal/request",
			"lease",
		},
		why: "server identifies the caller; the managers handle the request",
	},
	"daemon/attribution": {
		own: join(
			values, "daemon/planner", "daemon/report", "daemon/state", "daemon/stop", "internal/observe", "internal/kernel/opener",
			"internal/kernel/procfs", "internal/step", "isolation", "mps",
		),
		why: "attribution finds the lease of a process; it stops no process",
	},
	"daemon/stop": {
		own: join(
			values, "daemon/report", "internal/faultpoint", "internal/fuse", "internal/loop", "internal/kernel/procfs", "internal/step",
			"internal/terminal",
		),
		why: "stop is the one way to stop a process; the managers decide which",
	},
	"daemon/devicepolicy": {
		own: join(
			values,
			"cgroup/device",
			"daemon/planner",
			"daemon/report",
			"daemon/state",
			"internal/durable",
			"internal/loop",
			"internal/observe",
			"internal/kernel/procfs",
			"internal/spec",
			"internal/step",
			"internal/store",
			"internal/vendorcdi",
			"isolation",
			"mig",
			"mps",
		),
		why: "devicepolicy decides which devices may be opened; the managers apply it",
	},
	"daemon/settings": {
		own:    []string{"api", "internal/names"},
		others: []string{"go.yaml.in/yaml/v3"},
		why:    "settings reads one file: it starts nothing, so that a check of the settings has no effect",
	},
	"daemon/specs": {
		own: []string{
			"api", "daemon/report", "daemon/server", "daemon/state", "internal/rename", "internal/spec", "internal/store", "internal/text",
		},
		why: "specs knows which spec is in force; only change accepts one",
	},
	"daemon/change": {
		own: join(
			shared,
			"daemon/specs",
			"internal/engine",
			"internal/external",
			"internal/kernel/procfs",
			"internal/spec",
			"isolation",
			"mig",
			"mps",
			"power",
		),
		why: manager,
	},
	"daemon/instances": {own: join(shared, "internal/engine", "mig"), why: manager},
	"daemon/unmanage": {
		own: join(shared, "internal/spec", "isolation", "power"),
		why: manager,
	},
	"daemon/converge": {
		own: join(shared, "cgroup/device", "internal/engine", "internal/text", "isolation", "mps", "power", "quota"),
		why: manager,
	},
	"daemon/acknowledge": {own: shared, why: manager},
	"daemon/lostfiles":   {own: shared, why: manager},
	"daemon/metrics": {
		own:    join(shared, "gpu/worker", "internal/durable", "internal/usage", "internal/version"),
		others: []string{"github.com/prometheus", "go.yaml.in/yaml/v3"},
		why:    manager,
	},
	"daemon/mps/control": {own: shared, why: manager},
	"daemon/cordon":      {own: shared, why: manager},
	"daemon/maintenance": {own: join(shared, "internal/text"), why: manager},
	"daemon/leases":      {own: join(shared, "internal/launch", "internal/kernel/procfs", "internal/terminal"), why: manager},
	"daemon/engines":     {own: shared, why: manager},
	"daemon/adoption":    {own: join(shared, "internal/kernel/procfs"), why: manager},
	"daemon/enforce": {
		own: join(shared, "health", "internal/faultpoint", "internal/kernel/procfs", "internal/usage", "quota"),
		why: manager,
	},
	"daemon/account":     {own: join(shared, "internal/names", "internal/usage"), why: manager},
	"daemon/outside":     {own: join(shared, "internal/kernel/procfs", "internal/usage", "quota"), why: manager},
	"daemon/instanceuse": {own: join(shared, "internal/usage"), why: manager},
	"daemon/memorylimit": {own: join(shared, "quota"), why: manager},
	"daemon/escape":      {own: join(shared, "internal/kernel/procfs"), why: manager},
	"daemon/fronting": {
		own: []string{"daemon/report", "internal/front", "internal/locks", "internal/loop", "internal/sandbox"},
		why: "fronting keeps a process running and passes connections to it; it reads nothing of a caller",
	},
	"daemon/mps/bypass": {own: join(shared, "internal/kernel/procfs", "mps"), why: manager},
	"daemon/mps/fault":  {own: join(shared, "internal/kernel/procfs", "mps"), why: manager},
	"daemon/health":     {own: join(shared, "health", "internal/kernel/kernellog"), why: manager},
	"daemon/mps/access": {own: join(shared, "internal/kernel/procfs", "mps", "mps/control"), why: manager},
	"daemon/status": {
		own: join(
			shared, "cgroup/device", "gpu/worker", "internal/external", "internal/ledger", "internal/names",
			"internal/kernel/procfs", "internal/slurm", "internal/text", "internal/version", "isolation", "mps", "power", "quota",
		),
		why: manager,
	},
	"daemon/host": {wiring: true, why: "host says which adapter serves which manager"},
	"daemon":      {wiring: true, why: "daemon is the wiring"},
}

// onlyIn has modules that only one package may import directly.
var onlyIn = map[string]string{
	"github.com/NVIDIA/go-nvml":     "gpu/nvml",
	"github.com/coreos/go-systemd":  "systemd",
	"github.com/godbus/dbus":        "systemd",
	"github.com/containerd/cgroups": "cgroup",
	"github.com/prometheus":         "daemon/metrics",
	"gonum.org":                     "internal/plotimage",
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

// A command waits for the start of gpushare, and what it links is initialised before it does anything.
func TestGpushareLinksLittle(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/gpushare")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := strings.Fields(string(out))
	for _, name := range all {
		first, _, _ := strings.Cut(name, "/")
		outside := strings.Contains(first, ".") && !strings.HasPrefix(name, module+"/") && name != "golang.org/x/sys/unix"
		if outside || slices.Contains([]string{"net", "crypto", "regexp", "log", "compress", "mime"}, first) || name == "os/exec" ||
			name == "os/signal" {
			t.Errorf("cmd/gpushare links %s: a run does without it, or leaves that to the command line", name)
		}
	}
	if !slices.Contains(all, module+"/internal/enter") {
		t.Errorf("internal/enter is not in the list of %d packages", len(all))
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
				t.Errorf("%s imports daemon: only cmd/gpushared may, because the daemon is the composition", dir)
			}
			if r, ok := rules[dir]; ok && !r.allows(imp) {
				t.Errorf("%s imports %s, which is forbidden: %s", dir, imp, r.why)
			}
			if testOnly[path.Base(imp)] && !testOnly[path.Base(dir)] {
				t.Errorf("%s imports %s, which is for tests only", dir, imp)
			}
		}
	}
	for dir := range seen {
		if _, ok := rules[dir]; !ok && dir != "" && !needsNoRule(dir) {
			t.Errorf("%s has no rule: add a row with its imports and the reason", dir)
		}
	}
	for dir := range rules {
		if !seen[dir] {
			t.Errorf("the table has a rule for %s, which does not exist", dir)
		}
	}
}

// A pure package has no clock: the caller passes the time.
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
				if from, ok := s.X.(*ast.Ident); ok && from.Name == "time" &&
					slices.Contains(
						[]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}, s.Sel.Name,
					) {
					t.Errorf("%s uses time.%s: %s", file, s.Sel.Name, r.why)
				}
				return true
			})
		}
	}
}

// testOnly has the names of packages for tests.
var testOnly = map[string]bool{
	"observetest": true,
	"leasetest":   true,
	"procfstest":  true,
	"plannertest": true,
	"servertest":  true,
	"storetest":   true,
	"burntest":    true,
	"cgrouptest":  true,
}

// needsNoRule reports whether a package needs no row: tests and the virtual node may import everything, because the product does
// not import them.
func needsNoRule(dir string) bool {
	return testOnly[path.Base(dir)] || strings.HasPrefix(dir, "test/") || dir == "gpusim" || strings.HasPrefix(dir, "gpusim/") ||
		dir == "cmd/gpusim"
}

func (r rule) allows(imp string) bool {
	if imp == "C" || imp == "unsafe" {
		return !r.strict
	}
	if rest, ok := strings.CutPrefix(imp, module+"/"); ok {
		if r.wiring {
			return rest != "daemon"
		}
		if rest == reader && !r.strict && !r.pure {
			return true
		}
		for _, o := range r.own {
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

// deps lists all direct and indirect imports of a package.
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

func TestImportsOfPrograms(t *testing.T) {
	for _, c := range []struct{ program, forbidden, why string }{
		{"./cmd/gpushare", "github.com/NVIDIA/go-nvml", "the command line is static"},
		{"./cmd/gpushare", "github.com/godbus/dbus", "the command line connects to the daemon only"},
		{"./cmd/gpushare", "github.com/containerd/cgroups", "the command line uses no cgroup"},
		{"./cmd/gpushared", "github.com/NVIDIA/go-nvml", "the daemon must not die when a library lacks a symbol"},
		{"./cmd/gpushare", "testing\n", "testing does not belong in production"},
		{"./cmd/gpushared", "testing\n", "testing does not belong in production"},
	} {
		if strings.Contains(deps(t, c.program)+"\n", c.forbidden) {
			t.Errorf("%s imports %s: %s", c.program, strings.TrimSpace(c.forbidden), c.why)
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
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
			t.Errorf("%s has %d package comments, want exactly one that says what the package does and does not do", dir, n)
		}
	}
}

// writers are the files that make files in another way than package durable, and why that reaches no file of another user.
var writers = map[string]string{
	"cgroup/deadline.go":                             "a lock in the run directory, which only root writes to",
	"cgroup/thawlock.go":                             "a lock in the run directory, which only root writes to",
	"internal/kernel/descent/former.go":              "a file of the kernel",
	"internal/front/confine.go":                      "a file of the kernel",
	"internal/launch/auditlogin.go":                  "a file of the kernel",
	"internal/launch/exec.go":                        "a file of the kernel",
	"internal/launch/privileges.go":                  "a file of the kernel",
	"internal/launch/record.go":                      "a directory that only root reads",
	"internal/launch/rotate.go":                      "a directory that only root reads",
	"mps/detached/services.go":                       "the log of a service in a directory that only root reads, and a file of the kernel",
	"mps/detached/log.go":                            "the log of a service in a directory that only root reads",
	"cmd/gpusim/serve.go":                            "the directory of a virtual node",
	"internal/store/store.go":                        "osDir.Open adds O_NOFOLLOW",
	"internal/kernel/procfs/procfstest/reusedpid.go": "a file of the kernel, in tests",
	"daemon/server/servertest/access.go":             "the directory of a test",
}

// A file is written by package durable: new, in its directory, without following a link. Else it is made with O_EXCL or O_NOFOLLOW,
// or the table has the reason.
func TestFilesAreWrittenOneWay(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (file == "test" || file == "gpusim" || file == "packaging" || file == "bin" || file == "build" || strings.HasPrefix(d.Name(), ".") && file != "."):
			return fs.SkipDir // Programs for developers.
		case d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "internal/durable/"):
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !makesFiles(call) {
				return true
			}
			if writers[file] == "" {
				t.Errorf("%s makes a file: use durable.Replace, which follows no link", file)
			}
			seen[file] = true
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for file := range writers {
		if !seen[file] {
			t.Errorf("%s makes no file any more: remove it from the table", file)
		}
	}
}

// makesFiles reports whether a call may write to a file through a link.
func makesFiles(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if p, ok := f.X.(*ast.Ident); ok && p.Name == "os" && slices.Contains([]string{"WriteFile", "Create", "CreateTemp"}, f.Sel.Name) {
		return true
	}
	if !slices.Contains([]string{"OpenFile", "Open", "Openat", "Openat2"}, f.Sel.Name) {
		return false
	}
	creates, safe := false, false
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				creates = creates || id.Name == "O_CREATE" || id.Name == "O_CREAT"
				safe = safe || id.Name == "O_EXCL" || id.Name == "O_NOFOLLOW"
			}
			return true
		})
	}
	return creates && !safe
}
