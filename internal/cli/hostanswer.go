package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/remote"
	"github.com/gpushare/gpushare/internal/text"
)

// hostAnswer is what one host answered.
type hostAnswer api.HostResult

// sshFailed is the exit code of ssh where it has none of a command.
const sshFailed = 255

// answerOf reads what a host answered.
func answerOf(a *remote.Answer) hostAnswer {
	h := hostAnswer{Host: a.Host}
	if a.Err != nil {
		h.fail(api.KindUnavailable, a.Err.Error(), "")
		return h
	}
	h.ExitCode = &a.Code
	switch refused := refusalOf(a.Errors); {
	case a.Code == api.ExitOK:
		var version struct {
			SchemaVersion *int `json:"schema_version"`
		}
		if json.Unmarshal(a.Output, &version) != nil || version.SchemaVersion == nil {
			h.fail(api.KindUnavailable, "its answer is not what gpushare prints with --json: "+begins(a.Output), "")
			return h
		}
		h.OK, h.Result = true, escaped(a.Output)
	case refused != nil:
		if !slices.Contains(api.Kinds(), refused.Kind) {
			refused.Kind = api.KindInternal
		}
		h.fail(refused.Kind, refused.Message, refused.Hint)
	case a.Code == sshFailed:
		h.fail(api.KindUnavailable, "ssh: "+strings.TrimPrefix(said(a.Errors, "it says no reason"), "ssh: "), "")
	case a.Code == 127:
		h.fail(api.KindUnavailable, "gpushare is not installed there: "+said(a.Errors, "exit code 127"), "")
	default:
		h.fail(api.KindUnavailable, fmt.Sprintf("gpushare exits with %d there: %s", a.Code, said(a.Errors, "it says no reason")), "")
	}
	return h
}

func (h *hostAnswer) fail(kind api.Kind, why, hint string) {
	h.OK, h.Result = false, nil
	h.Error = &api.Error{Kind: kind, Message: brief(why), Hint: brief(hint)}
}

// refusalOf is the refusal that gpushare printed on standard error, where a login may have printed more; nil if there is none.
func refusalOf(errs []byte) *api.Error {
	at := 0
	if !bytes.HasPrefix(errs, []byte("{\n")) {
		if at = bytes.LastIndex(errs, []byte("\n{\n")); at < 0 {
			return nil
		}
	}
	var out struct {
		Error *api.Error `json:"error"`
	}
	if json.NewDecoder(bytes.NewReader(errs[at:])).Decode(&out) != nil || out.Error == nil || out.Error.Message == "" {
		return nil
	}
	return out.Error
}

// said is the last line of an output that is not empty.
func said(b []byte, otherwise string) string {
	lines := strings.Split(strings.TrimSpace(string(bytes.ToValidUTF8(b, []byte("?")))), "\n")
	return cmp.Or(strings.TrimSpace(lines[len(lines)-1]), otherwise)
}

// begins is the first line of an output that is not empty.
func begins(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(bytes.ToValidUTF8(b, []byte("?")))), "\n")
	return cmp.Or(strings.TrimSpace(line), "it is empty")
}

// brief is the text of a host on one line, without what controls a terminal.
func brief(s string) string { return cut(printable(s), mostHostText, false) }

// escaped is JSON without characters that control a terminal: within its strings they can be written in another way.
func escaped(b []byte) json.RawMessage {
	var out bytes.Buffer
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == utf8.RuneError && n == 1:
			out.WriteString(`\ufffd`)
		case r >= 0x7f && printable(string(r)) != string(r) || r > 0x7f && unicode.Is(unicode.Cf, r) && r <= 0xffff:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.Write(b[:n])
		}
		b = b[n:]
	}
	return out.Bytes()
}

// decode reads the answer of a host. An answer of another version may have fields that this one does not know, and lacks others.
func decode[T any](h *hostAnswer) (*T, bool) {
	if !h.OK {
		return nil, false
	}
	v := new(T)
	if err := json.Unmarshal(h.Result, v); err != nil {
		h.fail(api.KindUnavailable, "its answer cannot be read, it may be of another version: "+err.Error(), "")
		return nil, false
	}
	return v, true
}

// showHosts shows the answers, and says which hosts are missing in them.
func (a *app) showHosts(cmd *cobra.Command, reader *hostReader, hosts []hostAnswer) error {
	shown := hosts
	if a.json {
		shown = slices.Clone(hosts) // What the table cannot show is in the JSON nevertheless.
	}
	t, err := reader.table(a, cmd, shown)
	switch {
	case err != nil:
		return err
	case a.json:
		out := api.HostResults{SchemaVersion: 1, Hosts: make([]api.HostResult, len(hosts))}
		for i := range hosts {
			out.Hosts[i] = api.HostResult(hosts[i])
		}
		if err := a.printJSON(out); err != nil {
			return err
		}
	default:
		a.printHosts(t)
	}
	if missing := a.missing(hosts); missing != nil {
		return missing
	}
	if f := cmd.Flags().Lookup("exit-code"); f != nil && f.Value.String() == "true" && t.code != api.ExitOK {
		return &exitError{code: t.code}
	}
	return nil
}

// missing names the hosts that were not read, and why; nil if all were. With --json the list has it.
func (a *app) missing(hosts []hostAnswer) error {
	var lines []string
	failed := 0
	hint := "'ssh " + firstFailed(hosts) + " gpushare status' shows more"
	for i := range hosts {
		if e := hosts[i].Error; e != nil {
			failed++
			lines = append(lines, hosts[i].Host+": "+e.Message)
			if e.Hint != "" {
				lines = append(lines, "  there: "+e.Hint)
			}
		}
	}
	code := api.ExitSomeHosts
	switch failed {
	case 0:
		return nil
	case len(hosts):
		code = api.ExitUnreachable
	}
	if a.json {
		return &exitError{code: code}
	}
	e := &api.Error{
		Kind: api.KindUnavailable,
		Message: fmt.Sprintf(
			"cannot read %d of %s:\n  %s", failed, text.Count(len(hosts), "host"), strings.Join(lines, "\n  "),
		),
		Hint: hint,
	}
	return &exitError{code: code, err: e}
}

func firstFailed(hosts []hostAnswer) string {
	for i := range hosts {
		if hosts[i].Error != nil {
			return hosts[i].Host
		}
	}
	return ""
}
