package plotimage

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/color"
	"image/png"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/chart"
)

var monday = time.Date(2025, 2, 24, 0, 0, 0, 0, time.UTC)

// week is a week of two tenants and one value that was not measured.
func week() *chart.Chart {
	c := &chart.Chart{
		Title:       "GPU usage, 2025-02-24 00:00 to 2025-03-03 00:00",
		Since:       monday,
		StepSeconds: 3600,
		Notes:       []string{"not measured: the occupancy, for 3.000 of 9.000 s"},
	}
	wave := func(mean, period float64) []float64 {
		out := make([]float64, 7*24)
		for i := range out {
			out[i] = max(0, mean*(1+math.Sin(float64(i)/period)))
		}
		return out
	}
	c.Panels = []chart.Panel{
		{
			Title:  "GPU time charged",
			Unit:   "GPUs",
			Series: []chart.Series{{Name: "vision", Values: wave(2, 4)}, {Name: "speech <&>", Values: wave(1, 9)}},
		},
		{Title: "GPU time busy", Unit: "GPUs", Absent: "not measured: the driver does not report it of MIG instances"},
		{
			Title: "GPU memory",
			Unit:  "GiB",
			Series: []chart.Series{
				{Name: "vision", Values: wave(60, 4)},
				{Name: "speech <&>", Values: wave(20, 9)},
				{Name: chart.Others, Values: wave(5, 20)},
			},
		},
		{Title: "waiting requests", Unit: "requests", Series: []chart.Series{{Name: "vision", Values: wave(0.4, 3)}}},
	}
	return c
}

func drawn(t *testing.T, c *chart.Chart, format string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Draw(&b, c, format, time.UTC); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The SVG has all texts, and for each series an area of its color with its highest value at the right height.
func TestSVG(t *testing.T) {
	texts, fills := map[string]int{}, map[string]int{}
	d := xml.NewDecoder(bytes.NewReader(drawn(t, week(), SVG)))
	inText := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			inText = x.Name.Local == "text"
			for _, a := range x.Attr {
				if x.Name.Local == "path" && a.Name.Local == "style" {
					fills[strings.ToUpper(strings.TrimPrefix(strings.Split(a.Value, ";")[0], "fill:"))]++
				}
			}
		case xml.CharData:
			if inText {
				texts[strings.TrimSpace(string(x))]++
			}
		case xml.EndElement:
			inText = false
		}
	}
	for _, want := range []string{
		"vision", "speech <&>", "others", "GPU time charged", "GPU memory", "waiting requests", "GPUs", "GiB", "requests", "Feb 25", "Mar 3",
		"not measured: the driver does not report it of MIG instances", "not measured: the occupancy, for 3.000 of 9.000 s", "GPU usage, 2025-02-24 00:00 to 2025-03-03 00:00",
	} {
		if texts[want] == 0 {
			t.Errorf("%q is not in the texts %v", want, texts)
		}
	}
	for name, want := range map[color.RGBA]int{colors[0]: 3 + 1, colors[1]: 2 + 1, gray: 1 + 1} { // an area in each panel, and the sign of the legend
		if hex := fmt.Sprintf("#%02X%02X%02X", name.R, name.G, name.B); fills[hex] != want {
			t.Errorf("%d areas are filled with %s, want %d: %v", fills[hex], hex, want, fills)
		}
	}
}

// The PNG is decoded, and the tenant with twice the values has twice the pixels.
func TestPNG(t *testing.T) {
	c := week()
	flat := func(v float64) []float64 {
		out := make([]float64, 7*24)
		for i := range out {
			out[i] = v
		}
		return out
	}
	c.Panels = []chart.Panel{
		{Title: "GPU memory", Unit: "GiB", Series: []chart.Series{{Name: "vision", Values: flat(4)}, {Name: "speech", Values: flat(2)}}},
	}
	b := drawn(t, c, PNG)
	image, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if size := image.Bounds().Size(); size.X != 1200 || size.Y != 1080 {
		t.Errorf("it has %v pixels", size)
	}
	pixels := map[color.RGBA]int{}
	for y := range image.Bounds().Dy() {
		for x := range image.Bounds().Dx() {
			r, g, b, _ := image.At(x, y).RGBA()
			pixels[color.RGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 0xff}]++
		}
	}
	one, two := pixels[colors[1]], pixels[colors[0]]
	if one < 10_000 || math.Abs(float64(two)/float64(one)-2) > 0.03 {
		t.Errorf("%d pixels for 4 GiB, %d for 2 GiB", two, one)
	}
}

func TestNothingToDraw(t *testing.T) {
	for name, c := range map[string]*chart.Chart{"no panels": {}, "no values": {Panels: []chart.Panel{{Title: "GPU memory", Absent: "not measured"}}}} {
		if err := Draw(io.Discard, c, SVG, time.UTC); err == nil {
			t.Errorf("%s: it is drawn", name)
		}
	}
	if err := Draw(io.Discard, week(), "pdf", time.UTC); err == nil || !strings.Contains(err.Error(), "it is svg or png") {
		t.Errorf("another format: %v", err)
	}
}

// Charts that are hard to draw are drawn.
func TestExtremes(t *testing.T) {
	for name, c := range map[string]*chart.Chart{
		"one step":  {StepSeconds: 3600, Since: monday, Panels: []chart.Panel{{Title: "x", Series: []chart.Series{{Name: "a", Values: []float64{1}}}}}},
		"zeros":     {StepSeconds: 3600, Since: monday, Panels: []chart.Panel{{Title: "x", Series: []chart.Series{{Name: "a", Values: make([]float64, 24)}}}}},
		"long name": {StepSeconds: 3600, Since: monday, Panels: []chart.Panel{{Title: "x", Series: []chart.Series{{Name: strings.Repeat("größer", 20), Values: []float64{1, 2}}}}}},
		"nothing":   {StepSeconds: 3600, StepCount: 24, Since: monday, Panels: []chart.Panel{{Title: "x", Absent: "not measured"}, {Title: "y", Absent: "not measured"}}},
		"a year":    {StepSeconds: 86400, Since: monday, Panels: []chart.Panel{{Title: "x", Series: []chart.Series{{Name: "a", Values: make([]float64, 435)}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, format := range []string{SVG, PNG} {
				if len(drawn(t, c, format)) < 1000 {
					t.Error("the image is empty")
				}
			}
		})
	}
}

// Ticks are at whole hours or days of the zone, also over a change of the clocks, and not too many.
func TestTicks(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skipf("the time zones are missing: %v", err)
	}
	for _, c := range []struct {
		begin       time.Time
		length      time.Duration
		first, last string
	}{
		{time.Date(2025, 3, 27, 9, 0, 0, 0, zone), 7 * 24 * time.Hour, "Mar 28", "Apr 3"}, // The clocks change on March 30.
		{time.Date(2025, 3, 29, 22, 0, 0, 0, zone), 6 * time.Hour, "Mar 29 22:00", "Mar 30 05:00"},
		{time.Date(2025, 1, 1, 0, 0, 0, 0, zone), 30 * 24 * time.Hour, "Jan 1", "Jan 29"},
	} {
		ticks := times{c.begin, c.begin.Add(c.length), zone}.Ticks(0, 0)
		if n := len(ticks); n < 2 || n > mostTicks+1 || ticks[0].Label != c.first || ticks[n-1].Label != c.last {
			t.Errorf("%s for %s: %+v", c.begin, c.length, ticks)
		}
	}
}
