package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/cli/migparted"
	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/mig"
)

// convertedLabel is one label in JSON.
type convertedLabel struct {
	Label        string         `json:"label"`
	GPUs         []convertedGPU `json:"gpus"`
	NotExpressed []string       `json:"not_expressed"`
	Spec         string         `json:"spec"` // the document, in YAML
}

type convertedGPU struct {
	Index  []int    `json:"index,omitempty"`
	PCIID  []string `json:"pci_id,omitempty"`
	Boards string   `json:"boards,omitempty"` // what the PCI ids select
	All    bool     `json:"all,omitempty"`
	Mode   string   `json:"mode"`
	Layout []string `json:"layout,omitempty"`
}

func (a *app) migConvert() *cobra.Command {
	var label, migOff string
	c := &cobra.Command{
		Use:   "convert FILE",
		Short: "Convert a file of NVIDIA's MIG partition editor (mig-parted) to a spec",
		Args:  exactArgs(1, "a file of the MIG partition editor, or - for standard input"),
		Long: `Convert reads a configuration file of NVIDIA's MIG partition editor (mig-parted), or
the config map that contains one, and writes one of its labels as a spec. What a spec
cannot express is listed on standard error and as a comment. Without --label it lists
the labels. A device filter becomes a selector by PCI id.

A spec turns MIG off only on GPUs that it shares in another way, which the file does not
say: where MIG is off in the file, the GPUs become external, which is only observed.
With --mig-off they get another mode.`,
		Example:           "  gpushare mig convert config.yaml\n  gpushare mig convert config.yaml --label all-balanced > node.yaml",
		ValidArgsFunction: yamlFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := a.read(cmd.Context(), args[0])
			if err != nil {
				return usageError{err: fmt.Errorf("cannot read the file: %w", err), hint: "- is standard input"}
			}
			name := args[0]
			if name == "-" {
				name = "standard input"
			}
			config, err := migparted.Read(name, raw)
			if err != nil {
				return usageError{err: err, hint: "the format is that of the examples at https://github.com/NVIDIA/mig-parted"}
			}
			if !slices.Contains(migOffModes, migOff) {
				return usageError{
					err:  fmt.Errorf("cannot read --mig-off %q: it is no mode without MIG", migOff),
					hint: "write one of " + strings.Join(migOffModes, ", "),
				}
			}
			for _, s := range config.Skipped {
				fmt.Fprintf(a.io.Err, "warning: not read: %s\n", sentence(s))
			}
			if label == "" {
				return a.convertList(name, migOff, config)
			}
			l := config.Label(label)
			if l == nil {
				return unknownLabel(name, label, config)
			}
			out := convert(name, migOff, l)
			if a.json {
				return a.printJSON(struct {
					SchemaVersion int              `json:"schema_version"`
					Labels        []convertedLabel `json:"labels"`
				}{1, []convertedLabel{*out}})
			}
			for _, n := range out.NotExpressed {
				fmt.Fprintf(a.io.Err, "warning: %s\n", sentence(n))
			}
			_, err = io.WriteString(a.io.Out, out.Spec)
			return err
		},
	}
	c.Flags().StringVar(&label, "label", "", "the label to write as a spec")
	c.Flags().StringVar(
		&migOff, "mig-off", api.ModeExternal,
		"the mode of GPUs whose MIG mode is off in the file: external, exclusive, timeslice or mps",
	)
	_ = c.RegisterFlagCompletionFunc("mig-off", cobra.FixedCompletions(migOffModes, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// migOffModes are the modes that a GPU without MIG may have.
var migOffModes = []string{api.ModeExternal, api.ModeExclusive, api.ModeTimeslice, api.ModeMPS}

// read reads a file, or standard input for -, up to the largest size of a document.
func (a *app) read(ctx context.Context, file string) ([]byte, error) {
	if file == "-" {
		return boundedread.All(a.io.In, maxDocument)
	}
	f, err := openFile(ctx, file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return boundedread.All(f, maxDocument)
}

func unknownLabel(file, label string, c *migparted.Config) error {
	var known []string
	for _, l := range c.Labels {
		known = append(known, l.Name)
	}
	e := usageError{
		err:  fmt.Errorf("%s has no label %q", file, label),
		hint: fmt.Sprintf("'gpushare mig convert %s' lists its labels", file),
	}
	if near, ok := api.Nearest(label, known); ok {
		e.hint = fmt.Sprintf("did you mean --label %s?", near)
	}
	return e
}

func convert(file, migOff string, l *migparted.Label) *convertedLabel {
	s := l.Spec(migOff)
	out := &convertedLabel{
		Label:        l.Name,
		GPUs:         []convertedGPU{},
		NotExpressed: append([]string{}, s.NotExpressed...),
		Spec:         s.YAML(fmt.Sprintf("From the label %s of %s.", l.Name, file)),
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		c := convertedGPU{Index: g.Index, Boards: g.Boards(), All: len(g.Index) == 0 && len(g.PCIID) == 0, Mode: g.Mode, Layout: g.Layout}
		for _, id := range g.PCIID {
			c.PCIID = append(c.PCIID, id.String())
		}
		out.GPUs = append(out.GPUs, c)
	}
	return out
}

// convertList shows the result for every label.
func (a *app) convertList(file, migOff string, c *migparted.Config) error {
	labels := []convertedLabel{}
	rows := [][]string{{"LABEL", "GPUS", "BECOMES", "NOT EXPRESSED"}}
	for i := range c.Labels {
		l := convert(file, migOff, &c.Labels[i])
		labels = append(labels, *l)
		name, lost := l.Label, ""
		if n := len(l.NotExpressed); n > 0 {
			lost = text.Count(n, "thing")
		}
		if len(l.GPUs) == 0 {
			rows = append(rows, []string{name, "-", "nothing", lost})
		}
		for _, g := range l.GPUs {
			gpus := "all"
			switch {
			case len(g.Index) > 0:
				gpus = strings.ReplaceAll(strings.Trim(fmt.Sprint(g.Index), "[]"), " ", ",")
			case len(g.PCIID) > 0:
				gpus = fewBoards(g.Boards)
			}
			becomes := g.Mode + ", MIG off"
			switch {
			case g.Mode == api.ModeExternal:
				becomes = "external: only observed"
			case len(g.Layout) > 0:
				becomes = counted(g.Layout)
			case g.Mode == api.ModeMIG:
				becomes = "MIG, dynamic"
			}
			rows = append(rows, []string{name, gpus, becomes, lost})
			name, lost = "", ""
		}
	}
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int              `json:"schema_version"`
			Labels        []convertedLabel `json:"labels"`
		}{1, labels})
	}
	a.table(rows)
	return nil
}

// fewBoards shortens a list of boards for a column.
func fewBoards(boards string) string {
	list := strings.Split(boards, ", ")
	if len(list) <= 2 {
		return boards
	}
	return fmt.Sprintf("%s, %s and %d more", list[0], list[1], len(list)-2)
}

func (a *app) migExport() *cobra.Command {
	return &cobra.Command{
		Use: "export", Short: "Write the MIG layouts of this node as a spec", Args: noArgs,
		Long: `Export writes the instances of all GPUs in MIG mode as a spec that keeps them. Use it
for a node that was partitioned by hand. It contains no tenants.`,
		Example: "  gpushare mig export > node.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices, err := a.migDevices(cmd.Context())
			if err != nil {
				return err
			}
			s := exported(devices)
			if a.json {
				return a.printJSON(struct {
					SchemaVersion int      `json:"schema_version"`
					Spec          string   `json:"spec"`
					NotExpressed  []string `json:"not_expressed"`
				}{1, s.YAML("The current MIG layouts."), append([]string{}, s.NotExpressed...)})
			}
			for _, n := range s.NotExpressed {
				fmt.Fprintf(a.io.Err, "warning: %s\n", sentence(n))
			}
			_, err = io.WriteString(a.io.Out, s.YAML("The current MIG layouts."))
			return err
		},
	}
}

// exported says what is there as a spec.
func exported(devices []migDevice) migparted.Spec {
	var s migparted.Spec
	for i := range devices {
		d := &devices[i]
		if !d.enabled {
			continue
		}
		var list []gpu.Instance
		for _, b := range d.present {
			list = append(list, b.Instance)
		}
		layout := mig.Record(d.grid, list).Names()
		if len(layout) == 0 {
			s.NotExpressed = append(
				s.NotExpressed, fmt.Sprintf("GPU %d is in MIG mode and has no instance: a layout has one or more", d.index),
			)
			continue
		}
		s.GPUs = append(
			s.GPUs,
			migparted.GPUs{UUID: d.uuid, Mode: api.ModeMIG, Layout: layout, Comment: fmt.Sprintf("GPU %d, %s", d.index, d.name)},
		)
	}
	return s
}
