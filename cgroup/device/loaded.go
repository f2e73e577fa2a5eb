package device

import (
	"fmt"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// loadedPrograms are programs with rules that were attached lately, by their rules. A node has few different lists of rules, and the
// kernel checks and compiles a program each time it is loaded: that took longer than all else of the start of a scope. A program never
// changes, so cgroups can have the same one; each keeps a reference.
type loadedPrograms struct {
	mu       sync.Mutex // guards the fields, and keeps a program open while it is attached
	programs map[string]*ebpf.Program
	order    []string // of the keys, the one that was loaded first at the beginning
}

// maxLoaded is how many are kept: more than a node has places for leases.
const maxLoaded = 128

var loaded = loadedPrograms{programs: map[string]*ebpf.Program{}}

// attach attaches the program to a cgroup.
func (l *loadedPrograms) attach(cg *os.File, want program) error {
	if want.key == "" {
		p, err := want.load()
		if err != nil {
			return err
		}
		defer p.Close()
		return attachTo(cg, p)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.programs[want.key]
	if p == nil {
		var err error
		if p, err = want.load(); err != nil {
			return err
		}
		if len(l.order) == maxLoaded {
			l.programs[l.order[0]].Close()
			delete(l.programs, l.order[0])
			l.order = l.order[1:]
		}
		l.programs[want.key], l.order = p, append(l.order, want.key)
	}
	return attachTo(cg, p)
}

func attachTo(cg *os.File, p *ebpf.Program) error {
	err := link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(cg.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI,
	})
	if err != nil {
		return fmt.Errorf("cannot attach the program: %w", kernelError(err))
	}
	return nil
}
