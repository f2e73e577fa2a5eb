package metrics

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/gpu/worker"
)

// certificate writes a certificate of 127.0.0.1 and its key, and returns the pool that trusts it.
func certificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, filepath.Join(dir, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	return pool
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// fakeStatus is what every caller reads, and who read it.
type fakeStatus struct {
	status *api.Status
	caller *server.Caller
}

func (f *fakeStatus) StatusFor(c *server.Caller) *api.Status { f.caller = c; return f.status }

func (f *fakeStatus) IdleFor(*server.Caller) *api.Idle { return &api.Idle{} }

type fakeWorker struct{}

func (fakeWorker) Stats() worker.Stats { return worker.Stats{} }

func newExporter(f *fakeStatus) *Exporter {
	return &Exporter{
		Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now),
		Status:   f,
		Worker:   fakeWorker{},
		Totals:   &Totals{},
	}
}

const tlsPart = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"

func users(t *testing.T) string {
	t.Helper()
	b, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return "basic_auth_users: {scraper: '" + string(b) + "'}\n"
}

// The address needs TLS and a password, and then answers what an observer reads.
func TestScrapeOverTheNetwork(t *testing.T) {
	dir := t.TempDir()
	pool := certificate(t, dir)
	write(t, filepath.Join(dir, "web.yml"), tlsPart+users(t))
	f := &fakeStatus{status: labNode().Status}
	n := &Network{Exporter: newExporter(f), Address: "127.0.0.1:0", WebConfig: filepath.Join(dir, "web.yml")}
	l, err := n.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); n.Run(ctx, l) }()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}, Timeout: time.Minute}
	defer func() {
		client.CloseIdleConnections()
		stop()
		<-ended
	}()
	scrape := func(url, password string) (int, string) {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if password != "" {
			q.SetBasicAuth("scraper", password)
		}
		a, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		b, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		return a.StatusCode, string(b)
	}
	url := "https://" + l.Addr().String()
	if code, text := scrape(url+"/metrics", "secret"); code != http.StatusOK || !strings.Contains(text, "\ngpushare_gpu_info{") {
		t.Errorf("a scrape is answered with %d: %.200s", code, text)
	}
	if f.caller == nil || f.caller.Admin || !f.caller.Observer {
		t.Errorf("it reads as %+v", f.caller)
	}
	for path, want := range map[string]int{"/metrics ": http.StatusUnauthorized, "/metrics wrong": http.StatusUnauthorized, "/v1/status secret": http.StatusNotFound, "/ secret": http.StatusNotFound} {
		path, password, _ := strings.Cut(path, " ")
		if code, text := scrape(url+path, password); code != want || strings.Contains(text, "gpushare_") {
			t.Errorf("%s with the password %q is answered with %d: %.200s", path, password, code, text)
		}
	}
	if code, _ := scrape("http://"+l.Addr().String()+"/metrics", "secret"); code != http.StatusBadRequest {
		t.Errorf("without TLS it is answered with %d", code)
	}
}

func TestAddressesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir)
	for _, c := range []struct{ name, address, config, says string }{
		{"no file", "127.0.0.1:0", "", "no such file"},
		{"no authentication", "127.0.0.1:0", tlsPart, "every local user"},
		{"an optional certificate", "127.0.0.1:0", "tls_server_config: {cert_file: cert.pem, key_file: key.pem, client_ca_file: cert.pem, client_auth_type: VerifyClientCertIfGiven}\n", "every local user"},
		{"an empty file", "127.0.0.1:0", "\n", "every local user"},
		{"no TLS for other hosts", "0.0.0.0:0", "USERS", "without TLS"},
		{"no certificate", "127.0.0.1:0", "tls_server_config: {cert_file: none.pem, key_file: key.pem}\nUSERS", "none.pem"},
		{"an unknown key", "127.0.0.1:0", "USERStls: {}\n", "tls"},
		{"a password that is not hashed", "127.0.0.1:0", "basic_auth_users: {scraper: secret}\n", "bcrypt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(dir, strings.ReplaceAll(c.name, " ", "-"))
			if c.config != "" {
				write(t, file, strings.ReplaceAll(c.config, "USERS", users(t)))
			}
			n := &Network{Exporter: newExporter(nil), Address: c.address, WebConfig: file}
			l, err := n.Listen(t.Context())
			if err == nil {
				l.Close()
			}
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it is refused with %v, want %q", err, c.says)
			}
		})
	}
	// A password without TLS does not leave the host. The address of an interface that is not there yet is accepted.
	write(t, filepath.Join(dir, "users"), users(t))
	write(t, filepath.Join(dir, "both"), tlsPart+users(t))
	for address, config := range map[string]string{"127.0.0.1:0": "users", "192.0.2.7:0": "both"} {
		l, err := (&Network{Exporter: newExporter(nil), Address: address, WebConfig: filepath.Join(dir, config)}).Listen(t.Context())
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		l.Close()
	}
}
