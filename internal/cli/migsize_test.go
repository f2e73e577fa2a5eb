package cli_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/test/enumeration"
)

// largeQuestions are questions of nearly 1 MiB for a board, by their shape.
func largeQuestions(b *board.Board) map[string]string {
	const size = 1<<20 - 200 // bytes, with the rest of the line
	var names []string
	for _, q := range b.GPUProfiles().GI {
		names = append(names, q.Name)
		for sub := uint32(1); 2*sub <= q.Slices+1 && sub < q.Slices; sub++ {
			names = append(names, fmt.Sprintf("%dc.%s", sub, q.Name))
		}
	}
	fill := func(item func(i int) string) string {
		var s strings.Builder
		for i := 0; ; i++ {
			next := item(i)
			if i > 0 {
				next = "," + next
			}
			if s.Len()+len(next) > size {
				return s.String()
			}
			s.WriteString(next)
		}
	}
	small := names[len(names)-1]
	return map[string]string{
		"one profile":        fill(func(int) string { return small }),
		"every profile":      fill(func(i int) string { return names[i%len(names)] }),
		"counted":            fill(func(i int) string { return names[i%len(names)] + "*64" }),
		"too large a count":  small + "*100000," + fill(func(int) string { return small }),
		"placements":         fill(func(i int) string { return fmt.Sprintf("%s@%d", names[i%len(names)], i/len(names)%65536) }),
		"a long name":        small + strings.Repeat("+me", size/3),
		"long names":         fill(func(i int) string { return small + strings.Repeat("+me", i) }),
		"unknown profiles":   fill(func(i int) string { return fmt.Sprintf("%dg.%dgb", i%9+1, i+1) }),
		"unknown attributes": fill(func(i int) string { return fmt.Sprintf("1g.5gb+x%d", i) }),
		"nothing":            strings.Repeat(",", size),
	}
}

// line is one line of a batch.
func line(b *board.Board, want string) string {
	raw, err := json.Marshal(map[string]any{"model": b.Short, "have": "", "want": want})
	if err != nil {
		panic(err)
	}
	return string(raw) + "\n"
}

// A question of 1 MiB has a short answer on every board, whatever its shape; the search for it is bounded by TestPlanIsBounded.
func TestLargeQuestions(t *testing.T) {
	all, err := board.All()
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range all {
		n := 0
		questions := largeQuestions(b)
		for name, want := range questions {
			if n++; enumeration.Sampled() && (n+i)%len(questions) != 0 { // One shape for each board.
				continue
			}
			r := run(t, nil, line(b, want), "mig", "plan", "--offline", "--batch", "-")
			var out struct {
				Feasible bool
				Reason   string
				Nearest  []string
				Error    *api.Error
			}
			if err := json.Unmarshal([]byte(r.out), &out); err != nil || len(r.out) > 5000 ||
				out.Feasible && name != "a long name" || // It is one +me, named many times.
				!out.Feasible && out.Reason == "" && out.Error == nil {
				t.Errorf("%s, %s: %v: exit code %d, %.500s %.500s", b.Short, name, err, r.code, r.out, r.err)
			}
		}
	}
}

// BenchmarkLargeQuestions is the duration of an answer to a question of 1 MiB.
func BenchmarkLargeQuestions(b *testing.B) {
	all, err := board.All()
	if err != nil {
		b.Fatal(err)
	}
	for _, x := range all {
		for name, want := range largeQuestions(x) {
			text := line(x, want)
			b.Run(x.Short+"/"+name, func(b *testing.B) {
				for b.Loop() {
					run(b, nil, text, "mig", "plan", "--offline", "--batch", "-")
				}
			})
		}
	}
}
