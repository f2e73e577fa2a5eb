package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// repeat runs the demo several times, reports each run in one line, and keeps the output of the failed ones in files. It returns 0
// if all passed.
func repeat(ctx context.Context, times int, dir string, out io.Writer, once func(out io.Writer) int) int {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		fmt.Fprintf(out, "cannot create the directory for failed runs: %v\n", err)
		return 1
	}
	passed := 0
	var durations []time.Duration
	for i := 1; i <= times; i++ {
		var text bytes.Buffer
		began := time.Now()
		code := once(&text)
		if ctx.Err() != nil {
			fmt.Fprintf(out, "interrupted: %d of %d passed\n", passed, i-1)
			return 130
		}
		duration := time.Since(began)
		durations = append(durations, duration)
		if code == 0 {
			passed++
			fmt.Fprintf(out, "run %d of %d passed in %.0f s: %s\n", i, times, duration.Seconds(), counted(text.String()))
			continue
		}
		file := filepath.Join(dir, fmt.Sprintf("demo-failed-%d.log", i))
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			file = err.Error()
		}
		fmt.Fprintf(out, "run %d of %d FAILED in %.0f s: %s (%s)\n", i, times, duration.Seconds(), lastLine(text.String()), file)
	}
	fmt.Fprintf(out, "%d of %d passed, %.0f to %.0f s each, at %s\n", passed, times,
		slices.Min(durations).Seconds(), slices.Max(durations).Seconds(), time.Now().UTC().Format(time.RFC3339))
	if passed < times {
		return 1
	}
	return 0
}

// counted is the measured share in the output of a run.
func counted(text string) string {
	for line := range strings.Lines(text) {
		if _, shares, ok := strings.Cut(line, "counted: "); ok {
			return strings.TrimSpace(shares)
		}
	}
	return "no share was measured"
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
