package host

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpu/worker"
)

// Deadlines are the time limits of driver calls, from those of one reading and of one change. A call that reads much
// gets the time of several readings, and MIG mode that of two changes: the GPU may be reset for it.
func Deadlines(answers, changes time.Duration) worker.Deadlines {
	return worker.Deadlines{
		Snapshot: answers, Read: answers, Start: 5 * answers, Node: 5 * answers, Profiles: 5 * answers, Change: changes, Mode: 2 * changes,
	}
}

// WorkerEnv is the whole environment of the worker. The NVIDIA library reads variables of its own, so the environment
// of the daemon is not passed on.
func WorkerEnv() []string {
	env := []string{"PATH=/usr/bin:/bin"}
	for _, name := range []string{"LD_LIBRARY_PATH", "GPUSIM_ROOT"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	// Calls of the library do not count as Go code: one core is enough, and is cheaper.
	return append(env, "GOMAXPROCS="+cmp.Or(os.Getenv("GOMAXPROCS"), "1"))
}

// Driver is the GPUs behind the worker, and the state of the worker.
type Driver interface {
	gpu.Driver
	Retry(ctx context.Context, id gpu.UUID) error
	Park(ctx context.Context) error
	Unpark()
	Status() worker.Status
	Stats() worker.Stats
	ReadingTime(id gpu.UUID) time.Duration
}
