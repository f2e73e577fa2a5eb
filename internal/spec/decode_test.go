package spec_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/test/golden"
)

func files(t *testing.T, patterns ...string) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	for _, p := range patterns {
		names, _ := filepath.Glob(p)
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil {
				t.Fatal(err)
			}
			found[n] = b
		}
	}
	if len(found) == 0 {
		t.Fatalf("there are no files like %v", patterns)
	}
	return found
}

func TestDecodeValid(t *testing.T) {
	for file, text := range files(t, "../../testdata/configs/valid/*.yaml", "../../examples/*.yaml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			s, err := spec.Decode(file, text)
			if err != nil {
				t.Fatal(err)
			}
			canonical, err := spec.Encode(s)
			if err != nil {
				t.Fatal(err)
			}
			again, err := spec.Decode("canonical", canonical)
			if err != nil {
				t.Fatalf("the canonical text is refused: %v\n%s", err, canonical)
			}
			object, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			same, err := spec.Decode("object", object)
			if err != nil {
				t.Fatalf("the object is refused: %v\n%s", err, object)
			}
			if text, err := spec.Encode(same); err != nil || string(text) != string(canonical) {
				t.Errorf("as an object it is another spec: %v\n%s\n%s", err, object, text)
			}
			s.Normalize()
			once, err := spec.Encode(s)
			if err != nil {
				t.Fatal(err)
			}
			again.Normalize()
			again.Normalize()
			if d := cmp.Diff(s, again); d != "" {
				t.Errorf("the canonical text means something else:\n%s", d)
			}
			if _, err := spec.Decode("normalized", once); err != nil {
				t.Errorf("the text with defaults is refused: %v\n%s", err, once)
			}
			if strings.Contains(file, "configs") {
				golden.File(t, strings.TrimSuffix(file, ".yaml")+".canonical", string(canonical))
			}
		})
	}
}

func TestDecodeInvalid(t *testing.T) {
	for file, text := range files(t, "../../testdata/configs/invalid/*.yaml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			s, err := spec.Decode(filepath.Base(file), text)
			if s != nil || err == nil {
				t.Fatalf("was accepted: %+v", s)
			}
			refusal, ok := errors.AsType[*api.Error](err)
			if !ok || refusal.Kind != api.KindInvalid || len(refusal.Fields) == 0 {
				t.Fatalf("the error is %T %[1]v", err)
			}
			golden.File(t, strings.TrimSuffix(file, ".yaml")+".want", api.FieldErrors(refusal.Fields).Error()+"\n")
		})
	}
}

func TestDecodeTooLarge(t *testing.T) {
	text := "version: v1\n#" + strings.Repeat("x", spec.MaxSize)
	if _, err := spec.Decode("big", []byte(text)); err == nil || !strings.Contains(err.Error(), "1 MiB") {
		t.Errorf("more than a mebibyte gives %v", err)
	}
	if _, err := spec.Decode("just fits", []byte(text[:spec.MaxSize])); err != nil {
		t.Errorf("a mebibyte gives %v", err)
	}
}

func TestDecodeBoundsFindings(t *testing.T) {
	_, err := spec.Decode("f", []byte("version: v1\ngpus: ["+strings.Repeat("1,", 5000)+"]"))
	refusal, ok := errors.AsType[*api.Error](err)
	if !ok || len(refusal.Fields) != 100 || !strings.Contains(refusal.Message, "and 4999 more mistakes") {
		t.Errorf("5000 mistakes give %d findings and %q", len(refusal.Fields), refusal.Message)
	}
}

func TestCheckReserved(t *testing.T) {
	text := func(entries, a, b string) []byte {
		return []byte(
			"version: v1\ngpus: [" + entries + "]\ntenants:\n  - name: t\n    grants:\n      - {name: a, reserved: true, " + a + "}\n      - {name: b, reserved: true, " + b + "}\n",
		)
	}
	const entry = "{select: {index: [3, 4]}, mode: timeslice}"
	share := func(percent, gpus string) string { return "timeslice: {share: " + percent + "}, gpus: {" + gpus + "}" }
	for name, c := range map[string]struct{ entries, a, b, want string }{
		"one GPU": {
			entry, share("80%", "index: 4"), share("80%", "index: 4"),
			"f:7:54: tenants[0].grants[1].timeslice.share: the reserved grants on GPU 4 need 160% together; it has 100% (t/a 80%, t/b 80%): grant less, reserve fewer grants, or write overcommit: true for that GPU",
		},
		"they fit":                      {entry, share("80%", "index: 4"), share("20%", "index: [4]"), ""},
		"two GPUs":                      {entry, share("80%", "index: 3"), share("80%", "index: 4"), ""},
		"one may use another GPU":       {entry, share("80%", "index: [3, 4]"), share("80%", "index: 4"), ""},
		"overcommit":                    {"{select: {index: 4}, mode: timeslice, overcommit: true}", share("80%", "index: 4"), share("80%", "index: 4"), ""},
		"overcommit of another GPU":     {entry + ", {select: {index: 5}, mode: timeslice, overcommit: true}", share("80%", "index: 4"), share("80%", "index: 4"), "160%"},
		"overcommit of a GPU by a UUID": {entry + ", {select: {uuid: GPU-x}, mode: timeslice, overcommit: true}", share("80%", "index: 4"), share("80%", "index: 4"), ""},
		"latency: low, more than it may have": {
			entry, share("50%", "index: 4") + ", latency: low", share("40%", "index: 4") + ", latency: low",
			"f:7:54: tenants[0].grants[1].timeslice.share: the reserved grants with latency: low on GPU 4 need 90% together, and may have 80% (t/a 50%, t/b 40%)",
		},
		"latency: low, with overcommit": {
			"{select: {index: 4}, mode: timeslice, overcommit: true}", share("50%", "index: 4") + ", latency: low",
			share("40%", "index: 4") + ", latency: low", "need 90% together",
		},
		"latency: low, and it fits":     {entry, share("40%", "index: 4") + ", latency: low", share("40%", "index: 4") + ", latency: low", ""},
		"latency: low next to training": {entry, share("50%", "index: 4") + ", latency: low", share("50%", "index: 4"), ""},
		"one address in two spellings": {
			"{select: {pci: '0a:00.0'}, mode: mps}", "mps: {share: 60%}, gpus: {pci: '0A:00.0'}", "mps: {share: 50%}, gpus: {pci: '0000:0a:00.0'}",
			"tenants[0].grants[1].mps.share: the reserved grants on GPU 0000:0a:00.0 need 110%",
		},
	} {
		t.Run(name, func(t *testing.T) {
			document := text(c.entries, c.a, c.b)
			s, err := spec.Decode("f", document)
			if err != nil {
				t.Fatal(err)
			}
			err = spec.CheckReserved("f", document, s)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestLocate(t *testing.T) {
	text := []byte("version: v1\ngpus:\n  - select: {index: 3}\n    mode: exclusive\n")
	got := spec.Locate(
		"node.yaml", text, api.FieldErrors{{Path: "gpus[0].select.index"}, {Path: "gpus[0].mig.layout[2]"}, {Path: "tenants[4]"}},
	)
	want := api.FieldErrors{
		{File: "node.yaml", Line: 3, Column: 21, Path: "gpus[0].select.index"},
		{File: "node.yaml", Line: 3, Column: 5, Path: "gpus[0].mig.layout[2]"},
		{File: "node.yaml", Line: 1, Column: 1, Path: "tenants[4]"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func FuzzDecode(f *testing.F) {
	for _, text := range files(&testing.T{}, "../../testdata/configs/*/*.yaml", "../../examples/*.yaml") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := spec.Decode("f", text)
		if err != nil {
			if refusal, ok := errors.AsType[*api.Error](err); !ok || len(refusal.Fields) == 0 || s != nil {
				t.Fatalf("refused with %T %[1]v", err)
			}
			return
		}
		canonical, err := spec.Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := spec.Decode("canonical", canonical)
		if err != nil {
			t.Fatalf("%v\n%s", err, canonical)
		}
		twice, _ := spec.Encode(again)
		if string(canonical) != string(twice) {
			t.Fatalf("the canonical text changes:\n%s\n%s", canonical, twice)
		}
		s.Normalize()
		if bad := s.Validate(); bad != nil {
			t.Fatalf("the defaults are invalid: %v", bad)
		}
	})
}
