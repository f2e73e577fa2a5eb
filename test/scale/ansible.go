package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// otherCalls is how many calls of modules the role has next to that of the spec: the settings, four services, two groups. Here they are
// replaced by a module that does nothing, because the role would install services on this host.
const otherCalls = 7

// controller is a directory with a play for many hosts.
type controller struct {
	*site
	dir string
}

// measureAnsible runs a play on many hosts. The connection is a stand-in of ssh, which starts the modules here, and the daemon of each
// host gives the answers that the virtual node gave to one host.
func (s *site) measureAnsible(ctx context.Context, n *node) error {
	if s.ansible == "" {
		fmt.Fprintln(s.out, "Ansible was not measured: -ansible names the directory where it is unpacked")
		return nil
	}
	dir, err := os.MkdirTemp("", "scale")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := &controller{s, dir}
	if err := c.prepare(); err != nil {
		return err
	}
	fmt.Fprintf(
		s.out,
		"\nAnsible on %d processors, %d hosts, %d forks, %d calls of modules on each, without ssh\n",
		runtime.NumCPU(),
		s.hosts,
		s.forks,
		otherCalls+1,
	)
	for _, what := range []string{"a limit of each tenant changed", "without a change"} { // The second has the same spec.
		if err := c.measure(ctx, n, what, what == "without a change"); err != nil {
			return err
		}
	}
	return nil
}

func (c *controller) prepare() error {
	collection, err := filepath.Abs("ansible")
	if err == nil {
		c.ansible, err = filepath.Abs(c.ansible) // The play runs in another directory.
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(collection, "galaxy.yml")); err != nil {
		return fmt.Errorf("it runs in the directory of the repository: %w", err)
	}
	const hostVars = " ansible_connection=local ansible_python_interpreter=/usr/bin/python3\n"
	var hosts strings.Builder
	for i := range c.hosts {
		hosts.WriteString("node" + strconv.Itoa(i) + hostVars)
	}
	return errors.Join(
		os.MkdirAll(filepath.Join(c.dir, "ansible_collections/gpushare"), 0o755),
		os.Symlink(collection, filepath.Join(c.dir, "ansible_collections/gpushare/node")),
		c.write("spec.yaml", spec(3000)),
		c.write("one", "node0"+hostVars),
		c.write("all", hosts.String()),
		c.write("play.yaml", fmt.Sprintf(`- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.ping:
      loop: "{{ range(%d) | list }}"
    - gpushare.node.spec:
        socket: %s
        content: "{{ lookup('ansible.builtin.file', '%s') }}"
`, otherCalls, filepath.Join(c.dir, "socket"), filepath.Join(c.dir, "spec.yaml"))),
	)
}

func (c *controller) write(name, text string) error {
	return os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600)
}

// changedHosts counts what the play reports.
var changedHosts = regexp.MustCompile(`(?m)^node\d+ +: ok=2 +changed=([01]) .*failed=0 `)

// measure records the answers to one host, and measures the play on all.
func (c *controller) measure(ctx context.Context, n *node, what string, same bool) error {
	daemon, err := newStand(filepath.Join(c.dir, "socket"), n.Socket())
	if err != nil {
		return err
	}
	defer daemon.close()
	if out, err := c.playbook(ctx, "one").CombinedOutput(); err != nil {
		return fmt.Errorf("ansible-playbook on one host: %w\n%s", err, out)
	}
	daemon.replay()
	begin, cmd := time.Now(), c.playbook(ctx, "all")
	out, err := cmd.CombinedOutput()
	elapsed := time.Since(begin)
	if err != nil {
		return fmt.Errorf("ansible-playbook: %w\n%s", err, out)
	}
	expected := "1"
	if same {
		expected = "0"
	}
	hosts := changedHosts.FindAllSubmatch(out, -1)
	for _, h := range hosts {
		if string(h[1]) != expected {
			return fmt.Errorf("%s: the play reports changed=%s", what, h[1])
		}
	}
	if len(hosts) != c.hosts || daemon.unknown() > 0 {
		return fmt.Errorf("%d hosts of %d are reported, %d requests had no answer:\n%s", len(hosts), c.hosts, daemon.unknown(), out)
	}
	used := (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds() / float64(c.hosts)
	fmt.Fprintf(
		c.out,
		"  %s: %.0f s; %.2f s of processor time a host; %d nodes with 8 processors: %.1f min\n",
		what,
		elapsed.Seconds(),
		used,
		c.nodes,
		used*float64(c.nodes)/8/60,
	)
	return nil
}

// playbook prepares ansible-playbook, which runs as it is unpacked.
func (c *controller) playbook(ctx context.Context, inventory string) *exec.Cmd {
	cmd := exec.CommandContext(
		ctx, "/usr/bin/python3", filepath.Join(c.ansible, "usr/bin/ansible-playbook"), "-i", filepath.Join(c.dir, inventory),
		"-f", strconv.Itoa(c.forks), filepath.Join(c.dir, "play.yaml"),
	)
	cmd.Dir, cmd.WaitDelay, cmd.SysProcAttr = c.dir, 5*time.Second, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=" + c.dir, "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH=" + filepath.Join(c.ansible, "usr/lib/python3/dist-packages"), "ANSIBLE_COLLECTIONS_PATH=" + c.dir,
		"ANSIBLE_COLLECTIONS_PATHS=" + c.dir, "ANSIBLE_LOCAL_TEMP=" + filepath.Join(c.dir, "tmp"), "ANSIBLE_DEVEL_WARNING=False",
	}
	return cmd
}
