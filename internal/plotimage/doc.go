// Package plotimage draws a chart as an SVG or a PNG. It is linked into gpushare-plot only: the fonts of the library take longer to load
// than a command may take to start.
package plotimage
