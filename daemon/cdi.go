package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// cdiPrefix is what our files are called by, and no other's.
const cdiPrefix = "gpushare-"

// cdi is what container runtimes are told.
type cdi struct {
	wake loop.Wake // something changed that a description is made from

	mu     sync.Mutex // one writes at a time; guards what follows
	grants map[grantKey]bool

	written map[string]description // by file name

	libraries []isolation.Library
	seen      *observe.Node // when they were looked for
}

// description is a file as it was when it was known to be right.
type description struct {
	content []byte
	file    fs.FileInfo
}

// holds tells whether the file is still that one, with this content. To look at a file costs less than to read it, and
// there is one for each grant at each lease that comes or goes.
func (w description) holds(file string, content []byte) bool {
	if w.file == nil || !bytes.Equal(w.content, content) {
		return false
	}
	now, err := os.Lstat(file)
	return err == nil && os.SameFile(now, w.file) && now.ModTime().Equal(w.file.ModTime()) && now.Size() == w.file.Size()
}

// librariesLocked looks for the driver's libraries once for each look at the node. mu is held.
func (x *cdi) librariesLocked(root string, node *observe.Node) []isolation.Library {
	if x.seen != node {
		x.libraries, x.seen = isolation.ReadLibraries(root, node.Driver.DriverVersion), node
	}
	return x.libraries
}

// poke asks for a look soon. It may be called with any lock held.
func (x *cdi) poke() {
	x.wake.Set()
}

// cdiSpacing is the least time between two looks at what container runtimes are told.
const cdiSpacing = 100 * time.Millisecond

// cdiIdle is how long the loop waits for a word. It is woken whenever something changed.
const cdiIdle = time.Hour

// cdiLoop keeps what container runtimes are told current.
func (d *Policy) cdiLoop(ctx context.Context) {
	for {
		woken, ok := d.cdi.wake.Sleep(ctx, cdiIdle)
		if !ok {
			return
		}
		if woken {
			d.writeCDI(ctx)
			loop.Pause(ctx, cdiSpacing) // So that many leases that come and go make few looks.
		}
	}
}

// offers tells whether containers of a grant can be started now.
func (x *cdi) offers(k grantKey) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.grants[k]
}

// writeCDI describes each grant to container runtimes by the place that its next lease would have, so that a container is
// given nothing that somebody else has. When there is no further place it is that of the grant's own newest lease: a
// container that is restarted finds it again. It writes only what changed, and takes away what no grant explains.
func (d *Policy) writeCDI(ctx context.Context) {
	d.cdi.mu.Lock()
	defer d.cdi.mu.Unlock()
	node, want := d.observer.Last(), d.state.Desired()
	if node.DriverErr != nil || d.neverRead(node) {
		return // What is there stays: it was right when the node was last seen.
	}
	files, grants, problems := map[string][]byte{}, map[grantKey]bool{}, map[string]api.Condition{}
	if want.enforcing() && want.spec != nil && d.port.Info().Slices {
		hw, err := d.hardware(node, nil)
		if err != nil {
			return // As above.
		}
		libraries := d.cdi.librariesLocked(d.hostRoot, node)
		for i := range want.spec.Tenants {
			t := &want.spec.Tenants[i]
			for j := range t.GPU {
				k := grantKey{t.Name, t.GPU[j].Name}
				b, err := d.describeGrant(ctx, &hw, t.Name, &t.GPU[j], libraries)
				if err != nil {
					problems[isolation.CDIDevice(k.tenant, k.grant)] = api.Condition{Tenant: t.Name, Message: fmt.Sprintf("no container can be started in grant %s of %s: %v", k.grant, k.tenant, err)}
				}
				if b != nil {
					files[cdiPrefix+isolation.CDIDevice(k.tenant, k.grant)+".json"], grants[k] = b, true
				}
			}
		}
	}
	d.cdi.grants = grants
	if err := d.syncCDILocked(files); err != nil {
		problems[""] = api.Condition{Message: "container runtimes are not told of the grants: " + err.Error(), Hint: "see cdi_dir in the settings; leases are not affected"}
	}
	d.Conditions.replace("cdi", problems)
}

// describeGrant makes the document of one grant; nil when no container can be started with it now.
func (d *Policy) describeGrant(ctx context.Context, hw *isolation.Hardware, tenant string, g *api.GrantSpec, libraries []isolation.Library) ([]byte, error) {
	if g.Kind() == api.ModeMPS {
		return nil, nil // The server and its clients would have to share more than a container shares.
	}
	key := lease.Key{Tenant: tenant, Grant: g.Name}
	l := lease.Lease{Terms: lease.Grant{Tenant: tenant, Spec: *g}}
	place, ok := d.table.Preview(key)
	if !ok {
		for _, live := range d.table.Live() { // oldest first
			if live.Terms.Key() == key && !d.state.stale(&live) {
				place, ok = live.Place, true
			}
		}
	}
	if !ok {
		return nil, nil
	}
	l.Place = place
	rules, _, err := d.rulesOn(hw, &l)
	if err != nil {
		return nil, err
	}
	env, _, err := d.environment(ctx, &l)
	if err != nil {
		return nil, err
	}
	delete(env, "GPUSHARE_LEASE") // It has none yet.
	s, err := isolation.CDI(isolation.Container{
		Tenant: tenant, Grant: g.Name, Rules: rules, Environment: env, Libraries: libraries, HostRoot: d.hostRoot,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot describe it: %w", err)
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot encode it: %w", err)
	}
	return append(b, '\n'), nil
}

// syncCDILocked makes the folder hold exactly these files of ours. They are root's to read: they name tenants. d.cdi.mu is held.
func (d *Policy) syncCDILocked(files map[string][]byte) error {
	dir := d.cdiDir
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if len(files) == 0 {
			return nil
		}
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, cdiPrefix) && strings.HasSuffix(name, ".json") && files[name] == nil {
			errs = append(errs, os.Remove(filepath.Join(dir, name)))
			d.Counters.cdiWrites.Add(1)
		}
	}
	written := make(map[string]description, len(files))
	for name, b := range files {
		file := filepath.Join(dir, name)
		if w := d.cdi.written[name]; w.holds(file, b) {
			written[name] = w
			continue
		}
		if old, err := os.ReadFile(file); err != nil || !bytes.Equal(old, b) {
			if err := store.Replace(file, b, 0o600); err != nil {
				errs = append(errs, err)
				continue
			}
			d.Counters.cdiWrites.Add(1)
		}
		if info, err := os.Lstat(file); err == nil {
			written[name] = description{b, info}
		}
	}
	d.cdi.written = written
	return errors.Join(errs...)
}

// containerUse is how a container of a grant is started here; nil when none can be.
func (d *Viewer) containerUse(slices []cgroup.SliceState, k grantKey) *api.ContainerUse {
	if !d.policy.cdi.offers(k) {
		return nil
	}
	for _, s := range slices {
		if s.Name != (cgroup.SliceName{Tenant: k.tenant, Grant: k.grant}) || s.Path == "" {
			continue
		}
		u := &api.ContainerUse{Device: isolation.CDIKind + "=" + isolation.CDIDevice(k.tenant, k.grant), CgroupParent: path.Base(s.Path)}
		podman := "podman run"
		if d.port.Info().Driver != cgroup.DriverSystemd {
			podman, u.CgroupParent = "podman --cgroup-manager=cgroupfs run", s.Path
		}
		u.Command = fmt.Sprintf("%s --cgroup-parent=%s --device=%s IMAGE", podman, u.CgroupParent, u.Device)
		return u
	}
	return nil
}
