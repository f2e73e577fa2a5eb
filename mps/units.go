package mps

import (
	"context"
	"time"
)

// Units starts services that live on when their starter ends. Systemd does, or Detached where there is no service manager.
type Units interface {
	// StartService starts a service that does not run. It returns when the process was started, not when it serves.
	StartService(ctx context.Context, s Service) error
	// StopService ends every process of the service: SIGTERM, and SIGKILL when timeout has passed. No such service is no
	// error.
	StopService(ctx context.Context, name string, timeout time.Duration) error
	// ServiceState reads the service's state; Known is false when there is no such service.
	ServiceState(ctx context.Context, name string) (ServiceState, error)
}

// Service describes one service.
type Service struct {
	Name        string // "gpushare-mps-5f0c1a2b3c4d.service"
	Description string
	Argv        []string // the program's absolute path first
	Env         []string // the whole environment
	Dir         string   // working directory
	// Restart starts it again when it ended by itself other than with success, after RestartAfter. An adapter without a
	// service manager cannot: the converge loop does it.
	Restart      bool
	RestartAfter time.Duration
	OpenFiles    uint64 // how many descriptors it may have, 0 for the usual number
}

// ServiceState is a service as read back.
type ServiceState struct {
	Known   bool
	Running bool
	PID     int    // of the main process, 0 when it does not run
	Result  string // why it does not run: "exited with 100", "killed by signal 9"
	// Leftovers are its processes that outlived the main one.
	Leftovers []int
}
