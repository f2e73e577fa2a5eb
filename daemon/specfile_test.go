package daemon

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/scenarios"
)

// With spec_file a file and its drop-ins are the only source of the spec: at start, on reload, and never from elsewhere.
func TestSpecFile(t *testing.T) {
	const (
		mine   = "version: v1\ngpus:\n  - select: {index: 0}\n    mode: timeslice\ntenants:\n  - name: red\n    grants: [{name: g, timeslice: {share: 40%}}]\n"
		theirs = "version: v1\ntenants:\n  - name: blue\n    tasks: 7\n"
	)
	dir := t.TempDir()
	file, dropIn := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "conf.d", "blue.yaml")
	if err := os.Mkdir(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(file, mine)
	write(dropIn, theirs)
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40"})
		w.specFile = file
		w.startDaemon()
		w.waitIdle(nil)
		in := func(generation uint64, tenants string) {
			t.Helper()
			s, names := w.statusNow(), []string{}
			for i := range s.Tenants {
				names = append(names, s.Tenants[i].Name)
			}
			if s.Node.Generation != generation || strings.Join(names, " ") != tenants {
				t.Errorf("generation %d with tenants %q is in force, want %d with %q", s.Node.Generation, names, generation, tenants)
			}
		}
		condition := func() (message string) {
			for _, c := range w.statusNow().Node.Conditions {
				if c.Kind == "spec-file" {
					message = c.Message
				}
			}
			return message
		}
		reload := func() (out api.Reloaded, refusal *api.Error) {
			t.Helper()
			refusal = w.do(http.MethodPost, "/v1/reload", "", &out)
			w.waitIdle(nil)
			return out, refusal
		}
		in(1, "red blue")

		const other = "version: v1\ntenants: [{name: green}]\n"
		if _, _, e := w.apply(
			other, "",
		); e == nil || e.Kind != api.KindConflict || !strings.Contains(e.Message, file+" is its only source") ||
			!strings.Contains(e.Hint, "config reload") {
			t.Errorf("a spec from elsewhere: %+v", e)
		}
		if res, _, e := w.apply(other, "?check=1"); e != nil || !res.Checked {
			t.Errorf("a check of a spec from elsewhere: %+v", e)
		}
		if res, _, e := w.apply(mine, "?force=1"); e != nil || res.Generation != 1 {
			t.Errorf("the file itself: %+v, %+v", res, e)
		}
		if out, e := reload(); e != nil || out.Applied == nil || out.Applied.Changed {
			t.Errorf("a reload without a change: %+v, %+v", out, e)
		}
		in(1, "red blue")

		for _, bad := range []struct{ text, says string }{
			{"version: v1\ntenants:\n  - name: red\n", dropIn + `:3:11: tenants[0].name: tenant "red" is in ` + file + " and in " + dropIn + ": remove it from one of the files"},
			{"version: v1\nnode: {enforce: on}\n", dropIn + ":2:1: node: a drop-in has tenants only: write it in " + file},
			{"version: v1\ngpus: []\ngpu: []\n", dropIn + ":3:1: gpu: unknown key"},
			{"version: v1\ntenants:\n  - name: blue\n    tasks: 0\n", dropIn + ":4:12: tenants[0].tasks: 0 tasks"},
		} {
			write(dropIn, bad.text)
			_, e := reload()
			if e == nil || e.Kind != api.KindInvalid || !strings.HasPrefix(e.Message, bad.says) ||
				!strings.Contains(e.Hint, file+" was not applied") {
				t.Errorf("want %q: %+v", bad.says, e)
			}
			if got := condition(); !strings.Contains(got, "the spec in force stays: "+bad.says) {
				t.Errorf("the condition is %q", got)
			}
		}
		in(1, "red blue")

		write(dropIn, strings.Replace(theirs, "7", "9", 1))
		if out, e := reload(); e != nil || out.Applied == nil || !out.Applied.Changed || condition() != "" {
			t.Errorf("a changed drop-in: %+v, %+v, condition %q", out, e, condition())
		}
		in(2, "red blue")

		// A file that was changed while no daemon ran is applied at start; one that was not keeps its generation.
		w.end()
		w.startDaemon()
		w.waitIdle(nil)
		in(2, "red blue")
		w.end()
		if err := os.Remove(dropIn); err != nil {
			t.Fatal(err)
		}
		w.startDaemon()
		w.waitIdle(nil)
		in(3, "red")

		if e := w.do(http.MethodPost, "/v1/unmanage", "", nil); e != nil {
			t.Fatal(e)
		}
		w.waitIdle(nil)
		write(dropIn, theirs)
		if out, e := reload(); e != nil || out.Applied != nil || !strings.Contains(condition(), "root unmanaged the node") {
			t.Errorf("a reload of an unmanaged node: %+v, %+v, condition %q", out, e, condition())
		}
	})
}
