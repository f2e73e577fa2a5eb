package device

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const (
	programName  = "gpushare_device" // as bpftool shows it; the kernel keeps 15 characters
	rulesMapName = "gpushare_rules"
)

// numbers identifies a device in a map: type, major, minor.
type numbers [3]uint32

// SetRules makes these and the standard pseudo devices the only ones that processes of the cgroup may open. dir is the
// directory of the cgroup. When the cgroup has exactly these rules, it writes nothing and returns wrote = false.
func SetRules(dir string, rules []Rule) (wrote bool, err error) {
	list, err := ruleMap(rules)
	if err != nil {
		return false, fmt.Errorf("cannot set device rules: %w", err)
	}
	want := rulesOf(list)
	return setProgram(dir, program{
		name:         programName,
		key:          fmt.Sprintln("rules", want), // never empty
		instructions: rulesProgram,
		maps:         func() []*ebpf.MapSpec { return []*ebpf.MapSpec{listOf(rulesMapName, list)} },
		same: func(p *ebpf.Program) (bool, error) {
			info, err := p.Info()
			if err != nil {
				return false, err
			}
			id, _ := info.ID() // 0 when the kernel does not report it: then the program is replaced
			current, isRules, err := readRules(id)
			return isRules && slices.Equal(current, want), err
		},
	})
}

// Rules reads the device rules of a cgroup back. ok is false when it has none. When several programs are attached, because
// a change was interrupted, the result is what all of them allow.
func Rules(dir string) (rules []Rule, ok bool, err error) {
	cg, err := openCgroup(dir)
	if err != nil {
		return nil, false, err
	}
	defer cg.Close()
	all, err := query(cg)
	if err != nil {
		return nil, false, err
	}
	for _, a := range all {
		these, current, err := readRules(a.ID)
		if err != nil {
			return nil, false, fmt.Errorf("cannot read the program %s of %s: %w", programName, dir, kernelError(err))
		}
		if !current {
			continue
		}
		if ok {
			these = intersect(rules, these)
		}
		rules, ok = these, true
	}
	return rules, ok, nil
}

// RemoveRules removes the device rules of a cgroup. It is no error when it has none.
func RemoveRules(dir string) (removed bool, err error) { return removeProgram(dir, programName) }

// ruleMap returns the rules as the map of the program.
func ruleMap(rules []Rule) (map[numbers]uint32, error) {
	list := map[numbers]uint32{}
	for _, r := range rules {
		t, err := typeBits(r.Type)
		if err != nil {
			return nil, err
		}
		a, err := accessBits(r.Access)
		if err != nil {
			return nil, err
		}
		list[numbers{t, r.Major, r.Minor}] |= a
	}
	return list, nil
}

func rulesOf(list map[numbers]uint32) []Rule {
	rules := make([]Rule, 0, len(list)) // They are kept.
	for k, bits := range list {
		rules = append(rules, Rule{Type: typeOf(k[0]), Major: k[1], Minor: k[2], Access: accessOf(bits)})
	}
	slices.SortFunc(rules, compareRules)
	return rules
}

// readRules returns rules that the caller must not modify. ok is false when the program is another one, or is detached.
func readRules(id ebpf.ProgramID) (rules []Rule, ok bool, err error) {
	if rules, current, known := programCache.get(id); known {
		return rules, current, nil
	}
	p, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil // detached meanwhile
	}
	if err != nil {
		return nil, false, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil, false, err
	}
	if info.Name != programName {
		programCache.put(id, nil, false)
		return nil, false, nil
	}
	list := map[numbers]uint32{}
	frozen, err := readMap(info, rulesMapName, list)
	if err != nil {
		return nil, false, err
	}
	rules = rulesOf(list)
	if frozen {
		programCache.put(id, rules, true)
	}
	return rules, true, nil
}

// intersect returns what both lists of rules allow.
func intersect(a, b []Rule) []Rule {
	var out []Rule
	for _, r := range a {
		i, found := slices.BinarySearchFunc(b, r, func(x, y Rule) int {
			return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Major, y.Major), cmp.Compare(x.Minor, y.Minor))
		})
		if !found {
			continue
		}
		x, _ := accessBits(r.Access) // the string comes from accessOf, so it is valid
		y, _ := accessBits(b[i].Access)
		if r.Access = accessOf(x & y); r.Access != "" {
			out = append(out, r)
		}
	}
	return out
}

// Offsets in struct bpf_cgroup_dev_ctx.
const (
	ctxAccessType = 0
	ctxMajor      = 4
	ctxMinor      = 8
)

// The stack offset at which the programs keep the key of the device, 12 bytes.
const keyOffset = -12

// loadDevice writes the device into the key on the stack, and the requested access into R7. R6 keeps the context.
func loadDevice() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, ctxAccessType, asm.Word),
		asm.Mov.Reg(asm.R7, asm.R2),
		asm.RSh.Imm(asm.R7, 16),
		asm.And.Imm(asm.R2, 0xffff),
		asm.LoadMem(asm.R3, asm.R6, ctxMajor, asm.Word),
		asm.LoadMem(asm.R4, asm.R6, ctxMinor, asm.Word),
		asm.StoreMem(asm.RFP, keyOffset, asm.R2, asm.Word),
		asm.StoreMem(asm.RFP, keyOffset+4, asm.R3, asm.Word),
		asm.StoreMem(asm.RFP, keyOffset+8, asm.R4, asm.Word),
	}
}

// lookup finds the value of the key at the stack offset in a map. R0 is its address, or 0.
func lookup(name string, at int32) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, 0).WithReference(name),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, at),
		asm.FnMapLookupElem.Call(),
	}
}

// checkAccess allows the access in R7 if the value that R0 points to contains all its bits.
func checkAccess() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word).WithSymbol("check"),
		asm.Xor.Imm(asm.R1, -1),
		asm.And.Reg(asm.R7, asm.R1),
		asm.JNE.Imm(asm.R7, 0, "deny"),
	}
}

func allowOrDeny() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R0, 1).WithSymbol("allow"),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("deny"),
		asm.Return(),
	}
}

// rulesProgram allows what systemd's DevicePolicy=closed allows, and the listed devices. The pseudo devices are null, zero,
// full, random, urandom, tty and ptmx with every access, and pts for reading and writing.
func rulesProgram() asm.Instructions {
	p := loadDevice()
	p = append(p,
		asm.JNE.Imm(asm.R2, typeChar, "listed"),
		asm.JEq.Imm(asm.R3, 1, "memory"),
		asm.JEq.Imm(asm.R3, 5, "tty"),
		// Unix98 terminals have the majors 136 to 143.
		asm.JLT.Imm(asm.R3, 136, "listed"),
		asm.JGT.Imm(asm.R3, 143, "listed"),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.And.Imm(asm.R1, mayMake),
		asm.JNE.Imm(asm.R1, 0, "listed"),
		asm.Ja.Label("allow"),
		asm.JEq.Imm(asm.R4, 3, "allow").WithSymbol("memory"), // null
		asm.JEq.Imm(asm.R4, 5, "allow"),                      // zero
		asm.JEq.Imm(asm.R4, 7, "allow"),                      // full
		asm.JEq.Imm(asm.R4, 8, "allow"),                      // random
		asm.JEq.Imm(asm.R4, 9, "allow"),                      // urandom
		asm.Ja.Label("listed"),
		asm.JEq.Imm(asm.R4, 0, "allow").WithSymbol("tty"), // tty
		asm.JEq.Imm(asm.R4, 2, "allow"),                   // ptmx
	)
	list := lookup(rulesMapName, keyOffset)
	list[0] = list[0].WithSymbol("listed")
	p = append(p, list...)
	p = append(p, asm.JEq.Imm(asm.R0, 0, "deny"))
	p = append(p, checkAccess()...)
	return append(p, allowOrDeny()...)
}
