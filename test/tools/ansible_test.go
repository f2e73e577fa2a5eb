//go:build tools

package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

// ansible runs one version of ansible-core on this host, with the collection of this repository.
type ansible struct {
	node *harness.Node
	root string // of what was unpacked
	dir  string
}

// ansibleVersions are the oldest version that the collection supports and the newest that Debian has.
var ansibleVersions = []string{"2.14", "2.19"}

var unpackedAnsible = sync.OnceValues(func() (string, error) { return unpack("ansible") })

func newAnsible(t *testing.T, version string) *ansible {
	t.Helper()
	unpacked, err := unpackedAnsible()
	if err != nil {
		t.Fatalf("cannot get ansible-core: %v", err)
	}
	a := &ansible{root: filepath.Join(unpacked, version), dir: t.TempDir()}
	source, err := filepath.Abs("../../ansible")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(a.dir, "ansible_collections/gpushare"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(source, filepath.Join(a.dir, "ansible_collections/gpushare/node")); err != nil {
		t.Fatal(err)
	}
	return a
}

// command prepares a program of ansible-core.
func (a *ansible) command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", append([]string{filepath.Join(a.root, "usr/bin", name)}, args...)...)
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=" + a.dir, "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH=" + filepath.Join(a.root, "usr/lib/python3/dist-packages"),
		"ANSIBLE_COLLECTIONS_PATH=" + a.dir, "ANSIBLE_COLLECTIONS_PATHS=" + a.dir, "ANSIBLE_LOCAL_TEMP=" + filepath.Join(a.dir, "tmp"),
		"ANSIBLE_LOCALHOST_WARNING=False", "ANSIBLE_INVENTORY_UNPARSED_WARNING=False",
		"ANSIBLE_DEVEL_WARNING=False",
	}
	cmd.Dir = a.dir
	return cmd
}

// task is one task of a play, and its result.
type task struct {
	name, module, arguments string
	check                   bool

	Changed    bool
	Failed     bool
	Msg        string
	Generation int
	Steps      []string
	Operation  string
	Diff       struct{ Before, After string }
	Status     struct {
		GPUs    []struct{ Mode string }
		Tenants []struct{ Name string }
	}
	Counters struct{ Writes uint64 }
	Spec     struct{ Spec json.RawMessage }
}

// run runs tasks in one play and stores their results. A failure ends it only in the results.
func (a *ansible) run(t *testing.T, tasks []*task) {
	t.Helper()
	var play strings.Builder
	play.WriteString(
		"- hosts: localhost\n  gather_facts: false\n  connection: local\n  vars: {ansible_python_interpreter: /usr/bin/python3}\n  tasks:\n",
	)
	results := make([]string, len(tasks))
	for i, task := range tasks {
		results[i] = fmt.Sprintf("r%d", i)
		fmt.Fprintf(
			&play,
			"    - gpushare.node.%s:\n        socket: %s\n%s      register: %s\n      ignore_errors: true\n      check_mode: %v\n      diff: true\n",
			task.module,
			a.node.Socket(),
			indented(task.arguments, 8),
			results[i],
			task.check,
		)
	}
	fmt.Fprintf(
		&play, "    - ansible.builtin.copy: {content: '{{ [%s] | to_json }}', dest: %s/results.json}\n      diff: false\n",
		strings.Join(results, ", "), a.dir,
	)
	file := filepath.Join(a.dir, "play.yaml")
	if err := os.WriteFile(file, []byte(play.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := a.command(t, "ansible-playbook", "-i", "localhost,", file).CombinedOutput(); err != nil {
		t.Fatalf("ansible-playbook: %v\n%s\n%s", err, play.String(), b)
	}
	b, err := os.ReadFile(filepath.Join(a.dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &tasks); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
}

func indented(text string, n int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.Repeat(" ", n) + line)
	}
	return b.String()
}

const ansibleSpec = `spec:
  version: v1
  node: {enforce: on}
  gpus:
    - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 2g.10gb]}}
    - {select: {index: 1}, mode: timeslice}
  tenants:
    - {name: vision, grants: [{name: train, mig: 3g.20gb}]}
allow_reset: true
`

// One spec, twice, with check mode, with mistakes, and one tenant of it, on a node of its own for each version of Ansible.
func TestAnsible(t *testing.T) {
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range ansibleVersions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			a := newAnsible(t, version)
			a.node = &harness.Node{Bin: bin, File: filepath.Join(t.TempDir(), "node.yaml")}
			if err := os.WriteFile(
				a.node.File, []byte("driver: 580\ngpus: [{model: A100-SXM4-40GB}, {model: A100-SXM4-40GB}]\n"), 0o644,
			); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := a.node.Close(); err != nil {
					t.Error(err)
				}
			})
			if err := a.node.Start(shortContext(t)); err != nil {
				t.Fatal(err)
			}
			a.play(t)
			a.node.StopDaemon()
			alone := &task{module: "info"}
			if a.run(t, []*task{alone}); !alone.Failed || !strings.Contains(alone.Msg, "does not answer") ||
				!strings.Contains(alone.Msg, "systemctl status gpushared") {
				t.Errorf("without the daemon: %+v", alone)
			}
		})
	}
}

// position is a place in a text.
var position = regexp.MustCompile(`(?m)(^|:)\d+:\d+: `)

// play runs all tasks of the test in one play, and reads the node after each of them.
func (a *ansible) play(t *testing.T) {
	t.Helper()
	const dev = "name: speech\ndefinition: {grants: [{name: dev, timeslice: {share: 50%, gpu_memory: 8GiB}}]}\n"
	const absent = "name: speech\nstate: absent\n"
	wrong := func(from, to string) string { return strings.Replace(ansibleSpec, from, to, 1) }
	cases := []struct {
		task
		changed bool
		says    string // empty: it does not fail
		tenants string
	}{
		{task{name: "check mode", module: "spec", arguments: ansibleSpec, check: true}, true, "", ""},
		{task{name: "the first run", module: "spec", arguments: ansibleSpec}, true, "", "vision"},
		{task{name: "the second run", module: "spec", arguments: ansibleSpec}, false, "", "vision"},
		{task{name: "check mode of the same", module: "spec", arguments: ansibleSpec, check: true}, false, "", "vision"},
		{
			task{name: "a wrong word", module: "spec", arguments: wrong("mode: timeslice", "mode: timeslices")},
			false,
			"gpus[1].mode",
			"vision",
		},
		{
			task{
				name:      "a wrong word in a file",
				module:    "spec",
				arguments: "content_file: play/node.yaml\ncontent: |\n  version: v1\n  node:\n    enforc: on\n",
			},
			false,
			"play/node.yaml:3:3: node.enforc: unknown key",
			"vision",
		},
		{
			task{name: "an impossible layout", module: "spec", arguments: wrong("[3g.20gb, 2g.10gb]", "[4g.20gb, 4g.20gb]")},
			false,
			"hint: ",
			"vision",
		},
		{
			task{name: "another generation", module: "spec", arguments: wrong("allow_reset: true", "generation: 7")},
			false,
			"it was edited from generation 7, and generation 1 is in force",
			"vision",
		},
		{task{name: "check mode of a tenant", module: "tenant", arguments: dev, check: true}, true, "", "vision"},
		{task{name: "a tenant", module: "tenant", arguments: dev}, true, "", "vision speech"},
		{task{name: "the same tenant", module: "tenant", arguments: dev}, false, "", "vision speech"},
		{task{name: "another share", module: "tenant", arguments: strings.Replace(dev, "50%", "40%", 1)}, true, "", "vision speech"},
		{task{name: "check mode without the tenant", module: "tenant", arguments: absent, check: true}, true, "", "vision speech"},
		{task{name: "without the tenant", module: "tenant", arguments: absent}, true, "", "vision"},
		{task{name: "still without the tenant", module: "tenant", arguments: absent}, false, "", "vision"},
		{
			task{name: "a wrong tenant", module: "tenant", arguments: strings.Replace(dev, "timeslice", "timeslices", 1)},
			false,
			"timeslices: unknown key",
			"vision",
		},
		{task{name: "no definition", module: "tenant", arguments: "name: speech\n"}, false, "definition", "vision"},
	}
	tasks := []*task{{module: "info", arguments: "gather: [counters]\n"}}
	for i := range cases {
		tasks = append(tasks, &cases[i].task, &task{module: "info", arguments: "gather: [status, counters]\n"})
	}
	last := &task{module: "info", arguments: "gather: [spec, plan, mig, doctor]\n"}
	a.run(t, append(tasks, last))
	for i := range cases {
		c, before, after := &cases[i], tasks[2*i], tasks[2*i+2]
		if c.Failed != (c.says != "") || c.Changed != c.changed || !strings.Contains(c.Msg, c.says) {
			t.Errorf("%s: %+v", c.name, c.task)
		}
		if position.MatchString(c.Msg) && !strings.Contains(c.arguments, "content:") {
			t.Errorf("%s: a dictionary has no lines, and the error names one: %s", c.name, c.Msg)
		}
		// A share of time is no write to the node.
		if wrote := after.Counters.Writes - before.Counters.Writes; wrote != 0 && (!c.changed || c.check) {
			t.Errorf("%s: the daemon wrote %d times", c.name, wrote)
		}
		tenants := []string{}
		for _, x := range after.Status.Tenants {
			tenants = append(tenants, x.Name)
		}
		if strings.Join(tenants, " ") != c.tenants || after.Changed {
			t.Errorf("%s: tenants: %v", c.name, tenants)
		}
	}
	if check := &cases[0]; len(check.Steps) == 0 || check.Operation != "" || check.Diff.Before != "" ||
		!strings.Contains(check.Diff.After, "3g.20gb") {
		t.Errorf("check mode: %+v", check.task)
	}
	if first, second := &cases[1], &cases[2]; first.Operation == "" || first.Generation != 1 || second.Generation != 1 ||
		len(second.Steps) != 0 {
		t.Errorf("the first and the second run: %+v, %+v", first.task, second.task)
	}
	if !bytes.Contains(last.Spec.Spec, []byte(`"3g.20gb"`)) || last.Failed {
		t.Errorf("at the end: %+v", last)
	}
}

// The documentation of the modules and of the role can be read, and the role and the examples of the documentation have the right
// syntax. The role is run in the virtual machines: here it would install services on this host.
func TestAnsibleDocumentation(t *testing.T) {
	a := newAnsible(t, "2.19")
	var documents map[string]struct {
		Doc struct {
			Options map[string]struct{ Description any }
		}
		Return map[string]any
	}
	b, err := a.command(
		t, "ansible-doc", "--json", "gpushare.node.spec", "gpushare.node.tenant", "gpushare.node.info", "gpushare.node.members",
	).Output()
	if err == nil {
		err = json.Unmarshal(b, &documents)
	}
	if err != nil || len(documents) != 4 {
		t.Fatalf("ansible-doc: %v\n%s", err, b)
	}
	for name, p := range documents {
		first := "socket"
		if name == "gpushare.node.members" {
			first = "group"
		}
		if p.Doc.Options[first].Description == nil || len(p.Return) == 0 {
			t.Errorf("%s has the options %v", name, p.Doc.Options)
		}
	}
	b, err = a.command(t, "ansible-doc", "--type", "role", "--json", "gpushare.node.node").Output()
	if err != nil || !bytes.Contains(b, []byte("gpushare_spec")) {
		t.Errorf("ansible-doc of the role: %v\n%s", err, b)
	}
	text, err := os.ReadFile("../../docs/ansible.md")
	if err != nil {
		t.Fatal(err)
	}
	plays := []string{"- {hosts: localhost, roles: [gpushare.node.node]}\n"}
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		play := m[1]
		if strings.HasPrefix(play, "- name:") { // tasks
			play = "- hosts: gpu\n  tasks:\n    " + strings.ReplaceAll(play, "\n", "\n    ")
		}
		plays = append(plays, play)
	}
	if len(plays) != 3 {
		t.Errorf("%d examples were found", len(plays)-1)
	}
	for i, play := range plays {
		file := filepath.Join(a.dir, fmt.Sprintf("syntax%d.yaml", i))
		if err := os.WriteFile(file, []byte(play), 0o644); err != nil {
			t.Fatal(err)
		}
		if b, err := a.command(t, "ansible-playbook", "-i", "gpu,", "--syntax-check", file).CombinedOutput(); err != nil {
			t.Errorf("the syntax of\n%s\n%v\n%s", play, err, b)
		}
	}
}

// The inventory and the playbook of many nodes are read by both versions: each node has its spec and the variables of its group.
func TestAnsibleExampleOfManyNodes(t *testing.T) {
	dir, err := filepath.Abs("../../examples/ansible")
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range ansibleVersions {
		t.Run(version, func(t *testing.T) {
			a := newAnsible(t, version)
			inventory := filepath.Join(dir, "inventory.yaml")
			b, err := a.command(t, "ansible-inventory", "-i", inventory, "--list").Output()
			var list struct {
				Meta struct {
					HostVars map[string]map[string]any `json:"hostvars"`
				} `json:"_meta"`
			}
			if err == nil {
				err = json.Unmarshal(b, &list)
			}
			if err != nil || len(list.Meta.HostVars) != 21 {
				t.Fatalf("ansible-inventory has %d nodes, %v: %s", len(list.Meta.HostVars), err, b)
			}
			for host, want := range map[string]string{
				"node01.example.org": "specs/a100.yaml", "node20.example.org": "specs/h200.yaml", "node21.example.org": "specs/node21.yaml",
			} {
				v := list.Meta.HostVars[host]
				if v["gpushare_site_spec"] != want || v["gpushare_package"] != "gpushare" {
					t.Errorf("%s has %v", host, v)
				}
			}
			if b, err := a.command(t, "ansible-playbook", "-i", inventory, "--syntax-check", filepath.Join(dir, "site.yml")).
				CombinedOutput(); err != nil {
				t.Errorf("the syntax of site.yml: %v\n%s", err, b)
			}
		})
	}
}

// ansible-lint of this host's Debian, with its strictest profile, finds nothing in the collection.
func TestAnsibleLint(t *testing.T) {
	root, err := unpack("ansiblelint")
	if err != nil {
		t.Fatalf("cannot get ansible-lint: %v", err)
	}
	a := &ansible{root: root, dir: t.TempDir()}
	// A copy, because ansible-lint writes next to what it reads, and takes the rules of the repository that it is in.
	collection := filepath.Join(a.dir, "ansible_collections/gpushare/node")
	if err := os.CopyFS(collection, os.DirFS("../../ansible")); err != nil {
		t.Fatal(err)
	}
	cmd := a.command(t, "ansible-lint", "--profile", "production", "--strict", "--nocolor", "--parseable")
	cmd.Dir = collection
	cmd.Env = append(cmd.Env, "PATH="+filepath.Join(root, "usr/bin")+":/usr/bin:/bin") // It starts ansible-playbook.
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	// A run that found no files passes too.
	if !regexp.MustCompile(`on 1[0-9] files`).Match(out) {
		t.Errorf("it says\n%s", out)
	}
}
