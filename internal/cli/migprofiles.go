package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
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

// profileTable is what one board or GPU can be partitioned into.
type profileTable struct {
	Model    string       `json:"model,omitempty"` // the short name of a board
	GPU      string       `json:"gpu,omitempty"`
	Name     string       `json:"name"`
	Width    uint32       `json:"width"` // memory slices
	Profiles []profileRow `json:"profiles"`
	Unseen   []string     `json:"unseen,omitempty"` // what no published listing shows
}

func profileRows(p gpu.Profiles) []profileRow {
	out := []profileRow{}
	for i := range p.GI {
		q := &p.GI[i]
		r := profileRow{Name: q.Name, ID: q.ID, Slices: q.Slices, Memory: q.Memory, SMs: q.SMs, Max: q.Max, Attributes: q.Attributes, Starts: []uint32{}}
		for _, at := range q.Placements {
			r.Size = at.Size
			r.Starts = append(r.Starts, at.Start)
		}
		out = append(out, r)
	}
	return out
}

func (a *app) migProfiles() *cobra.Command {
	var model string
	var offline bool
	c := &cobra.Command{
		Use: "profiles --model BOARD", Short: "Show what a board can be partitioned into", Args: noArgs,
		Example: "  gpushare mig profiles --offline             the boards that are known\n  gpushare mig profiles --model a100-40",
		RunE: func(*cobra.Command, []string) error {
			var tables []profileTable
			if model == "" {
				all, err := board.All()
				if err != nil {
					return err
				}
				if !a.json {
					a.boards(all)
					return nil
				}
				for _, b := range all {
					tables = append(tables, boardTable(b))
				}
			} else {
				b, err := findBoard(model)
				if err != nil {
					return err
				}
				tables = append(tables, boardTable(b))
			}
			return a.profileTables(tables)
		},
	}
	c.Flags().StringVar(&model, "model", "", "a board that is compiled in, as in a100-40")
	c.Flags().BoolVar(&offline, "offline", false, "list the boards that are compiled in")
	_ = c.RegisterFlagCompletionFunc("model", completeBoards) // It fails only for a flag that does not exist.
	return c
}

func boardTable(b *board.Board) profileTable {
	p := b.GPUProfiles()
	return profileTable{Model: b.Short, Name: b.Name, Width: p.Width, Profiles: profileRows(p), Unseen: b.Unseen}
}

// boards lists what is compiled in.
func (a *app) boards(all []*board.Board) {
	rows := [][]string{{"MODEL", "NAME", "SLICES", "PROFILES"}}
	for _, b := range all {
		var names []string
		for i := range b.Profiles {
			names = append(names, b.Profiles[i].Name)
		}
		rows = append(rows, []string{b.Short, b.Name, fmt.Sprint(b.Grid), strings.Join(names, " ")})
	}
	a.table(rows)
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
		fmt.Fprintf(a.io.Out, "%s, %d memory slices\n\n", t.Name, t.Width)
		rows := [][]string{{"PROFILE", "ID", "MEMORY", "SMS", "AT MOST", "SLICES", "STARTS AT"}}
		for _, p := range t.Profiles {
			starts := make([]string, len(p.Starts))
			for i, s := range p.Starts {
				starts[i] = fmt.Sprint(s)
			}
			rows = append(rows, []string{p.Name, fmt.Sprint(p.ID), gib(p.Memory), fmt.Sprint(p.SMs), fmt.Sprint(p.Max), fmt.Sprint(p.Size), strings.Join(starts, " ")})
		}
		a.table(rows)
		if len(t.Unseen) > 0 {
			fmt.Fprintf(a.io.Out, "\nIn no published listing: %s.\n", strings.Join(t.Unseen, "; "))
		}
	}
	return nil
}
