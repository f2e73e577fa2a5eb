package cli_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/top"
	"github.com/gpushare/gpushare/test/golden"
)

// imageNode is the node of the image: one GPU of each mode, and one condition.
func imageNode() *api.Status {
	s := labNode()
	s.Node.Operation, s.Node.ClosedTo = "", nil
	s.Node.Conditions = s.Node.Conditions[:1]
	mig := s.GPUs[0].MIG
	mig.Pending, mig.Instances = true, []api.InstanceStatus{mig.Instances[0], mig.Instances[3]}
	s.GPUs[1].Processes = s.GPUs[1].Processes[:2]
	s.Tenants, s.Users = s.Tenants[:2], nil
	s.Tenants[0].Grants[0].Queued = 0
	s.Leases = s.Leases[:3]
	s.Leases[1].Command = []string{"python", "eval.py"}
	s.Leases[2].ID, s.Leases[2].User = "speech-0042", "carol"
	s.GPUs[1].Processes[1].Lease = s.Leases[2].ID
	return s
}

// The image of README is what the command prints. 'go test ./internal/cli -update' draws it.
func TestImageOfStatus(t *testing.T) {
	r := run(t, routes{"GET /v1/status": imageNode()}, "", "status")
	if r.code != api.ExitOK || r.err != "" {
		t.Fatalf("exit code %d:\n%s", r.code, r.all)
	}
	checkImage(t, "../../docs/status.svg", "gpushare status", r.out)
}

// topNode is the node of the image of top, so many readings before the last one.
func topNode(ago int) *api.Status {
	s := imageNode()
	for i := range s.GPUs {
		g := &s.GPUs[i]
		g.Sensors = &api.Sensors{
			ReadAt: noon, Temperature: new(41 + 9*i), PowerWatts: new(95 + 62*float64(i)), PowerLimitWatts: new(400.0),
			Clocks: &api.Clocks{SM: 1410 - 15*uint32(i), MaxSM: 1410}, Throttle: []string{},
		}
		g.Memory.Used -= g.Memory.Used / 30 * uint64(ago)
		if g.Utilization != nil {
			g.Utilization = new(min(100, max(0, *g.Utilization+(ago*(7*i+5))%60-10)))
			if ago == 0 {
				g.Utilization = new(88 - 11*i)
			}
		}
	}
	idle := &s.GPUs[3]
	idle.Utilization, idle.Sensors.Temperature, idle.Sensors.PowerWatts = nil, new(36), new(58.0)
	for i := range s.Leases {
		s.Leases[i].Started = new(noon.Add(-time.Duration(100*i+47) * time.Minute))
	}
	return s
}

// The image of top in README is a frame of it. The same command draws it.
func TestImageOfTop(t *testing.T) {
	m := &top.Model{}
	for ago := 19; ago >= 0; ago-- {
		m.Take(top.Reading{Status: topNode(ago)})
	}
	const width, height = 132, 17
	checkImage(t, "../../docs/top.svg", "gpushare top", m.Frame(width, height, noon).Text())
}

// checkImage compares the image of what a command prints with that of a file.
func checkImage(t *testing.T, file, command, out string) {
	t.Helper()
	image := terminalImage(command, out)
	var text strings.Builder
	for d := xml.NewDecoder(strings.NewReader(image)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("it is no XML: %v", err)
		}
		if c, ok := token.(xml.CharData); ok {
			text.Write(c)
		}
	}
	for line := range strings.Lines(out) {
		if line = strings.TrimRight(line, " \n"); !strings.Contains(text.String(), line) {
			t.Errorf("it lacks the line %q", line)
		}
	}
	golden.File(t, file, image)
}

// terminalImage draws the output of a command as an SVG that needs no font but a monospaced one. Each line has its width, so that
// another font moves no column.
func terminalImage(command, out string) string {
	const size, wide, high, margin = 13, 7.8, 18, 16
	lines := append([]string{"$ " + command}, strings.Split(strings.TrimRight(out, "\n"), "\n")...)
	columns := 0
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
		columns = max(columns, utf8.RuneCountInString(lines[i]))
	}
	var b strings.Builder
	w, h := float64(columns)*wide+2*margin, len(lines)*high+2*margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img">`+"\n", w, h, w, h)
	fmt.Fprintf(&b, "<title>%s</title>\n", command)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="#1e2227"/>`+"\n")
	fmt.Fprintf(&b, `<g font-family="monospace" font-size="%d" fill="#d7dae0" xml:space="preserve">`+"\n", size)
	for i, line := range lines {
		if line == "" {
			continue
		}
		color := ""
		switch {
		case i == 0:
			color = ` fill="#8fbcbb"`
		case strings.HasPrefix(line, "!"):
			color = ` fill="#ebcb8b"`
		case strings.HasPrefix(line, "GPU "), strings.HasPrefix(line, "TENANT "), strings.HasPrefix(line, "LEASE "):
			color = ` font-weight="bold"`
		}
		var text strings.Builder
		_ = xml.EscapeText(&text, []byte(line)) // A builder takes everything.
		fmt.Fprintf(
			&b, `<text x="%d" y="%d" textLength="%.1f"%s>%s</text>`+"\n", margin, margin+i*high+size,
			float64(utf8.RuneCountInString(line))*wide, color, text.String(),
		)
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}
