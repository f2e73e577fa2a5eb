package vm

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReadReport(t *testing.T) {
	for _, c := range []struct {
		name string
		in   string
		want Report
		err  string
	}{
		{
			name: "all kinds of results",
			in: "plan a b c d\nnote systemd 257\nrun a\nok a 1.5\nrun b\nfail b memory.max is 'max', want '1'\r\nlog b line  two\n" +
				"run c\nskip c no such thing here\nrun d\nok d 0.0\ndone\n",
			want: Report{
				Outcomes: []Outcome{
					{Name: "a", State: Passed, Duration: 1500 * time.Millisecond},
					{Name: "b", State: Failed, Why: "memory.max is 'max', want '1'", Log: []string{"line  two"}},
					{Name: "c", State: Skipped, Why: "no such thing here"},
					{Name: "d", State: Passed},
				},
				Notes: []string{"systemd 257"},
				Done:  true,
			},
		},
		{
			name: "the guest crashes in the middle",
			in:   "plan a b\nrun a\n",
			want: Report{Outcomes: []Outcome{
				{Name: "a", State: Unfinished, Why: "the guest ended in the middle of it"},
				{Name: "b", State: Unfinished, Why: "the guest ended before it"},
			}},
		},
		{name: "the guest has no output", in: "", want: Report{}},
		{name: "an unannounced check", in: "plan a\nok b 1\n", err: `"ok b 1" is not about an announced check`},
		{name: "noise on the port", in: "plan a\nhello a\n", err: `unknown line "hello a"`},
		{name: "no time", in: "plan a\nok a\n", err: `"ok a" has no time`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var each []string
			got, err := ReadReport(strings.NewReader(c.in), func(line string) { each = append(each, line) })
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want one with %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("report (-want +got):\n%s", d)
			}
			if n := strings.Count(c.in, "\n"); len(each) != n {
				t.Errorf("got %d lines of %d", len(each), n)
			}
		})
	}
}
