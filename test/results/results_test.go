package results

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const p = `"Package":"github.com/gpushare/gpushare/quota"`

// Of what passes only the line of the package is printed; of what fails, all that it and its subtests said. Other lines stay.
func TestRead(t *testing.T) {
	in := strings.Join([]string{
		"make: text\n" + `{"Action":"start",` + p + `}`,
		`{"Action":"output",` + p + `,"Test":"TestA","Output":"=== RUN   TestA\n"}`,
		`{"Action":"output",` + p + `,"Test":"TestA","Output":"    a_test.go:1: said by A\n"}`,
		`{"Action":"pass",` + p + `,"Test":"TestA","Elapsed":1.5}`,
		`{"Action":"output",` + p + `,"Test":"TestB/case","Output":"    b_test.go:1: said by a case\n"}`,
		`{"Action":"fail",` + p + `,"Test":"TestB/case","Elapsed":9}`,
		`{"Action":"output",` + p + `,"Test":"TestB","Output":"--- FAIL: TestB (2.00s)\n"}`,
		`{"Action":"fail",` + p + `,"Test":"TestB","Elapsed":2}`,
		`{"Action":"output",` + p + `,"Test":"TestC","Output":"panic: it did not end\n"}`,
		`{"Action":"output",` + p + `,"Output":"FAIL\n"}`,
		`{"Action":"output",` + p + `,"Output":"FAIL\tgithub.com/gpushare/gpushare/quota\t3.6s\n"}`,
		`{"Action":"fail",` + p + `,"Elapsed":3.6}`,
		`{"Action":"output","Package":"x.org/y","Output":"ok  \tx.org/y\t0.1s\n"}`,
		`{"Action":"pass","Package":"x.org/y","Elapsed":0.1}`,
		`{"Action":"build-output","ImportPath":"z","Output":"z.go:1: undefined: q\n"}`,
		"--- PASS: TestOfText (70.25s)",
		"    --- PASS: TestOfText/case (70.00s)",
		"",
	}, "\n")
	var out strings.Builder
	tests, err := Read(strings.NewReader(in), &out)
	if err != nil {
		t.Fatal(err)
	}
	want := []Test{
		{Package: "./quota", Name: "TestA", Result: "pass", Seconds: 1.5},
		{
			Package: "./quota",
			Name:    "TestB",
			Result:  "fail",
			Seconds: 2,
			Output:  "    b_test.go:1: said by a case\n--- FAIL: TestB (2.00s)\n",
		},
		{Package: "./quota", Result: "fail", Seconds: 3.6, Output: "FAIL\nFAIL\tgithub.com/gpushare/gpushare/quota\t3.6s\n"},
		{Package: "x.org/y", Result: "pass", Seconds: 0.1},
		{Name: "TestOfText", Result: "pass", Seconds: 70.25},
	}
	if d := cmp.Diff(want, tests); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	const text = "make: text\n    b_test.go:1: said by a case\n--- FAIL: TestB (2.00s)\npanic: it did not end\n" +
		"FAIL\nFAIL\tgithub.com/gpushare/gpushare/quota\t3.6s\nok  \tx.org/y\t0.1s\nz.go:1: undefined: q\n" +
		"--- PASS: TestOfText (70.25s)\n    --- PASS: TestOfText/case (70.00s)\n"
	if d := cmp.Diff(text, out.String()); d != "" {
		t.Errorf("printed (-want +got):\n%s", d)
	}
	var names []string
	for _, s := range Slowest(tests, 2) {
		names = append(names, s.Name)
	}
	if d := cmp.Diff([]string{"TestOfText", "TestB"}, names); d != "" {
		t.Errorf("the slowest (-want +got):\n%s", d)
	}
}
