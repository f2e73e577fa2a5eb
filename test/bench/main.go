// Command bench measures the product against its targets and prints a table; build/bench.json has the same figures.
// It runs the shipped programs on a virtual node. It prints whether each target is met, and does not fail if one is not.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// Figure is one measured value with its target.
type Figure struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Target float64 `json:"target"`
	Better string  `json:"better"` // lower | higher
	Met    bool    `json:"met"`
}

func lower(name string, value float64, unit string, target float64) Figure {
	return Figure{name, value, unit, target, "lower", value <= target}
}

func higher(name string, value float64, unit string, target float64) Figure {
	return Figure{name, value, unit, target, "higher", value >= target}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	bin, err := filepath.Abs("bin")
	if err != nil {
		return fmt.Errorf("cannot find the programs: %w", err)
	}
	b := &bench{bin: bin}
	figures, err := b.all(ctx)
	if err != nil {
		return err
	}
	if err := show(figures); err != nil {
		return err
	}
	return write("build/bench.json", figures)
}

func show(figures []Figure) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "figure\tvalue\ttarget\t\tmet\t")
	for _, f := range figures {
		met, sign := "yes", "≤"
		if !f.Met {
			met = "NO"
		}
		if f.Better == "higher" {
			sign = "≥"
		}
		fmt.Fprintf(w, "%s\t%.4g %s\t%s %.4g\t\t%s\t\n", f.Name, f.Value, f.Unit, sign, f.Target, met)
	}
	return w.Flush()
}

func write(file string, figures []Figure) error {
	out, err := json.MarshalIndent(figures, "", "  ")
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
