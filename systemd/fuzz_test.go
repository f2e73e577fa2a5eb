package systemd

import (
	"encoding/json"
	"strings"
	"testing"
)

// Users name units of their managers, and administrators those of the system: a name that is taken for one of gpushare's is the
// one that gpushare gives.
func FuzzUnitNames(f *testing.F) {
	for _, name := range []string{"gpushare.slice", "gpushare-red.slice", `gpushare-red\x2dteam-part.slice`, "gpushare-red-part-1.scope", `gpushare-\x72ed.slice`, `gpushare-r\x2.slice`} {
		f.Add("gpushare", name)
	}
	f.Fuzz(func(t *testing.T, prefix, unit string) {
		if n, ok := sliceOf(prefix, unit); ok && sliceUnit(prefix, n) != unit {
			t.Errorf("%q is taken for the slice of %+v, which is %q", unit, n, sliceUnit(prefix, n))
		}
		if id, ok := scopeOf(prefix, unit); ok && scopeUnit(prefix, id) != unit {
			t.Errorf("%q is taken for the scope of %q", unit, id)
		}
		if id, ok := programOf(prefix, unit); ok && programUnit(prefix, id) != unit {
			t.Errorf("%q is taken for the program of %q", unit, id)
		}
		if s, err := unescape(escape(unit)); err != nil || s != unit {
			t.Errorf("%q is escaped as %q and read as %q, %v", unit, escape(unit), s, err)
		}
	})
}

// Programs of users write any bytes to the journal, which journalctl prints as JSON.
func FuzzJournalLine(f *testing.F) {
	f.Add([]byte(`{"__CURSOR":"s=1","MESSAGE":"text"}`))
	f.Add([]byte(`{"__CURSOR":"s=1","MESSAGE":[104,105,255]}`))
	f.Add([]byte(`{"__CURSOR":"s=1","MESSAGE":null}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r := &journalReader{each: func(e entry) error {
			if !strings.HasSuffix(e.line, "\n") || !json.Valid(line) {
				t.Errorf("%+v of %q", e, line)
			}
			return nil
		}}
		r.line(line)
	})
}
