package mps

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
