// Package board reads the boards with published MIG profiles from testdata/gpus, which is embedded, and those that a site adds
// below /etc/gpushare. It is for planning a layout without a GPU, and for the virtual node. With a real GPU, the profiles are
// read from the GPU.
package board

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare"
	"github.com/gpushare/gpushare/gpu"
)

// Board is one file of testdata/gpus or of Directory.
type Board struct {
	File         string `yaml:"-"`     // the file's name without its extension: "A100-SXM4-40GB"
	Name         string `yaml:"name"`  // as the driver reports it: "NVIDIA A100-SXM4-40GB"
	Short        string `yaml:"short"` // for the command line: "a100-40"
	Architecture string `yaml:"architecture,omitempty"`
	PCIDevice    uint32 `yaml:"pci_device,omitempty"`
	PCISubsystem uint32 `yaml:"pci_subsystem,omitempty"`
	Memory       struct {
		Total    uint64 `yaml:"total_mib"`
		Reserved uint64 `yaml:"reserved_mib"`
	} `yaml:"memory"`
	SMs              uint32 `yaml:"sms"`
	NVLinks          int    `yaml:"nvlinks,omitempty"`
	Resetless        bool   `yaml:"resetless,omitempty"`
	ModeSurvivesBoot bool   `yaml:"mode_survives_boot,omitempty"`
	// Sensors are the figures of the sensors, for the virtual node. One that no listing has is missing.
	Sensors Sensors `yaml:"sensors,omitempty"`
	Grid    uint32  `yaml:"grid"`
	// Unverified lists the facts that are in no published listing.
	Unverified []string  `yaml:"unverified"`
	Profiles   []Profile `yaml:"profiles"`
}

// Sensors are figures as nvidia-smi -q prints them.
type Sensors struct {
	Power *struct { // W
		Default uint64 `yaml:"default"`
		Min     uint64 `yaml:"min"`
		Max     uint64 `yaml:"max"`
	} `yaml:"power"`
	Slowdown int    `yaml:"slowdown"` // °C
	Memory   bool   `yaml:"memory"`   // it reports the temperature of its memory
	Banks    uint32 `yaml:"banks"`    // with spare rows
}

// Profile is one GPU-instance profile of a board.
type Profile struct {
	Enum       uint32   `yaml:"enum"`
	ID         uint32   `yaml:"id"`
	Name       string   `yaml:"name"`
	Slices     uint32   `yaml:"slices"`
	Size       uint32   `yaml:"size"`
	Starts     []uint32 `yaml:"starts"`
	Prefer     []uint32 `yaml:"prefer,omitempty"`
	Max        uint32   `yaml:"max"`
	MemoryMiB  uint64   `yaml:"memory_mib"`
	SMs        uint32   `yaml:"sms"`
	Copy       uint32   `yaml:"copy,omitempty"`
	Decoders   uint32   `yaml:"nvdec,omitempty"`
	JPEG       uint32   `yaml:"jpeg,omitempty"`
	OFA        uint32   `yaml:"ofa,omitempty"`
	Attributes []string `yaml:"attributes,omitempty"`
}

const directory = "testdata/gpus"

// All returns every board, those of the site first, by file name. They are read once and shared: do not change them. A file
// of the site that cannot be read is left out: Site reports it.
var All = sync.OnceValues(func() ([]*Board, error) {
	own, _ := Site(Directory)
	builtIn, err := readAll()
	if err != nil {
		return nil, err
	}
	return merge(own, builtIn), nil
})

// merge adds the built-in boards to those of the site, which has measured its own.
func merge(own, builtIn []*Board) []*Board {
	for _, b := range builtIn {
		if !slices.ContainsFunc(own, func(o *Board) bool { return o.Short == b.Short || o.Name == b.Name }) {
			own = append(own, b)
		}
	}
	return own
}

func readAll() ([]*Board, error) {
	files, err := fs.ReadDir(gpushare.GPUs, directory)
	if err != nil {
		return nil, fmt.Errorf("cannot list the known boards: %w", err)
	}
	out := make([]*Board, 0, len(files))
	for _, f := range files {
		b, err := read(strings.TrimSuffix(f.Name(), ".yaml"))
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// Unknown is the error for a name without a board.
type Unknown struct {
	Name  string
	Known []string // short names
}

// Error names the unknown name and the known boards.
func (e *Unknown) Error() string {
	return fmt.Sprintf("cannot find the board %q: known are %s", e.Name, strings.Join(e.Known, ", "))
}

// Find returns one board by its short name, its file's name or the driver's name, ignoring case, or by a unique prefix of
// the short name.
func Find(name string) (*Board, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	for _, b := range all {
		for _, is := range []string{b.Short, b.File, b.Name, strings.TrimPrefix(b.Name, "NVIDIA ")} {
			if strings.EqualFold(name, is) {
				return b, nil
			}
		}
	}
	begins := slices.DeleteFunc(
		slices.Clone(all), func(b *Board) bool { return name == "" || !strings.HasPrefix(b.Short, strings.ToLower(name)) },
	)
	if len(begins) == 1 {
		return begins[0], nil
	}
	e := &Unknown{Name: name}
	for _, b := range all {
		e.Known = append(e.Known, b.Short)
	}
	slices.Sort(e.Known)
	return nil, e
}

// ByModel returns the board that the driver calls so; nil when it is not known.
func ByModel(model string) *Board {
	all, err := All()
	if err != nil {
		return nil // A test reads every board.
	}
	if i := slices.IndexFunc(all, func(b *Board) bool { return b.Name == model }); i >= 0 {
		return all[i]
	}
	return nil
}

func read(file string) (*Board, error) {
	raw, err := gpushare.GPUs.ReadFile(directory + "/" + file + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("cannot read the board %s: %w", file, err)
	}
	return decode(file, raw)
}

func decode(file string, raw []byte) (*Board, error) {
	b := &Board{File: file}
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(b); err != nil {
		return nil, fmt.Errorf("cannot read the board %s: %w", file, err)
	}
	return b, nil
}

// GPUProfiles returns the MIG profiles of the board, as a GPU reports them while no instance exists.
func (b *Board) GPUProfiles() gpu.Profiles { return b.profiles(noEnum) }

// GPUProfilesOf returns those that a driver of this version knows.
func (b *Board) GPUProfilesOf(version string) gpu.Profiles {
	number, _, _ := strings.Cut(version, ".")
	branch, err := strconv.Atoi(number)
	switch {
	case err != nil:
		return b.GPUProfiles()
	case branch < 525:
		return b.profiles(enumsR470)
	case branch < 575:
		return b.profiles(enumsR525)
	}
	return b.GPUProfiles()
}

// NVML_GPU_INSTANCE_PROFILE_COUNT of the headers of these branches: the driver knows no profile with a higher number. R525 added
// the 1g with double memory and the 2g+me, R575 those for graphics and those with all media engines.
const (
	enumsR470 = 0x8
	enumsR525 = 0xA
	noEnum    = 1 << 31 // above all
)

// profiles are those with a number below enums.
func (b *Board) profiles(enums uint32) gpu.Profiles {
	out := gpu.Profiles{Width: b.Grid}
	for i := range b.Profiles {
		p := &b.Profiles[i]
		if p.Enum >= enums {
			continue
		}
		q := gpu.Profile{
			ID: p.ID, Name: p.Name, Slices: p.Slices, Memory: p.MemoryMiB << 20, Max: p.Max, SMs: p.SMs,
			Attributes: slices.Sorted(slices.Values(p.Attributes)),
		}
		for _, s := range slices.Sorted(slices.Values(p.Starts)) {
			q.Placements = append(q.Placements, gpu.Placement{Start: s, Size: p.Size})
		}
		out.GI = append(out.GI, q)
	}
	slices.SortFunc(out.GI, func(a, b gpu.Profile) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
