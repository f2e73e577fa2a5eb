package documents

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/client"
)

// A walk finds what differs from a page, names its line, and goes on; a preparation that fails ends it.
func TestWalk(t *testing.T) {
	const text = "<!-- file: f -->\n```yaml\nk: v\n```\n" +
		"<!-- first: test $READER = alice -->\n<!-- reader: alice -->\n```console\n$ echo a; echo b\na\n…\n$ echo c\nd\n$ false\n$ gone\n$ echo LEASE\n```\n" +
		"<!-- not run: why -->\n```console\n$ echo e\n```\n" +
		"<!-- first: exit 3 -->\n```console\n$ echo f\n```\n"
	p, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	written := ""
	shell := func(ctx context.Context, reader, text string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "sh", "-c", text)
		cmd.Env = []string{"READER=" + reader}
		return cmd
	}
	h := Host{
		Client: &client.Client{Socket: t.TempDir() + "/none"}, Prepare: shell, Type: shell, Deadline: 10 * time.Second,
		Write: func(_, name, text string) error { written = name + " " + text; return nil },
		Runs:  func(b *Block) bool { return b.Place == Everywhere },
		Lack: func(s *Step) string {
			if s.Text == "gone" {
				return "this host has no gone"
			}
			return ""
		},
	}
	w := h.Walk(t.Context(), "p.md", &p)
	if written != "f k: v\n" || w.Ran != 4 || len(w.LeftOut) != 1 ||
		!strings.Contains(w.LeftOut[0], "p.md:14: gone: this host has no gone") {
		t.Errorf("wrote %q, walked %+v", written, w)
	}
	want := []string{
		"p.md:11: echo c\nthe page has \"d\"",
		"p.md:13: false\nexits with 1",
		"p.md:15: echo LEASE\nexits with -1, the page says 0:\nthere is no lease",
		"p.md:22: the preparation \"exit 3\" exits with 3",
	}
	if len(w.Wrong) != len(want) {
		t.Fatalf("found %q", w.Wrong)
	}
	for i := range want {
		if !strings.HasPrefix(w.Wrong[i], want[i]) {
			t.Errorf("found %q, want %q", w.Wrong[i], want[i])
		}
	}
}
