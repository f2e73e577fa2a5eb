package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/internal/cli/miglisting"
)

// profileRow is one profile in JSON.
type profileRow struct {
	Name       string   `json:"name"`
	ID         uint32   `json:"id"`
	Slices     uint32   `json:"slices"`
	Memory     uint64   `json:"memory"` // bytes
	SMs        uint32   `json:"sms"`
	Max        uint32   `json:"max"`
	Size       uint32   `json:"size"` // memory slices
	Starts     []uint32 `json:"starts"`
	Attributes []string `json:"attributes,omitempty"`
}

// profileTable has the profiles of one board or GPU.
type profileTable struct {
	Model      string       `json:"model,omitempty"` // the short name of a board
	GPU        string       `json:"gpu,omitempty"`
	Name       string       `json:"name"`
	Width      uint32       `json:"width"` // memory slices
	Profiles   []profileRow `json:"profiles"`
	Unverified []string     `json:"unverified,omitempty"` // not in published listings
	Assumed    bool         `json:"assumed,omitempty"`    // known for this model, not reported: MIG mode is off

	title string
}

func profileRows(p gpu.Profiles) []profileRow {
	out := []profileRow{}
	for i := range p.GI {
		q := &p.GI[i]
		r := profileRow{
			Name:       q.Name,
			ID:         q.ID,
			Slices:     q.Slices,
			Memory:     q.Memory,
			SMs:        q.SMs,
			Max:        q.Max,
			Attributes: q.Attributes,
			Starts:     []uint32{},
		}
		for _, at := range q.Placements {
			r.Size = at.Size
			r.Starts = append(r.Starts, at.Start)
		}
		out = append(out, r)
	}
	return out
}

func (a *app) migProfiles() *cobra.Command {
	var model, from, name string
	var gpu int
	var offline bool
	c := &cobra.Command{
		Use: "profiles", Short: "List the MIG profiles of the GPUs of this node, or of a board", Args: noArgs,
		Long: `Profiles lists the MIG profiles of the GPUs of this node, or of a board. A board that is
not built in is added with --from: it reads the output of 'nvidia-smi mig -lgip' and
'nvidia-smi mig -lgipp' (MIG mode on, no instances needed), and that of 'nvidia-smi -L'
and 'lspci -nn' if it is in the same file, and writes a board file. Below
/etc/gpushare/boards, as NAME.yaml, a board is known like a built-in one.`,
		Example: `  gpushare mig profiles                        # the GPUs of this node, as the driver reports
  gpushare mig profiles --offline              # the built-in boards
  gpushare mig profiles --model a100-40
  (nvidia-smi -L; nvidia-smi mig -lgip; nvidia-smi mig -lgipp) > listing.txt
  gpushare mig profiles --from listing.txt > /etc/gpushare/boards/h20.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case from != "":
				var of *int
				if cmd.Flags().Changed("gpu") {
					of = &gpu
				}
				return a.boardFrom(cmd.Context(), from, name, of)
			case model != "":
				d, err := boardDevice(model, nil)
				if err != nil {
					return err
				}
				return a.profileTables([]profileTable{tableOf(d)})
			case offline:
				return a.boards()
			}
			devices, err := a.migDevices(cmd.Context())
			if err != nil {
				return err
			}
			tables := []profileTable{}
			for i := range devices {
				tables = append(tables, tableOf(&devices[i]))
			}
			if len(tables) == 0 && !a.json {
				fmt.Fprintln(a.io.Out, "no GPU has MIG")
				return nil
			}
			return a.profileTables(tables)
		},
	}
	c.Flags().StringVar(&model, "model", "", "a board, as in a100-40, or a board file, as in ./h20.yaml")
	c.Flags().StringVar(
		&from, "from", "",
		"write a board file from the output of 'nvidia-smi mig -lgip' and 'mig -lgipp' in this file; - is standard input",
	)
	c.Flags().StringVar(&name, "name", "", "with --from: the model, if 'nvidia-smi -L' is not in the file")
	c.Flags().IntVar(&gpu, "gpu", 0, "with --from: the index of the GPU, if they differ")
	c.Flags().BoolVar(&offline, "offline", false, "list the known boards, without a daemon")
	c.MarkFlagsMutuallyExclusive("from", "model")
	c.MarkFlagsMutuallyExclusive("from", "offline")
	_ = c.RegisterFlagCompletionFunc("model", completeBoards) // It fails only for a flag that does not exist.
	return c
}

func tableOf(d *migDevice) profileTable {
	return profileTable{
		Model:      d.model,
		GPU:        d.uuid,
		Name:       d.name,
		Width:      d.grid.Width,
		Profiles:   profileRows(d.grid),
		Unverified: d.unverified,
		Assumed:    d.assumed,
		title:      d.title(),
	}
}

// boardFrom writes a board file from a listing.
func (a *app) boardFrom(ctx context.Context, file, name string, gpu *int) error {
	raw, err := a.read(ctx, file)
	if err != nil {
		return usageError{err: fmt.Errorf("cannot read the file: %w", err), hint: "- is standard input"}
	}
	b, err := miglisting.Read(string(raw), gpu)
	if err != nil {
		return usageError{
			err:  fmt.Errorf("cannot read the profiles of %s: %w", file, err),
			hint: "(nvidia-smi -L; nvidia-smi mig -lgip; nvidia-smi mig -lgipp) > listing.txt",
		}
	}
	miglisting.Name(b, name)
	if b.Short == "" {
		return usageError{
			err:  fmt.Errorf("cannot name the board of %s: the output of 'nvidia-smi -L' is not in it", file),
			hint: `write --name "NVIDIA H20"`,
		}
	}
	if a.json {
		return a.profileTables(
			[]profileTable{tableOf(&migDevice{model: b.Short, name: b.Name, grid: b.GPUProfiles(), unverified: b.Unverified})},
		)
	}
	text, err := miglisting.YAML(b)
	if err != nil {
		return err
	}
	_, err = a.io.Out.Write(text)
	return err
}

// boards lists the known boards.
func (a *app) boards() error {
	all, err := board.All()
	if err != nil {
		return err
	}
	_, wrong := board.Site(board.Directory)
	for _, err := range wrong {
		fmt.Fprintf(a.io.Err, "warning: %s\n", sentence(err.Error()))
	}
	if a.json {
		var tables []profileTable
		for _, b := range all {
			d, err := boardDevice(b.Short, nil)
			if err != nil {
				return err
			}
			tables = append(tables, tableOf(d))
		}
		return a.profileTables(tables)
	}
	rows := [][]string{{"MODEL", "NAME", "SLICES", "PROFILES"}}
	for _, b := range all {
		var names []string
		for i := range b.Profiles {
			names = append(names, b.Profiles[i].Name)
		}
		rows = append(rows, []string{b.Short, b.Name, fmt.Sprint(b.Grid), strings.Join(names, " ")})
	}
	a.table(rows)
	return nil
}

func (a *app) profileTables(tables []profileTable) error {
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int            `json:"schema_version"`
			Boards        []profileTable `json:"boards"`
		}{1, tables})
	}
	for i, t := range tables {
		if i > 0 {
			fmt.Fprintln(a.io.Out)
		}
		fmt.Fprintf(a.io.Out, "%s\n\n", t.title)
		if t.Width == 0 {
			fmt.Fprintln(a.io.Out, "The driver reports its profiles only in MIG mode, and those of this model are not known.")
			continue
		}
		rows := [][]string{{"PROFILE", "ID", "MEMORY", "SMS", "AT MOST", "SLICES", "STARTS AT"}}
		for _, p := range t.Profiles {
			starts := make([]string, len(p.Starts))
			for i, s := range p.Starts {
				starts[i] = fmt.Sprint(s)
			}
			rows = append(rows, []string{
				p.Name,
				fmt.Sprint(p.ID),
				gib(p.Memory),
				fmt.Sprint(p.SMs),
				fmt.Sprint(p.Max),
				fmt.Sprint(p.Size),
				strings.Join(starts, " "),
			})
		}
		a.table(rows)
		if t.Assumed {
			fmt.Fprintln(
				a.io.Out,
				"\nThe driver reports its profiles only in MIG mode. These are known for this model; a change compares them once the mode is on.",
			)
		}
		if len(t.Unverified) > 0 {
			fmt.Fprintf(a.io.Out, "\nNot in published listings: %s.\n", strings.Join(t.Unverified, "; "))
		}
	}
	return nil
}
