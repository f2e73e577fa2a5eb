package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/mig"
)

// fragAnswer is the fragmentation of one GPU in JSON.
type fragAnswer struct {
	Model    string    `json:"model,omitempty"`
	GPU      string    `json:"gpu,omitempty"`
	Free     uint32    `json:"free"` // memory slices
	Width    uint32    `json:"width"`
	Score    float64   `json:"score"` // the part of the profiles that would fit after moving idle instances and do not fit now
	Profiles []fragFit `json:"profiles"`
}

type fragFit struct {
	Profile string     `json:"profile"`
	Now     int        `json:"now"`   // how many more fit
	Moved   int        `json:"moved"` // how many more would fit if idle instances moved
	Moves   []fragMove `json:"moves"` // the fewest for one more than now
}

type fragMove struct {
	Profile string `json:"profile"`
	From    uint32 `json:"from"`
	To      uint32 `json:"to"`
}

func (a *app) migFrag() *cobra.Command {
	var q question
	var have string
	var offline bool
	c := &cobra.Command{
		Use: "frag", Short: "Show the fragmentation of MIG GPUs", Args: noArgs,
		Long: `Frag shows for each profile how many more instances fit now, and how many would if idle
instances were placed elsewhere, with the fewest moves for that. To move an instance
means to destroy it and create it again. This command moves nothing, and instances in
use are never moved.`,
		Example: "  gpushare mig frag\n  gpushare mig frag --offline --model a100-40 --have '1g.5gb@1,1g.5gb@5!'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var devices []migDevice
			switch {
			case offline:
				var err error
				if q.Have, err = readInstances(have); err != nil {
					return usageError{err: fmt.Errorf("--have: %w", err)}
				}
				d, err := boardDevice(q.Model, q.Have)
				if err != nil {
					return err
				}
				devices = []migDevice{*d}
			case q.Model != "" || have != "":
				return usageError{err: fmt.Errorf("--model and --have are for a board"), hint: "write --offline too"}
			default:
				all, err := a.migDevices(cmd.Context())
				if err != nil {
					return err
				}
				for _, d := range all {
					if d.enabled && d.grid.Width > 0 {
						devices = append(devices, d)
					}
				}
			}
			return a.frag(devices)
		},
	}
	c.Flags().BoolVar(&offline, "offline", false, "use a board, without a daemon and a GPU")
	c.Flags().StringVar(&q.Model, "model", "", "the board, as in a100-40")
	c.Flags().StringVar(&have, "have", "", "the existing instances, as in '3g.20gb@4!,1g.5gb@0'")
	_ = c.RegisterFlagCompletionFunc("model", completeBoards) // These fail only for flags that do not exist.
	_ = c.RegisterFlagCompletionFunc("have", completeInstances(true))
	return c
}

func (a *app) frag(devices []migDevice) error {
	answers := []fragAnswer{}
	for i := range devices {
		d := &devices[i]
		f, err := mig.Fragment(d.grid, d.present)
		if err != nil {
			return err
		}
		x := fragAnswer{Model: d.model, GPU: d.uuid, Free: f.Free, Width: d.grid.Width, Score: f.Score, Profiles: []fragFit{}}
		for _, p := range f.Profiles {
			fit := fragFit{Profile: p.Profile.Name, Now: p.Now, Moved: p.Moved, Moves: []fragMove{}}
			for _, m := range p.Moves {
				fit.Moves = append(fit.Moves, fragMove{m.From.Name, m.From.Placement.Start, m.To.Placement.Start})
			}
			x.Profiles = append(x.Profiles, fit)
		}
		answers = append(answers, x)
		if a.json {
			continue
		}
		if i > 0 {
			fmt.Fprintln(a.io.Out)
		}
		a.fragText(d, &x)
	}
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int          `json:"schema_version"`
			GPUs          []fragAnswer `json:"gpus"`
		}{1, answers})
	}
	if len(devices) == 0 {
		fmt.Fprintln(a.io.Out, "no GPU is in MIG mode")
	}
	return nil
}

func (a *app) fragText(d *migDevice, x *fragAnswer) {
	fmt.Fprintf(a.io.Out, "%s\n\n", d.title())
	a.diagram(d.grid.Width, presentRow("now", d.grid, d.present))
	fmt.Fprintln(a.io.Out)
	if len(x.Profiles) == 0 {
		fmt.Fprintln(a.io.Out, "Nothing more fits, even if idle instances moved.")
		return
	}
	rows := [][]string{{"PROFILE", "FIT NOW", "IF MOVED", "FEWEST MOVES FOR ONE MORE"}}
	for _, p := range x.Profiles {
		var moves []string
		for _, m := range p.Moves {
			moves = append(moves, fmt.Sprintf("%s from %d to %d", m.Profile, m.From, m.To))
		}
		rows = append(rows, []string{p.Profile, fmt.Sprint(p.Now), fmt.Sprint(p.Moved), strings.Join(moves, ", ")})
	}
	a.table(rows)
	fmt.Fprintf(a.io.Out, "\nFragmentation %.0f%%: %d of %d memory slices are free.\n", 100*x.Score, x.Free, x.Width)
}
