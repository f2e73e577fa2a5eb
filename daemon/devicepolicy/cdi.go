package devicepolicy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// CdiPrefix begins the names of the CDI files of gpushare, and of no others.
const CdiPrefix = "gpushare-"

// CDI keeps the CDI files, by which container runtimes find the devices of grants.
type CDI struct {
	Wake loop.Wake // an input of a description has changed

	Mu     locks.Mutex[locks.CDI] // one call writes at a time; protects the fields below
	Grants map[state.GrantKey]bool

	written map[string]description // by file name

	libraries   []isolation.Library
	librariesOf *observe.Node // the observation for which they were read
}

// description is a CDI file as it was written or checked last.
type description struct {
	content []byte
	file    fs.FileInfo
}

// unchanged reports whether the file is still the same, with this content. A stat costs less than a read, and each lease
// that starts or ends checks one file for each grant.
func (w description) unchanged(file string, content []byte) bool {
	if w.file == nil || !bytes.Equal(w.content, content) {
		return false
	}
	now, err := os.Lstat(file)
	return err == nil && os.SameFile(now, w.file) && now.ModTime().Equal(w.file.ModTime()) && now.Size() == w.file.Size()
}

// librariesLocked finds the driver's libraries, once for each observation of the node. Mu is held.
func (x *CDI) librariesLocked(root string, node *observe.Node) []isolation.Library {
	if x.librariesOf != node {
		x.libraries, x.librariesOf = isolation.ReadLibraries(root, node.Driver.DriverVersion), node
	}
	return x.libraries
}

// Update makes Run write the files soon. It may be called with any lock held.
func (x *CDI) Update() {
	x.Wake.Set()
}

// cdiSpacing is the minimum time between two updates of the files.
const cdiSpacing = 100 * time.Millisecond

// cdiIdle is how long the loop sleeps when nothing changes.
const cdiIdle = time.Hour

// Run keeps the CDI files current until ctx ends.
func (pol *Policy) Run(ctx context.Context) {
	var loops loop.Group
	loops.Go(func() { pol.followUnits(ctx) })
	defer loops.Wait()
	for {
		woken, ok := pol.CDI.Wake.Sleep(ctx, cdiIdle)
		if !ok {
			return
		}
		if woken {
			pol.WriteCDI(ctx)
			loop.Pause(ctx, cdiSpacing) // So that many leases that start and end cause few updates.
		}
	}
}

// Offers reports whether a container of a grant can be started now.
func (x *CDI) Offers(k state.GrantKey) bool {
	x.Mu.Lock()
	defer x.Mu.Unlock()
	return x.Grants[k]
}

// WriteCDI writes one CDI file for each grant, with the devices that its next lease would get, so that a container gets
// nothing that another lease has. When no further lease is possible, they are the devices of the grant's newest lease: a
// container that is restarted finds them again. It writes only what changed, and removes files without a grant.
func (pol *Policy) WriteCDI(ctx context.Context) {
	pol.CDI.Mu.Lock()
	defer pol.CDI.Mu.Unlock()
	node, want := pol.Observer.Last(), pol.State.Desired()
	if node.DriverErr != nil || pol.NeverRead(node) {
		return // Keep the files: they were correct at the last observation.
	}
	files, grants, problems := map[string][]byte{}, map[state.GrantKey]bool{}, map[string]api.Condition{}
	if want.Enforcing() && want.Spec != nil && pol.Port.Info().Slices {
		hw, err := pol.hardware(node, nil)
		if err != nil {
			return // As above.
		}
		libraries := pol.CDI.librariesLocked(pol.HostRoot, node)
		for i := range want.Spec.Tenants {
			t := &want.Spec.Tenants[i]
			for j := range t.Grants {
				k := state.GrantKey{Tenant: t.Name, Grant: t.Grants[j].Name}
				b, err := pol.describeGrant(ctx, &hw, t.Name, &t.Grants[j], libraries)
				if err != nil {
					problems[isolation.CDIDevice(k.Tenant, k.Grant)] = api.Condition{Tenant: t.Name, Message: fmt.Sprintf("cannot start a container in grant %s of %s: %v", k.Grant, k.Tenant, err)}
				}
				if b != nil {
					files[CdiPrefix+isolation.CDIDevice(k.Tenant, k.Grant)+".json"], grants[k] = b, true
				}
			}
		}
	}
	pol.CDI.Grants = grants
	if err := pol.SyncCDILocked(files); err != nil {
		problems[""] = api.Condition{Message: "cannot write the CDI files of the grants: " + err.Error(), Hint: "check cdi_dir in the settings; leases are not affected"}
	}
	pol.Conditions.Replace("cdi", problems)
}

// describeGrant returns the CDI file of one grant; nil when no container can be started in it now.
func (pol *Policy) describeGrant(ctx context.Context, hw *isolation.Hardware, tenant string, g *api.GrantSpec, libraries []isolation.Library) ([]byte, error) {
	if g.Kind() == api.ModeMPS {
		return nil, nil // An MPS client shares more with the server than a container shares with its host.
	}
	key := lease.Key{Tenant: tenant, Grant: g.Name}
	l := lease.Lease{Terms: lease.Grant{Tenant: tenant, Spec: *g}}
	place, ok := pol.Table.Preview(key)
	if !ok {
		for _, live := range pol.Table.Live() { // oldest first
			if live.Terms.Key() == key && !pol.State.Stale(&live) {
				place, ok = live.Place, true
			}
		}
	}
	if !ok {
		return nil, nil
	}
	l.Place = place
	rules, _, err := pol.rulesOn(hw, &l)
	if err != nil {
		return nil, err
	}
	env, _, err := pol.Environment(ctx, &l)
	if err != nil {
		return nil, err
	}
	delete(env, "GPUSHARE_LEASE") // There is no lease yet.
	s, err := isolation.CDI(isolation.Container{
		Tenant: tenant, Grant: g.Name, Rules: rules, Environment: env, Libraries: libraries, HostRoot: pol.HostRoot,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make its CDI file: %w", err)
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot encode its CDI file: %w", err)
	}
	return append(b, '\n'), nil
}

// SyncCDILocked makes these files the only ones of gpushare in the directory. Only root may read them, because they name
// tenants. CDI.Mu is held.
func (pol *Policy) SyncCDILocked(files map[string][]byte) error {
	dir := pol.CDIDir
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
		if name := e.Name(); strings.HasPrefix(name, CdiPrefix) && strings.HasSuffix(name, ".json") && files[name] == nil {
			errs = append(errs, os.Remove(filepath.Join(dir, name)))
			pol.Counters.CDIWrites.Add(1)
		}
	}
	written := make(map[string]description, len(files))
	for name, b := range files {
		file := filepath.Join(dir, name)
		if w := pol.CDI.written[name]; w.unchanged(file, b) {
			written[name] = w
			continue
		}
		if old, err := os.ReadFile(file); err != nil || !bytes.Equal(old, b) {
			if err := store.Replace(file, b, 0o600); err != nil {
				errs = append(errs, err)
				continue
			}
			pol.Counters.CDIWrites.Add(1)
		}
		if info, err := os.Lstat(file); err == nil {
			written[name] = description{b, info}
		}
	}
	pol.CDI.written = written
	return errors.Join(errs...)
}
