package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/chart"
	"github.com/gpushare/gpushare/internal/text"
)

// usagePlot draws usage over time: in the terminal, or into a file by another program.
func (a *app) usagePlot(ctx context.Context, since, until, step, file string) error {
	format := strings.ToLower(strings.TrimPrefix(filepath.Ext(file), "."))
	if file != "-" && format != "svg" && format != "png" {
		return usageError{
			err:  fmt.Errorf("cannot draw into %q: the name of an image ends in .svg or .png", file),
			hint: "'gpushare usage --plot' draws in the terminal",
		}
	}
	if step == "" {
		step = stepLength(since, until)
	}
	u, err := a.client.Usage(ctx, since, until, step, []string{api.ByTenant})
	if err != nil {
		return err
	}
	if chart.Empty(u) {
		fmt.Fprintf(
			a.io.Out,
			"%s: no lease used a GPU, so there is nothing to draw\n",
			text.Between(u.Since.In(zone()), u.Until.In(zone())),
		)
		return nil
	}
	c := chart.Of(u, zone())
	c.Notes = usageNotes(u)
	if file == "-" {
		a.drawChart(&c)
		return nil
	}
	image, err := a.image(ctx, &c, format)
	if err != nil {
		return err
	}
	return replaceFile(file, ".gpushare-plot-", image, 0)
}

// stepLength is the length of a step that shows a time in a few hundred steps. What it cannot read is read by the daemon.
func stepLength(since, until string) string {
	const day = 24 * time.Hour
	switch length := ageOf(since) - ageOf(until); {
	case ageOf(since) > 35*day: // Of older days there are only sums.
		return "1d"
	case length > 10*day:
		return "6h"
	}
	return "1h"
}

// ageOf is how long ago a time is that the user wrote as an age or a date; 0 if it is neither.
func ageOf(s string) time.Duration {
	if d, err := api.ParseDuration(s); err == nil {
		return time.Duration(d)
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.ParseInLocation(form, s, time.Local); err == nil {
			return now().Sub(at)
		}
	}
	return 0
}

// plotProgram draws images. It is a program of its own because its fonts take longer to load than 'gpushare run' to start.
const plotProgram = "gpushare-plot"

// installedPlotter is where packages install it.
var installedPlotter = "/usr/libexec/gpushare/" + plotProgram

// mostPlotTime bounds the drawing, which takes less than a second.
const mostPlotTime = time.Minute

func (a *app) image(ctx context.Context, c *chart.Chart, format string) ([]byte, error) {
	in, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("internal error: cannot encode the chart: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, mostPlotTime)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, plotter(), format)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = a.env, bytes.NewReader(in), &out, &errs
	switch err := cmd.Run(); {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && errs.Len() > 0:
		return nil, fmt.Errorf("cannot draw the image: %s", strings.TrimSpace(errs.String()))
	case err != nil:
		return nil, &api.Error{
			Kind:    api.KindInternal,
			Message: fmt.Sprintf("cannot draw the image: %v", err),
			Hint:    "install gpushare with " + plotProgram + "; 'gpushare usage --plot' draws in the terminal without it",
		}
	}
	return out.Bytes(), nil
}

// plotter is the program next to this one, as in a build directory, or where it is installed.
func plotter() string {
	if self, err := os.Executable(); err == nil {
		for _, dir := range []string{".", "../libexec/gpushare"} {
			p := filepath.Join(filepath.Dir(self), dir, plotProgram)
			if i, err := os.Stat(p); err == nil && i.Mode().IsRegular() {
				return p
			}
		}
	}
	return installedPlotter
}

// The columns of a terminal that show no steps: the name before them, and the mean and the highest value after them.
const (
	chartName  = 16
	chartRight = 18
)

// heights are eighths of a line.
var heights = []rune("▁▂▃▄▅▆▇█")

// drawChart draws a line for each tenant. All lines of a value have the same scale.
func (a *app) drawChart(c *chart.Chart) {
	width := columnsOf(a.io.Out)
	if width == 0 {
		width = narrowest
	}
	most := max(1, width-2-chartName-1-chartRight)
	each := (c.Steps() + most - 1) / most // steps in a column
	columns := (c.Steps() + each - 1) / each
	fmt.Fprintf(a.io.Out, "%s; a column is %s\n", c.Title, api.Duration(time.Duration(each)*time.Duration(c.StepSeconds)*time.Second))
	for i := range c.Panels {
		p := &c.Panels[i]
		if p.Absent != "" {
			fmt.Fprintf(a.io.Out, "\n%s: %s\n", p.Title, p.Absent)
			continue
		}
		top := p.Least
		lines := make([][]float64, len(p.Series))
		for k := range p.Series {
			lines[k] = means(p.Series[k].Values, each)
			for _, v := range lines[k] {
				top = max(top, v)
			}
		}
		head := fmt.Sprintf("%s (%s)", p.Title, p.Unit)
		fmt.Fprintf(a.io.Out, "\n%-*s%9s%9s\n", 2+chartName+1+columns, head, "MEAN", "MAX")
		for k := range p.Series {
			s := &p.Series[k]
			fmt.Fprintf(
				a.io.Out, "  %-*s %s%9.2f%9.2f\n", chartName, cut(printable(s.Name), chartName, true), bars(lines[k], top), s.Mean(),
				s.Max(),
			)
		}
	}
	fmt.Fprintf(a.io.Out, "\n  %-*s %s\n", chartName, "", timeLine(c, each, columns))
	for _, note := range c.Notes {
		fmt.Fprintln(a.io.Out, note)
	}
}

// means joins each few values to their mean.
func means(values []float64, each int) []float64 {
	var out []float64
	for from := 0; from < len(values); from += each {
		part := chart.Series{Values: values[from:min(from+each, len(values))]}
		out = append(out, part.Mean())
	}
	return out
}

// bars draws values from 0 to top. What is not 0 is seen.
func bars(values []float64, top float64) string {
	var b strings.Builder
	for _, v := range values {
		if v <= 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(heights[min(len(heights)-1, int(math.Ceil(v/top*float64(len(heights))))-1)])
	}
	return b.String()
}

// timeLine has the date below the first column of each day, where there is a place for it.
func timeLine(c *chart.Chart, each, columns int) string {
	line := []rune(strings.Repeat(" ", columns+len("│Jan 02")))
	free := 0
	for i := range columns {
		at := c.At(i * each).In(zone())
		if i > 0 && at.YearDay() == c.At((i-1)*each).In(zone()).YearDay() || i < free {
			continue
		}
		copy(line[i:], []rune("│"+at.Format("Jan 2")))
		free = i + len("Jan 02") + 2
	}
	return strings.TrimRight(string(line), " ")
}
