package lease

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpushare/gpushare/api"
)

func TestShortCommand(t *testing.T) {
	long := strings.Repeat("ä", 1<<19)
	for name, c := range map[string]struct {
		argv []string
		most int
		want string // joined with a bar; empty: only the size matters
	}{
		"short":          {[]string{"python", "train.py"}, 100, "python|train.py"},
		"exactly":        {[]string{"python", "train.py"}, 16, "python|train.py"},
		"one too many":   {[]string{"python", "train.py", strings.Repeat("x", 20)}, 36, "python|train.py|… (cut, 37 bytes)"},
		"long":           {[]string{"sh", "-c", long}, MaxKept, ""},
		"many":           {strings.Split(strings.Repeat("x ", 1<<19), " "), MaxKept, ""},
		"empty ones":     {make([]string, 1<<20), MaxKept, ""},
		"no command":     {nil, 10, ""},
		"first too long": {[]string{long}, 200, ""},
	} {
		got := ShortCommand(c.argv, c.most)
		text := strings.Join(got, "|")
		if c.want != "" && text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
		if len(text) > c.most || len(got) > maxKeptArguments || !utf8.ValidString(text) {
			t.Errorf("%s: %d bytes, %d arguments", name, len(text), len(got))
		}
		if cut := len(strings.Join(c.argv, " ")) >= c.most; cut != strings.Contains(text, "… (cut, ") {
			t.Errorf("%s: %q does not say whether it was cut", name, text)
		}
	}
}

// A caller decides how long a command is and how often they call: neither is kept without a limit, nor written.
func TestAUserCannotFillTheTable(t *testing.T) {
	tab, _ := table(t, View{Generation: 1, GPUs: []GPUView{device(0, api.ModeTimeslice)}, Grants: []Grant{timeslice("red", "part", 1, 0)}})
	command := []string{"python", strings.Repeat("x", 1<<20)}
	submit := func(uid int, admin bool) error {
		_, err := tab.Submit(Request{Tenant: "red", Member: []string{"red"}, User: "alice", UID: uid, Admin: admin, Command: command})
		return err
	}
	for i := range maxPerUser {
		if err := submit(1001, false); err != nil {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
	var e *api.Error
	if err := submit(1001, false); !errors.As(err, &e) || e.Kind != api.KindUnavailable || e.Hint == "" || !strings.Contains(e.Message, "alice has 128 leases") {
		t.Errorf("one more returned %v", err)
	}
	for _, other := range []struct {
		uid   int
		admin bool
	}{{1002, false}, {1001, true}} {
		if err := submit(other.uid, other.admin); err != nil {
			t.Errorf("%+v: %v", other, err)
		}
	}
	b, err := tab.State()
	if most := (maxPerUser + 2) * (MaxKept + 1<<10); err != nil || len(b) > most {
		t.Errorf("%d bytes are written, want at most %d: %v", len(b), most, err)
	}
	for _, l := range tab.List() {
		if len(strings.Join(l.Command, " ")) > MaxKept || l.Command[0] != "python" || !strings.HasSuffix(l.Command[1], "… (cut, 1048584 bytes)") {
			t.Fatalf("the command is %.100q", l.Command)
		}
	}
}
