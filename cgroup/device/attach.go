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

// ErrNoCgroup means that the cgroup does not exist.
var ErrNoCgroup = errors.New("no such cgroup")

// program is the desired program of a cgroup.
type program struct {
	name         string
	key          string // the same for programs with the same maps; empty: it is loaded for each cgroup
	instructions func() asm.Instructions
	maps         func() []*ebpf.MapSpec
	same         func(p *ebpf.Program) (bool, error) // whether an attached program of this version has the desired maps
}

func (p program) load() (*ebpf.Program, error) {
	code := p.instructions()
	for _, m := range p.maps() {
		created, err := ebpf.NewMap(m)
		if err != nil {
			return nil, fmt.Errorf("cannot load the map %s: %w", m.Name, kernelError(err))
		}
		defer created.Close() // the program keeps a reference
		if err := created.Freeze(); err != nil {
			return nil, fmt.Errorf("cannot freeze the map %s: %w", m.Name, kernelError(err))
		}
		if err := code.AssociateMap(m.Name, created); err != nil {
			return nil, fmt.Errorf("internal error: %w", err)
		}
	}
	result, err := ebpf.NewProgram(specOf(p.name, code))
	if err != nil {
		return nil, fmt.Errorf("cannot load the program %s: %w", p.name, kernelError(err))
	}
	return result, nil
}

func specOf(name string, code asm.Instructions) *ebpf.ProgramSpec {
	// The helpers that the programs call are available to any license.
	return &ebpf.ProgramSpec{
		Name:         name,
		Type:         ebpf.CGroupDevice,
		AttachType:   ebpf.AttachCGroupDevice,
		Instructions: code,
		License:      "Apache-2.0",
	}
}

// listOf is a map with this content. Other versions of gpushare read it too: another layout needs another name.
func listOf[K comparable](name string, list map[K]uint32) *ebpf.MapSpec {
	var k K
	m := &ebpf.MapSpec{
		Name: name, Type: ebpf.Hash, KeySize: uint32(sizeOf(k)), ValueSize: 4,
		MaxEntries: uint32(max(len(list), 1)), // the kernel refuses a map with 0 entries
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

// setProgram makes this the only program of its name on the cgroup. It attaches the new one before it detaches the old one.
// In between both apply: what both allow is never denied, and what neither allows is never allowed.
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
		if err := loaded.attach(cg, want); err != nil {
			return false, fmt.Errorf("cannot attach the program %s to %s: %w", want.name, dir, err)
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

// upToDate reports whether an attached program is of this version and has the desired maps.
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

// tags are the kernel's digests of the instructions of the programs, by program name. The digest algorithm differs by
// kernel, so each program is loaded once to read its digest.
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
	first, err := p.load()
	if err != nil {
		return "", err
	}
	defer first.Close()
	info, err := first.Info()
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
		return nil // another process has detached it
	}
	return kernelError(err)
}

// forEachProgram calls use for the attached programs of a name.
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

// CountPrograms returns the number of device programs on a cgroup, including those of other software. With none, only
// parent cgroups restrict devices.
func CountPrograms(dir string) (int, error) {
	cg, err := openCgroup(dir)
	if err != nil {
		return 0, err
	}
	defer cg.Close()
	all, err := query(cg)
	return len(all), err
}

// Probe attaches a program that denies nothing and detaches it again. The error is the reason why device rules are not
// possible here.
func Probe(dir string) error {
	cg, err := openCgroup(dir)
	if err != nil {
		return err
	}
	defer cg.Close()
	p, err := ebpf.NewProgram(specOf("gpushare_probe", asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}))
	if err != nil {
		return fmt.Errorf("the kernel refuses device programs: %w", kernelError(err))
	}
	defer p.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(cg.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI,
	})
	if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
		return errors.New(
			"device programs may not be attached: CAP_SYS_ADMIN or CAP_NET_ADMIN is missing, or a parent cgroup has a program that permits no other",
		)
	}
	if err != nil {
		return fmt.Errorf("cannot attach a device program: %w", kernelError(err))
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
			continue // detached meanwhile
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
		if errors.Is(err, ebpf.ErrNotSupported) { // the library also returns this when only permission is missing
			err = errors.New("the kernel does not support them, or CAP_NET_ADMIN is missing")
		}
		return nil, fmt.Errorf("cannot list the device programs of %s: %w", cg.Name(), kernelError(err))
	}
	return r.Programs, nil
}

// readMap reads one of the maps of a program. frozen: the map never changes.
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
			return false, fmt.Errorf("its map %s is of another version", name)
		}
		var v uint32
		all := m.Iterate()
		for all.Next(&k, &v) {
			into[k] = v
		}
		return about.Frozen(), kernelError(all.Err())
	}
	return false, fmt.Errorf("it has no map %s", name)
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

// kernelError returns the kernel's error without the verifier's log and the library's guesses.
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
