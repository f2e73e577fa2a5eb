package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/faultpoint"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// Leases are the keyed leases of gpushared.
type Leases interface {
	AttachEngine(ctx context.Context, r api.EngineRequest) (*api.LeaseGrant, error)
	EngineLease(ctx context.Context, key string) (*api.Lease, error)
	EngineDevice(ctx context.Context, key string) (json.RawMessage, error)
	ReleaseEngine(ctx context.Context, key string) (lease string, err error)
}

// Reader reads the node as it is now.
type Reader interface {
	Read(ctx context.Context) (*publish.Node, error)
	// Leases are there while the driver of the GPUs is not, as in a maintenance: pods end then.
	Leases(ctx context.Context) ([]api.Lease, error)
}

// Pods finds the cgroup of a pod. The kubelet creates it before it prepares claims.
type Pods interface {
	// Cgroup is the path below the mount; empty: it is not there.
	Cgroup(pod types.UID) string
	// Exists reports whether a path that Cgroup returned is still there.
	Exists(path string) bool
}

// Preparer prepares claims and undoes that. Calls for one claim follow one another: the kubelet's library sees to that.
type Preparer struct {
	Pool   string
	Leases Leases
	Node   Reader
	Pods   Pods
	Files  Files
	Log    *slog.Logger
	// ClaimsOf are the names of the claims that a pod uses, by its spec, in its namespace; none of a pod that has ended. nil: nothing is
	// known of pods.
	ClaimsOf func(ctx context.Context, namespace, name string, pod types.UID) ([]string, error)
	// Ended is called with a lease before it is released if processes of it were ended for their GPU memory; nil: nothing is.
	Ended func(l *api.Lease)

	locks claimLocks
}

// maxKeys is how often a claim can be prepared within an hour, each time after its lease has ended.
const maxKeys = 1000

// keysOf begins the keys of a claim. A claim that has ended its lease and is prepared again has the next one.
func keysOf(claim types.UID) string { return publish.KeyPrefix + string(claim) + ":" }

// Prepare gives a claim its lease and its CDI file. It may be called again at any time.
func (p *Preparer) Prepare(ctx context.Context, c *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	devices, err := p.alone(ctx, c)
	if err != nil {
		p.Log.Warn("a claim is not prepared", "claim", Name(c), "uid", c.UID, "error", err)
		return kubeletplugin.PrepareResult{Err: err}
	}
	return kubeletplugin.PrepareResult{Devices: devices}
}

func (p *Preparer) alone(ctx context.Context, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	unlock, err := p.locks.lock(ctx, c.UID)
	if err != nil {
		return nil, refuse(c, "%v", err)
	}
	defer unlock()
	return p.prepare(ctx, c)
}

func (p *Preparer) prepare(ctx context.Context, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	n, err := p.Node.Read(ctx)
	if err != nil {
		return nil, refuse(c, "%s", plain(err))
	}
	faultpoint.Hit("kubelet.prepare.read")
	plan, err := PlanOf(n, p.Pool, c)
	if err != nil || len(plan.Results) == 0 {
		return nil, err
	}
	cgroups, err := p.cgroups(c)
	if err != nil {
		return nil, err
	}
	used, err := p.used(ctx, c)
	if err != nil {
		return nil, refuse(c, "%v", err)
	}
	if other := otherClaim(n, c, cgroups, used); other != "" {
		return nil, refuse(
			c, "its pod has claim %s already, and the processes of a pod are in one lease: put the devices into one claim", other,
		)
	}
	l, err := p.lease(ctx, n, c, plan, cgroups)
	if err != nil {
		return nil, err
	}
	document, err := p.Leases.EngineDevice(ctx, l.Engine.Key)
	if err != nil {
		return nil, refuse(c, "%s", plain(err))
	}
	if err := p.Files.Write(c.UID, document); err != nil {
		return nil, refuse(c, "%v", err)
	}
	p.Log.Info("a claim is prepared", "claim", Name(c), "uid", c.UID, "lease", l.ID, "devices", l.Devices)
	return devicesOf(c, plan), nil
}

// devicesOf is the answer to the kubelet. All devices of a claim are in one lease: the first has its CDI device, for all requests.
func devicesOf(c *resourceapi.ResourceClaim, plan *Plan) []kubeletplugin.Device {
	out := make([]kubeletplugin.Device, len(plan.Results))
	var requests []string
	for i := range plan.Results {
		r := &plan.Results[i]
		requests = append(requests, r.Request)
		out[i] = kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, ShareID: r.ShareID}
	}
	out[0].Requests, out[0].CDIDeviceIDs = requests, []string{DeviceID(c.UID)}
	return out
}

// cgroups are those of the pods of a claim, the last one first. The kubelet has created that of the pod for which it asks. One that is
// not there is of a pod that has ended, or that starts later: then it joins (Join).
func (p *Preparer) cgroups(c *resourceapi.ResourceClaim) (out []string, err error) {
	pods := 0
	for id := range podsOf(c) {
		pods++
		if cgroup := p.Pods.Cgroup(id); cgroup != "" {
			out = append(out, cgroup)
		}
	}
	switch {
	case pods == 0:
		return nil, refuse(c, "no pod is reserved for it")
	case len(out) == 0:
		return nil, refuse(
			c,
			"its pod has no cgroup below kubepods, so nothing could be enforced: the kubelet needs --cgroups-per-qos and no --cgroup-root",
		)
	}
	return out, nil
}

// podsOf are the pods that a claim is reserved for, the last one first.
func podsOf(c *resourceapi.ResourceClaim) iter.Seq[types.UID] {
	return func(yield func(types.UID) bool) {
		for _, r := range slices.Backward(c.Status.ReservedFor) {
			if r.Resource == "pods" && r.APIGroup == "" && !yield(r.UID) {
				return
			}
		}
	}
}

// used are the names of all claims that the pods of a claim use, as Name has them. The kubelet asks for a claim alone that another pod has
// had prepared, and a pod has its cgroup a moment before the lease of such a claim has it.
func (p *Preparer) used(ctx context.Context, c *resourceapi.ResourceClaim) (out []string, err error) {
	if p.ClaimsOf == nil {
		return nil, nil
	}
	for _, r := range c.Status.ReservedFor {
		if r.Resource != "pods" || r.APIGroup != "" {
			continue
		}
		names, err := p.ClaimsOf(ctx, c.Namespace, r.Name, r.UID)
		if err != nil {
			return nil, fmt.Errorf("it is not known which claims pod %s has: %w", r.Name, err)
		}
		for _, name := range names {
			out = append(out, c.Namespace+"/"+name)
		}
	}
	return out, nil
}

// otherClaim is the name of another claim with a lease that has one of the cgroups, or that is among those that are used; empty: there is
// none.
func otherClaim(n *publish.Node, c *resourceapi.ResourceClaim, cgroups, used []string) string {
	for i := range n.Status.Leases {
		l := &n.Status.Leases[i]
		if l.Engine == nil || strings.HasPrefix(l.Engine.Key, keysOf(c.UID)) {
			continue
		}
		if _, ok := publish.ClaimOf(l.Engine.Key); !ok {
			continue
		}
		name := strings.Join(l.Command, " ")
		if slices.Contains(used, name) ||
			slices.ContainsFunc(cgroups, func(cg string) bool { return slices.Contains(l.Engine.Cgroups, cg) }) {
			return name
		}
	}
	return ""
}

// lease is the lease of the claim: the one that it has, or a new one. It has the cgroups of all pods of the claim that are there.
func (p *Preparer) lease(
	ctx context.Context,
	n *publish.Node,
	c *resourceapi.ResourceClaim,
	plan *Plan,
	cgroups []string,
) (*api.Lease, error) {
	plan.Request.Keep = true
	l, err := p.present(ctx, n, c, plan)
	if err == nil && l == nil {
		l, err = p.requested(ctx, n, c, plan, cgroups[0])
	}
	if err != nil {
		return nil, refuse(c, "%s", plain(err))
	}
	for _, cgroup := range cgroups {
		if slices.Contains(l.Engine.Cgroups, cgroup) {
			continue
		}
		g, err := p.Leases.AttachEngine(ctx, api.EngineRequest{Key: l.Engine.Key, Keep: true, Cgroup: cgroup})
		if err != nil {
			return nil, refuse(c, "%s", plain(err))
		}
		l = g.Lease
	}
	return l, nil
}

// present is the lease that the claim has; nil: none. One of another place or grant, or that ends with its processes, is released: the
// claim was allocated again, or an older version of this program has prepared it.
func (p *Preparer) present(ctx context.Context, n *publish.Node, c *resourceapi.ResourceClaim, plan *Plan) (*api.Lease, error) {
	for i := range n.Status.Leases {
		l := &n.Status.Leases[i]
		if l.Engine == nil || !strings.HasPrefix(l.Engine.Key, keysOf(c.UID)) {
			continue
		}
		r := plan.Request
		r.Key = l.Engine.Key
		g, err := p.Leases.AttachEngine(ctx, r)
		if err == nil && slices.Contains(plan.Grants, g.Lease.Grant) {
			return g.Lease, nil
		}
		// A request names no grant: it may be any of the plan. So gpushared does not see that it is another one, as of an instance of
		// another profile that begins at the same slice.
		if err != nil && kindOf(err) != api.KindConflict {
			return nil, err
		}
		if err := p.release(ctx, l); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// requested is a new lease, of the first grant that has place.
func (p *Preparer) requested(
	ctx context.Context, n *publish.Node, c *resourceapi.ResourceClaim, plan *Plan, cgroup string,
) (*api.Lease, error) {
	key, err := p.newKey(ctx, c.UID)
	if err != nil {
		return nil, err
	}
	for _, grant := range plan.Grants {
		r := plan.Request
		r.Key, r.Grant, r.Cgroup = key, grant, cgroup
		var g *api.LeaseGrant
		if g, err = p.Leases.AttachEngine(ctx, r); err == nil {
			return g.Lease, nil
		}
		if kindOf(err) != api.KindUnavailable {
			return nil, err
		}
	}
	if err == nil {
		err = fmt.Errorf("no grant of tenant %s is for its devices", n.Tenant.Name)
	}
	return nil, err
}

// newKey is the first key of a claim that no lease had within the hour.
func (p *Preparer) newKey(ctx context.Context, claim types.UID) (string, error) {
	for i := range maxKeys {
		key := fmt.Sprintf("%s%d", keysOf(claim), i)
		_, err := p.Leases.EngineLease(ctx, key)
		if kindOf(err) == api.KindNotFound {
			return key, nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("its lease ended %d times within an hour", maxKeys)
}

// Unprepare removes the CDI file of a claim and releases its lease. What is not there is no error.
func (p *Preparer) Unprepare(ctx context.Context, claim types.UID, name string) error {
	err := p.unprepare(ctx, claim)
	if err != nil {
		err = fmt.Errorf("cannot unprepare claim %s: %s", name, plain(err))
		p.Log.Warn("a claim is not unprepared", "claim", name, "uid", claim, "error", err)
		return err
	}
	p.Log.Info("a claim is unprepared", "claim", name, "uid", claim)
	return nil
}

func (p *Preparer) unprepare(ctx context.Context, claim types.UID) error {
	unlock, err := p.locks.lock(ctx, claim)
	if err != nil {
		return err
	}
	defer unlock()
	faultpoint.Hit("kubelet.unprepare.begin")
	if err := p.Files.Remove(claim); err != nil {
		return err
	}
	leases, err := p.Node.Leases(ctx)
	if err != nil {
		return err
	}
	for i := range leases {
		l := &leases[i]
		if l.Engine == nil || !strings.HasPrefix(l.Engine.Key, keysOf(claim)) {
			continue
		}
		if err := p.release(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// release ends a lease of a claim. One whose processes were ended is remembered before: its pods may not say so yet.
func (p *Preparer) release(ctx context.Context, l *api.Lease) error {
	if p.Ended != nil && l.Engine.EndedAt != nil {
		p.Ended(l)
	}
	if _, err := p.Leases.ReleaseEngine(ctx, l.Engine.Key); err != nil && kindOf(err) != api.KindNotFound {
		return err
	}
	return nil
}

// kindOf is the kind of an error of gpushared; empty: it has none.
func kindOf(err error) api.Kind {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Kind
	}
	return ""
}

// plain is an error with its hint in one line.
func plain(err error) string {
	if e, ok := errors.AsType[*api.Error](err); ok && e.Hint != "" {
		return e.Message + " (" + e.Hint + ")"
	}
	return err.Error()
}

// callTimeout limits one call of the kubelet, which waits 45 s.
const callTimeout = 40 * time.Second

// Limit is a context for one call of the kubelet.
func Limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callTimeout)
}
