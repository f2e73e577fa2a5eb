package control

import (
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/mps"
)

// Timeouts and limits.
const (
	startTimeout       = 30 * time.Second       // from the start of the unit to its greeting, which is slow with many GPUs
	startPoll          = 20 * time.Millisecond  // there is no event for a socket that starts to answer
	quitTimeout        = 10 * time.Second       // for servers to end after their clients were terminated
	stopTimeout        = 5 * time.Second        // from SIGTERM to SIGKILL of the unit
	quitMargin         = 500 * time.Millisecond // added to the timeout that the program gets
	maxMissedGreetings = 3                      // in a row, until a daemon counts as unresponsive
	readInterval       = 3 * time.Minute        // between two readings of clients: each costs a process and some log lines
	limitsInterval     = 15 * time.Minute       // between two readings of limits that no process seems to have changed
	openFiles          = 16384                  // as NVIDIA's documentation recommends for the server
)

// Supervisor runs the control daemons of a node. Set the fields before the first use. Its methods may be called
// concurrently, but not Start and Stop for one device at a time.
type Supervisor struct {
	Units    Units
	Control  string // absolute path of nvidia-cuda-mps-control
	RunDir   string // for instance /run/gpushare/mps
	StateDir string // for instance /var/lib/gpushare/mps
	Log      *slog.Logger
	Now      func() time.Time

	mu     locks.Mutex[locks.AdapterLeaf] // guards what follows
	gpus   map[mps.Device]*gpuState
	probed *probed // nil until the control program was identified

	watch watch
}

// gpuState is the state of one control daemon that is kept between two observations.
type gpuState struct {
	last            atomic.Pointer[mps.State]    // the last observation; nil also when no daemon was found
	mu              locks.Mutex[locks.MPSDaemon] // held during observations and changes; protects the rest
	unitChecked     bool                         // whether there is a unit without a record
	foreign         bool                         // there is a unit without a record
	missedGreetings int
	read            time.Time // time of the reading
	pid             int       // of the control daemon
	begin           uint64    // its start time, clock ticks since boot
	log             logCheck
	witness         witness
	faults          faults
	suspect         atomic.Pointer[suspicion] // the driver reported an error of the GPU; nil: it did not
	reread          atomic.Bool               // the reading is not to be an old one
	reading         reading
	refused         map[int]string // by server: the difference that remained when its limits were set
	restarts        restarts
	access          access // has its own lock
	peers           peers  // has its own lock
}

func (s *Supervisor) layout(d mps.Device) layout {
	return layout{dir: filepath.Join(s.RunDir, d.Name())}
}

func (s *Supervisor) gpuState(id mps.Device) *gpuState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gpus == nil {
		s.gpus = map[mps.Device]*gpuState{}
	}
	w := s.gpus[id]
	if w == nil {
		w = &gpuState{}
		s.gpus[id] = w
	}
	return w
}

// Service is the unit of a device's control daemon. It runs in the foreground, because a start in the background reports success
// even when it fails. It has nothing of gpushared's environment, which the server would inherit. The device is given by its UUID,
// so that it is device 0 for the daemon.
func (s *Supervisor) Service(set mps.Settings, can mps.Abilities) mps.Service {
	l := s.layout(set.Device())
	return mps.Service{
		Name:        mps.UnitName(set.Device()),
		Description: "CUDA MPS control daemon of " + set.Device().String(),
		Argv:        can.Argv(s.Control),
		Env: append(environment(s.Control, l.pipe()),
			"CUDA_MPS_LOG_DIRECTORY="+l.logs(),
			"CUDA_VISIBLE_DEVICES="+set.Visible()),
		Dir:       "/",
		OpenFiles: openFiles,
	}
}

// Environment returns the variables, as NAME=value, with which a lease's processes join MPS on a device.
func (s *Supervisor) Environment(d mps.Device, lim mps.Limits) ([]string, error) {
	return lim.Environment(d, s.layout(d).tenant())
}

// Forget removes the files of a device whose MPS was stopped.
func (s *Supervisor) Forget(d mps.Device) error { return s.layout(d).remove() }
