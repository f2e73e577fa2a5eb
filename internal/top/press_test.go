package top

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpushare/gpushare/api"
)

// pressed is a model on which keys were pressed, and what follows from the last one. Names of keys are in angle brackets.
func pressed(m *Model, keys string) (last Action) {
	named := map[string]KeyName{
		"up": Up, "down": Down, "end": End, "home": Home, "pgup": PgUp, "pgdn": PgDn, "enter": Enter, "esc": Escape, "bs": Backspace,
		"c-c": Interrupt, "c-l": Redraw,
	}
	for keys != "" {
		m.Frame(120, 40, noon)
		if name, rest, ok := strings.Cut(strings.TrimPrefix(keys, "<"), ">"); ok && keys[0] == '<' {
			last, keys = m.Press(Key{Name: named[name]}), rest
			continue
		}
		r, n := utf8.DecodeRuneInString(keys)
		last, keys = m.Press(Key{Rune: r}), keys[n:]
	}
	return last
}

// shown is the frame after the keys, and its last line.
func shown(m *Model) (frame, bottom string) {
	frame = m.Frame(120, 40, noon).Text()
	lines := strings.Split(strings.TrimSuffix(frame, "\n"), "\n")
	return frame, lines[len(lines)-1]
}

// What keys show and do.
func TestKeys(t *testing.T) {
	for name, c := range map[string]struct {
		keys   string
		want   Action
		bottom string   // of the frame after it
		has    []string // of the frame
		lacks  []string
	}{
		"quit":                      {keys: "q", want: Action{Quit: true}},
		"Ctrl-C":                    {keys: "<c-c>", want: Action{Quit: true}},
		"Ctrl-C in a filter":        {keys: "/ab<c-c>", want: Action{Quit: true}},
		"redraw":                    {keys: "<c-l>", want: Action{Redraw: true}},
		"tenants":                   {keys: "t", has: []string{"PRIORITY", "geology (frozen)"}, lacks: []string{"COMMAND"}},
		"users":                     {keys: "u", has: []string{"OUTSIDE OF LEASES", "mallory"}},
		"processes":                 {keys: "p", has: []string{"outside of leases miner"}},
		"GPUs":                      {keys: "g", has: []string{"└mallory"}, lacks: []string{"COMMAND"}},
		"help":                      {keys: "?", bottom: "any key goes back", has: []string{"SLOWED"}, lacks: []string{"alice"}},
		"help ends":                 {keys: "?x", has: []string{"alice"}},
		"a filter":                  {keys: "/VISION<enter>", bottom: "filter: VISION", has: []string{"vision-dev"}, lacks: []string{"geology-dev", "speech-serve"}},
		"a filter by GPU":           {keys: "/gpu3<enter>", has: []string{"geology-big"}, lacks: []string{"geology-dev"}},
		"a filter of other letters": {keys: "/逆<enter>", has: []string{"geology-dev"}, lacks: []string{"geology-big"}},
		"a filter with q in it":     {keys: "/q8", bottom: "filter: q8▏", has: []string{"vision-train-q8r3"}, lacks: []string{"vision-dev"}},
		"a filter is corrected":     {keys: "/visx<bs>ion<enter>", bottom: "filter: vision"},
		"a filter that finds none":  {keys: "/zzz<enter>", has: []string{"nothing has zzz in it: Esc clears the filter"}},
		"a filter is cleared":       {keys: "/zzz<enter><esc>", has: []string{"geology-dev"}},
		"a filter is given up":      {keys: "/zzz<esc>", has: []string{"geology-dev"}},
		"nothing is chosen":         {keys: "k", bottom: "choose a lease with the arrow keys first"},
		"a lease":                   {keys: "<down>k", bottom: "Stop vision-train-x7k2 of alice on GPU 0 3g.20gb@0 (python train.py --epochs 90)?  y stops it"},
		"yes":                       {keys: "<down>ky", want: Action{Stop: "vision-train-x7k2"}, bottom: "stopping vision-train-x7k2 …"},
		"the fourth":                {keys: "<down><down><down><down>kY", want: Action{Stop: "geology-dev-a1b2"}},
		"and back":                  {keys: "<end><up><up>ky", want: Action{Stop: "geology-dev-a1b2"}},
		"the first":                 {keys: "<end><home>ky", want: Action{Stop: "vision-train-x7k2"}},
		"no":                        {keys: "<down>kn", bottom: "vision-train-x7k2 is not stopped"},
		"another key is no":         {keys: "<down>k<enter>", bottom: "vision-train-x7k2 is not stopped"},
		"q is no":                   {keys: "<down>kq", bottom: "vision-train-x7k2 is not stopped"},
		"k again is no":             {keys: "<down>kk", bottom: "vision-train-x7k2 is not stopped"},
		"one that waits":            {keys: "<end>k", bottom: "this row is no lease that runs"},
		"a tenant":                  {keys: "t<down>k", bottom: "this row is no lease that runs"},
		"of a process":              {keys: "p<down><down>ky", want: Action{Stop: "speech-serve-3kq6"}},
		"of a process outside":      {keys: "p<end>k", bottom: "this row is no lease that runs"},
		"of an instance":            {keys: "g<down><down>ky", want: Action{Stop: "vision-train-x7k2"}},
		"one that is filtered":      {keys: "<down>/geology<enter>k", bottom: "choose a lease with the arrow keys first"},
		"evil text in a question":   {keys: "<end><up>k", bottom: "Stop geology-big-m4n5 of erin on GPU 3 (./simulate \ufffd[2Jevil)?"},
	} {
		t.Run(name, func(t *testing.T) {
			m := labModel()
			if got := pressed(m, c.keys); got != c.want {
				t.Errorf("%+v follows, want %+v", got, c.want)
			}
			frame, bottom := shown(m)
			if !strings.Contains(bottom, c.bottom) {
				t.Errorf("the last line is %q, want %q", bottom, c.bottom)
			}
			for _, s := range c.has {
				if !strings.Contains(frame, s) {
					t.Errorf("%q is not shown:\n%s", s, frame)
				}
			}
			// Without the lines of the GPUs, which are always there.
			_, below, _ := strings.Cut(frame, "\n\n")
			for _, s := range c.lacks {
				if strings.Contains(below, s) {
					t.Errorf("%q is shown:\n%s", s, frame)
				}
			}
		})
	}
}

// Each table is sorted by each of its keys, and what is not known comes last. The chosen row stays chosen.
func TestOrder(t *testing.T) {
	order := func(m *Model) (ids []string) {
		m.Frame(120, 40, noon)
		for _, id := range m.drawn.ids() {
			ids = append(ids, id[strings.LastIndexByte(id, '-')+1:])
		}
		return ids
	}
	m := labModel()
	pressed(m, "<down><down><down>") // vision-dev-p2w9
	for i, want := range []string{
		"x7k2 3kq6 p2w9 a1b2 m4n5 q8r3", // as the status has them
		"m4n5 a1b2 x7k2 p2w9 3kq6 q8r3", // BUSY
		"m4n5 p2w9 x7k2 a1b2 3kq6 q8r3", // MEMORY
		"p2w9 a1b2 x7k2 3kq6 m4n5 q8r3", // IDLE
		"3kq6 m4n5 x7k2 a1b2 p2w9 q8r3", // TIME
		"x7k2 3kq6 p2w9 a1b2 m4n5 q8r3", // USER
		"x7k2 3kq6 p2w9 a1b2 m4n5 q8r3", // and again
	} {
		if got := strings.Join(order(m), " "); got != want {
			t.Errorf("after %d keys: %s, want %s", i, got, want)
		}
		if m.selection != "vision-dev-p2w9" {
			t.Errorf("after %d keys %s is chosen", i, m.selection)
		}
		m.Press(Key{Rune: 's'})
	}
	pressed(m, "r")
	got := order(m)
	slices.Reverse(got)
	if strings.Join(got, " ") != "m4n5 a1b2 x7k2 p2w9 3kq6 q8r3" {
		t.Errorf("the other way around: %v", got)
	}
	if frame, _ := shown(m); !strings.Contains(frame, "BUSY▲") {
		t.Errorf("the order is not shown:\n%s", frame)
	}
	for _, v := range []View{GPUs, Tenants, Users, Processes} { // No key of a table is without a rank.
		m := labModel()
		m.View = v
		for range 2 * len(m.table(120, noon).keys) {
			pressed(m, "sr")
			shown(m)
		}
	}
}

// A lease that was stopped, and one that the daemon refuses to stop; the answer stays until the next key.
func TestAnswersAreShown(t *testing.T) {
	m := labModel()
	m.Stopped("vision-1", "")
	if _, bottom := shown(m); bottom != "vision-1 is stopped" {
		t.Errorf("%q", bottom)
	}
	m.Stopped("vision-1", "cannot stop lease vision-1: it is another user's")
	if _, bottom := shown(m); bottom != "cannot stop lease vision-1: it is another user's" {
		t.Errorf("%q", bottom)
	}
	pressed(m, "x")
	if _, bottom := shown(m); !strings.HasPrefix(bottom, "l leases") {
		t.Errorf("%q", bottom)
	}
}

// Without a connection the last values stay, with the time since when they are old; with one they are new.
func TestNoConnection(t *testing.T) {
	m := &Model{}
	m.Fail("there is no such socket", noon)
	if frame, _ := shown(m); !strings.HasPrefix(frame, "no connection since 12:00:00: there is no such socket\n") {
		t.Errorf("before the first reading:\n%s", frame)
	}
	m.Take(lab())
	m.Fail("connection refused", noon.Add(3*time.Second))
	m.Fail("there is no such socket", noon.Add(9*time.Second))
	frame, _ := shown(m)
	if lines := strings.Split(
		frame,
		"\n",
	); lines[1] != "no connection since 12:00:03: there is no such socket" ||
		!strings.Contains(frame, "vision-dev") {
		t.Errorf("after it:\n%s", frame)
	}
	m.Take(lab())
	if frame, _ := shown(m); strings.Contains(frame, "connection") {
		t.Errorf("with one again:\n%s", frame)
	}
}

// The history of a GPU is bounded, and a GPU that comes or goes disturbs nothing.
func TestHistory(t *testing.T) {
	m := &Model{}
	for range 3 * mostPast {
		m.Take(lab())
	}
	if n := len(m.past["GPU-1"].busy); n != mostPast {
		t.Errorf("%d readings are kept, want %d", n, mostPast)
	}
	r := lab()
	r.Status.GPUs = append(r.Status.GPUs[1:], api.GPUStatus{Index: 9, UUID: "GPU-9", Mode: "exclusive", State: "ok"})
	m.Take(r)
	shown(m)
	zero, half, one := 0.0, 0.5, 1.0
	for want, past := range map[string][]*float64{"  ▁▅█": {&zero, &half, &one}, "  ▁ █": {&zero, nil, &one}, "     ": nil} {
		if got := history(past, 5); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for want, p := range map[string]*float64{"····": nil, "█▌··": new(0.375), "████": &one} {
		if got := barOf(p, 4); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// No size, table or node makes a frame fail, and none is larger than the terminal.
func TestEverySize(t *testing.T) {
	many := lab()
	for i := range 16 {
		g := many.Status.GPUs[i%4]
		g.Index, g.UUID = 10+i, fmt.Sprintf("GPU-1%d", i)
		many.Status.GPUs = append(many.Status.GPUs, g)
	}
	for i := range 200 {
		l := many.Status.Leases[i%5]
		l.ID = fmt.Sprintf("tenant-with-a-long-name-%d", i)
		many.Status.Leases = append(many.Status.Leases, l)
		many.Status.Node.Conditions = append(many.Status.Node.Conditions, api.Condition{Message: strings.Repeat("long ", 60)})
	}
	empty := Reading{Status: &api.Status{At: noon}}
	for name, r := range map[string]Reading{"lab": lab(), "many": many, "empty": empty} {
		for _, v := range []View{Leases, GPUs, Tenants, Users, Processes} {
			m := &Model{View: v}
			m.Take(r)
			m.Fail(strings.Repeat("no ", 90), noon)
			for w := 14; w < 260; w += 23 {
				for h := 1; h < 70; h += 11 {
					m.Press(Key{Name: PgDn})
					g := m.Frame(w, h, noon)
					if g.Width != w || g.Height != h {
						t.Fatalf("%s, %s: a frame of %dx%d for %dx%d", name, v, g.Width, g.Height, w, h)
					}
					if w >= LeastWidth && h >= LeastHeight && m.selection != "" && !slices.ContainsFunc(
						g.cells[:w*(h-1)], func(c Cell) bool { return c.Style == selected && c.Rune != 0 },
					) {
						t.Fatalf("%s, %s, %dx%d: the chosen row is not shown", name, v, w, h)
					}
				}
			}
		}
	}
}
