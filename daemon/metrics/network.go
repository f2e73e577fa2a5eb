package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/boundedread"
)

// Network serves the metrics on a TCP address.
type Network struct {
	Exporter  *Exporter
	Address   string // host:port
	WebConfig string // the file of exporter-toolkit, with TLS and who may read
}

// ErrConfig is a mistake in the settings of the address: to try again does not help.
var ErrConfig = errors.New("the address of the metrics is not usable")

// webConfig is the part of the file that decides whether the metrics are protected. exporter-toolkit checks all of it.
type webConfig struct {
	TLS struct {
		Cert       string `yaml:"cert"`
		CertFile   string `yaml:"cert_file"`
		ClientAuth string `yaml:"client_auth_type"`
	} `yaml:"tls_server_config"`
	Users map[string]string `yaml:"basic_auth_users"`
}

// Listen checks the settings and opens the address. The metrics have data of all tenants, and every local user reaches every
// address of the host. So a file without authentication is refused, and one without TLS for other hosts.
func (n *Network) Listen(ctx context.Context) (net.Listener, error) {
	if err := n.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	// The address may belong to an interface that is not configured yet.
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		return errors.Join(raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }), failed)
	}}
	l, err := c.Listen(ctx, "tcp", n.Address)
	if errors.Is(err, syscall.EAFNOSUPPORT) {
		return nil, fmt.Errorf(
			"%w: cannot serve metrics on %s: the unit of gpushared was started without the network: run 'systemctl daemon-reload' and 'systemctl restart gpushared', which write and use /run/systemd/generator/gpushared.service.d/50-metrics-address.conf",
			ErrConfig,
			n.Address,
		)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot serve metrics on %s: %w", n.Address, err)
	}
	return netutil.LimitListener(l, mostConnections), nil
}

func (n *Network) check() error {
	refuse := func(err error) error {
		return fmt.Errorf("cannot serve metrics with metrics_web_config %s: %w", n.WebConfig, err)
	}
	b, err := boundedread.Trusted(n.WebConfig, boundedread.Settings)
	if err != nil {
		return refuse(err)
	}
	if err := web.Validate(n.WebConfig); err != nil {
		return refuse(err)
	}
	var c webConfig
	if err := yaml.NewDecoder(bytes.NewReader(b)).Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return refuse(err)
	}
	if len(c.Users) == 0 && c.TLS.ClientAuth != "RequireAndVerifyClientCert" {
		return refuse(
			errors.New(
				"every local user could read the metrics of all tenants: add basic_auth_users, or client_auth_type: RequireAndVerifyClientCert",
			),
		)
	}
	if c.TLS.Cert == "" && c.TLS.CertFile == "" && !n.isLoopback() {
		return refuse(
			fmt.Errorf(
				"passwords would be sent to %s without TLS: add tls_server_config with cert_file and key_file, or serve on 127.0.0.1",
				n.Address,
			),
		)
	}
	return nil
}

func (n *Network) isLoopback() bool {
	host, _, err := net.SplitHostPort(n.Address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Limits of the address. A scraper has one connection.
const (
	mostConnections = 64
	requestTimeout  = 10 * time.Second
	answerTimeout   = 30 * time.Second
	idleTimeout     = 30 * time.Second
)

// Run serves until ctx ends.
func (n *Network) Run(ctx context.Context, l net.Listener) {
	log := n.Exporter.Log
	s := &http.Server{
		Handler:           n.Exporter.handler(),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadTimeout:       requestTimeout,
		ReadHeaderTimeout: requestTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() }) // A scrape that is cut off is repeated.
	defer stop()
	err := web.Serve(l, s, &web.FlagConfig{WebConfigFile: &n.WebConfig}, log)
	if ctx.Err() != nil {
		return
	}
	log.Error("the metrics are not served any more", "address", n.Address, "error", err)
	n.Exporter.Conditions.Set(
		"metrics", "address", "the metrics are not served on "+n.Address+": "+err.Error(),
		"correct the cause, then 'systemctl restart gpushared'",
	)
	n.Exporter.Invalidate()
}

// handler serves /metrics. Its callers have authenticated: they read what an observer reads.
func (e *Exporter) handler() http.Handler {
	observer := &server.Caller{Peer: &server.Peer{UID: -1, GID: -1}, Name: "metrics", Observer: true}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		b, err := e.Text(observer)
		if err != nil {
			e.Log.Error("a scrape failed", "error", err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", ContentType)
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b) // An error means that the scraper has closed the connection.
	})
	return mux
}
