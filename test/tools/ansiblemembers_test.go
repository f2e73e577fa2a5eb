//go:build tools

package tools

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// membersRun is one run of the role's tasks about groups, on a host whose /etc is a copy.
type membersRun struct {
	admins string // the value of gpushare_admins; empty: undefined
	more   string // other variables
	check  bool

	members string // of gpushare-admin after it
	failed  string // what the error says; empty: it does not fail
	changed bool
}

// Users leave and enter the group as the list says. A name that is wrong is an error that changes nothing, and no account is created.
func TestAnsibleMembers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a copy of /etc in a namespace of its own")
	}
	for _, tool := range []string{"unshare", "gpasswd"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing: apt-get install util-linux passwd", tool)
		}
	}
	runs := []membersRun{
		{admins: "[ann, bea]", check: true, changed: true, members: "eve"},
		{admins: "[ann, bea]", changed: true, members: "ann,bea"},
		{admins: "[ann, bea]", members: "ann,bea"},
		{admins: "[ann, bae, eve]", failed: "no user bae", members: "ann,bea"},
		{admins: "[bea]", more: "gpushare_exact_members: false", members: "ann,bea"},
		{admins: "[bea, eve]", changed: true, members: "bea,eve"},
		{admins: "", members: "bea,eve"},
		{admins: "[]", changed: true, members: ""},
	}
	for _, version := range ansibleVersions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			a := newAnsible(t, version)
			etc := accountsOf(t, "gpushare-admin:x:990:eve", "ann", "bea", "eve")
			for i := range runs {
				a.setMembers(t, etc, &runs[i])
			}
		})
	}
}

// accountsOf makes an /etc with these accounts.
func accountsOf(t *testing.T, group string, users ...string) string {
	t.Helper()
	etc := t.TempDir()
	passwd, shadow := "root:x:0:0:root:/root:/bin/sh\n", ""
	for i, u := range users {
		passwd += u + ":x:" + []string{"2101", "2102", "2103"}[i] + ":100::/:/bin/sh\n"
		shadow += u + ":!:20000:0:99999:7:::\n"
	}
	for name, text := range map[string]string{
		"passwd": passwd, "shadow": shadow, "group": "root:x:0:\nusers:x:100:\n" + group + "\ngpushare:x:991:\n", "gshadow": "",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\ngshadow: files\n", "login.defs": "",
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return etc
}

func (a *ansible) setMembers(t *testing.T, etc string, r *membersRun) {
	t.Helper()
	before := read(t, filepath.Join(etc, "passwd"))
	play := "- hosts: localhost\n  gather_facts: false\n  connection: local\n  vars:\n    ansible_python_interpreter: /usr/bin/python3\n"
	if r.admins != "" {
		play += "    gpushare_admins: " + r.admins + "\n"
	}
	if r.more != "" {
		play += "    " + r.more + "\n"
	}
	play += "  tasks:\n    - ansible.builtin.import_role: {name: gpushare.node.node, tasks_from: members.yml}\n"
	file := filepath.Join(a.dir, "members.yaml")
	if err := os.WriteFile(file, []byte(play), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"-i", "localhost,", file}
	if r.check {
		args = append(args, "--check")
	}
	cmd := a.command(t, "ansible-playbook", args...)
	cmd.Env = append(cmd.Env, "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	const script = `mount --bind "$1" /etc && shift && exec "$@"`
	inner := append([]string{"unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", etc}, cmd.Args...)
	path, err := exec.LookPath("unshare")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Args = path, inner
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if (err != nil) != (r.failed != "") || !strings.Contains(string(out), r.failed) {
		t.Errorf("%+v: %v\n%s%s", *r, err, out, stderr.Bytes())
	}
	recap := regexp.MustCompile(`(?m)^localhost .*changed=([0-9]+) `).FindSubmatch(out)
	if recap == nil || (string(recap[1]) != "0") != r.changed {
		t.Errorf("%+v: it says\n%s", *r, out)
	}
	if got := membersIn(t, etc, "gpushare-admin"); got != r.members {
		t.Errorf("%+v: the group has %q", *r, got)
	}
	if after := read(t, filepath.Join(etc, "passwd")); string(after) != string(before) {
		t.Errorf("%+v: the accounts are\n%s", *r, after)
	}
}

func membersIn(t *testing.T, etc, group string) string {
	t.Helper()
	for line := range strings.Lines(string(read(t, filepath.Join(etc, "group")))) {
		if f := strings.Split(strings.TrimSpace(line), ":"); f[0] == group {
			names := strings.Split(f[3], ",")
			slices.Sort(names)
			return strings.Join(names, ",")
		}
	}
	t.Fatalf("no group %s", group)
	return ""
}
