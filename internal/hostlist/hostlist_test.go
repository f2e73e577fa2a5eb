package hostlist_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/hostlist"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want string // with spaces between the names
		err  string
	}{
		{"gpu1", "gpu1", ""},
		{"a,b, c", "a b c", ""},
		{"a,b,a", "a b", ""},
		{"alice@gpu1.example.org,fe80::1%eth0", "alice@gpu1.example.org fe80::1%eth0", ""},
		{"node[01-03,10]", "node01 node02 node03 node10", ""},
		{"node[9-11]x", "node9x node10x node11x", ""},
		{"r[1-2]n[08-09],login", "r1n08 r1n09 r2n08 r2n09 login", ""},
		{"node[7]", "node7", ""},
		{"", "", "a name is empty"},
		{"a,,b", "", "a name is empty"},
		{"-oProxyCommand=id", "", "begins with -"},
		{"root@-oProxyCommand", "", "begins with -"},
		{"-[1-2]", "", "begins with -"},
		{"@gpu1", "", "names no host"},
		{"root@", "", "names no host"},
		{"a@b@c", "", "two @"},
		{"a b", "", "a character that no name of a host has"},
		{"a;id", "", "a character that no name of a host has"},
		{"gpu\x1b[2J", "", "a bracket without the other one"},
		{"gpu\x1b1", "", "a character that no name of a host has"},
		{"gpü", "", "a character that no name of a host has"},
		{"node[1-2", "", "a bracket without the other one"},
		{"node1-2]", "", "a bracket without the other one"},
		{"node[1-[2]]", "", "a bracket without the other one"},
		{"node[]", "", "no list of numbers"},
		{"node[a-c]", "", "no list of numbers"},
		{"node[1-2-3]", "", "no list of numbers"},
		{"node[-1]", "", "no list of numbers"},
		{"node[3-1]", "", "ends before it begins"},
		{"node[1-4096]", "-", ""},
		{"node[1-4097]", "", "more than 4096 hosts"},
		{"node[0-999999999]", "", "more than 4096 hosts"},
		{"node[0-9999999999]", "", "no list of numbers"},
		{"a[1-99]b[1-99]", "", "more than 4096 hosts"},
		{"node[1-4096],more", "", "more than 4096 hosts"},
		{"node[1-4096],node1", "", "more than 4096 hosts"},
		{strings.Repeat("a", 255), strings.Repeat("a", 255), ""},
		{strings.Repeat("a", 256), "", "more than 255 characters"},
	} {
		got, err := hostlist.Parse(c.text)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) || got != nil {
				t.Errorf("%q: %q, %v; want %q", c.text, got, err, c.err)
			}
		case err != nil:
			t.Errorf("%q: %v", c.text, err)
		case c.want == "-":
			if len(got) != 4096 || got[4095] != "node4096" {
				t.Errorf("%q: %d names", c.text, len(got))
			}
		case strings.Join(got, " ") != c.want:
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

func TestParseFile(t *testing.T) {
	t.Parallel()
	got, err := hostlist.ParseFile("# the lab\n\ngpu[1-2] # new\r\n  login, gpu1\n")
	if err != nil || strings.Join(got, " ") != "gpu1 gpu2 login" {
		t.Errorf("%q, %v", got, err)
	}
	for text, want := range map[string]string{
		"":                      "names no host",
		"# none\n":              "names no host",
		"a\n-b\n":               "line 2: ",
		"@other\n":              "line 1: ",
		"a[1-4096]\n\nb[1-2]\n": "line 3: it names more than 4096 hosts",
	} {
		if got, err := hostlist.ParseFile(text); err == nil || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

// FuzzParse: what is accepted is bounded, has each name once, and no name is an option or has a character that a shell or a terminal reads.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a,b", "node[01-16,20]", "r[1-2]n[1-2]", "u@h", "-o", "a[1-4097]", "[]", "a[1-2]b[", "fe80::1%eth0", "a\n#b\nc"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, parse := range map[string]func(string) ([]string, error){"Parse": hostlist.Parse, "ParseFile": hostlist.ParseFile} {
			names, err := parse(text)
			if (err == nil) != (len(names) > 0) || len(names) > hostlist.MaxHosts {
				t.Fatalf("%s: %d names, %v", name, len(names), err)
			}
			for _, n := range names {
				_, host, isUser := strings.Cut(n, "@")
				if n == "" || len(n) > 255 || n[0] == '-' || isUser && (host == "" || host[0] == '-') ||
					strings.ContainsFunc(
						n,
						func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("'\"`$&;|<>()[]{}\\*?!#,=~", r) },
					) {
					t.Fatalf("%s takes %q", name, n)
				}
				again, err := hostlist.Parse(n)
				if err != nil || !slices.Equal(again, []string{n}) {
					t.Fatalf("%s gives %q, which is read as %q, %v", name, n, again, err)
				}
			}
			slices.Sort(names)
			if len(slices.Compact(names)) != len(names) {
				t.Fatal("a name is there twice")
			}
		}
	})
}
