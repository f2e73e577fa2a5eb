// Package client is the typed client of the daemon's API over its unix socket.
//
// Its zero value works. It sends documents as bytes and leaves their meaning to the daemon.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/boundedread"
)

// Client talks to one daemon. Its fields must not change after the first use.
type Client struct {
	Socket string // api.SocketPath when empty
	// Patience is how long Lease waits for a daemon that went away during the request, if the request has no wait of its
	// own; 15 s if zero.
	Patience time.Duration
	// Role is the one role that requests ask for: api.RoleEngine; empty: each that the caller has.
	Role string

	once sync.Once
	http *http.Client
}

func (c *Client) socket() string {
	if c.Socket == "" {
		return api.SocketPath
	}
	return c.Socket
}

func (c *Client) client() *http.Client {
	c.once.Do(func() {
		c.http = &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return Dial(ctx, c.socket())
			},
			MaxIdleConnsPerHost: 4,
			IdleConnTimeout:     idleTimeout,
			DisableCompression:  true,
		}}
	})
	return c.http
}

// idleTimeout is shorter than the daemon's, so that no request uses a connection that the daemon is closing.
const idleTimeout = 30 * time.Second

// Close closes idle connections. The client can be used again afterwards.
func (c *Client) Close() { c.client().CloseIdleConnections() }

// Do sends one request, its path escaped by the caller, and decodes the answer into out (unless nil). A refusal is an *api.Error, an
// unreachable daemon one of kind unavailable.
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, body []byte, header http.Header, out any) error {
	res, err := c.send(ctx, method, path, query, body, header)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, res.Body)
	} else {
		err = json.NewDecoder(res.Body).Decode(out)
	}
	if err != nil {
		return unreadable(ctx, err)
	}
	return nil
}

// unreadable distinguishes an incomplete answer, which may be complete the next time, from one that is not JSON.
func unreadable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &kind) {
		return &api.Error{
			Kind: api.KindInternal, Message: "cannot read the answer of gpushared: " + err.Error(),
			Hint: "the command line and the daemon may be of different versions: see 'gpushare version'",
		}
	}
	return &noAnswer{&api.Error{
		Kind: api.KindUnavailable, Message: "the answer of gpushared was cut off: " + err.Error(),
		Hint: "the daemon may have been restarted: try again; 'systemctl status gpushared' shows whether it runs",
	}, true}
}

func (c *Client) send(ctx context.Context, method, path string, query url.Values, body []byte, header http.Header) (*http.Response, error) {
	target := "http://gpushare" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("cannot make a request: %w", err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if c.Role != "" {
		req.Header.Set(api.RoleHeader, c.Role)
	}
	res, err := c.client().Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if res.StatusCode >= 400 {
		defer res.Body.Close()
		return nil, refusal(res)
	}
	return res, nil
}

func refusal(res *http.Response) error {
	b, _, _ := boundedread.Prefix(res.Body, 1<<20)
	var envelope struct {
		Error *api.Error `json:"error"`
	}
	if json.Unmarshal(b, &envelope) == nil && envelope.Error != nil && envelope.Error.Message != "" {
		return envelope.Error
	}
	return &api.Error{Kind: api.KindInternal, Message: "gpushared answered " + res.Status + " without saying why"}
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e := &api.Error{Kind: api.KindUnavailable, Message: "cannot reach gpushared at " + c.socket()}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Message += ": there is no such socket"
		e.Hint = "start it with 'systemctl start gpushared', or name its socket with --socket"
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Message += ": no process listens on it"
		e.Hint = "see 'systemctl status gpushared' for why it is not running"
	case errors.Is(err, fs.ErrPermission):
		e.Kind = api.KindDenied
		e.Message += ": permission denied"
		e.Hint = "the socket is meant to be open to all users (0666): check its mode and that of its directory"
	default:
		e.Message += ": " + err.Error()
		e.Hint = "'systemctl status gpushared' shows whether it runs; if it was just restarted, try again"
	}
	op, ok := errors.AsType[*net.OpError](err)
	return &noAnswer{e, !ok || op.Op != "dial"}
}

// noAnswer is a request without an answer. The daemon may have carried it out.
type noAnswer struct {
	e     *api.Error
	onWay bool
}

// Error returns the message.
func (n *noAnswer) Error() string { return n.e.Message }

// Unwrap returns the error of the API.
func (n *noAnswer) Unwrap() error { return n.e }

// Unreached reports whether an error is that of a request that gpushared did not answer, or not to the end.
func Unreached(err error) bool {
	_, ok := errors.AsType[*noAnswer](err)
	return ok
}

func get[T any](ctx context.Context, c *Client, path string, query url.Values) (*T, error) {
	out := new(T)
	if err := c.Do(ctx, http.MethodGet, path, query, nil, nil, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Info reads the versions of the daemon and the caller as it identified them.
func (c *Client) Info(ctx context.Context) (*api.Info, error) {
	return get[api.Info](ctx, c, "/v1", nil)
}

// Status reads the node as observed now. Its lists are empty rather than nil, so that they are lists in JSON.
func (c *Client) Status(ctx context.Context) (*api.Status, error) { return c.status(ctx, nil) }

// StatusNow is Status with the sensors of GPUs of now: at most a second old. A daemon that is older than this client answers with what
// it has.
func (c *Client) StatusNow(ctx context.Context) (*api.Status, error) {
	s, err := c.status(ctx, url.Values{"sensors": {"true"}})
	if e, ok := errors.AsType[*api.Error](err); ok && e.Kind == api.KindInvalid {
		return c.status(ctx, nil)
	}
	return s, err
}

func (c *Client) status(ctx context.Context, query url.Values) (*api.Status, error) {
	s, err := get[api.Status](ctx, c, "/v1/status", query)
	if err != nil {
		return nil, err
	}
	notNil(&s.GPUs)
	notNil(&s.Tenants)
	notNil(&s.Leases)
	return s, nil
}

func notNil[T any](list *[]T) {
	if *list == nil {
		*list = []T{}
	}
}

// Spec reads the accepted spec.
func (c *Client) Spec(ctx context.Context) (*api.SpecDocument, error) {
	return get[api.SpecDocument](ctx, c, "/v1/spec", nil)
}

// History lists the accepted specs that are kept, the oldest first.
func (c *Client) History(ctx context.Context) (*api.SpecHistory, error) {
	h, err := get[api.SpecHistory](ctx, c, "/v1/history", nil)
	if err != nil {
		return nil, err
	}
	notNil(&h.Revisions)
	return h, nil
}

// Revision reads an accepted spec by its generation, as it was applied.
func (c *Client) Revision(ctx context.Context, generation string) (*api.SpecDocument, error) {
	return get[api.SpecDocument](ctx, c, "/v1/history/"+url.PathEscape(generation), nil)
}

// Plan reads how the node differs from the accepted spec.
func (c *Client) Plan(ctx context.Context) (*api.Plan, error) {
	p, err := get[api.Plan](ctx, c, "/v1/plan", nil)
	if err != nil {
		return nil, err
	}
	notNil(&p.Steps)
	return p, nil
}

// MIG reads profiles, placements and instances of the GPUs.
func (c *Client) MIG(ctx context.Context) (*api.MIGList, error) {
	return get[api.MIGList](ctx, c, "/v1/mig", nil)
}

// Doctor runs the daemon's checks.
func (c *Client) Doctor(ctx context.Context) (*api.Doctor, error) {
	return get[api.Doctor](ctx, c, "/v1/doctor", nil)
}

// Counters reads the daemon's counters.
func (c *Client) Counters(ctx context.Context) (map[string]uint64, error) {
	m, err := get[map[string]uint64](ctx, c, "/v1/counters", nil)
	if err != nil {
		return nil, err
	}
	return *m, nil
}

// Explain reads what is enforced for a lease or a tenant, by what, and what is not and why.
func (c *Client) Explain(ctx context.Context, name string) (*api.Explanation, error) {
	e, err := get[api.Explanation](ctx, c, "/v1/explain", url.Values{"of": {name}})
	if err != nil {
		return nil, err
	}
	notNil(&e.Rules)
	return e, nil
}

// Environment reads the environment of the lease that the caller runs in.
func (c *Client) Environment(ctx context.Context) (*api.Environment, error) {
	return get[api.Environment](ctx, c, "/v1/env", nil)
}

// PodmanOptions reads the options with which rootless podman runs a container in the lease that the caller runs in.
func (c *Client) PodmanOptions(ctx context.Context) (*api.Environment, error) {
	return get[api.Environment](ctx, c, "/v1/env", url.Values{"podman": {"true"}})
}

// ApplyOptions are the options of Apply.
type ApplyOptions struct {
	File       string // for messages
	Check      bool   // stop after the plan
	Diff       bool
	Force      bool
	AllowReset bool
	Resets     []string // the UUIDs of the only GPUs that may be reset; nil: AllowReset is for all
	Drained    []string // the engines that have no job on the GPUs that it changes
	IfMatch    *uint64  // refuse unless this is the generation in force
}

// Apply sends a spec.
func (c *Client) Apply(ctx context.Context, document []byte, o ApplyOptions) (*api.ApplyResult, error) {
	q := url.Values{}
	for name, on := range map[string]bool{"check": o.Check, "diff": o.Diff, "force": o.Force, "allow-reset": o.AllowReset} {
		if on {
			q.Set(name, "1")
		}
	}
	if o.File != "" {
		q.Set("file", o.File)
	}
	if len(o.Drained) > 0 {
		q.Set("drained", strings.Join(o.Drained, ","))
	}
	h := http.Header{"Content-Type": {"application/yaml"}}
	if o.IfMatch != nil {
		h.Set("If-Match", strconv.Quote(strconv.FormatUint(*o.IfMatch, 10)))
	}
	out := new(api.ApplyResult)
	err := c.permitting(ctx, q, o.Resets, func() error { return c.Do(ctx, http.MethodPut, "/v1/spec", q, document, h, out) })
	if err != nil {
		return nil, err
	}
	notNil(&out.Plan.Steps)
	return out, nil
}

// permitting sends a request with the permission to reset some GPUs alone. A daemon that is older than this client refuses it, and gets
// the permission that it knows, which is for all that the request resets.
func (c *Client) permitting(ctx context.Context, query url.Values, resets []string, send func() error) error {
	if len(resets) == 0 {
		return send()
	}
	query.Set("reset", strings.Join(resets, ","))
	err := send()
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != api.KindInvalid {
		return err
	}
	if daemon, unknown := c.Info(ctx); unknown != nil || slices.Contains(daemon.Features, api.FeatureResets) {
		return err
	}
	query.Del("reset")
	query.Set("allow-reset", "1")
	return send()
}

// UnmanageOptions are the options of Unmanage.
type UnmanageOptions struct {
	All     bool // restore the GPUs too, and keep no spec
	Check   bool // stop after the plan
	Force   bool
	Drained []string // as of Apply
}

// Unmanage removes every restriction of gpushare from the node.
func (c *Client) Unmanage(ctx context.Context, o UnmanageOptions) (*api.ApplyResult, error) {
	q := url.Values{}
	for name, on := range map[string]bool{"all": o.All, "check": o.Check, "force": o.Force} {
		if on {
			q.Set(name, "1")
		}
	}
	if len(o.Drained) > 0 {
		q.Set("drained", strings.Join(o.Drained, ","))
	}
	out := new(api.ApplyResult)
	if err := c.Do(ctx, http.MethodPost, "/v1/unmanage", q, nil, nil, out); err != nil {
		return nil, err
	}
	notNil(&out.Plan.Steps)
	return out, nil
}

// Operations lists the operations that run and the last that ended, the oldest first.
func (c *Client) Operations(ctx context.Context) (*api.OperationList, error) {
	l, err := get[api.OperationList](ctx, c, "/v1/operations", nil)
	if err != nil {
		return nil, err
	}
	notNil(&l.Operations)
	return l, nil
}

// Operation reads an operation; with wait it blocks until its version is past after, it ends, or wait is over.
func (c *Client) Operation(ctx context.Context, id string, after uint64, wait time.Duration) (*api.Operation, error) {
	q := url.Values{}
	if wait > 0 {
		q.Set("wait", wait.String())
		q.Set("after", strconv.FormatUint(after, 10))
	}
	return get[api.Operation](ctx, c, "/v1/operations/"+url.PathEscape(id), q)
}

// Follow calls f with every new version of an operation until it ends, and returns the last.
func (c *Client) Follow(ctx context.Context, op *api.Operation, f func(*api.Operation)) (*api.Operation, error) {
	for {
		f(op)
		if op.Finished != nil {
			return op, nil
		}
		next, err := c.Operation(ctx, op.ID, op.Version, 20*time.Second)
		if err != nil {
			return op, err
		}
		op = next
	}
}

// RetryOptions are the options of RetryGPU.
type RetryOptions struct {
	Force      bool     // stop what is in the way
	AllowReset bool     // let the driver reset the GPU
	Resets     []string // as of Apply
	Drained    []string // as of Apply
}

// RetryGPU tries a held or stuck GPU again.
func (c *Client) RetryGPU(ctx context.Context, id string, o RetryOptions) (*api.Operation, error) {
	q := url.Values{}
	for name, on := range map[string]bool{"force": o.Force, "allow-reset": o.AllowReset} {
		if on {
			q.Set(name, "1")
		}
	}
	if len(o.Drained) > 0 {
		q.Set("drained", strings.Join(o.Drained, ","))
	}
	out := new(api.Operation)
	err := c.permitting(ctx, q, o.Resets, func() error {
		return c.Do(ctx, http.MethodPost, "/v1/gpus/"+url.PathEscape(id)+"/retry", q, nil, nil, out)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// CordonGPU closes a GPU to new leases until UncordonGPU.
func (c *Client) CordonGPU(ctx context.Context, gpu, reason string) (*api.CordonResult, error) {
	body, err := json.Marshal(api.CordonRequest{Reason: reason})
	if err != nil {
		return nil, err
	}
	return c.cordon(ctx, gpu, "/cordon", body)
}

// UncordonGPU ends CordonGPU.
func (c *Client) UncordonGPU(ctx context.Context, gpu string) (*api.CordonResult, error) {
	return c.cordon(ctx, gpu, "/uncordon", nil)
}

func (c *Client) cordon(ctx context.Context, gpu, what string, body []byte) (*api.CordonResult, error) {
	out := new(api.CordonResult)
	if err := c.Do(ctx, http.MethodPost, "/v1/gpus/"+url.PathEscape(gpu)+what, nil, body, nil, out); err != nil {
		return nil, err
	}
	notNil(&out.Leases)
	return out, nil
}

// Acknowledge acknowledges a condition by its id.
func (c *Client) Acknowledge(ctx context.Context, id string, r api.AcknowledgeRequest) (*api.AcknowledgeResult, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return c.acknowledge(ctx, id, "ack", b)
}

// Unacknowledge ends the acknowledgement of a condition.
func (c *Client) Unacknowledge(ctx context.Context, id string) (*api.AcknowledgeResult, error) {
	return c.acknowledge(ctx, id, "unack", nil)
}

func (c *Client) acknowledge(ctx context.Context, id, what string, body []byte) (*api.AcknowledgeResult, error) {
	out := new(api.AcknowledgeResult)
	if err := c.Do(ctx, http.MethodPost, "/v1/conditions/"+url.PathEscape(id)+"/"+what, nil, body, nil, out); err != nil {
		return nil, err
	}
	return out, nil
}

// FreezeTenant freezes all leases of a tenant until ThawTenant.
func (c *Client) FreezeTenant(ctx context.Context, name string) (*api.TenantFreezeResult, error) {
	return c.freeze(ctx, name, "freeze")
}

// ThawTenant ends FreezeTenant.
func (c *Client) ThawTenant(ctx context.Context, name string) (*api.TenantFreezeResult, error) {
	return c.freeze(ctx, name, "thaw")
}

func (c *Client) freeze(ctx context.Context, name, what string) (*api.TenantFreezeResult, error) {
	out := new(api.TenantFreezeResult)
	if err := c.Do(ctx, http.MethodPost, "/v1/tenants/"+url.PathEscape(name)+"/"+what, nil, nil, nil, out); err != nil {
		return nil, err
	}
	notNil(&out.Leases)
	return out, nil
}

// ImportInstances lets gpushare manage foreign MIG instances. With check it only returns the plan.
func (c *Client) ImportInstances(ctx context.Context, r api.InstancesRequest, check bool) (*api.ApplyResult, error) {
	return c.instances(ctx, "/v1/mig/import", r, check)
}

// RemoveInstances removes idle MIG instances. With check it only returns the plan.
func (c *Client) RemoveInstances(ctx context.Context, r api.InstancesRequest, check bool) (*api.ApplyResult, error) {
	return c.instances(ctx, "/v1/mig/remove", r, check)
}

func (c *Client) instances(ctx context.Context, path string, r api.InstancesRequest, check bool) (*api.ApplyResult, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	q := url.Values{}
	if check {
		q.Set("check", "1")
	}
	out := new(api.ApplyResult)
	if err := c.Do(ctx, http.MethodPost, path, q, b, nil, out); err != nil {
		return nil, err
	}
	notNil(&out.Plan.Steps)
	return out, nil
}

// Reload makes the daemon read its settings again, and apply the spec_file of the settings.
func (c *Client) Reload(ctx context.Context) error {
	_, err := c.Reloaded(ctx)
	return err
}

// Reloaded is Reload with its answer.
func (c *Client) Reloaded(ctx context.Context) (*api.Reloaded, error) {
	var out api.Reloaded
	if err := c.Do(ctx, http.MethodPost, "/v1/reload", nil, nil, nil, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// StopLease stops a lease (SIGTERM, a grace period, SIGKILL) and returns when it has ended.
func (c *Client) StopLease(ctx context.Context, id string) error {
	return c.Do(ctx, http.MethodDelete, "/v1/leases/"+url.PathEscape(id), nil, nil, nil, nil)
}

// Attach requests a lease for running processes, which stay in their cgroup. It works as Lease, but the lease does not end
// with the calling process.
func (c *Client) Attach(ctx context.Context, r api.AttachRequest, progress func(*api.LeaseGrant)) (*api.LeaseGrant, error) {
	g, err := c.lease(ctx, "/v1/leases/attach", r, progress)
	if errors.Is(err, errLost) {
		err = &api.Error{
			Kind: api.KindUnavailable, Message: "gpushared went away while the lease was waited for",
			Hint: "see 'gpushare lease list' when it is back, and attach again if it is not there",
		}
	}
	return g, err
}

// AttachEngine registers the keyed lease of a job, or returns the lease that the key has.
func (c *Client) AttachEngine(ctx context.Context, r api.EngineRequest) (*api.LeaseGrant, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the request: %w", err)
	}
	out := new(api.LeaseGrant)
	if err := c.Do(ctx, http.MethodPost, "/v1/engine/leases", nil, b, nil, out); err != nil {
		return nil, err
	}
	return out, nil
}

// EngineLease returns the lease of a key, also of one that has ended lately.
func (c *Client) EngineLease(ctx context.Context, key string) (*api.Lease, error) {
	out := new(api.Lease)
	if err := c.Do(ctx, http.MethodGet, "/v1/engine/leases/"+url.PathEscape(key), nil, nil, nil, out); err != nil {
		return nil, err
	}
	return out, nil
}

// EngineDevice returns the CDI document of the lease of a key: one device, with the id of the lease as its name.
func (c *Client) EngineDevice(ctx context.Context, key string) (json.RawMessage, error) {
	var out json.RawMessage
	if err := c.Do(ctx, http.MethodGet, "/v1/engine/leases/"+url.PathEscape(key)+"/cdi", nil, nil, nil, &out); err != nil {
		return nil, err
	}
	return out, nil
}

// ReleaseEngine ends the lease of a key and returns its id. Its processes continue. It is no error if it has ended lately.
func (c *Client) ReleaseEngine(ctx context.Context, key string) (lease string, err error) {
	var out struct {
		Released string `json:"released"`
	}
	err = c.Do(ctx, http.MethodDelete, "/v1/engine/leases/"+url.PathEscape(key), nil, nil, nil, &out)
	return out.Released, err
}

// ReserveContainer reserves a place for one container, which has a CDI device of its own.
func (c *Client) ReserveContainer(ctx context.Context, r api.ContainerRequest) (*api.ContainerUse, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the request: %w", err)
	}
	out := new(api.ContainerUse)
	if err := c.Do(ctx, http.MethodPost, "/v1/containers", nil, b, nil, out); err != nil {
		return nil, err
	}
	return out, nil
}

// ReleaseLease ends an attached lease. Its processes continue.
func (c *Client) ReleaseLease(ctx context.Context, id string) error {
	return c.Do(ctx, http.MethodPost, "/v1/leases/"+url.PathEscape(id)+"/release", nil, nil, nil, nil)
}

// Leases lists leases; with all also those that ended recently.
func (c *Client) Leases(ctx context.Context, all bool) ([]api.Lease, error) {
	q := url.Values{}
	if all {
		q.Set("all", "1")
	}
	l, err := get[api.LeaseList](ctx, c, "/v1/leases", q)
	if err != nil {
		return nil, err
	}
	notNil(&l.Leases)
	return l.Leases, nil
}

// LeasesSince lists the leases with those that ended since then: an age as in 36h or 7d, or a date.
func (c *Client) LeasesSince(ctx context.Context, since string) ([]api.Lease, error) {
	l, err := get[api.LeaseList](ctx, c, "/v1/leases", url.Values{"since": {since}})
	if err != nil {
		return nil, err
	}
	notNil(&l.Leases)
	return l.Leases, nil
}

// Usage returns what leases used from since until until: ages as in 36h or 7d, or dates. by are the keys of the rows: tenant,
// user, gpu, lease. With a step, as in 1h, also what they used in each. What is empty has the daemon's default: 7d, now, one row,
// no steps.
func (c *Client) Usage(ctx context.Context, since, until, step string, by []string) (*api.Usage, error) {
	q := url.Values{}
	for name, value := range map[string]string{"since": since, "until": until, "step": step, "by": strings.Join(by, ",")} {
		if value != "" {
			q.Set(name, value)
		}
	}
	u, err := get[api.Usage](ctx, c, "/v1/usage", q)
	if err != nil {
		return nil, err
	}
	notNil(&u.Rows)
	return u, nil
}

// Idle lists who holds GPU memory, and since when it is not used.
func (c *Client) Idle(ctx context.Context) (*api.Idle, error) {
	i, err := get[api.Idle](ctx, c, "/v1/idle", nil)
	if err != nil {
		return nil, err
	}
	notNil(&i.Uses)
	return i, nil
}

// Logs copies the output of a detached lease: all that is kept, or the last lines if lines is not negative. With follow it
// continues until the lease ends.
func (c *Client) Logs(ctx context.Context, id string, lines int, follow bool, to io.Writer) error {
	q := url.Values{}
	if lines >= 0 {
		q.Set("lines", strconv.Itoa(lines))
	}
	if follow {
		q.Set("follow", "1")
	}
	res, err := c.send(ctx, http.MethodGet, "/v1/leases/"+url.PathEscape(id)+"/logs", q, nil, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	out := &noted{w: to}
	if _, err = io.Copy(out, res.Body); err != nil && out.err == nil {
		return unreadable(ctx, err)
	}
	if e := new(api.Error); json.Unmarshal([]byte(res.Trailer.Get(api.ErrorTrailer)), e) == nil && e.Message != "" {
		return e // The caller lost the right to the rest.
	}
	return out.err
}

// noted remembers an error of the writer, which is not an error of the daemon.
type noted struct {
	w   io.Writer
	err error
}

// Write writes.
func (n *noted) Write(b []byte) (int, error) {
	k, err := n.w.Write(b)
	n.err = err
	return k, err
}

// AuditFilter selects lines of the audit. An empty field selects all.
type AuditFilter struct {
	Since, Until string // an age as in 36h or 7d, or a date
	User         string // a name or a uid
	Tenant       string
}

// Audit calls f for every line of the audit, the oldest first.
func (c *Client) Audit(ctx context.Context, filter AuditFilter, f func(api.AuditLine)) error {
	return lines(
		ctx, c, "/v1/audit",
		url.Values{"since": {filter.Since}, "until": {filter.Until}, "user": {filter.User}, "tenant": {filter.Tenant}}, f,
	)
}

// VerifyAudit says whether every line of the audit is there and follows the one before it. Each anchor is a line that is known from
// elsewhere, as NUMBER:SHA256.
func (c *Client) VerifyAudit(ctx context.Context, anchors ...string) (*api.AuditVerification, error) {
	return get[api.AuditVerification](ctx, c, "/v1/audit/verify", url.Values{"anchor": {strings.Join(anchors, ",")}})
}

// Events calls f for every event from now on until ctx ends.
func (c *Client) Events(ctx context.Context, f func(api.Event)) error {
	res, err := c.send(ctx, http.MethodGet, "/v1/events", nil, nil, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	for d := json.NewDecoder(res.Body); ; {
		var e api.Event
		if err := d.Decode(&e); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			message := "the stream of events ended"
			if !errors.Is(err, io.EOF) {
				message += ": " + err.Error()
			}
			return &api.Error{Kind: api.KindUnavailable, Message: message, Hint: "the daemon may have been restarted: run it again"}
		}
		if e.Kind == api.EventRoleEnded {
			return &api.Error{Kind: api.KindDenied, Message: e.Message, Hint: "ask the administrator: 'gpushare version' prints your role"}
		}
		f(e)
	}
}

// EventsBetween calls f for every event that the daemon keeps, from since until until, the oldest first: ages as in 36h or 7d, or dates;
// one may be empty.
func (c *Client) EventsBetween(ctx context.Context, since, until string, f func(api.Event)) error {
	return lines(ctx, c, "/v1/events/kept", url.Values{"since": {since}, "until": {until}}, f)
}

// lines reads an answer of one object for each line. Empty values of the query are left out.
func lines[T any](ctx context.Context, c *Client, path string, q url.Values, f func(T)) error {
	maps.DeleteFunc(q, func(_ string, v []string) bool { return v[0] == "" })
	res, err := c.send(ctx, http.MethodGet, path, q, nil, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	for d := json.NewDecoder(res.Body); ; {
		var l T
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return unreadable(ctx, err)
		}
		f(l)
	}
}

// Metrics reads the metrics in the text format of Prometheus.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	res, err := c.send(ctx, http.MethodGet, "/metrics", nil, nil, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := boundedread.All(res.Body, boundedread.Record)
	if err != nil {
		return nil, unreadable(ctx, err)
	}
	return b, nil
}
