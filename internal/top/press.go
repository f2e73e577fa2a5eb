package top

import (
	"slices"
	"strings"
	"unicode"
)

// Key is a key that the user pressed: a character, or one of the names.
type Key struct {
	Rune rune // 0 with a name
	Name KeyName
}

// KeyName names a key that is no character.
type KeyName int

// The keys that are no characters.
const (
	NoKey KeyName = iota
	Up
	Down
	PgUp
	PgDn
	Home
	End
	Enter
	Escape
	Backspace
	Interrupt // Ctrl-C and Ctrl-D, which are no signals here
	Redraw    // Ctrl-L
)

// Action is what is to be done after a key.
type Action struct {
	Quit   bool
	Redraw bool   // the whole screen: another program wrote on it
	Stop   string // the id of a lease
}

// mostFilter bounds the text of a filter.
const mostFilter = 64

// Press takes a key.
func (m *Model) Press(k Key) Action {
	switch k.Name {
	case Interrupt:
		return Action{Quit: true}
	case Redraw:
		return Action{Redraw: true}
	}
	m.message, m.wrong = "", false
	switch m.mode {
	case filtering:
		m.type1(k)
		return Action{}
	case confirming:
		return m.answer(k)
	case helping:
		m.mode = watching
		if k.Rune == 'q' {
			return Action{Quit: true}
		}
		return Action{}
	}
	if m.move(k.Name) {
		return Action{}
	}
	return m.command(k)
}

// command takes the key of a command.
func (m *Model) command(k Key) Action {
	views := map[rune]View{'l': Leases, 'g': GPUs, 't': Tenants, 'u': Users, 'p': Processes}
	switch v, ok := views[k.Rune]; {
	case ok:
		if v != m.view() {
			m.View, m.selection = v, ""
		}
	case k.Rune == 'q':
		return Action{Quit: true}
	case k.Rune == '?' || k.Rune == 'h':
		m.mode = helping
	case k.Rune == '/':
		m.mode = filtering
	case k.Name == Escape:
		m.filter, m.selection = "", ""
	case k.Rune == 's':
		m.set(func() { m.sorting[m.view()] = (m.sorting[m.view()] + 1) % max(1, len(m.drawn.keys)) })
	case k.Rune == 'r':
		m.set(func() { m.reversed[m.view()] = !m.reversed[m.view()] })
	case k.Rune == 'k':
		m.request()
	}
	return Action{}
}

// set changes the order of the table.
func (m *Model) set(change func()) {
	if m.sorting == nil {
		m.sorting, m.reversed = map[View]int{}, map[View]bool{}
	}
	change()
}

func (m *Model) view() View {
	if m.View == "" {
		return Leases
	}
	return m.View
}

// move changes the selection, and reports whether the key does that.
func (m *Model) move(k KeyName) bool {
	ids := m.drawn.ids()
	at := slices.Index(ids, m.selection)
	switch k {
	case Up:
		at = max(at, 0) - 1
	case Down:
		at++
	case PgUp:
		at -= m.screenful
	case PgDn:
		at = max(at, 0) + m.screenful
	case Home:
		at = 0
	case End:
		at = len(ids) - 1
	default:
		return false
	}
	if len(ids) > 0 {
		m.selection = ids[min(max(at, 0), len(ids)-1)]
	}
	return true
}

// type1 takes a key of the text of the filter.
func (m *Model) type1(k Key) {
	switch r := []rune(m.filter); {
	case k.Name == Enter:
		m.mode = watching
	case k.Name == Escape:
		m.mode, m.filter = watching, ""
	case k.Name == Backspace && len(r) > 0:
		m.filter = string(r[:len(r)-1])
	case k.Rune != 0 && unicode.IsPrint(k.Rune) && len(r) < mostFilter:
		m.filter += string(k.Rune)
	}
}

// request asks whether the selected lease is stopped.
func (m *Model) request() {
	lease, why := m.drawn.leaseOf(m.selection)
	if lease == "" {
		m.message, m.wrong = why, true
		return
	}
	m.mode, m.pending = confirming, question{lease: lease, text: m.stopText(lease)}
}

// answer takes the answer: only y is yes.
func (m *Model) answer(k Key) Action {
	m.mode = watching
	if k.Rune == 'y' || k.Rune == 'Y' {
		m.message = "stopping " + m.pending.lease + " …"
		return Action{Stop: m.pending.lease}
	}
	m.message = m.pending.lease + " is not stopped"
	return Action{}
}

// stopText says what is stopped.
func (m *Model) stopText(id string) string {
	for i := range m.last.Status.Leases {
		if l := &m.last.Status.Leases[i]; l.ID == id {
			out := "Stop " + id + " of " + dash(l.User)
			if on := place(m.last.Status, l); on != "" {
				out += " on GPU " + on
			}
			if len(l.Command) > 0 {
				out += " (" + cut(strings.Join(l.Command, " "), 40, false) + ")"
			}
			return out + "?"
		}
	}
	return "Stop " + id + "?"
}
