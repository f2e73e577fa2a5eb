// Command gpushare-kubelet is a driver of Kubernetes for dynamic resource allocation: it publishes what gpushared offers to Kubernetes on
// this node, and prepares claims as keyed leases. gpushared carves, counts and enforces.
//
// It is a client of gpushared's socket and of the API server, with the credential of the kubelet, and calls no driver library.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/version"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/plugin"
	"github.com/gpushare/gpushare/kubelet/pods"
	"github.com/gpushare/gpushare/kubelet/publish"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the flags.
type options struct {
	socket, tenant         string
	kubeconfig, node, root string
	cdi, cgroups, podUID   string
	debug, version, json   bool
	offers                 bool // print what is offered, and end
}

// daemon is gpushared. The program runs as root, for its files, and asks gpushared for no more than it needs.
func (o *options) daemon() *client.Client {
	return &client.Client{Socket: cmp.Or(o.socket, os.Getenv("GPUSHARE_SOCKET")), Role: api.RoleEngine}
}

const usage = `Usage: gpushare-kubelet [flags]          publish this node to Kubernetes and prepare claims, until SIGTERM
       gpushare-kubelet [flags] offers   print what the node offers to Kubernetes now, and why not the rest

Examples:
  gpushare-kubelet --kubeconfig=/etc/kubernetes/kubelet.conf
  gpushare-kubelet offers
  gpushare-kubelet --tenant=batch --json offers

Flags:
`

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("gpushare-kubelet", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.socket, "socket", "", "the `socket` of gpushared (default /run/gpushare/gpushare.sock)")
	f.StringVar(&o.tenant, "tenant", "kubernetes", "the `tenant` of the spec whose grants are offered")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "the credential of the kubelet, as a `file`; empty: that of the pod")
	f.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "the `name` of the node (default: $NODE_NAME, or the name of the host)")
	f.StringVar(&o.root, "kubelet-dir", "/var/lib/kubelet", "the root `directory` of the kubelet")
	f.StringVar(&o.cdi, "cdi-dir", "/run/cdi", "where container runtimes look for CDI files; cdi_dir of gpushared")
	f.StringVar(&o.cgroups, "cgroup-mount", "/sys/fs/cgroup", "where cgroup v2 is mounted")
	f.StringVar(
		&o.podUID,
		"pod-uid",
		os.Getenv("POD_UID"),
		"the `uid` of the pod that this runs in, for updates without a gap (default: $POD_UID)",
	)
	f.BoolVar(&o.debug, "debug", false, "log more")
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	f.BoolVar(&o.json, "json", false, "print JSON; of offers")
	f.Usage = func() {
		fmt.Fprint(stderr, usage)
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.offers = f.Arg(0) == "offers"
	switch {
	case f.NArg() > 1 && o.offers:
		return nil, fmt.Errorf("unexpected argument %q: flags are before offers, and it takes nothing else", f.Arg(1))
	case f.NArg() > 0 && !o.offers:
		return nil, fmt.Errorf("unexpected argument %q: it takes flags, and offers", f.Arg(0))
	case o.json && !o.offers:
		return nil, errors.New("--json is of offers: 'gpushare-kubelet --json offers'")
	}
	return o, nil
}

// run is the whole command. It returns 0 after SIGTERM or SIGINT, 1 after a failure, 2 for wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "gpushare-kubelet: %v\n", err)
		return 2
	case o.version:
		fmt.Fprintln(stdout, "gpushare-kubelet "+version.Version)
		return 0
	}
	if o.offers {
		err = offers(ctx, o, stdout)
	} else {
		err = serve(ctx, o, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "gpushare-kubelet: %v\n", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, o *options, stderr io.Writer) error {
	level := slog.LevelInfo
	if o.debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	node, err := nodeName(o.node)
	if err != nil {
		return err
	}
	server, err := apiServer(o.kubeconfig)
	if err != nil {
		return err
	}
	plugins := filepath.Join(o.root, "plugins", publish.Driver)
	for _, dir := range []string{plugins, filepath.Join(o.root, "plugins_registry")} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("cannot create %s: %w", dir, err)
		}
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	daemon := o.daemon()
	defer daemon.Close()
	reader := &plugin.Node{Daemon: daemon, Tenant: o.tenant}
	p := &plugin.Plugin{
		Claims: &claims.Preparer{
			Pool:   node,
			Leases: claims.Requests{Leases: daemon},
			Node:   reader,
			Pods:   claims.Cgroups{Mount: o.cgroups},
			Files:  claims.Files{Dir: o.cdi},
			Log:    log,
		},
		Publisher: &plugin.Publisher{Node: reader, Pool: node, Log: log},
		Log:       log,
		Fail:      fail,
	}
	follower := &plugin.Follower{
		Publisher: p.Publisher,
		Leases:    daemon,
		Cgroups:   p.Claims.Pods,
		Pods:      pods.New(server, node),
		Reporter:  &pods.Reporter{API: server, Node: node},
		Claims:    p.Claims,
		Claim: func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
			return server.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Log: log,
	}
	p.Claims.Ended, p.Claims.ClaimsOf = follower.Remember, follower.Pods.ClaimsOf
	helper, err := kubeletplugin.Start(
		ctx, p, kubeletplugin.DriverName(publish.Driver), kubeletplugin.NodeName(node), kubeletplugin.KubeClient(server),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(o.root, "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(plugins),
		kubeletplugin.RollingUpdate(types.UID(o.podUID)),
	)
	if err != nil {
		return fmt.Errorf("cannot serve the kubelet in %s: %w", o.root, err)
	}
	defer helper.Stop()
	p.Publisher.Submit = func(ctx context.Context, r resourceslice.DriverResources) error {
		return helper.PublishResources(ctx, r)
	}
	p.Publisher.Before = func(ctx context.Context) ([]resourceapi.ResourceSlice, error) { return published(ctx, server, node) }
	var loops sync.WaitGroup
	loops.Go(func() { follower.Pods.Run(ctx) })
	loops.Go(func() { follower.Run(ctx) })
	p.Publisher.Run(ctx)
	loops.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// published are the slices of this driver on the node, as the API server has them. The selector is what the credential of a kubelet needs.
func published(ctx context.Context, server kubernetes.Interface, node string) ([]resourceapi.ResourceSlice, error) {
	of := fields.Set{
		resourceapi.ResourceSliceSelectorNodeName: node, resourceapi.ResourceSliceSelectorDriver: publish.Driver,
	}
	list, err := server.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: of.String()})
	if err != nil {
		return nil, fmt.Errorf("cannot read what was published of the node: %w", err)
	}
	return append([]resourceapi.ResourceSlice{}, list.Items...), nil // Not nil: it is read once.
}

// nodeName is how the kubelet calls the node: the name of the host in lowercase letters unless another is given.
func nodeName(name string) (string, error) {
	if name != "" {
		return name, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot read the name of the host: %w", err)
	}
	return strings.ToLower(host), nil
}

func apiServer(kubeconfig string) (kubernetes.Interface, error) {
	var c *rest.Config
	var err error
	if kubeconfig == "" {
		if c, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("cannot find the API server: %w; name the credential of the kubelet with --kubeconfig", err)
		}
	} else if c, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", kubeconfig, err)
	}
	c.UserAgent = "gpushare-kubelet/" + version.Version
	k, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("cannot use the API server: %w", err)
	}
	return k, nil
}
