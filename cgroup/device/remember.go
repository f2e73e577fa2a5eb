package device

import (
	"sync"
	"time"

	"github.com/cilium/ebpf"
)

// identity names a loaded program for as long as the machine runs: the kernel gives a number anew only after 2³¹ others.
type identity struct {
	id     ebpf.ProgramID
	loaded time.Duration // since boot
}

func identityOf(info *ebpf.ProgramInfo) (identity, bool) {
	id, ok := info.ID()
	loaded, told := info.LoadTime()
	return identity{id, loaded}, ok && told
}

// remembered are the walls of programs that were read. A frozen list never changes and a program keeps the list that it
// was loaded with, so that one reading of each program is as good as many: a node of a hundred slices with a hundred
// devices each costs some ten thousand calls to read.
type remembered struct {
	mu    sync.Mutex // guards known
	known map[identity][]Rule
}

// most is how many are kept. Leases have walls of their own, which come and go.
const most = 4096

var walls = remembered{known: map[identity][]Rule{}}

func (r *remembered) get(id identity) ([]Rule, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rules, ok := r.known[id]
	return rules, ok
}

func (r *remembered) put(id identity, rules []Rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= most {
		clear(r.known) // Those that live are read once more.
	}
	r.known[id] = rules
}
