package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ErrNoCgroup says that the cgroup is not there.
var ErrNoCgroup = errors.New("no such cgroup")

// program is what a cgroup should have attached.
type program struct {
	name         string
	instructions func() asm.Instructions
	maps         func() []*ebpf.MapSpec
	same         func(p *ebpf.Program) (bool, error) // whether one of this version has the wanted lists
}

func (p program) load() (*ebpf.Program, error) {
	code := p.instructions()
	for _, m := range p.maps() {
		loaded, err := ebpf.NewMap(m)
		if err != nil {
			return nil, fmt.Errorf("cannot load the list %s: %w", m.Name, kernelError(err))
		}
		defer loaded.Close() // the program holds it
		if err := loaded.Freeze(); err != nil {
			return nil, fmt.Errorf("cannot freeze the list %s: %w", m.Name, kernelError(err))
		}
		if err := code.AssociateMap(m.Name, loaded); err != nil {
			return nil, fmt.Errorf("internal error: %w", err)
		}
	}
	loaded, err := ebpf.NewProgram(specOf(p.name, code))
	if err != nil {
		return nil, fmt.Errorf("cannot load the program %s: %w", p.name, kernelError(err))
	}
	return loaded, nil
}

func specOf(name string, code asm.Instructions) *ebpf.ProgramSpec {
	// The helpers in use are open to any licence.
	return &ebpf.ProgramSpec{Name: name, Type: ebpf.CGroupDevice, AttachType: ebpf.AttachCGroupDevice, Instructions: code, License: "Apache-2.0"}
}

// listOf is a map with this content. Programs of another version read it too: another shape needs another name.
func listOf[K comparable](name string, list map[K]uint32) *ebpf.MapSpec {
	var k K
	m := &ebpf.MapSpec{
		Name: name, Type: ebpf.Hash, KeySize: uint32(sizeOf(k)), ValueSize: 4,
		MaxEntries: uint32(max(len(list), 1)), // there is no map for none
	}
	for k, v := range list {
		m.Contents = append(m.Contents, ebpf.MapKV{Key: k, Value: v})
	}
	return m
}

func sizeOf(k any) int {
	switch k.(type) {
	case numbers:
		return 12
	default:
		return 16
	}
}

// setProgram makes this the only program of its name at the cgroup. The new one is attached before the old is detached: in
// between both hold, so what both allow is never denied and what neither allows is never let through.
func setProgram(dir string, want program) (wrote bool, err error) {
	cg, err := openCgroup(dir)
	if err != nil {
		return false, err
	}
	defer cg.Close()
	found, err := programs(cg, want.name)
	if err != nil {
		return false, err
	}
	defer closeAll(found)
	keep := -1
	for i, p := range found {
		same, err := upToDate(p, want)
		if err != nil {
			return false, fmt.Errorf("cannot read the program %s of %s: %w", want.name, dir, err)
		}
		if same {
			keep = i
			break
		}
	}
	if keep < 0 {
		p, err := want.load()
		if err != nil {
			return false, err
		}
		defer p.Close()
		err = link.RawAttachProgram(link.RawAttachProgramOptions{
			Target: int(cg.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI,
		})
		if err != nil {
			return false, fmt.Errorf("cannot attach the program %s to %s: %w", want.name, dir, kernelError(err))
		}
		wrote = true
	}
	for i, p := range found {
		if i == keep {
			continue
		}
		if err := detach(cg, p); err != nil {
			return wrote, fmt.Errorf("cannot detach an old program %s from %s: %w", want.name, dir, err)
		}
		wrote = true
	}
	return wrote, nil
}

// upToDate tells whether an attached program is of this version and has the wanted lists.
func upToDate(p *ebpf.Program, want program) (bool, error) {
	info, err := p.Info()
	if err != nil {
		return false, err
	}
	tag, err := versions.of(want)
	if err != nil || tag != info.Tag {
		return false, err
	}
	return want.same(p)
}

// tags are the kernel's digests of our programs by name: of the instructions, whatever the lists. How it digests differs
// by kernel, so each program is loaded once to be told.
type tags struct {
	mu    sync.Mutex // guards known
	known map[string]string
}

var versions = tags{known: map[string]string{}}

func (t *tags) of(p program) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tag, ok := t.known[p.name]; ok {
		return tag, nil
	}
	loaded, err := p.load()
	if err != nil {
		return "", err
	}
	defer loaded.Close()
	info, err := loaded.Info()
	if err != nil {
		return "", err
	}
	t.known[p.name] = info.Tag
	return info.Tag, nil
}

// removeProgram detaches every program of the name.
func removeProgram(dir, name string) (removed bool, err error) {
	cg, err := openCgroup(dir)
	if errors.Is(err, ErrNoCgroup) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer cg.Close()
	found, err := programs(cg, name)
	if err != nil {
		return false, err
	}
	defer closeAll(found)
	for _, p := range found {
		if err := detach(cg, p); err != nil {
			return removed, fmt.Errorf("cannot detach the program %s from %s: %w", name, dir, err)
		}
		removed = true
	}
	return removed, nil
}

func detach(cg *os.File, p *ebpf.Program) error {
	err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(cg.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice})
	if errors.Is(err, unix.ENOENT) {
		return nil // somebody else has detached it
	}
	return kernelError(err)
}

// forEachProgram visits the attached programs of a name.
func forEachProgram(dir, name string, use func(*ebpf.Program) error) error {
	cg, err := openCgroup(dir)
	if err != nil {
		return err
	}
	defer cg.Close()
	found, err := programs(cg, name)
	if err != nil {
		return err
	}
	defer closeAll(found)
	for _, p := range found {
		if err := use(p); err != nil {
			return fmt.Errorf("cannot read the program %s of %s: %w", name, dir, err)
		}
	}
	return nil
}

// CountPrograms tells how many device programs a cgroup has, whoever attached them: with none, nothing is closed to it but
// what outer cgroups close.
func CountPrograms(dir string) (int, error) {
	cg, err := openCgroup(dir)
	if err != nil {
		return 0, err
	}
	defer cg.Close()
	all, err := query(cg)
	return len(all), err
}

// Probe attaches a program that denies nothing and takes it away again. The error says why there can be no walls.
func Probe(dir string) error {
	cg, err := openCgroup(dir)
	if err != nil {
		return err
	}
	defer cg.Close()
	p, err := ebpf.NewProgram(specOf("gpushare_probe", asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}))
	if err != nil {
		return fmt.Errorf("the kernel takes no device program: %w", kernelError(err))
	}
	defer p.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(cg.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI,
	})
	if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
		return errors.New("no device program may be attached: CAP_SYS_ADMIN or CAP_NET_ADMIN is missing, or an outer cgroup has one that admits no other")
	}
	if err != nil {
		return fmt.Errorf("no device program can be attached: %w", kernelError(err))
	}
	return detach(cg, p)
}

// programs opens the attached programs of a name. The caller closes them.
func programs(cg *os.File, name string) ([]*ebpf.Program, error) {
	all, err := query(cg)
	if err != nil {
		return nil, err
	}
	var found []*ebpf.Program
	for _, a := range all {
		p, err := ebpf.NewProgramFromID(a.ID)
		if errors.Is(err, fs.ErrNotExist) {
			continue // detached since
		}
		if err != nil {
			closeAll(found)
			return nil, fmt.Errorf("cannot open a device program of %s: %w", cg.Name(), kernelError(err))
		}
		info, err := p.Info()
		if err != nil {
			closeAll(append(found, p))
			return nil, fmt.Errorf("cannot read a device program of %s: %w", cg.Name(), kernelError(err))
		}
		if info.Name != name {
			p.Close()
			continue
		}
		found = append(found, p)
	}
	return found, nil
}

func query(cg *os.File) ([]link.AttachedProgram, error) {
	r, err := link.QueryPrograms(link.QueryOptions{Target: int(cg.Fd()), Attach: ebpf.AttachCGroupDevice})
	if err != nil {
		if errors.Is(err, ebpf.ErrNotSupported) { // the library's guess, also where the kernel only does not permit it
			err = errors.New("the kernel has none, or CAP_NET_ADMIN is missing")
		}
		return nil, fmt.Errorf("cannot list the device programs of %s: %w", cg.Name(), kernelError(err))
	}
	return r.Programs, nil
}

// readMap reads one of the lists of a program. frozen tells that it never changes.
func readMap[K comparable](info *ebpf.ProgramInfo, name string, into map[K]uint32) (frozen bool, err error) {
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return false, kernelError(err)
		}
		defer m.Close()
		about, err := m.Info()
		if err != nil || about.Name != name {
			continue
		}
		var k K
		if m.KeySize() != uint32(sizeOf(k)) || m.ValueSize() != 4 {
			return false, fmt.Errorf("its list %s is of another version", name)
		}
		var v uint32
		all := m.Iterate()
		for all.Next(&k, &v) {
			into[k] = v
		}
		return about.Frozen(), kernelError(all.Err())
	}
	return false, fmt.Errorf("it has no list %s", name)
}

func openCgroup(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoCgroup)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open a cgroup: %w", err)
	}
	return f, nil
}

// kernelError leaves the verifier's log and the library's guesses out of an error: people read the kernel's word.
func kernelError(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

func closeAll(ps []*ebpf.Program) {
	for _, p := range ps {
		p.Close()
	}
}
