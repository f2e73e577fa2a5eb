//go:build engines

package engines

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority issues the certificates of one cluster, into files of its directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority has ca.crt, and sa.key with sa.pub for the tokens of service accounts.
func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	a := &authority{dir: dir, key: newKey(t)}
	template := certificate(t, pkix.Name{CommonName: "lab"})
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write(t, "ca.crt", "CERTIFICATE", der)
	tokens := newKey(t)
	a.writeKey(t, "sa.key", tokens)
	public, err := x509.MarshalPKIXPublicKey(tokens.Public())
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "sa.pub", "PUBLIC KEY", public)
	return a
}

// issue writes NAME.crt and NAME.key. Hosts are names and addresses of a server.
func (a *authority) issue(t *testing.T, name string, subject pkix.Name, hosts ...string) {
	t.Helper()
	template := certificate(t, subject)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".crt", "CERTIFICATE", der)
	a.writeKey(t, name+".key", key)
}

// kubeconfig writes NAME.kubeconfig for the certificate of that name.
func (a *authority) kubeconfig(t *testing.T, name, server string) {
	t.Helper()
	embedded := func(file string) string { return base64.StdEncoding.EncodeToString(a.read(t, file)) }
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: lab}}]
clusters: [{name: lab, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: lab, user: {client-certificate-data: %s, client-key-data: %s}}]
`, server, embedded("ca.crt"), embedded(name+".crt"), embedded(name+".key"))
	if err := os.WriteFile(a.file(name+".kubeconfig"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// client is the TLS of a client with an issued certificate.
func (a *authority) client(t *testing.T, issued string) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(a.read(t, issued+".crt"), a.read(t, issued+".key"))
	if err != nil {
		t.Fatal(err)
	}
	c := a.anonymous()
	c.Certificates = []tls.Certificate{pair}
	return c
}

// anonymous is the TLS of a client without a certificate.
func (a *authority) anonymous() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(a.file(name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) writeKey(t *testing.T, name string, key *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, name, "EC PRIVATE KEY", der)
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func certificate(t *testing.T, subject pkix.Name) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	// The clock of an emulated machine is not exact.
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}
