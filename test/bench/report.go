package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is everything that a run measured, and on what.
type Report struct {
	Machine Machine  `json:"machine"`
	Figures []Figure `json:"figures"`
}

// Machine is the host of the measurement.
type Machine struct {
	Date       time.Time `json:"date"`
	Kernel     string    `json:"kernel"`
	Cores      int       `json:"cores"`
	LoadBefore float64   `json:"load_before"` // the load average of one minute
	LoadAfter  float64   `json:"load_after"`
}

// Figure is one measured value, with its target if it has one. Of several runs Value is the worst, so that a target counts as met
// only if every run met it.
type Figure struct {
	Part string `json:"part"` // as in -only

	// Scenario is the row of a table whose columns are names; empty for a single figure.
	Scenario string `json:"scenario,omitempty"`

	Name   string    `json:"name"`
	Value  float64   `json:"value"`
	Unit   string    `json:"unit"`
	Target *float64  `json:"target,omitempty"`
	Better string    `json:"better"`         // lower | higher
	Met    *bool     `json:"met,omitempty"`  // absent without a target
	Runs   []float64 `json:"runs,omitempty"` // the value of each run, if there are several
}

func lower(name string, value float64, unit string, target float64) Figure {
	return figure(name, []float64{value}, unit, "lower", &target)
}

func higher(name string, value float64, unit string, target float64) Figure {
	return figure(name, []float64{value}, unit, "higher", &target)
}

// figure is a value of one or several runs.
func figure(name string, runs []float64, unit, better string, target *float64) Figure {
	f := Figure{Name: name, Value: runs[0], Unit: unit, Target: target, Better: better}
	for _, v := range runs {
		if worse(v, f.Value, better) {
			f.Value = v
		}
	}
	if len(runs) > 1 {
		f.Runs = runs
	}
	if target != nil {
		met := f.Value == *target || worse(*target, f.Value, better)
		f.Met = &met
	}
	return f
}

func worse(a, b float64, better string) bool {
	if better == "higher" {
		return a < b
	}
	return a > b
}

func newReport() (Report, error) {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return Report{}, fmt.Errorf("cannot read the kernel's release: %w", err)
	}
	load, err := loadAverage()
	return Report{Machine: Machine{
		Date: time.Now().UTC().Truncate(time.Second), Kernel: strings.TrimSpace(string(kernel)), Cores: runtime.NumCPU(), LoadBefore: load,
	}}, err
}

// loadAverage is the load average of the last minute.
func loadAverage() (float64, error) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("cannot read the load average: %w", err)
	}
	var load float64
	if _, err := fmt.Sscan(string(b), &load); err != nil {
		return 0, fmt.Errorf("cannot read the load average: %w", err)
	}
	return load, nil
}

// warnIfBusy warns if other programs use the machine: figures in time are then those of the machine.
func (b *bench) warnIfBusy(m Machine) {
	if m.LoadBefore > 0.5*float64(m.Cores) {
		fmt.Fprintf(
			b.errs, "bench: the load average is %.1f on %d cores: figures in time are not those of the product\n", m.LoadBefore,
			m.Cores,
		)
	}
}

// show prints the single figures, and then the tables of scenarios, one for each part; these also as Markdown, for the
// documentation.
func show(out io.Writer, figures []Figure, markdown bool) {
	var single []Figure
	var order []string
	tables := map[string][]Figure{}
	for i := range figures {
		f := figures[i]
		if f.Scenario == "" {
			single = append(single, f)
			continue
		}
		if tables[f.Part] == nil {
			order = append(order, f.Part)
		}
		tables[f.Part] = append(tables[f.Part], f)
	}
	if len(single) > 0 {
		showFigures(out, single)
	}
	for _, p := range order {
		fmt.Fprintf(out, "\n%s\n\n", p)
		showTable(out, tables[p], markdown)
	}
}

func showFigures(out io.Writer, figures []Figure) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "figure\tvalue\ttarget\tmet\t")
	for i := range figures {
		f := &figures[i]
		met := ""
		if f.Met != nil {
			met = map[bool]string{true: "yes", false: "NO"}[*f.Met]
		}
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t\n", f.Name, f.text(), f.Unit, f.target(), met)
	}
	w.Flush()
}

// showTable prints one row for each scenario. A value that misses its target has an exclamation mark.
func showTable(out io.Writer, figures []Figure, markdown bool) {
	var names, columns []string
	cells := map[[2]string]string{}
	for i := range figures {
		f := &figures[i]
		if !slices.Contains(names, f.Scenario) {
			names = append(names, f.Scenario)
		}
		if !slices.Contains(columns, f.Name) {
			columns = append(columns, f.Name)
		}
		text := f.text()
		if f.Met != nil && !*f.Met {
			text += " !"
		}
		cells[[2]string{f.Scenario, f.Name}] = text
	}
	header, targets := append([]string{"scenario"}, columns...), []string{"target"}
	for _, c := range columns {
		targets = append(targets, columnTarget(figures, c))
	}
	rows := [][]string{header, targets}
	for _, n := range names {
		row := []string{n}
		for _, c := range columns {
			row = append(row, cells[[2]string{n, c}])
		}
		rows = append(rows, row)
	}
	if markdown {
		rows = slices.Insert(rows, 1, slices.Repeat([]string{"---"}, len(header)))
		for _, row := range rows {
			fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
		}
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
}

// columnTarget is the target of a column, which may apply to some of its rows only.
func columnTarget(figures []Figure, column string) string {
	for i := range figures {
		if f := &figures[i]; f.Name == column && f.Target != nil {
			return f.target()
		}
	}
	return ""
}

// text is the value, or the least and the most of several runs.
func (f *Figure) text() string {
	text := short(f.Value)
	if len(f.Runs) > 1 {
		if least, most := short(slices.Min(f.Runs)), short(slices.Max(f.Runs)); least != most {
			text = least + "…" + most
		}
	}
	return text
}

func (f *Figure) target() string {
	switch {
	case f.Target == nil:
		return ""
	case f.Better == "higher":
		return "≥ " + short(*f.Target)
	}
	return "≤ " + short(*f.Target)
}

// short writes a number with at most two decimals.
func short(v float64) string {
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
}

func write(file string, r Report) error {
	out, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode the figures: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("cannot create the directory: %w", err)
	}
	if err := os.WriteFile(file, append(out, '\n'), 0o644); err != nil {
		return fmt.Errorf("cannot write the figures: %w", err)
	}
	return nil
}
