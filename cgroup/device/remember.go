package device

import (
	"sync"

	"github.com/cilium/ebpf"
)

// remembered are the programs that were read, by number: the kernel gives a number anew only after 2³¹ others
// (bpf_prog_alloc_id). A program keeps its name and the list that it was loaded with, and a frozen list never changes, so
// that one reading of each is as good as many: a node of a hundred slices with a hundred devices each costs some ten
// thousand calls to read.
type remembered struct {
	mu    sync.Mutex // guards known
	known map[ebpf.ProgramID]seen
}

// seen is one of them: a wall with its rules, or somebody else's.
type seen struct {
	wall  bool
	rules []Rule
}

// most is how many are kept. Leases have walls of their own, which come and go.
const most = 4096

var walls = remembered{known: map[ebpf.ProgramID]seen{}}

func (r *remembered) get(id ebpf.ProgramID) (rules []Rule, wall, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, known := r.known[id]
	return p.rules, p.wall, known
}

func (r *remembered) put(id ebpf.ProgramID, rules []Rule, wall bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= most {
		clear(r.known) // Those that live are read once more.
	}
	r.known[id] = seen{wall, rules}
}
