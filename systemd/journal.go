package systemd

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// LogHandler returns the daemon's log handler: the journal with fields when stderr is connected to it, else text on stderr.
func LogHandler(stderr io.Writer, level slog.Leveler) slog.Handler {
	// If JOURNAL_STREAM cannot be read, stderr is not the journal.
	if ok, err := journal.StderrIsJournalStream(); err == nil && ok && journal.Enabled() {
		return &journalHandler{level: level, send: journal.Send}
	}
	return slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == messageID {
			return slog.Attr{}
		}
		return a
	}})
}

// messageID is the attribute that says what kind of message this is: only the journal can be searched for it.
const messageID = "message_id"

// journalHandler writes each record to the journal: the message as MESSAGE, the attribute "error" as ERROR, "message_id" as
// MESSAGE_ID, every other as GPUSHARE_<NAME>. The message contains the attributes as text as well, for readers that do not show fields.
type journalHandler struct {
	level  slog.Leveler
	send   func(message string, p journal.Priority, fields map[string]string) error
	groups []string
	attrs  []field // bound by WithAttrs
}

type field struct{ name, text, value string }

var _ slog.Handler = (*journalHandler)(nil)

func (h *journalHandler) Enabled(_ context.Context, l slog.Level) bool {
	return l >= h.level.Level()
}

func (h *journalHandler) Handle(_ context.Context, r slog.Record) error {
	fields := slices.Clone(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		fields = appendAttr(fields, h.groups, a)
		return true
	})
	var text strings.Builder
	text.WriteString(r.Message)
	vars := make(map[string]string, len(fields))
	for _, f := range fields {
		vars[f.name] = f.value
		if f.name == "MESSAGE_ID" {
			continue
		}
		text.WriteString(" " + f.text + "=")
		text.WriteString(quoteIfNeeded(f.value))
	}
	return h.send(text.String(), priority(r.Level), vars)
}

func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.attrs = slices.Clone(h.attrs)
	for _, a := range attrs {
		next.attrs = appendAttr(next.attrs, h.groups, a)
	}
	return &next
}

func (h *journalHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	next := *h
	next.groups = append(slices.Clone(h.groups), name)
	return &next
}

func appendAttr(fields []field, groups []string, a slog.Attr) []field {
	v := a.Value.Resolve()
	if a.Equal(slog.Attr{}) {
		return fields
	}
	if v.Kind() == slog.KindGroup {
		inside := groups
		if a.Key != "" {
			inside = append(slices.Clone(groups), a.Key)
		}
		for _, b := range v.Group() {
			fields = appendAttr(fields, inside, b)
		}
		return fields
	}
	path := append(slices.Clone(groups), a.Key)
	return append(fields, field{name: fieldName(path), text: strings.Join(path, "."), value: v.String()})
}

// fieldName is the journal's name of an attribute: uppercase letters, digits and underscores, the first one a letter.
func fieldName(path []string) string {
	if len(path) == 1 && path[0] == "error" {
		return "ERROR"
	}
	if len(path) == 1 && path[0] == messageID {
		return "MESSAGE_ID"
	}
	name := []byte("GPUSHARE_" + strings.ToUpper(strings.Join(path, "_")))
	for i, c := range name {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			name[i] = '_'
		}
	}
	// The journal drops longer names (systemd.journal-fields(7)).
	return string(name[:min(len(name), 64)])
}

func quoteIfNeeded(s string) string {
	if s == "" || strings.ContainsAny(s, " \"=\n\t") {
		return `"` + strings.NewReplacer(`"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(s) + `"`
	}
	return s
}

func priority(l slog.Level) journal.Priority {
	switch {
	case l >= slog.LevelError:
		return journal.PriErr
	case l >= slog.LevelWarn:
		return journal.PriWarning
	case l >= slog.LevelInfo:
		return journal.PriInfo
	default:
		return journal.PriDebug
	}
}
