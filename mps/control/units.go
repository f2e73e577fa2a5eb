package control

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/mps"
)

// Units starts services that outlive their starter: systemd, or Detached where there is no service manager.
type Units interface {
	// StartService starts a service that does not run. It returns when the process was started, not when it serves.
	StartService(ctx context.Context, s mps.Service) error
	// StopService ends every process of the service: SIGTERM, and SIGKILL after timeout. A service that does not exist is not
	// an error.
	StopService(ctx context.Context, name string, timeout time.Duration) error
	// ServiceState reads the service's state; Known is false when there is no such service.
	ServiceState(ctx context.Context, name string) (mps.ServiceState, error)
	// LastLines returns at most n of the last lines that the service printed, also after it has ended; none if they cannot be
	// read.
	LastLines(ctx context.Context, name string, n int) []string
}
