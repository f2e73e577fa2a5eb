//go:build tools

package tools

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gpushare/gpushare/test/harness"
)

// realPrometheus has prometheus and promtool of Debian.
var realPrometheus = sync.OnceValues(func() (string, error) { return unpack("prometheus") })

// examples is the directory with the alert rules and the dashboard.
const examples = "../../examples/monitoring/"

func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	dir, err := realPrometheus()
	if err != nil {
		t.Fatalf("cannot get Prometheus: %v", err)
	}
	cmd := exec.CommandContext(shortContext(t), filepath.Join(dir, "usr/bin/promtool"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// The alert and recording rules and their tests are valid for the real promtool.
func TestPromtoolChecksTheAlertRules(t *testing.T) {
	for _, name := range []string{"alerts", "recording"} {
		promtool(t, "", "check", "rules", examples+name+".yaml")
		promtool(t, "", "test", "rules", examples+name+"_test.yaml")
	}
}

// Every query of the dashboard of nodes has the right syntax: as the expression of a rule, promtool reads it.
func TestPromtoolReadsTheQueriesOfTheNodes(t *testing.T) {
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for _, queries := range dashboardQueries(t, "dashboard-nodes.json", 15) {
		for _, q := range queries {
			rules = append(rules, rule{fmt.Sprintf("query:%d", len(rules)), q})
		}
	}
	b, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": rules}}}) // YAML too
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "check", "rules", file)
}

const monitoredNode = `driver: "580"
gpus:
  - {model: A100-SXM4-40GB, mig: true}
  - {model: A100-SXM4-40GB, count: 2}
  - {model: A100-SXM4-40GB, count: 1}
`

const monitoredSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb, 2g.10gb]}}
  - {select: {index: 1}, mode: mps}
  - {select: {index: 2}, mode: timeslice}
  - {select: {index: 3}, mode: exclusive}
tenants:
  - name: red
    memory: {max: 60GiB}
    grants:
      - {name: part, mig: 3g.20gb}
      - {name: join, mps: {share: 30%, gpu_memory: 8GiB}}
      - {name: slice, timeslice: {share: 40%, gpu_memory: 8GiB}}
`

// protect writes a certificate of 127.0.0.1, its key and a web configuration with the user prometheus, and returns the latter.
func protect(t *testing.T, dir string) string {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	c := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	must(os.WriteFile(filepath.Join(dir, "cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	must(err)
	file := filepath.Join(dir, "web.yaml")
	must(
		os.WriteFile(
			file,
			fmt.Appendf(nil, "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\nbasic_auth_users: {prometheus: '%s'}\n", hash),
			0o600,
		),
	)
	return file
}

// The files for Prometheus that the documentation shows are accepted by it: the scrape configuration as it is, the web configuration with
// a certificate and a hash in the place of those that it names.
func TestScrapeConfigOfTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	protect(t, dir)
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	inPlace := strings.NewReplacer(
		"/etc/gpushare/metrics.crt", filepath.Join(dir, "cert.pem"), "/etc/gpushare/metrics.key", filepath.Join(dir, "key.pem"),
		"$2y$12$...", string(hash),
	)
	checked := 0
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		command := []string{"check", "config", "--syntax-only"}
		switch {
		case strings.HasPrefix(m[1], "scrape_configs:"):
		case strings.HasPrefix(m[1], "tls_server_config:"):
			command = []string{"check", "web-config"}
		default:
			continue
		}
		file := filepath.Join(dir, fmt.Sprintf("%d.yaml", checked))
		if err := os.WriteFile(file, []byte(inPlace.Replace(m[1])), 0o600); err != nil {
			t.Fatal(err)
		}
		promtool(t, "", append(command, file)...)
		checked++
	}
	if checked != 2 {
		t.Errorf("%d files were checked", checked)
	}
}

// freeAddress returns an address of the loopback interface with a port that nothing uses now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// prometheus is a running server.
type prometheus struct {
	address string
	job     *harness.Job
}

// get reads an answer of its API into out, which may wait until it has started.
func (p *prometheus) get(ctx context.Context, path string, query url.Values, out any) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	a, err := (&http.Client{Timeout: 30 * time.Second}).Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(b, &answer); err != nil || answer.Status != "success" {
		return fmt.Errorf("%s: %s %s", a.Status, answer.Error, b)
	}
	return json.Unmarshal(answer.Data, out)
}

// series returns how many series a query has.
func (p *prometheus) series(ctx context.Context, query string) (int, error) {
	var data struct{ Result []json.RawMessage }
	err := p.get(ctx, "/api/v1/query", url.Values{"query": {query}}, &data)
	return len(data.Result), err
}

// startPrometheus scrapes the daemon at target, with the rules of the examples.
func startPrometheus(t *testing.T, n *harness.Node, dir, target string) *prometheus {
	t.Helper()
	tools, err := realPrometheus()
	if err != nil {
		t.Fatalf("cannot get Prometheus: %v", err)
	}
	rules, err := filepath.Abs(examples + "alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
  - job_name: gpushare
    scheme: https
    basic_auth: {username: prometheus, password: secret}
    tls_config: {ca_file: %s}
    static_configs: [{targets: ["%s"]}]
`, rules, filepath.Join(dir, "cert.pem"), target)
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "check", "config", file)
	p := &prometheus{address: freeAddress(t)}
	p.job, err = n.Spawn(
		exec.Command(
			filepath.Join(tools, "usr/bin/prometheus"), "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "tsdb"),
			"--web.listen-address="+p.address, "--log.level=warn",
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.job.Stop() })
	return p
}

// TestPrometheus scrapes the daemon with the real Prometheus: an alert fires on a simulated XID error, and each query of the
// dashboard has an answer. The daemon writes the job files of dcgm-exporter meanwhile.
func TestPrometheus(t *testing.T) {
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	dir, target := t.TempDir(), freeAddress(t)
	n := &harness.Node{
		Bin:  bin,
		File: filepath.Join(dir, "node.yaml"),
		Settings: map[string]string{
			"metrics_address":    target,
			"metrics_web_config": protect(t, dir),
			"job_files_dir":      filepath.Join(dir, "jobs"),
		},
	}
	if err := os.WriteFile(n.File, []byte(monitoredNode), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := n.Start(shortContext(t)); err != nil {
		t.Fatal(err)
	}
	if r := n.CLIIn(shortContext(t), monitoredSpec, "apply", "-f", "-"); r.Code != 0 {
		t.Fatalf("apply exited with %d: %s%s", r.Code, r.Out, r.Err)
	}
	for _, args := range [][]string{
		append([]string{"-q", "-t", "red", "--grant", "part", "--wait=1h", "--"}, n.Burn("--memory", "1GiB", "--hold")...),
		append([]string{"-q", "-t", "red", "--grant", "join", "--"}, n.Burn("--memory", "1GiB", "--hold")...),
		append([]string{"-q", "-t", "red", "--grant", "slice", "--"}, n.Burn("--memory", "1GiB", "--kernel", "20ms")...),
		append([]string{"-q", "-t", "red", "--grant", "part", "--wait=1h", "--"}, n.Burn("--memory", "1GiB", "--hold")...), // One of the two waits.
	} {
		job, err := n.Run(args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Stop)
	}
	outside, err := n.Spawn(burnOn(n, "3"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(outside.Stop)
	if err := n.Ctl(shortContext(t), nil, "xid", "3", "63"); err != nil { // An error of the hardware without consequence.
		t.Fatal(err)
	}
	metrics := n.CLI(shortContext(t), "metrics")
	if metrics.Code != 0 {
		t.Fatalf("metrics exited with %d: %s", metrics.Code, metrics.Err)
	}
	promtool(t, metrics.Out, "check", "metrics")

	p := startPrometheus(t, n, dir, target)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	await := func(what string, condition func() (bool, error)) {
		t.Helper()
		var last error
		if err := harness.Await(ctx, 200*time.Millisecond, what, func() (bool, error) {
			ok, err := condition()
			last = err // It may not have started yet.
			return ok && err == nil, nil
		}); err != nil {
			t.Fatalf(
				"%v; the last error: %v; Prometheus says: %s; gpushare says: %s", err, last, p.job.Output(),
				n.CLI(shortContext(t), "status").Out,
			)
		}
	}
	await("the target to be up", func() (bool, error) {
		up, err := p.series(ctx, `up{job="gpushare"} == 1`)
		return up == 1, err
	})
	await("the alert of the XID error", func() (bool, error) {
		var data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
		err := p.get(ctx, "/api/v1/alerts", nil, &data)
		for _, a := range data.Alerts {
			if a.Labels["alertname"] == "GpushareXIDHardware" && a.State == "firing" && a.Labels["gpu"] == "3" && a.Labels["xid"] == "63" {
				return true, err
			}
		}
		return false, err
	})
	await("a job file for each GPU and instance with a lease", func() (bool, error) {
		files, err := os.ReadDir(filepath.Join(dir, "jobs"))
		var names []string
		for _, f := range files {
			names = append(names, f.Name())
		}
		return len(names) == 3 && regexp.MustCompile(`^0\.\d+ 1 2$`).MatchString(strings.Join(names, " ")), err
	})
	jobs, err := os.ReadFile(filepath.Join(dir, "jobs", "2"))
	if err != nil || !regexp.MustCompile(`^red-slice-\w+\n$`).Match(jobs) {
		t.Errorf("the job file of the time-sliced GPU has %q: %v", jobs, err)
	}
	for title, queries := range dashboardQueries(t, "dashboard.json", 20) {
		for _, q := range queries {
			if _, err := p.series(ctx, q); err != nil {
				t.Errorf("the query %s of the panel %q: %v", q, title, err)
			}
			// Without root no time is measured and no share is enforced.
			if strings.Contains(q, "_share_") || strings.Contains(q, "busy_seconds") {
				continue
			}
			await("data of the panel "+title+": "+q, func() (bool, error) {
				k, err := p.series(ctx, q)
				return k > 0, err
			})
		}
	}
}

// burnOn is a virtual CUDA program on one GPU, in no lease.
func burnOn(n *harness.Node, index string) *exec.Cmd {
	args := n.Burn("--gpu", index, "--memory", "1GiB", "--hold")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = n.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// dashboardQueries returns the queries of each panel, with all nodes and tenants selected. It has at least as many panels.
func dashboardQueries(t *testing.T, name string, least int) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(examples + name)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			out[p.Title] = append(
				out[p.Title], strings.NewReplacer("$instance", ".*", "$tenant", ".*", "$__rate_interval", "10s").Replace(q.Expr),
			)
		}
	}
	if len(out) < least {
		t.Fatalf("the dashboard has only %d panels", len(out))
	}
	return out
}
