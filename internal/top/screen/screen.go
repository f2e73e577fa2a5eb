package screen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/top"
)

// Node is what top reads and does.
type Node interface {
	StatusNow(ctx context.Context) (*api.Status, error)
	Idle(ctx context.Context) (*api.Idle, error)
	StopLease(ctx context.Context, id string) error
}

// Options say how top runs.
type Options struct {
	In, Out *os.File // of one terminal
	Term    string   // its type
	Color   bool
	Every   time.Duration // between two readings
	Count   int           // it ends after this many readings; 0: it does not
	View    top.View
	Zone    *time.Location
}

// deadline bounds one reading, so that a daemon that hangs is shown as that.
const deadline = 10 * time.Second

// Run shows the node until the user ends it or ctx ends. The error is that of a caller who may not read the status, or of the first
// reading.
func Run(ctx context.Context, node Node, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	terminal := &device{in: o.In, out: o.Out}
	defer terminal.Close() // Nothing was written to it.
	options := []tcell.TerminfoScreenOption{
		tcell.OptTerm(o.Term), tcell.OptNegotiation(false), tcell.OptKeyboardProtocol(tcell.LegacyKeyboard),
	}
	if !o.Color {
		options = append(options, tcell.OptColors(0))
	}
	s, err := tcell.NewTerminfoScreenFromTty(terminal, options...)
	if err == nil {
		err = s.Init()
	}
	if err != nil {
		return fmt.Errorf("cannot use the terminal: %w", err)
	}
	defer s.Fini()
	r := &run{
		screen: s, node: node, o: o, tasks: &tasks, model: &top.Model{View: o.View, Zone: o.Zone},
		readings: make(chan reading), stops: make(chan stopped),
	}
	return r.loop(ctx)
}

// run is one use of the terminal. Its loop alone has the model.
type run struct {
	screen tcell.Screen
	node   Node
	o      Options
	tasks  *sync.WaitGroup
	model  *top.Model

	readings chan reading
	stops    chan stopped
}

type reading struct {
	top.Reading
	err error
}

type stopped struct {
	lease string
	err   error
}

func (r *run) loop(ctx context.Context) error {
	due := time.NewTimer(0)
	defer due.Stop()
	for shown := 0; ; {
		r.draw()
		if r.o.Count > 0 && shown >= r.o.Count {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
			r.tasks.Go(func() { r.read(ctx) })
		case got := <-r.readings:
			if err := r.take(got); err != nil {
				return err
			}
			shown++
			due.Reset(r.o.Every)
		case end := <-r.stops:
			r.model.Stopped(end.lease, refusal(end.err))
			due.Reset(0) // What it changed is shown at once.
		case e, open := <-r.screen.EventQ():
			if !open || r.event(ctx, e) {
				return nil
			}
		}
	}
}

// read reads the node once.
func (r *run) read(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	s, err := r.node.StatusNow(within)
	got := reading{err: err}
	if err == nil {
		got.Status = s
		if idle, err := r.node.Idle(within); err == nil { // Without it idle times are not shown.
			got.Idle = idle
		}
	}
	select {
	case r.readings <- got:
	case <-ctx.Done():
	}
}

// take shows a reading, or why there is none. What a user may not see any more is not shown any longer either.
func (r *run) take(got reading) error {
	if got.err == nil {
		r.model.Take(got.Reading)
		return nil
	}
	if e, ok := errors.AsType[*api.Error](got.err); ok && e.Kind == api.KindDenied || !r.model.HasRead() {
		return got.err
	}
	r.model.Fail(got.err.Error(), time.Now())
	return nil
}

// refusal is why a lease was not stopped, with what helps; empty: it was.
func refusal(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*api.Error](err); ok && e.Hint != "" {
		return e.Message + " (" + e.Hint + ")"
	}
	return err.Error()
}

// event takes an event of the terminal, and reports whether top ends.
func (r *run) event(ctx context.Context, e tcell.Event) (ends bool) {
	switch e := e.(type) {
	case *tcell.EventError: // The terminal ended.
		return true
	case *tcell.EventResize:
		r.screen.Sync()
	case *tcell.EventKey:
		for _, k := range keysOf(e) {
			act := r.model.Press(k)
			switch {
			case act.Quit:
				return true
			case act.Redraw:
				r.screen.Sync()
			case act.Stop != "":
				r.tasks.Go(func() { r.stop(ctx, act.Stop) })
			}
		}
	}
	return false
}

// stop stops a lease. The daemon says whether the user may.
func (r *run) stop(ctx context.Context, lease string) {
	err := r.node.StopLease(ctx, lease)
	select {
	case r.stops <- stopped{lease, err}:
	case <-ctx.Done():
	}
}

// names are the keys that are no characters.
var names = map[tcell.Key]top.KeyName{
	tcell.KeyUp: top.Up, tcell.KeyDown: top.Down, tcell.KeyPgUp: top.PgUp, tcell.KeyPgDn: top.PgDn, tcell.KeyHome: top.Home,
	tcell.KeyEnd: top.End, tcell.KeyEnter: top.Enter, tcell.KeyEsc: top.Escape, tcell.KeyBackspace: top.Backspace,
	tcell.KeyBackspace2: top.Backspace, tcell.KeyCtrlC: top.Interrupt, tcell.KeyCtrlD: top.Interrupt, tcell.KeyCtrlL: top.Redraw,
}

func keysOf(e *tcell.EventKey) (out []top.Key) {
	if n, ok := names[e.Key()]; ok {
		return []top.Key{{Name: n}}
	}
	if e.Key() == tcell.KeyRune {
		for _, c := range e.Str() {
			out = append(out, top.Key{Rune: c})
		}
	}
	return out
}

// draw writes what changed since the last frame.
func (r *run) draw() {
	width, height := r.screen.Size()
	g := r.model.Frame(width, height, time.Now())
	for y := range min(height, g.Height) {
		for x := range min(width, g.Width) {
			if c := g.At(x, y); c.Rune != 0 {
				r.screen.Put(x, y, string(c.Rune), styleOf(c.Style))
			}
		}
	}
	r.screen.Show()
}

var colors = map[top.Color]color.Color{
	top.Red: color.Maroon, top.Green: color.Green, top.Yellow: color.Olive, top.Cyan: color.Teal,
}

func styleOf(s top.Style) tcell.Style {
	out := tcell.StyleDefault.Bold(s.Bold).Dim(s.Dim).Reverse(s.Reversed)
	if c, ok := colors[s.Color]; ok {
		out = out.Foreground(c)
	}
	return out
}
