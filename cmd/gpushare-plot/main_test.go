package main

import (
	"bytes"
	"image/png"
	"strings"
	"testing"
)

const oneStep = `{"title":"GPU usage","since":"2025-02-24T00:00:00Z","step_seconds":3600,"panels":[{"title":"GPU memory","unit":"GiB","series":[{"name":"vision","values":[1]}]}]}`

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		args, in string
		code     int
		says     string
	}{
		"svg":            {"svg", oneStep, 0, ""},
		"png":            {"png", oneStep, 0, ""},
		"no format":      {"", oneStep, 2, "usage: gpushare-plot svg|png"},
		"another format": {"pdf", oneStep, 2, "usage: gpushare-plot svg|png"},
		"two formats":    {"svg png", oneStep, 2, "usage: gpushare-plot svg|png"},
		"no chart":       {"svg", "", 1, "cannot draw the chart: EOF"},
		"no values":      {"svg", "{}", 1, "cannot draw the chart: the chart has no values"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			code := run(strings.Fields(c.args), strings.NewReader(c.in), &out, &errs)
			if code != c.code || !strings.Contains(errs.String(), c.says) || (out.Len() > 0) != (code == 0) {
				t.Fatalf("exit code %d, %d bytes: %s", code, out.Len(), errs.String())
			}
			switch name {
			case "svg":
				if !strings.Contains(out.String(), "</svg>") {
					t.Error("it is no SVG")
				}
			case "png":
				if _, err := png.Decode(&out); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
