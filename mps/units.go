package mps

import (
	"context"
	"time"
)

// Units starts services that outlive their starter: systemd, or Detached where there is no service manager.
type Units interface {
	// StartService starts a service that does not run. It returns when the process was started, not when it serves.
	StartService(ctx context.Context, s Service) error
	// StopService ends every process of the service: SIGTERM, and SIGKILL after timeout. A service that does not exist is not
	// an error.
	StopService(ctx context.Context, name string, timeout time.Duration) error
	// ServiceState reads the service's state; Known is false when there is no such service.
	ServiceState(ctx context.Context, name string) (ServiceState, error)
	// LastLines returns at most n of the last lines that the service printed, also after it has ended; none if they cannot be
	// read.
	LastLines(ctx context.Context, name string, n int) []string
}

// Service describes one service. It is not restarted when it ends: a control daemon without its limits and its tenants' socket
// would serve no process, so the supervisor starts it again.
type Service struct {
	Name        string // "gpushare-mps-5f0c1a2b3c4d.service"
	Description string
	Argv        []string // the program's absolute path first
	Env         []string // the complete environment
	Dir         string   // working directory
	OpenFiles   uint64   // limit of open files, 0 for the default
}

// ServiceState is the state of a service.
type ServiceState struct {
	Known   bool
	Running bool
	PID     int    // of the main process, 0 when it does not run
	Result  string // why it does not run: "exited with 100", "killed by signal 9"
	// Leftovers are its processes that outlived the main one.
	Leftovers []int
}
