//go:build engines

package engines

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/test/leftover"
)

// readyWithin is for one program of the control plane. Seen on two idle cores: 3 s for all.
const readyWithin = 3 * time.Minute

// nodeName is the name of the guest in Kubernetes.
const nodeName = "lab"

// controlPlane is Kubernetes without a node, on loopback addresses.
type controlPlane struct {
	*cluster
	dir       string // certificates, the database
	authority *authority
	port      int
}

func startControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	etcd, kubernetes := programsOf(t, "etcd"), programsOf(t, "kubernetes")
	began := time.Now()
	c := startAPI(t, etcd, kubernetes)
	admin := "--kubeconfig=" + c.authority.file("admin.kubeconfig")
	start(t, "scheduler", filepath.Join(kubernetes, "kube-scheduler"), admin, "--leader-elect=false", "--secure-port=0")
	start(t, "controller-manager", filepath.Join(kubernetes, "kube-controller-manager"), admin, "--leader-elect=false", "--secure-port=0",
		"--service-account-private-key-file="+c.authority.file("sa.key"), "--root-ca-file="+c.authority.file("ca.crt"),
		"--use-service-account-credentials")
	// A pod is refused before the controller manager has made this account.
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	type account struct{}
	if _, err := await(ctx, c.cluster, "/api/v1/namespaces/default/serviceaccounts", "default", func(a *account) bool {
		return a != nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("the control plane is ready after %.1f s", time.Since(began).Seconds())
	return c
}

// startAPI starts etcd and the apiserver, and waits for it.
func startAPI(t *testing.T, etcd, kubernetes string) *controlPlane {
	t.Helper()
	dir := t.TempDir()
	a := newAuthority(t, dir)
	a.issue(t, "apiserver", pkix.Name{CommonName: "kube-apiserver"}, "127.0.0.1", "10.0.2.2", "10.96.0.1", "localhost")
	a.issue(t, "admin", pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}})
	a.issue(t, "node", pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}})
	port := reserve(t)
	address := "https://127.0.0.1:" + strconv.Itoa(port)
	a.kubeconfig(t, "admin", address)
	a.kubeconfig(t, "node", "https://10.0.2.2:"+strconv.Itoa(port))

	database, peers := "http://127.0.0.1:"+strconv.Itoa(reserve(t)), "http://127.0.0.1:"+strconv.Itoa(reserve(t))
	// The state of one run need not survive a power cut.
	start(t, "etcd", filepath.Join(etcd, "server"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--socket-reuse-port",
		"--listen-client-urls", database, "--advertise-client-urls", database,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	start(t, "apiserver", filepath.Join(kubernetes, "kube-apiserver"), "--etcd-servers="+database,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+strconv.Itoa(port), "--permit-port-sharing",
		"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/24", "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", "--cert-dir="+dir,
		"--tls-cert-file="+a.file("apiserver.crt"), "--tls-private-key-file="+a.file("apiserver.key"),
		"--client-ca-file="+a.file("ca.crt"), "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+a.file("sa.pub"), "--service-account-signing-key-file="+a.file("sa.key"))
	c := &controlPlane{
		cluster: &cluster{address, &http.Client{Transport: &http.Transport{TLSClientConfig: a.client(t, "admin")}}},
		dir:     dir, authority: a, port: port,
	}
	c.ready(t)
	return c
}

// ready waits for the apiserver, which has no event before it listens.
func (c *controlPlane) ready(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	for {
		err := c.request(ctx, http.MethodGet, "/readyz", nil, nil)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the apiserver is not ready after %s: %v", readyWithin, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// kubectl runs kubectl as the administrator, and returns what it prints.
func (c *controlPlane) kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	return c.kubectlReads(t, "", arguments...)
}

// kubectlReads is kubectl with an input.
func (c *controlPlane) kubectlReads(t *testing.T, input string, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	cmd := exec.CommandContext(
		ctx,
		filepath.Join(programsOf(t, "kubernetes"), "kubectl"),
		append(
			[]string{"--kubeconfig", c.authority.file("admin.kubeconfig"), "--cache-dir", filepath.Join(c.dir, "kubectl")},
			arguments...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("kubectl %v: %v\n%s", arguments, err, out)
	}
	return string(out)
}

// reserve returns a port of the loopback address that no other program gets until the test ends: it is bound, and the program that
// listens on it shares it.
func reserve(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
	)
	if err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return at.(*unix.SockaddrInet4).Port
}

// start starts a program that ends with the test, at the latest half a minute after it was asked to. Its output is in the logs.
func start(t *testing.T, name, program string, arguments ...string) {
	t.Helper()
	log, err := os.Create(logFile(t, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	if err := leftover.Child(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	var early error
	ended := make(chan struct{})
	go func() {
		early = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		select {
		case <-ended:
			t.Errorf("%s ended before the test: %v; see %s", name, early, log.Name())
		default:
		}
		cancel()
		<-ended
		log.Close()
	})
}

func logFile(t *testing.T, name string) string {
	t.Helper()
	logs, err := filepath.Abs(filepath.Join(builds, "logs"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(fmt.Errorf("cannot keep logs: %w", err))
	}
	return filepath.Join(logs, name)
}
