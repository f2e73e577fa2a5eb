//go:build tools

package tools

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
	"github.com/gpushare/gpushare/test/programs"
)

// sshSite has a real sshd, which the real ssh starts for each connection, without a port.
type sshSite struct {
	*testing.T
	dir  string
	node *harness.Node
	ssh  string // the client of this host
}

func newSSHSite(t *testing.T) *sshSite {
	t.Helper()
	root, err := unpack("ssh")
	if err != nil {
		t.Fatalf("cannot get sshd: %v", err)
	}
	s := &sshSite{T: t, dir: t.TempDir(), node: &harness.Node{}}
	if s.ssh, err = exec.LookPath("ssh"); err != nil {
		t.Fatalf("ssh is not installed: %v", err)
	}
	if s.node.Bin, err = filepath.Abs("../../bin"); err != nil {
		t.Fatal(err)
	}
	s.node.File = filepath.Join(s.dir, "node.yaml")
	s.write("node.yaml", "driver: \"580\"\ngpus: [{model: A100-SXM4-40GB, count: 2}]\n")
	if err := s.node.Start(shortContext(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.node.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"host", "user"} {
		if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", s.path(name)).
			CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	public, err := os.ReadFile(s.path("host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("known", "one,two,kept,lacks "+string(public))
	s.write("sshd_config", fmt.Sprintf(`HostKey %[1]s/host
AuthorizedKeysFile %[1]s/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
SetEnv PATH=%[2]s:/usr/bin:/bin
`, s.dir, s.node.Bin))
	s.write("sshd_config.lacks", strings.ReplaceAll(s.read("sshd_config"), s.node.Bin+":", ""))
	s.write("passwd", s.accounts())
	libraries := filepath.Join(root, "usr/lib/x86_64-linux-gnu") + ":" + filepath.Join(root, "lib/x86_64-linux-gnu")
	start := fmt.Sprintf("LD_LIBRARY_PATH=%s exec %s/usr/sbin/sshd -i -f \"$1\" 2>/dev/null\n", libraries, root)
	if os.Geteuid() == 0 { // sshd of root has a user and a directory of its own. This host does not get them.
		start = fmt.Sprintf(
			"exec unshare -m sh -c 'mount -t tmpfs none /run && mkdir -m 755 /run/sshd && mount --bind %s /etc/passwd && %s' sh \"$1\"\n",
			s.path("passwd"),
			strings.TrimSuffix(start, "\n"),
		)
	}
	s.program("sshd", "#!/bin/sh\n"+start)
	s.write("config", fmt.Sprintf(`Host lacks
  ProxyCommand %[1]s/sshd %[1]s/sshd_config.lacks
Host denied
  IdentityFile /nonexistent
  HostKeyAlias one
Host kept
  ControlMaster auto
  ControlPath %[1]s/control
  ControlPersist 600
Host * !denied
  IdentityFile %[1]s/user
Host *
  IdentitiesOnly yes
  ProxyCommand %[1]s/sshd %[1]s/sshd_config
  UserKnownHostsFile %[1]s/known
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking ask
`, s.dir))
	s.program("ssh", "#!/bin/sh\nexec "+s.ssh+" -F "+s.path("config")+" \"$@\"\n")
	return s
}

func (s *sshSite) path(name string) string { return filepath.Join(s.dir, name) }

func (s *sshSite) write(name, text string) {
	s.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *sshSite) program(name, text string) {
	s.Helper()
	if err := programs.Write(s.path(name), text); err != nil {
		s.Fatal(err)
	}
}

func (s *sshSite) read(name string) string {
	s.Helper()
	b, err := os.ReadFile(s.path(name))
	if err != nil {
		s.Fatal(err)
	}
	return string(b)
}

// accounts are those of this host, with that of sshd.
func (s *sshSite) accounts() string {
	s.Helper()
	b, err := os.ReadFile("/etc/passwd")
	if err != nil {
		s.Fatal(err)
	}
	text := string(b)
	if !strings.Contains(text, "\nsshd:") {
		text += "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
	}
	return text
}

func (s *sshSite) run(args ...string) (string, string, int) {
	s.Helper()
	cmd := exec.CommandContext(
		shortContext(s.T),
		filepath.Join(s.node.Bin, "gpushare"),
		append([]string{"--socket", s.node.Socket()}, args...)...)
	var errs strings.Builder
	cmd.Env, cmd.Stderr = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH")), &errs
	out, _ := cmd.Output() // Its exit code is what is compared.
	return string(out), errs.String(), cmd.ProcessState.ExitCode()
}

// The real ssh and the real sshd: hosts that answer, one whose key is not known, one that refuses the user, one without gpushare, and one
// whose connection is kept, which stays.
func TestHostsOverSSH(t *testing.T) {
	s := newSSHSite(t)
	out, errs, code := s.run("status", "--host", "one,unknown,two,denied,lacks,kept", "--json")
	var all api.HostResults
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != api.ExitSomeHosts || len(all.Hosts) != 6 {
		t.Fatalf("it exits with %d, %v: %s%s", code, err, out, errs)
	}
	for i, want := range []string{"", "Host key verification failed", "", "Permission denied", "gpushare is not installed there", ""} {
		h := &all.Hosts[i]
		switch {
		case want != "" && (h.OK || h.Error == nil || !strings.Contains(h.Error.Message, want)):
			t.Errorf("%s: %+v, want %q", h.Host, h.Error, want)
		case want == "" && (!h.OK || !strings.Contains(string(h.Result), `"A100-SXM4-40GB"`) && !strings.Contains(string(h.Result), "A100")):
			t.Errorf("%s: %+v", h.Host, h.Error)
		}
	}
	check := exec.CommandContext(shortContext(t), s.path("ssh"), "-O", "check", "kept")
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("the connection was not kept: %v: %s", err, out)
	}
	if out, errs, code := s.run("status", "--host", "kept,one", "-t", "it's $HOME", "--json"); code != api.ExitUnreachable ||
		strings.Count(out, `there is no tenant \"it's $HOME\"`) != 2 {
		t.Errorf("a tenant that is not there: exit code %d: %s%s", code, out, errs)
	}
	if out, errs, code := s.run(
		"status",
		"--host",
		"kept,one",
	); code != 0 || strings.Count(out, "\nkept ") != 2 ||
		strings.Count(out, "\none ") != 2 {
		t.Errorf("the table: exit code %d: %s%s", code, out, errs)
	}
	if out, err := exec.CommandContext(shortContext(t), s.path("ssh"), "-O", "exit", "kept").CombinedOutput(); err != nil {
		t.Errorf("the kept connection cannot be ended: %v: %s", err, out)
	}
}
