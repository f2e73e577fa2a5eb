package mps

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
)

const gpuA = gpu.UUID("GPU-0123456789ab-4000-8000-0000000000aa")

var deviceA = Whole(gpuA)

func transcript(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParsePIDs(t *testing.T) {
	tests := []struct {
		name, in string
		want     []int
		bad      bool
	}{
		{"none", "", nil, false},
		{"one", "13791\n", []int{13791}, false},
		{"two", "7\n 12 \r\n", []int{7, 12}, false},
		{"an error with rc 0", "Server 12345 not found\n", nil, true},
		{"no pid", "0\n", nil, true},
		{"negative", "-4\n", nil, true},
		{"help text", "Unrecognized option\n\x00\n", nil, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParsePIDs([]byte(test.in))
			if (err != nil) != test.bad || !cmp.Equal(got, test.want) {
				t.Errorf("%v %v", got, err)
			}
		})
	}
}

func TestParseOverview(t *testing.T) {
	tests := []struct {
		name, in string
		want     Overview
		bad      bool
	}{
		{"fresh", "100.0\n", Overview{Threads: 100}, false},
		{"a limit", "33.3\n2G\n", Overview{Threads: 33.3, Memory: "2G"}, false},
		{"a limit and servers", "33.3\n900M\n12\n7\n", Overview{Threads: 33.3, Memory: "900M", Servers: []int{12, 7}}, false},
		{"servers", "0.4\n12\n", Overview{Threads: 0.4, Servers: []int{12}}, false},
		{"nothing", "", Overview{}, true},
		{"an error", "100.0\nServer 0 not found\n", Overview{}, true},
		{"help", "Unrecognized option\n\x00\n", Overview{}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseOverview([]byte(test.in))
			if (err != nil) != test.bad {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(Overview{})); diff != "" {
				t.Errorf("overview (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseServer(t *testing.T) {
	tests := []struct {
		name, in string
		want     ServerReading
		bad      bool
	}{
		{"active", "ACTIVE\n9\n5\n50.0\n2G\n", ServerReading{Clients: []int{5, 9}, Limited: true, Threads: 50, Memory: "2G"}, false},
		{"no memory limit", "ACTIVE\n100.0\n", ServerReading{Limited: true, Threads: 100}, false},
		{"less than a GiB", "ACTIVE\n33.3\n900M\n", ServerReading{Limited: true, Threads: 33.3, Memory: "900M"}, false},
		{"without its limits", "ACTIVE\n7\n", ServerReading{Clients: []int{7}}, false},
		{"busy", "INITIALIZING\n", ServerReading{}, false},
		{"fault", "FAULT\n9\n", ServerReading{Clients: []int{9}, Fault: true}, false},
		{"it has ended", "Server 4 not found\nServer 4 not found\n", ServerReading{}, false},
		{
			"before 550",
			"Unknown command \"get_server_status\"\n7\n100.0\n",
			ServerReading{Clients: []int{7}, NoStatus: true, Limited: true, Threads: 100},
			false,
		},
		{"something else", "Server busy\n", ServerReading{}, true},
		{"no percentage", "1.2.3\n", ServerReading{}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseServer([]byte(test.in))
			if (err != nil) != test.bad {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(ServerReading{})); diff != "" && !test.bad {
				t.Errorf("server (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParsePercent(t *testing.T) {
	for in, want := range map[string]float64{"100.0\n": 100, "33.3\n": 33.3, "0.4": 0.4, "0.0": 0, "": -1, "100.1": -1, "NaN": -1, "-1": -1, "Server 1 not found": -1} {
		if got, err := parsePercent([]byte(in)); err == nil && got != want || (err != nil) != (want < 0) {
			t.Errorf("%q gives %v %v", in, got, err)
		}
	}
}

func TestParseVersion(t *testing.T) {
	tests := map[string]int{"version-580.txt": 13000, "version-595.txt": 13020, "version-535.txt": 0}
	for name, want := range tests {
		if got, err := ParseVersion(transcript(t, name)); got != want || (err != nil) != (want == 0) {
			t.Errorf("%s gives %d %v, want %d", name, got, err, want)
		}
	}
}

func TestFormatMemory(t *testing.T) {
	tests := []struct {
		bytes, total uint64
		want         string
	}{
		{1 << 20, 0, "1M"},
		{1500 << 20, 0, "1500M"},
		{16 << 30, 40 << 30, "16384M"},
		{40 << 30, 40 << 30, "40960M"},
		{0, 0, ""},
		{1<<20 - 1, 0, ""},
		{1<<20 + 1, 0, ""},
		{41 << 30, 40 << 30, ""},
	}
	for _, test := range tests {
		if got, err := FormatMemory(test.bytes, test.total); got != test.want || (err != nil) != (test.want == "") {
			t.Errorf("%d of %d gives %q %v, want %q", test.bytes, test.total, got, err, test.want)
		}
	}
}

// The format is a number and an M, which every version reads correctly.
func TestFormatMemoryIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.Uint64().Draw(t, "bytes")
		s, err := FormatMemory(bytes, 0)
		if err != nil {
			if bytes >= mebibyte && bytes%mebibyte == 0 {
				t.Fatalf("%d is whole MiB and was refused: %v", bytes, err)
			}
			return
		}
		n, err := strconv.ParseUint(strings.TrimSuffix(s, "M"), 10, 64)
		if err != nil || n<<20 != bytes || !strings.HasSuffix(s, "M") {
			t.Fatalf("%d is written as %q", bytes, s)
		}
	})
}

func TestReadBack(t *testing.T) {
	// Observed on 535 … 615: whole G, rounded down, and M below one G.
	for bytes, want := range map[uint64]string{0: "", 900 << 20: "900M", 1500 << 20: "1G", 2 << 30: "2G", 1 << 20: "1M"} {
		if got := readBack(bytes); got != want {
			t.Errorf("%d reads back as %q, want %q", bytes, got, want)
		}
	}
}

func TestEnvironmentOfALease(t *testing.T) {
	tests := []struct {
		name string
		lim  Limits
		want []string
		bad  string
	}{
		{"no limits", Limits{}, []string{"CUDA_MPS_PIPE_DIRECTORY=/run/gpushare/mps/0123456789ab/t"}, ""},
		{"both", Limits{Threads: 30, Memory: 16 << 30, Total: 40 << 30}, []string{
			"CUDA_MPS_PIPE_DIRECTORY=/run/gpushare/mps/0123456789ab/t",
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=16384M",
		}, ""},
		{"more than the GPU has", Limits{Memory: 41 << 30, Total: 40 << 30}, nil, "more than the GPU's"},
		{"half a MiB", Limits{Memory: 3 << 19}, nil, "whole MiB"},
		{"too many threads", Limits{Threads: 101}, nil, "101"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.lim.Environment(deviceA, "/run/gpushare/mps/0123456789ab/t")
			if (err != nil) != (test.bad != "") || (err != nil && !strings.Contains(err.Error(), test.bad)) {
				t.Fatalf("error %v, want %q", err, test.bad)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever the program prints, no parser panics, and parsed values are valid.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"version-580.txt", "version-595.txt", "version-535.txt"} {
		f.Add(transcript(f, name))
	}
	for _, s := range []string{"", "100.0\n", "13791\n", "Server not found\n", "ACTIVE", "Server 1 not found\nServer 1 not found!\n1", "PID\n1\n", "Binary version:"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if pids, err := ParsePIDs(b); err == nil {
			for _, pid := range pids {
				if pid <= 0 {
					t.Errorf("pid %d of %q", pid, b)
				}
			}
		}
		if o, err := ParseOverview(b); err == nil && !(o.Threads >= 0 && o.Threads <= 100) {
			t.Errorf("%+v of %q", o, b)
		}
		if r, err := ParseServer(b); err == nil && (!slices.IsSorted(r.Clients) || !(r.Threads >= 0 && r.Threads <= 100)) {
			t.Errorf("%+v of %q", r, b)
		}
		if p, err := parsePercent(b); err == nil && !(p >= 0 && p <= 100) {
			t.Errorf("%v %% of %q", p, b)
		}
		if v, err := ParseVersion(b); err == nil && v < 1000 {
			t.Errorf("the version %d of %q", v, b)
		}
	})
}
