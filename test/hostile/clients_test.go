package hostile

import (
	"os"
	"strings"
	"testing"
)

// Each client says what it does and which promise it attacks, and runs in a virtual machine or says why not.
func TestClients(t *testing.T) {
	b, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	promises := strings.Join(strings.Fields(string(b)), " ")
	known := map[string]bool{}
	for _, c := range Clients {
		if known[c.Name] || c.Name == "" || strings.ContainsAny(c.Name, " \n") || c.Does == "" || c.run == nil {
			t.Errorf("%+v: a name of one word that no other has, what it does, and a function", c)
		}
		known[c.Name] = true
		if c.Attacks == "" || !strings.Contains(promises, c.Attacks) {
			t.Errorf("%s attacks %q, which docs/security.md does not promise", c.Name, c.Attacks)
		}
		if (c.Machine > 0) != (c.Why == "") {
			t.Errorf("%s: it runs in a virtual machine, or says why not", c.Name)
		}
	}
	for _, line := range Lines() {
		if f := strings.Fields(line); len(f) != 4 || f[0] != "process" && f[0] != "socket" || f[3] != "any" && f[3] != "member" {
			t.Errorf("a line for a virtual machine is %q", line)
		}
	}
}
