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
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/internal/vendorcdi"
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
	Leases map[string]bool // the leases that wait for their container and have a device

	written map[string]description // by file name

	libraries   []isolation.Library
	vendor      *isolation.Vendor
	vendorErr   error
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

// readLibrariesLocked finds the driver's libraries and the vendor's CDI file, once for each observation of the node. Mu is held.
func (x *CDI) readLibrariesLocked(root string, node *observe.Node) {
	if x.librariesOf != node {
		x.libraries, x.librariesOf = isolation.ReadLibraries(root, node.Driver.DriverVersion), node
		x.vendor, x.vendorErr = vendorcdi.Read(root, node.Driver.DriverVersion)
	}
}

// Update makes Run write the files soon. It may be called with any lock held.
func (x *CDI) Update() {
	x.Wake.Set()
}

// cdiSpacing is the minimum time between two updates of the files, and longCDISpacing that of updates that take long: where all grants
// take from the same instances, each lease changes the file of every grant.
const (
	cdiSpacing     = 100 * time.Millisecond
	longCDISpacing = time.Second
)

// cdiIdle is how long the loop sleeps when nothing changes.
const cdiIdle = time.Hour

// Run keeps the CDI files current until ctx ends.
func (pol *Policy) Run(ctx context.Context) {
	var loops loop.Group
	loops.Go(func() { pol.followUnits(ctx) })
	loops.Go(func() { pol.followNodes(ctx) })
	defer loops.Wait()
	for {
		woken, ok := pol.CDI.Wake.Sleep(ctx, cdiIdle)
		if !ok {
			return
		}
		if woken {
			began := time.Now()
			pol.WriteCDI(ctx)
			loop.Pause(ctx, loop.Rest(time.Since(began), cdiSpacing, longCDISpacing))
		}
	}
}

// Offers reports whether a container of a grant can be started now.
func (x *CDI) Offers(k state.GrantKey) bool {
	x.Mu.Lock()
	defer x.Mu.Unlock()
	return x.Grants[k]
}

// OffersLease reports whether the container of a lease can be started now.
func (x *CDI) OffersLease(id string) bool {
	x.Mu.Lock()
	defer x.Mu.Unlock()
	return x.Leases[id]
}

// WriteCDI writes one CDI file for each lease that waits for its container, and one for each grant, with the devices that its
// next lease would get, so that a container gets nothing that another lease has. When no further lease is possible, they are the
// devices of the grant's newest lease: a container that is restarted finds them again. It writes only what changed, and removes files
// without a grant.
func (pol *Policy) WriteCDI(ctx context.Context) {
	pol.CDI.Mu.Lock()
	defer pol.CDI.Mu.Unlock()
	node, want := pol.Observer.Last(), pol.State.Desired()
	if node.DriverErr != nil {
		return // Keep the files: they were correct at the last observation.
	}
	files, grants, leases, problems := map[string][]byte{}, map[state.GrantKey]bool{}, map[string]bool{}, map[string]api.Condition{}
	if want.Enforcing() && want.Spec != nil && pol.Port.Info().Slices {
		hw, err := pol.hardware(node, nil)
		if err != nil {
			return // As above.
		}
		unread := pol.NeverRead(node)
		pol.CDI.readLibrariesLocked(pol.HostRoot, node)
		if err := pol.CDI.vendorErr; err != nil {
			problems["vendor"] = api.Condition{
				Message: err.Error() + "; containers get the driver's libraries without it",
				Hint:    "write it again with 'nvidia-ctk cdi generate', or remove it",
			}
		}
		waiting := pol.Table.LiveOnly((*lease.Lease).AwaitsContainer)
		for i := range waiting {
			l := &waiting[i]
			b, err := pol.describeLease(ctx, &hw, l, l.ID)
			if err != nil {
				problems[l.ID] = api.Condition{
					Tenant:  l.Terms.Tenant,
					Message: fmt.Sprintf("cannot start the container of lease %s: %v", l.ID, err),
				}
				continue
			}
			files[CdiPrefix+l.ID+".json"], leases[l.ID] = b, true
		}
		next := pol.Table.Previews()
		for i := range want.Spec.Tenants {
			t := &want.Spec.Tenants[i]
			for j := range t.Grants {
				k := state.GrantKey{Tenant: t.Name, Grant: t.Grants[j].Name}
				b, err := pol.describeGrant(ctx, &hw, next, t.Name, &t.Grants[j])
				if err != nil {
					problems[isolation.CDIDevice(k.Tenant, k.Grant)] = api.Condition{
						Tenant:  t.Name,
						Message: fmt.Sprintf("cannot start a container in grant %s of %s: %v", k.Grant, k.Tenant, err),
					}
				}
				if b == nil && usesAny(want, k, unread) {
					b = pol.lastCDI(k) // It was correct when the GPU was read last.
				}
				if b != nil {
					files[CdiPrefix+isolation.CDIDevice(k.Tenant, k.Grant)+".json"], grants[k] = b, true
				}
			}
		}
	}
	pol.CDI.Grants, pol.CDI.Leases = grants, leases
	if err := pol.SyncCDILocked(files); err != nil {
		problems[""] = api.Condition{
			Message: "cannot write the CDI files of the grants: " + err.Error(),
			Hint:    "check cdi_dir in the settings; leases are not affected",
		}
	}
	pol.Conditions.Replace("cdi", problems)
}

// lastCDI returns the CDI file that a grant has; nil without one.
func (pol *Policy) lastCDI(k state.GrantKey) []byte {
	b, err := boundedread.Trusted(filepath.Join(pol.CDIDir, CdiPrefix+isolation.CDIDevice(k.Tenant, k.Grant)+".json"), boundedread.Record)
	if err != nil {
		return nil
	}
	return b
}

// describeGrant returns the CDI file of one grant; nil when no container can be started in it now. next has the places of next leases.
func (pol *Policy) describeGrant(
	ctx context.Context, hw *isolation.Hardware, next map[lease.Key]lease.Place, tenant string, g *api.GrantSpec,
) ([]byte, error) {
	if g.Kind() == api.ModeMPS {
		return nil, nil // See api.NoCDIForMPS.
	}
	key := lease.Key{Tenant: tenant, Grant: g.Name}
	l := lease.Lease{Terms: lease.Grant{Tenant: tenant, Spec: *g}}
	place, ok := next[key]
	if !ok {
		// What an engine gave one of its jobs is of that job alone.
		mine := pol.Table.LiveOnly(func(l *lease.Lease) bool {
			return l.Terms.Key() == key && l.Engine == nil && !l.AwaitsContainer()
		})
		mine = slices.DeleteFunc(mine, func(l lease.Lease) bool { return pol.State.Stale(&l) })
		if len(mine) == 0 {
			return nil, nil
		}
		place = mine[len(mine)-1].Place // the newest
	}
	l.Place = place
	return pol.describeLease(ctx, hw, &l, isolation.CDIDevice(tenant, g.Name))
}

// describeLease returns the CDI file with the devices of a lease. Without an id there is no lease yet. CDI.Mu is held.
func (pol *Policy) describeLease(ctx context.Context, hw *isolation.Hardware, l *lease.Lease, device string) ([]byte, error) {
	c, err := pol.container(ctx, hw, l)
	if err != nil {
		return nil, err
	}
	c.Device, c.Libraries, c.Vendor = device, pol.CDI.libraries, pol.CDI.vendor
	s, err := isolation.CDI(c)
	if err != nil {
		return nil, fmt.Errorf("cannot make its CDI file: %w", err)
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot encode its CDI file: %w", err)
	}
	return append(b, '\n'), nil
}

// DescribeForEngine returns the CDI document with the devices of a lease of an engine, which writes the file itself. It is an error if one
// of its devices is not there: the engine would start a container without it.
func (pol *Policy) DescribeForEngine(ctx context.Context, l *lease.Lease) ([]byte, error) {
	pol.CDI.Mu.Lock()
	defer pol.CDI.Mu.Unlock()
	node := pol.Observer.Last()
	if node.DriverErr != nil {
		return nil, fmt.Errorf("cannot read the driver: %w", node.DriverErr)
	}
	hw, err := pol.hardware(node, nil)
	if err != nil {
		return nil, err
	}
	_, missing, err := pol.rulesOn(&hw, l)
	if err == nil && len(missing) > 0 {
		err = errors.New(strings.Join(missing, "; "))
	}
	if err != nil {
		return nil, err
	}
	pol.CDI.readLibrariesLocked(pol.HostRoot, node)
	return pol.describeLease(ctx, &hw, l, l.ID)
}

// container returns what a container of a lease gets, without the files of the driver.
func (pol *Policy) container(ctx context.Context, hw *isolation.Hardware, l *lease.Lease) (isolation.Container, error) {
	rules, _, err := pol.rulesOn(hw, l)
	if err != nil {
		return isolation.Container{}, err
	}
	env, _, err := pol.Environment(ctx, l)
	if err != nil {
		return isolation.Container{}, err
	}
	if l.ID == "" {
		delete(env, isolation.LeaseVariable)
	}
	return isolation.Container{Rules: rules, Environment: env, HostRoot: pol.HostRoot}, nil
}

// SyncCDILocked makes these files the only ones of gpushare in the directory. Only root may read them, because they name
// tenants. CDI.Mu is held.
func (pol *Policy) SyncCDILocked(files map[string][]byte) error {
	dir := pol.CDIDir
	entries, _, err := boundedread.Entries(dir, boundedread.Files)
	if errors.Is(err, fs.ErrNotExist) {
		if len(files) == 0 {
			return nil
		}
		err = durable.MakeDirectories(dir, 0o755) // Files of others will be there too, which users read.
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
		if old, err := boundedread.Trusted(file, boundedread.Record); err != nil || !bytes.Equal(old, b) {
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
