package lostfiles

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/daemon/report"
)

// Part is files that belong together.
type Part struct {
	Name string // of the condition
	// Revalidate compares files that are open with their names, by a few calls of stat, and writes again what it can. lost names what
	// was removed; with an error it is not there again.
	Revalidate  func(ctx context.Context) (lost []string, err error)
	NotRestored string // what does not come back with the files; empty: nothing
	Hint        string
}

// Files compares the files of all parts.
type Files struct {
	*report.Reporter
	Parts []Part

	busy atomic.Bool
	said map[string]string // by part, for the one that is busy: a loss that stays is said once
}

// Check compares the files of all parts once. A loss stays a condition until the daemon ends, because something stays lost; it can be
// acknowledged. Two calls at the same time make one check.
func (f *Files) Check(ctx context.Context) {
	if !f.busy.CompareAndSwap(false, true) {
		return
	}
	defer f.busy.Store(false)
	for i := range f.Parts {
		f.check(ctx, &f.Parts[i])
	}
}

func (f *Files) check(ctx context.Context, p *Part) {
	lost, err := p.Revalidate(ctx)
	if len(lost) == 0 && err == nil {
		return
	}
	verb := " were"
	if len(lost) == 1 {
		verb = " was"
	}
	text := fmt.Sprintf("%s%s removed while gpushared ran", strings.Join(lost, ", "), verb)
	if err != nil {
		text += ", and cannot be written again: " + err.Error()
		if f.said[p.Name] == text {
			return
		}
		f.say(p, text, "save the spec with 'gpushare get > node.yaml', then 'systemctl restart gpushared'")
		return
	}
	text += fmt.Sprintf(" (found at %s), and written again", f.Now().UTC().Format(time.RFC3339))
	if p.NotRestored != "" {
		text += "; lost: " + p.NotRestored
	}
	f.say(p, text, p.Hint)
}

func (f *Files) say(p *Part, text, hint string) {
	if f.said == nil {
		f.said = map[string]string{}
	}
	f.said[p.Name] = text
	f.Conditions.Set(report.LostFiles, p.Name, text, hint)
	f.Log.Error("files were removed", "message_id", report.MessageFilesLost, "text", text)
	f.Audit("gpushared", report.LostFiles, text)
	f.Invalidate()
}
