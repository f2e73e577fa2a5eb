package kernellog

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, record string
		want         *Record // nil: not an XID of the kernel
	}{
		{
			"process", "4,1871,80317431,-;NVRM: Xid (PCI:0000:07:00): 31, pid=1234, name=python3.10, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS",
			&Record{PCI: "0000:07:00", XID: 31, PID: 1234, Name: "python3.10"},
		},
		{
			"no known process", "4,1,2,-;NVRM: Xid (PCI:0000:CB:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0)",
			&Record{PCI: "0000:cb:00", XID: 13},
		},
		{"no process", "4,1,2,-;NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus.", &Record{PCI: "0000:07:00", XID: 79}},
		{"nothing after the number", "4,1,2,-;NVRM: Xid (PCI:0000:07:00): 48", &Record{PCI: "0000:07:00", XID: 48}},
		{
			"an instance", "4,1,2,-;NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
			&Record{PCI: "0000:01:00", XID: 94, PID: 7194, GI: new(uint32(5))},
		},
		{
			"a compute instance", "4,1,2,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception",
			&Record{PCI: "0000:3b:00", XID: 13, PID: 9, Name: "a", GI: new(uint32(1)), CI: new(uint32(2))},
		},
		{"older driver", "4,1,2,-;NVRM: Xid (0000:03:00): 14, Channel 00000001", &Record{PCI: "0000:03:00", XID: 14}},
		{"domain of eight digits", "4,1,2,-;NVRM: Xid (PCI:00000018:01:00): 145, RLW_RXPIPE Nonfatal XC0", &Record{PCI: "0018:01:00", XID: 145}},
		{"long domain", "4,1,2,-;NVRM: Xid (PCI:10000:01:00): 31, pid=5, name=x, Ch", &Record{PCI: "10000:01:00", XID: 31, PID: 5, Name: "x"}},
		{
			"dictionary", "3,5,6,c;NVRM: Xid (PCI:0000:07:00): 43, pid=77, name=train\n SUBSYSTEM=pci\n DEVICE=+pci:0000:07:00.0",
			&Record{PCI: "0000:07:00", XID: 43, PID: 77, Name: "train"},
		},
		{"the name of a process looks like another", "4,1,2,-;NVRM: Xid (PCI:0000:07:00): 43, pid=77, name=a, pid=1, Ch 1", &Record{PCI: "0000:07:00", XID: 43, PID: 77, Name: "a"}},

		{"written by a process", "12,1,2,-;NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus.", nil},
		{"another line of the driver", "6,1,2,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05", nil},
		{"a switch", "4,1,2,-;nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 30", nil},
		{"not at the start", "4,1,2,-;python: NVRM: Xid (PCI:0000:07:00): 79, x", nil},
		{"no prefix", "NVRM: Xid (PCI:0000:07:00): 79, x", nil},
		{"no number", "4,1,2,-;NVRM: Xid (PCI:0000:07:00): many, x", nil},
		{"no address", "4,1,2,-;NVRM: Xid (): 79, x", nil},
		{"bad address", "4,1,2,-;NVRM: Xid (PCI:0000:0g:00): 79, x", nil},
		{"with function", "4,1,2,-;NVRM: Xid (PCI:0000:07:00.0): 79, x", nil},
		{"empty", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := Parse(c.record)
			if ok != (c.want != nil) {
				t.Fatalf("an XID: %v", ok)
			}
			if c.want != nil {
				if diff := cmp.Diff(*c.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

// FuzzParse reads random bytes as records: what is accepted is a well-formed address and comes from the kernel.
func FuzzParse(f *testing.F) {
	f.Add("4,1871,80317431,-;NVRM: Xid (PCI:0000:07:00 GPU-I:05): 31, pid=1234, name=python, Ch 8")
	f.Add("4,1,2,-;NVRM: Xid (0000:03:00): 14, pid='<unknown>', name=<unknown>")
	f.Add("12,1,2,-;NVRM: Xid (PCI:0000:07:00): 79")
	f.Fuzz(func(t *testing.T, record string) {
		r, ok := Parse(record)
		if !ok {
			if r.PCI != "" || r.XID != 0 || r.PID != 0 {
				t.Errorf("%q was refused and has %+v", record, r)
			}
			return
		}
		parts := strings.Split(r.PCI, ":")
		if len(parts) != 3 || len(parts[0]) < 4 || r.PCI != strings.ToLower(r.PCI) {
			t.Errorf("address %q", r.PCI)
		}
		if r.PID < 0 || r.PID == 0 && r.Name != "" {
			t.Errorf("process %d %q", r.PID, r.Name)
		}
		if priority := record[:strings.IndexAny(record, ",;")]; len(strings.TrimLeft(priority, "0")) > 1 {
			t.Errorf("%q is not from the kernel", record)
		}
	})
}

// FuzzGrown reads random bytes as a log that is a file: what is reported is in a line that is no longer than a record.
func FuzzGrown(f *testing.F) {
	f.Add([]byte("4,1,2,-;NVRM: Xid (PCI:0000:07:00): 79\n4,1,2,-;NVRM: Xid"))
	f.Add(append(bytes.Repeat([]byte("x"), 2*maxRecord), "\n4,1,2,-;NVRM: Xid (PCI:0000:07:00): 79\n"...))
	name := filepath.Join(f.TempDir(), "kmsg")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		got, want := 0, 0
		g := &grown{path: name, file: &file, f: func(Record) { got++ }}
		if err := g.lines(); err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			if text, whole := bytes.CutSuffix(line, []byte("\n")); whole && len(line) <= maxRecord {
				if _, ok := Parse(string(text)); ok {
					want++
				}
			}
		}
		if got != want || len(g.rest) > maxRecord {
			t.Errorf("%d of %d records, %d bytes kept", got, want, len(g.rest))
		}
	})
}
