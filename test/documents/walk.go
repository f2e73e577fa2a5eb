package documents

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
)

// Host is where a page is walked through.
type Host struct {
	Client *client.Client
	// Prepare makes the command of a directive "first:" for a reader, and Type a command that a reader types.
	Prepare, Type func(ctx context.Context, reader, text string) *exec.Cmd
	// Write writes a file of a reader.
	Write func(reader, name, text string) error
	// Runs reports whether a block runs here, and why a command of it does not: it is then left out.
	Runs func(b *Block) bool
	Lack func(s *Step) string
	// Deadline is for one command.
	Deadline time.Duration
}

// Walked is what a walk through a page found.
type Walked struct {
	Ran     int      // commands
	LeftOut []string // commands that do not run here, with the reason
	Wrong   []string // what differs from the page, with its line
}

// Walk runs the blocks of a page that run here, in order. It ends at a preparation that fails.
func (h *Host) Walk(ctx context.Context, name string, p *Document) Walked {
	var w Walked
	for i := range p.Blocks {
		b := &p.Blocks[i]
		if b.File != "" {
			if err := h.Write(b.Reader, b.File, b.Text); err != nil {
				w.Wrong = append(w.Wrong, fmt.Sprintf("%s:%d: cannot write %s: %v", name, b.Line, b.File, err))
			}
		}
		if !h.Runs(b) {
			continue
		}
		for _, text := range b.First {
			if out, code := h.run(ctx, h.Prepare, b.Reader, text); code != 0 {
				w.Wrong = append(w.Wrong, fmt.Sprintf("%s:%d: the preparation %q exits with %d:\n%s", name, b.Line, text, code, out))
				return w
			}
		}
		for j := range b.Commands {
			h.step(ctx, name, b.Reader, &b.Commands[j], &w)
		}
	}
	return w
}

// step runs one command and compares what it prints.
func (h *Host) step(ctx context.Context, name, reader string, c *Step, w *Walked) {
	at := fmt.Sprintf("%s:%d: %s", name, c.Line, c.Text)
	if why := h.Lack(c); why != "" {
		w.LeftOut = append(w.LeftOut, at+": "+why)
		return
	}
	w.Ran++
	out, code := h.run(ctx, h.Type, reader, c.Text)
	if code != c.Code {
		w.Wrong = append(w.Wrong, fmt.Sprintf("%s\nexits with %d, the page says %d:\n%s", at, code, c.Code, out))
	} else if d := c.Difference(out); d != "" {
		w.Wrong = append(w.Wrong, fmt.Sprintf("%s\nthe page has %q, it prints:\n%s", at, d, out))
	}
}

// leaseName stands for the name of the lease that was started last.
var leaseName = regexp.MustCompile(`\bLEASE\b`)

// run runs a command and returns what it prints, errors included. LEASE in it is the lease that was started last.
func (h *Host) run(ctx context.Context, shell func(context.Context, string, string) *exec.Cmd, reader, text string) (out string, code int) {
	ctx, cancel := context.WithTimeout(ctx, h.Deadline)
	defer cancel()
	if leaseName.MatchString(text) {
		newest := h.newestLease(ctx)
		if newest == "" {
			return "there is no lease to name", -1
		}
		text = leaseName.ReplaceAllString(text, newest)
	}
	cmd := shell(ctx, reader, text)
	cmd.WaitDelay = time.Second // Background programs keep the output open.
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		return err.Error(), -1
	}
	return string(b), cmd.ProcessState.ExitCode()
}

func (h *Host) newestLease(ctx context.Context) string {
	st, err := h.Client.Status(ctx)
	if err != nil {
		return ""
	}
	var newest *api.Lease
	for i := range st.Leases {
		if l := &st.Leases[i]; newest == nil || l.Created.After(newest.Created) {
			newest = l
		}
	}
	if newest == nil {
		return ""
	}
	return newest.ID
}
