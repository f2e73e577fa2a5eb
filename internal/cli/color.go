package cli

import "strings"

// The colours, as terminals number them. No information is in the colour alone.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
)

// stateColors are the states that need attention. The others have no colour.
var stateColors = map[string]string{
	"held":           red,
	"unhealthy":      red,
	"lost":           red,
	"GPU lost":       red,
	"stuck":          red,
	"unreadable":     red,
	"failed":         red,
	"fail":           red,
	"unresponsive":   red,
	"over its limit": red,
	"stopping":       red,
	"changing":       yellow,
	"cordoned":       yellow,
	"starting":       yellow,
	"ending":         yellow,
	"waiting":        yellow,
	"warn":           yellow,
	"near its limit": yellow,
	"undone":         yellow,
}

// paint colours a word on a terminal whose user did not refuse colours.
func (a *app) paint(color, s string) string {
	if !a.color || color == "" || s == "" {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[0m"
}

// state colours the words of state at the head of a text: "held" in "held: it failed", "over its limit" in "running, over its limit".
func (a *app) state(text string) string {
	head, tail := text, ""
	if i := strings.IndexByte(text, ':'); i >= 0 {
		head, tail = text[:i], text[i:]
	}
	words := strings.Split(head, ", ")
	for i, w := range words {
		words[i] = a.paint(stateColors[w], w)
	}
	return strings.Join(words, ", ") + tail
}
