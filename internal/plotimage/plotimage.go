package plotimage

import (
	"fmt"
	"image/color"
	"io"
	"time"
	"unicode/utf8"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/gpushare/gpushare/internal/chart"
)

// The size of an image, and the width of its legend.
const (
	width, height = 10 * vg.Inch, 9 * vg.Inch
	legendWidth   = 1.7 * vg.Inch
	margin        = 0.15 * vg.Inch
	pixelsPerInch = 120
)

// colors differ for people who cannot tell red from green too; the last one is that of all other tenants.
var colors = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff},
	{0xe6, 0x9f, 0x00, 0xff},
	{0x00, 0x9e, 0x73, 0xff},
	{0xcc, 0x79, 0xa7, 0xff},
	{0x56, 0xb4, 0xe9, 0xff},
	{0xd5, 0x5e, 0x00, 0xff},
	{0xf0, 0xe4, 0x42, 0xff},
	{0x60, 0x60, 0x60, 0xff},
}

var gray = color.RGBA{0xb0, 0xb0, 0xb0, 0xff}

// The formats.
const (
	SVG = "svg"
	PNG = "png"
)

// Draw writes the chart, its times in a zone.
func Draw(to io.Writer, c *chart.Chart, format string, zone *time.Location) error {
	switch format {
	case SVG:
		canvas := vgsvg.New(width, height)
		if err := render(draw.New(canvas), c, zone); err != nil {
			return err
		}
		_, err := canvas.WriteTo(to)
		return err
	case PNG:
		canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(pixelsPerInch))}
		if err := render(draw.New(canvas), c, zone); err != nil {
			return err
		}
		_, err := canvas.WriteTo(to)
		return err
	}
	return fmt.Errorf("unknown format %q: it is %s or %s", format, SVG, PNG)
}

// render draws the panels below each other, and the legend next to them.
func render(to draw.Canvas, c *chart.Chart, zone *time.Location) error {
	if len(c.Panels) == 0 || c.Steps() == 0 {
		return fmt.Errorf("the chart has no values")
	}
	to.FillPolygon(
		color.White,
		[]vg.Point{{X: to.Min.X, Y: to.Min.Y}, {X: to.Max.X, Y: to.Min.Y}, {X: to.Max.X, Y: to.Max.Y}, {X: to.Min.X, Y: to.Max.Y}},
	)
	head := style(13, draw.XLeft)
	to.FillText(head, vg.Point{X: to.Min.X + margin, Y: to.Max.Y - margin - head.Height(c.Title)}, c.Title)
	foot := style(9, draw.XLeft)
	bottom := margin
	for i := len(c.Notes) - 1; i >= 0; i-- {
		to.FillText(foot, vg.Point{X: to.Min.X + margin, Y: to.Min.Y + bottom}, c.Notes[i])
		bottom += foot.Height("X") * 1.4
	}
	area := draw.Crop(to, margin, -margin, bottom+margin/2, -(2.5*margin + head.Height(c.Title)))
	palette := colorsOf(c)
	var panels [][]*plot.Plot
	for i := range c.Panels {
		p, err := panel(&c.Panels[i], c, palette, zone)
		if err != nil {
			return err
		}
		panels = append(panels, []*plot.Plot{p})
	}
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: 1.2 * margin}
	places := plot.Align(panels, tiles, draw.Crop(area, 0, -legendWidth, 0, 0))
	for i := range panels {
		panels[i][0].Draw(places[i][0])
	}
	legend := plot.NewLegend()
	legend.Left, legend.Top, legend.Padding, legend.TextStyle = true, true, 3, style(10, draw.XLeft)
	for _, name := range names(c) {
		legend.Add(short(name), box{palette[name]})
	}
	legend.Draw(draw.Crop(area, area.Max.X-area.Min.X-legendWidth+margin, 0, 0, -margin))
	return nil
}

// panel is one value: the series on each other, each step as wide as it is long.
func panel(p *chart.Panel, c *chart.Chart, palette map[string]color.RGBA, zone *time.Location) (*plot.Plot, error) {
	out := plot.New()
	out.Title.Text, out.Y.Label.Text = p.Title, p.Unit
	out.Title.TextStyle, out.Title.Padding = below(11), 4
	out.Y.Label.TextStyle.Font, out.Y.Tick.Label.Font, out.X.Tick.Label = style(9, draw.XCenter).Font, style(9, draw.XCenter).Font, below(9)
	begin, end := c.At(0), c.At(c.Steps())
	out.X.Min, out.X.Max = float64(begin.Unix()), float64(end.Unix())
	out.X.Tick.Marker = times{begin, end, zone}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.RGBA{0xe0, 0xe0, 0xe0, 0xff}, color.RGBA{0xe0, 0xe0, 0xe0, 0xff}
	out.Add(grid)
	heights, top := make([]float64, c.Steps()), 0.0
	for i := range p.Series {
		outline := make(plotter.XYs, 0, 4*len(heights))
		for k := range heights {
			outline = append(outline, corners(c, k, heights[k])...)
		}
		for k := range heights {
			heights[k] += p.Series[i].Values[k]
			top = max(top, heights[k])
		}
		for k := len(heights) - 1; k >= 0; k-- {
			upper := corners(c, k, heights[k])
			outline = append(outline, upper[1], upper[0])
		}
		polygon, err := plotter.NewPolygon(outline)
		if err != nil {
			return nil, fmt.Errorf("cannot draw %s of %s: %w", p.Title, p.Series[i].Name, err)
		}
		polygon.Color, polygon.Width = palette[p.Series[i].Name], 0
		out.Add(polygon)
	}
	out.Y.Min, out.Y.Max = 0, max(top*1.05, p.Least)
	if top == 0 {
		out.Y.Max = 1
	}
	if p.Absent != "" {
		out.HideY()
		labels, err := plotter.NewLabels(
			plotter.XYLabels{XYs: plotter.XYs{{X: (out.X.Min + out.X.Max) / 2, Y: 0.5}}, Labels: []string{p.Absent}},
		)
		if err != nil {
			return nil, fmt.Errorf("cannot draw %s: %w", p.Title, err)
		}
		labels.TextStyle[0] = style(10, draw.XCenter)
		labels.TextStyle[0].Color = color.RGBA{0x60, 0x60, 0x60, 0xff}
		out.Add(labels)
	}
	return out, nil
}

// corners are the begin and the end of a step at a height.
func corners(c *chart.Chart, step int, y float64) []plotter.XY {
	return []plotter.XY{{X: float64(c.At(step).Unix()), Y: y}, {X: float64(c.At(step + 1).Unix()), Y: y}}
}

// names are those of all series, in the order in which they first appear.
func names(c *chart.Chart) []string {
	var out []string
	seen := map[string]bool{chart.Others: true}
	others := false
	for i := range c.Panels {
		for k := range c.Panels[i].Series {
			name := c.Panels[i].Series[k].Name
			others = others || name == chart.Others
			if !seen[name] {
				seen[name] = true
				out = append(out, name)
			}
		}
	}
	if others {
		out = append(out, chart.Others)
	}
	return out
}

// colorsOf gives a tenant the same color in all panels. Those without one of their own are gray.
func colorsOf(c *chart.Chart) map[string]color.RGBA {
	out := map[string]color.RGBA{}
	for i, name := range names(c) {
		out[name] = gray
		if i < len(colors) && name != chart.Others {
			out[name] = colors[i]
		}
	}
	return out
}

func style(points float64, align text.XAlignment) text.Style {
	f := plot.DefaultFont
	f.Variant, f.Size = "Sans", vg.Points(points)
	return text.Style{Color: color.Black, Font: f, XAlign: align, Handler: plot.DefaultTextHandler}
}

// below is the style of a text that hangs below its point.
func below(points float64) text.Style {
	s := style(points, draw.XCenter)
	s.YAlign = draw.YTop
	return s
}

// short fits a name into the legend.
func short(name string) string {
	const most = 18
	if utf8.RuneCountInString(name) <= most {
		return name
	}
	r := []rune(name)
	return string(r[:most/2-1]) + "…" + string(r[len(r)-most/2:])
}

// box is the sign of a series in the legend.
type box struct{ color color.Color }

// Thumbnail fills the place of the sign.
func (b box) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(
		b.color, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Min.X, Y: c.Max.Y}},
	)
}
