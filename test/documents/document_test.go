package documents

import "testing"

func TestParse(t *testing.T) {
	p, err := Parse("a\n<!-- node: x.yaml -->\n<!-- first: true -->\n```console\n$ a\nb …\n…\n[exit code 3]\n# c\n```\n" +
		"<!-- reader: alice -->\n\nb\n\n<!-- real host: why -->\n```console\n$ d\n```\n<!-- file: n.yaml -->\n```yaml\nk: v\n```\n" +
		"<!-- run by: . TestParse -->\n```console\n$ e\n```\n<!-- not run: reason -->\n```sh\nf\n```\n")
	if err != nil {
		t.Fatal(err)
	}
	if p.Node != "x.yaml" || len(p.Blocks) != 5 || len(p.Blocks[0].Commands) != 2 {
		t.Fatalf("read %+v", p)
	}
	a, c := &p.Blocks[0].Commands[0], p.Blocks[0].Commands[1]
	if p.Blocks[0].First[0] != "true" || a.Text != "a" || a.Code != 3 || c.Text != "c" || c.Code != 0 || p.Blocks[2].Text != "k: v\n" {
		t.Errorf("read %+v", p)
	}
	for i, want := range []Block{
		{Place: Everywhere},
		{Place: RealHost, Why: "why", Reader: "alice"},
		{File: "n.yaml", Reader: "alice"},
		{Place: RunBy, Why: ". TestParse", Reader: "alice"},
		{Place: NotRun, Why: "reason", Reader: "alice"},
	} {
		if b := p.Blocks[i]; b.Place != want.Place || b.Why != want.Why || b.Reader != want.Reader || b.File != want.File {
			t.Errorf("block %d: read %+v, want %+v", i+1, b, want)
		}
	}
	for output, same := range map[string]bool{"b 1\n": true, "b 1\nmore\n": true, "c 1\n": false, "": false} {
		if got := a.Difference(output) == ""; got != same {
			t.Errorf("%q is as documented: %v", output, got)
		}
	}
	if (&Step{Output: []string{"b"}}).Difference("b\nc\n") == "" {
		t.Error("a line that is not documented is not noticed")
	}
	if _, err := Parse("```console\noutput\n```\n"); err == nil {
		t.Error("output without a command is accepted")
	}
}
