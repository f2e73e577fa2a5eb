package claims

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/boundedread"
)

// Ended is a claim whose lease has ended before it was unprepared: it was stopped, or its time was over.
type Ended struct {
	Claim  types.UID
	Name   string // NAMESPACE/NAME; empty: it is not known any more
	Reason string // of the end; empty: it is not known any more
	At     time.Time
}

// Claims are the claims that have a file.
func (f Files) Claims() ([]types.UID, error) {
	var out []types.UID
	err := boundedread.EachName(f.Dir, func(names []string) bool {
		for _, name := range names {
			claim, prefixed := strings.CutPrefix(name, api.ClaimFilePrefix)
			claim, complete := strings.CutSuffix(claim, ".json")
			if prefixed && complete {
				out = append(out, types.UID(claim))
			}
		}
		return true
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the CDI files: %w", err)
	}
	return out, nil
}

// RemoveEnded removes the files of claims that have no lease: a container that starts again would get the devices, and nothing would count
// or limit what it does there. known are leases as they were read before: only a claim that has none of them is checked.
func (p *Preparer) RemoveEnded(ctx context.Context, known []api.Lease) (out []Ended, err error) {
	claims, err := p.Files.Claims()
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if hasLease(known, claim) {
			continue
		}
		e, err := p.removeEnded(ctx, claim)
		if err != nil {
			return out, fmt.Errorf("the CDI file of claim %s is still there after its lease: %w", claim, err)
		}
		if e != nil {
			out = append(out, *e)
		}
	}
	return out, nil
}

func hasLease(leases []api.Lease, claim types.UID) bool {
	return slices.ContainsFunc(leases, func(l api.Lease) bool { return l.Engine != nil && strings.HasPrefix(l.Engine.Key, keysOf(claim)) })
}

// removeEnded removes the file of a claim unless it has a lease by now; nil: it has one. Prepare writes the file after the lease is there,
// and waits for this.
func (p *Preparer) removeEnded(ctx context.Context, claim types.UID) (*Ended, error) {
	_, unlock := p.locks.tryLock(claim)
	if unlock == nil {
		return nil, nil // The kubelet changes it: it is checked after the next reading of the node.
	}
	defer unlock()
	leases, err := p.Node.Leases(ctx)
	if err != nil || hasLease(leases, claim) {
		return nil, err
	}
	e := p.ended(ctx, claim)
	if err := p.Files.Remove(claim); err != nil {
		return nil, err
	}
	p.Log.Warn("the lease of a claim has ended, and its CDI file is removed", "claim", e.Name, "uid", claim, "reason", e.Reason)
	return e, nil
}

// lastKeys is how many keys of a claim are read for its last lease: each was prepared again within the hour.
const lastKeys = 10

// ended is what gpushared says of the last lease of a claim.
func (p *Preparer) ended(ctx context.Context, claim types.UID) *Ended {
	e := &Ended{Claim: claim}
	for i := range lastKeys {
		l, err := p.Leases.EngineLease(ctx, fmt.Sprintf("%s%d", keysOf(claim), i))
		if err != nil || l.Ended == nil || l.Ended.Before(e.At) {
			continue // It was never there, or more than an hour ago.
		}
		e.At, e.Reason = *l.Ended, l.Reason
		if len(l.Command) > 0 {
			e.Name = l.Command[0]
		}
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	return e
}
