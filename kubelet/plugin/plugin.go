package plugin

import (
	"context"
	"errors"
	"log/slog"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/health"
)

// Plugin answers the kubelet.
type Plugin struct {
	Claims    *claims.Preparer
	Publisher *Publisher
	Log       *slog.Logger
	Fail      context.CancelCauseFunc // ends the program: an error that does not pass
}

// PrepareResourceClaims prepares each claim. One that is refused does not keep the others.
func (p *Plugin) PrepareResourceClaims(
	ctx context.Context, list []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	ctx, cancel := claims.Limit(ctx)
	defer cancel()
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range list {
		out[c.UID] = p.Claims.Prepare(ctx, c)
	}
	return out, nil
}

// UnprepareResourceClaims undoes that.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, list []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	ctx, cancel := claims.Limit(ctx)
	defer cancel()
	out := map[types.UID]error{}
	for _, c := range list {
		out[c.UID] = p.Claims.Unprepare(ctx, c.UID, c.String())
	}
	return out, nil
}

// HandleError logs what failed in the background. What is not tried again ends the program, and the service manager starts it again.
func (p *Plugin) HandleError(_ context.Context, err error, message string) {
	p.Log.Error("a task in the background failed", "task", message, "error", err)
	if dropped, ok := errors.AsType[*resourceslice.DroppedFieldsError](err); ok {
		p.Publisher.Dropped(dropped.DisabledFeatures())
	}
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.Fail(err)
	}
}

// WatchHealthStatus reports how the devices are, when that changes and often enough that the kubelet believes it.
func (p *Plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		n, changed := p.Publisher.Last()
		if n != nil {
			select {
			case <-ctx.Done():
				return nil
			case reports <- health.Report(n, p.Publisher.Pool, p.Publisher.Age()):
			}
		}
		if sleep(ctx, health.Interval, changed); ctx.Err() != nil {
			return nil
		}
	}
}
