package worker

import (
	"cmp"
	"os"
)

// Environment returns the whole environment of the worker. The NVIDIA library reads variables of its own, so the environment of
// the daemon is not passed on.
func Environment() []string {
	env := []string{"PATH=/usr/bin:/bin"}
	for _, name := range []string{"LD_LIBRARY_PATH", "GPUSIM_ROOT"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	// Calls of the library do not count as Go code: one core is enough, and is cheaper.
	return append(env, "GOMAXPROCS="+cmp.Or(os.Getenv("GOMAXPROCS"), "1"))
}
