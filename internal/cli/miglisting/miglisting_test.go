package miglisting_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/internal/cli/miglisting"
)

// asListing prints a board as nvidia-smi does: the columns and their widths are those of published listings.
func asListing(index int, b *board.Board, free bool) string {
	rule := "+" + strings.Repeat("-", 77) + "+\n"
	var s strings.Builder
	fmt.Fprintf(&s, "GPU %d: %s (UUID: GPU-00000000-0000-0000-0000-%012d)\n", index, b.Name, index)
	s.WriteString(rule + "| GPU instance profiles:                                                      |\n" +
		"| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |\n" +
		"|                              Free/Total   GiB              CE    JPEG  OFA  |\n|" + strings.Repeat("=", 77) + "|\n")
	for _, p := range b.Profiles {
		left := p.Max
		if !free {
			left = 0
		}
		fmt.Fprintf(
			&s, "| %3d  MIG %-14s %2d   %3d/%-3d     %6.2f       No    %3d   %3d   %3d   |\n", index, p.Name, p.ID, left, p.Max,
			float64(p.MemoryMiB)/1024, p.SMs, p.Decoders, 0,
		)
		fmt.Fprintf(&s, "|%60s%3d   %3d   %3d   |\n", "", p.Copy, p.JPEG, p.OFA)
		s.WriteString(rule)
	}
	for _, p := range b.Profiles {
		word := "Placements:"
		if len(p.Starts) == 1 {
			word = "Placement :"
		}
		fmt.Fprintf(
			&s, "GPU %2d Profile ID %2d %s {%s}:%d\n", index, p.ID, word,
			strings.ReplaceAll(strings.Trim(fmt.Sprint(p.Starts), "[]"), " ", ","), p.Size,
		)
	}
	return s.String()
}

func boards(t *testing.T) []*board.Board {
	t.Helper()
	all, err := board.All()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestEveryBoardIsReadBack prints each known board, reads it, writes it as a board of a site and reads that: a plan for it
// has the same profiles and placements.
func TestEveryBoardIsReadBack(t *testing.T) {
	for _, want := range boards(t) {
		t.Run(want.Short, func(t *testing.T) {
			listing := asListing(0, want, false) + fmt.Sprintf(
				"01:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:%04x] (rev a1)\n", want.PCIDevice>>16,
			)
			got, err := miglisting.Read(listing, nil)
			if err != nil {
				t.Fatalf("%v\n%s", err, listing)
			}
			miglisting.Name(got, "")
			raw, err := miglisting.YAML(got)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "site.yaml"), raw, 0o644); err != nil {
				t.Fatal(err)
			}
			site, wrong := board.Site(dir)
			if len(wrong) > 0 || len(site) != 1 {
				t.Fatalf("%d boards, %v\n%s", len(site), wrong, raw)
			}
			if d := cmp.Diff(want.GPUProfiles(), site[0].GPUProfiles()); d != "" {
				t.Errorf("profiles (-want +got):\n%s", d)
			}
			if site[0].Name != want.Name || site[0].PCIDevice != want.PCIDevice {
				t.Errorf("%q with PCI id %#x", site[0].Name, site[0].PCIDevice)
			}
			byID := map[uint32]board.Profile{}
			for _, p := range site[0].Profiles {
				byID[p.ID] = p
			}
			for _, p := range want.Profiles {
				q := byID[p.ID]
				if p.Enum != q.Enum || p.Copy != q.Copy || p.Decoders != q.Decoders || p.JPEG != q.JPEG || p.OFA != q.OFA {
					t.Errorf("%s: %+v, want %+v", p.Name, q, p)
				}
			}
		})
	}
}

// TestListingOfANode reads a node with several GPUs.
func TestListingOfANode(t *testing.T) {
	all := boards(t)
	a, b := all[0], all[1]
	one := 1
	for name, c := range map[string]struct {
		listing string
		gpu     *int
		want    string // name of the board, or part of the error
	}{
		"two of a kind":                  {asListing(0, a, true) + asListing(1, a, false), nil, a.Name},
		"two kinds":                      {asListing(0, a, true) + asListing(1, b, true), nil, "GPU 1 has other profiles than GPU 0: choose one with --gpu"},
		"one of two kinds":               {asListing(0, a, true) + asListing(1, b, true), &one, b.Name},
		"a GPU that is not there":        {asListing(0, a, true), &one, "it has no profiles of GPU 1"},
		"the first without MIG":          {"GPU 0: NVIDIA T400 (UUID: GPU-x)\n" + asListing(1, a, true), nil, a.Name},
		"Windows line ends":              {strings.ReplaceAll(asListing(0, a, true), "\n", "\r\n"), nil, a.Name},
		"no placements":                  {strings.Split(asListing(0, a, true), "GPU  0 Profile")[0], nil, "it needs the output of 'nvidia-smi mig -lgipp' too"},
		"no profiles":                    {"GPU 0: NVIDIA A100 (UUID: GPU-x)\n", nil, "it needs the output of 'nvidia-smi mig -lgip'"},
		"nothing":                        {"", nil, "it has no profiles"},
		"a profile twice":                {asListing(0, a, true) + asListing(0, a, true), nil, "twice"},
		"a placement off the board":      {strings.Replace(asListing(0, a, true), "}:1", "}:4000000000", 1), nil, "cannot read the placements"},
		"a number that overflows":        {strings.Replace(asListing(0, a, true), "{0,", "{99999999999999999999,", 1), nil, "cannot read the placements"},
		"more instances than placements": {strings.Replace(asListing(0, a, true), "{0,1,2,3", "{0,1", 1), nil, "placements"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := miglisting.Read(c.listing, c.gpu)
			switch {
			case err != nil && !strings.Contains(err.Error(), c.want):
				t.Errorf("%v, want %q", err, c.want)
			case err == nil && got.Name != c.want:
				t.Errorf("%q, want %q", got.Name, c.want)
			}
		})
	}
}

// FuzzRead: no text makes it fail but with an error, and what it accepts is a board.
func FuzzRead(f *testing.F) {
	all, err := board.All()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(asListing(0, all[0], true))
	f.Add(asListing(0, all[len(all)-1], true))
	f.Fuzz(func(t *testing.T, listing string) {
		b, err := miglisting.Read(listing, nil)
		if err != nil {
			return
		}
		for _, p := range b.Profiles {
			if p.Size == 0 || p.Starts[len(p.Starts)-1]+p.Size > b.Grid {
				t.Errorf("%+v on a grid of %d", p, b.Grid)
			}
		}
	})
}
